//! `memtrack live`: who holds the memory of a program that runs, as a view or as JSON lines.
//!
//! Invariant: what is shown is exact up to the moment that is shown with it.

mod lines;

use anyhow::Result;

use crate::args::running::LiveArgs;
use crate::live::source::LiveSource;

/// Watches a recording, or a capture.
///
/// # Errors
/// There is no recording or capture, or it cannot be read.
pub(crate) fn run(options: &LiveArgs) -> Result<u8> {
    let mut source = LiveSource::find(options.target.as_deref())?;
    lines::run(&mut source, options.every)?;
    Ok(0)
}
