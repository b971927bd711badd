//! What a program's code is: its directories, packages and sources, as the program sees its file system.
//!
//! Invariant: files are read as data of somebody else; none is executed, and none of this machine is taken for one of a container.

pub(crate) mod directories;
pub(crate) mod frozen;
pub(crate) mod installations;
pub(crate) mod installed_files;
pub(crate) mod library_allocators;
pub(crate) mod own_malloc;
pub(crate) mod own_paths;
pub(crate) mod packages;
pub(crate) mod process_files;
pub(crate) mod root_directory;
pub(crate) mod source_recorder;
pub(crate) mod started_package;
