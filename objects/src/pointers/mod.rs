//! Pointers to objects that no object has: what C code has in static variables, in blocks of malloc, on its stacks.
//!
//! [`targets`] are the objects for which [`search`] looks in memory; what it finds is sifted by [`explained`]. Invariant: a word that
//! is an object's address is no proof that C code holds the object.

pub(crate) mod explained;
pub(crate) mod function_versions;
pub(crate) mod module_states;
pub(crate) mod search;
pub(crate) mod targets;
