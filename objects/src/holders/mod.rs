//! Who holds what: paths from roots to objects, what would go with a type, and what a path is called in the program.
//!
//! Invariant: every object has a path, if only one that says that nothing known holds it.

pub(crate) mod c_holders;
mod c_pointers;
pub(crate) mod field_names;
pub(crate) mod file_name;
pub(crate) mod graph;
pub(crate) mod holder_path;
pub(crate) mod homes;
pub(crate) mod interned;
pub(crate) mod key_text;
pub(crate) mod label_threads;
pub(crate) mod labels;
pub(crate) mod path_patterns;
pub(crate) mod paths;
pub(crate) mod ranks;
pub(crate) mod roots;
