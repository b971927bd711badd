//! The objects of a CPython process, read from outside: types, sizes as `sys.getsizeof` has them, references.
//!
//! In the order of the data: [`memory`] reads the process in pieces. [`interpreter`] finds the runtime by the offsets in its
//! `layout`; [`allocators`] find the blocks in use. [`object`] says what one object is and how large, [`references`] what it
//! refers to, so that strings and numbers, which the collector does not know, are found, too. [`finding`] follows the
//! references of all, and [`picture`] is what is stored of them. [`holders`] finds paths to objects, what would go with them,
//! and what a path is called in the program; [`pointers`] are what C code has to an object that nothing of that holds.
//! [`picture_reader`] does all of it for one process.
//!
//! Invariant: all of this is read as data that may lie; what cannot be read is counted, and nothing is executed.

#![forbid(unsafe_code)]

mod allocators;
mod finding;
mod holders;
mod interpreter;
mod memory;
mod object;
mod picture;
mod picture_reader;
mod pointers;
mod prefetch;
mod references;
mod side_by_side;

pub use holders::c_holders::CHolders;
pub use holders::graph::Holders;
pub use holders::holder_path::HolderPath;
pub use holders::ranks::NO_RANK;
pub use interpreter::PythonRuntime;
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
