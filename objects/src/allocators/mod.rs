//! The blocks in use of the allocators in which objects are: Python's own, mimalloc's in free-threaded builds, and glibc's.
//!
//! Invariant: chains and sizes are bounded by the memory that they describe.

pub(crate) mod malloc_chunks;
pub(crate) mod mimalloc;
pub(crate) mod pool_headers;
pub(crate) mod pymalloc;
