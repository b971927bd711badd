//! The format of memtrack's capture file.
//!
//! The shim encodes records, the collector stores them in blocks, and the reader decodes both; all three use this crate, so
//! they cannot disagree. It works on bytes only: no I/O, no `unsafe`. The encoder of records never allocates, because it
//! runs inside the malloc of the recorded program.
//!
//! From the inside out: [`varint`] numbers, [`record`]s with their delta state inside one *segment*, [`record_columns`]
//! that compress better, [`block`]s that carry segments (and [`meta`] data and [`aggregate`]s) in the file, and the file [`header`].
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod allocator;
pub mod block;
mod fields;
pub mod file_stamp;
pub mod header;
pub mod lines;
pub mod mapped;
pub mod marks;
pub mod members;
pub mod meta;
pub mod objects;
pub mod observe;
pub mod pymalloc;
pub mod record;
pub mod record_columns;
pub mod resident;
pub mod sources;
pub mod symbols;
pub mod varint;
pub mod watermark;
mod writable_bytes;

pub use allocator::{Allocator, MapClass, PythonDomain};
pub use writable_bytes::WritableBytes;
