//! The capture file of memtrack: what its bytes mean, and nothing else.
//!
//! It exists so that the shim (which writes records), the collector (which wraps them in blocks) and the reader (which
//! takes both apart) cannot disagree. Bytes only: no I/O, no `unsafe`, no dependencies, and the writing half never
//! allocates, because it runs inside the malloc of the tracked program.
//!
//! From the inside out: [`varint`] numbers, [`record`]s with their delta [`model`] inside one *segment*, [`block`]s that
//! carry segments (and [`meta`] data and [`aggregate`]s) in the file, and the file [`header`].
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod block;
pub mod header;
pub mod kind;
pub mod lines;
pub mod mapped;
pub mod members;
pub mod meta;
mod model;
pub mod observe;
pub mod record;
mod rows;
pub mod stamp;
pub mod symbols;
pub mod varint;

pub use kind::{Allocator, MapClass, PythonDomain};
