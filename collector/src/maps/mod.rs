//! Finds the files of code outside loaded objects, from `/proc/PID/maps` of the running process.
//!
//! The shim describes loaded objects. It cannot name other code (mapped by the program itself, from a deleted file, by
//! another loader); it asks ([`memtrack_transport::layout::Question`]), and the answer is read from `/proc/PID/maps`:
//! `parse` parses the text, `open` finds the file, `elf` reads its segments, `answer` combines these, and `scheduler`
//! schedules the readings.
//!
//! Invariant: the process does not wait for any of this, and is not stopped; an answer is of the mapping that existed
//! when the question was asked, or there is none.

mod answer;
mod elf;
mod open;
mod parse;
mod scheduler;

use std::fs::File;
use std::io::{self, Read};

pub use parse::{FileMapping, Maps, parse};
pub(crate) use parse::{MappingLine, parse_all};
pub(crate) use scheduler::MapsScheduler;

/// Maximum size of a process's maps: a hundred bytes for each of as many mappings as the system allows by default.
const MOST_TEXT: u64 = 16 << 20;

/// The text of a process's maps; empty if it has no memory any more.
fn read(pid: i32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MOST_TEXT).read_to_end(&mut text)?;
    Ok(text)
}
