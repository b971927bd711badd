//! What one object is: its type, its own bytes, its count of references, and where it keeps what is in it.
//!
//! Invariant: what is said of an object depends on its own memory and its type's, not on who refers to it.

pub(crate) mod block_object;
pub(crate) mod borrowed_fields;
pub(crate) mod contents;
pub(crate) mod dictionary;
pub(crate) mod greenlets;
pub(crate) mod instance_values;
pub(crate) mod known_fields;
pub(crate) mod leaf_contents;
pub(crate) mod measures;
pub(crate) mod numpy_array;
pub(crate) mod object_head;
pub(crate) mod outer_holder;
pub(crate) mod reached_object;
pub(crate) mod reference_count;
pub(crate) mod size;
pub(crate) mod types;
