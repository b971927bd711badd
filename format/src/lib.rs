//! The capture file of memtrack: what its bytes mean, and nothing else.
//!
//! It exists so that the shim (which writes records), the collector (which wraps them in blocks) and the reader (which
//! takes both apart) cannot disagree. Bytes only: no I/O, no `unsafe`, no dependencies, and the writing half never
//! allocates, because it runs inside the malloc of the tracked program.
//!
//! From the inside out: [`varint`] numbers, [`record`]s with their delta state inside one *segment*, [`block`]s that
//! carry segments (and [`meta`] data and [`aggregate`]s) in the file, and the file [`header`].
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod allocator;
pub mod block;
mod delta_state;
mod fields;
pub mod file_stamp;
pub mod header;
pub mod lines;
pub mod mapped;
pub mod members;
pub mod meta;
pub mod observe;
pub mod record;
pub mod symbols;
pub mod varint;

pub use allocator::{Allocator, MapClass, PythonDomain};
