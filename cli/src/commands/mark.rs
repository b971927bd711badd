//! `memtrack mark`: names the present moment in the captures of a recording.
//!
//! Invariant: when it has succeeded, every event that happened before it was called lies before the mark.

use anyhow::Result;
use memtrack_collector::control::protocol::{ControlCommand, MarkAnswer, check_mark_name};

use crate::args::running::MarkArgs;
use crate::control::recordings;
use crate::failure::Failure;
use crate::message;
use crate::units::{duration, plural};

/// Sets the mark.
///
/// # Errors
/// A name that is none, or no recording.
pub(crate) fn run(options: &MarkArgs) -> Result<u8> {
    let name = &options.name;
    check_mark_name(name).map_err(|text| Failure::usage(&text))?;
    let mut recording = recordings::of(options.pid)?;
    let MarkAnswer { time_ns, captures } = recording.client.ask(ControlCommand::Mark { name: name.clone() })?;
    if !options.quiet {
        let several =
            if captures > 1 { format!(", in {}", plural(captures, "capture", "captures")) } else { String::new() };
        let pid = recording.client.pid();
        message::note(format_args!("mark {name:?} of process {pid} set at {}{several}", duration(time_ns)));
    }
    Ok(0)
}
