//! The objects of a CPython process, read from outside: types, sizes as `sys.getsizeof` has them, references.
//!
//! [`interpreter`] finds the lists of the garbage collector by the offsets in [`layout`], and [`mimalloc`] the blocks of builds that
//! have none; [`picture_reader`] follows them and the
//! [`references`] of each object, so that strings and numbers, which the collector does not know, are there too; [`types`]
//! and [`size`] say what an object is and how large, with the [`measures`] of types that have their own; [`addresses`] where
//! objects are, [`block_object`] and [`leaf_contents`] whether one can be where it looks so, and [`contents`] where their items are;
//! [`dictionary`] reads dictionaries, [`greenlets`] frames that no thread has. [`graph`] finds paths to objects and what would go with them, [`labels`] reads how references are called, and [`paths`] calls a path as the program would.
//!
//! Invariant: all of this is read as data that may lie; what cannot be read is counted, and nothing is executed.

#![forbid(unsafe_code)]

mod addresses;
mod block_object;
mod blocks;
mod contents;
mod dictionary;
mod field_names;
mod followed_objects;
mod follower;
mod followers;
mod following;
mod found_holders;
mod found_objects;
mod found_references;
mod frame_references;
mod graph;
mod greenlets;
mod interned;
mod interpreter;
mod label_threads;
mod labels;
mod large_objects;
mod layout;
mod leaf_contents;
mod malloc_chunks;
mod measures;
mod memory;
mod mimalloc;
mod numpy_array;
mod numpy_objects;
mod object_head;
mod outer_holder;
mod outer_references;
mod path_patterns;
mod paths;
mod picture;
mod picture_reader;
mod piece_tree;
mod pool_headers;
mod prefetch;
mod pymalloc;
mod reference_count;
mod references;
mod shared_pieces;
mod side_by_side;
mod size;
mod static_types;
mod type_fields;
mod types;

pub use graph::Holders;
pub use interpreter::PythonRuntime;
pub use paths::HolderPath;
pub use picture::{ListSums, ObjectPicture, TypeSum, encode_picture};
pub use picture_reader::{PictureDetail, ReadingRoom, read_objects};

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// Not a Python program.
    #[error("the process has no CPython interpreter that exports its symbols; only Python programs have objects")]
    NoPython,
    /// The version cannot be found out.
    #[error("the version of the interpreter in {0} cannot be found out: expected a name such as libpython3.9.so")]
    UnknownVersion(String),
    /// No table for it.
    #[error("objects of CPython 3.{0} cannot be read; those of 3.8 to 3.15 can")]
    Version(u8),
    /// Its own table of offsets differs.
    #[error(
        "this build of CPython 3.{0} has its state at other offsets than releases have, so its objects cannot be read"
    )]
    OtherLayout(u8),
    /// Without a global lock, and no table for it.
    #[error("objects of free-threaded builds of CPython 3.{0} cannot be read; those of 3.13 to 3.15 can")]
    FreeThreaded(u8),
}
