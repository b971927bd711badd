//! Finds the files of code that the dynamic loader does not know, from `/proc/PID/maps` of the running process.
//!
//! The shim describes the loaded objects. Code outside of them (mapped by hand, from a file without a name, by another
//! loader) it cannot name; it asks ([`memtrack_transport::layout::Question`]), and the
//! answer is read from `/proc/PID/maps`: `parse` takes the text apart, `open` finds the file, `elf` reads where its
//! code belongs, `answer` puts that together, and `asker` decides when.
//!
//! Invariant: the process waits for none of this, and is not stopped by it; and an answer is of the mapping that was there
//! when it was asked for, or there is none.

mod answer;
mod asker;
mod elf;
mod open;
mod parse;

use std::fs::File;
use std::io::{self, Read};

pub(crate) use asker::MapsAsker;
pub use parse::{FileMapping, Maps, parse};

/// Bytes of a process's maps that are read: a hundred for each of as many mappings as the system allows by default.
const MOST_TEXT: u64 = 16 << 20;

/// The text of a process's maps; empty when it has no memory any more.
fn read(pid: i32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MOST_TEXT).read_to_end(&mut text)?;
    Ok(text)
}
