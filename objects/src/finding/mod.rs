//! Finds all objects of a process, each once, and what each refers to.
//!
//! [`found_objects`] begins with the collector's lists and the [`blocks`] in use; [`following`] follows references from there, with
//! the threads of [`followers`]. Invariant: each address has one row, however many references lead to it.

pub(crate) mod addresses;
pub(crate) mod blocks;
pub(crate) mod followed_objects;
pub(crate) mod follower;
pub(crate) mod followers;
pub(crate) mod following;
pub(crate) mod found_holders;
pub(crate) mod found_objects;
pub(crate) mod found_references;
pub(crate) mod large_objects;
