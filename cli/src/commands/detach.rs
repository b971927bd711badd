//! `memtrack detach`, `start` and `stop`: asks the recording process to begin or end a recording.
//!
//! Invariant: the answer comes when the capture is open, or complete. Where nobody records a process any more that has
//! memtrack's library still active, `detach` restores the process itself.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use memtrack_collector::control::ControlError;
use memtrack_collector::control::protocol::{ControlCommand, ProcessStatus, StartAnswer, StopAnswer};
use memtrack_reader::source::CaptureReader;

use crate::args::running::{EndArgs, StartArgs};
use crate::commands::run::restore;
use crate::control::recordings::{self, RunningRecording};
use crate::message;
use crate::reports::capture_info::quoted_path;
use crate::units::count;

/// More captures than these are counted.
const MOST_NAMED: usize = 5;

/// Ends an attached recording.
///
/// # Errors
/// So for all: there is no such recording, or it refuses.
pub(crate) fn detach(options: &EndArgs) -> Result<u8> {
    match recordings::of(options.pid) {
        Ok(_) => end(options, ControlCommand::Detach, "detached"),
        Err(error) => {
            // The recording process may have been killed.
            let Some(pid) = options.pid.and_then(|pid| i32::try_from(pid).ok()) else { return Err(error) };
            if !memtrack_inject::find_library(pid).unwrap_or(false) {
                return Err(error);
            }
            restore(pid)?;
            if !options.quiet {
                message::line(format_args!("memtrack: process {pid} was not being recorded; it is as it was before"));
            }
            Ok(0)
        }
    }
}

/// Ends the recording of a dormant program.
pub(crate) fn stop(options: &EndArgs) -> Result<u8> {
    end(options, ControlCommand::Stop { pid: options.pid }, "stopped")
}

/// Begins one.
pub(crate) fn start(options: &StartArgs) -> Result<u8> {
    let mut recording = recordings::of(options.pid)?;
    let output = options.output.as_deref().map(std::path::absolute).transpose();
    let output = output.context("the working directory no longer exists")?;
    let sample = options.sample.map(|sample| sample.to_string());
    let (pid, force) = (options.pid, options.force);
    let answer: StartAnswer = recording.client.ask(ControlCommand::Start { pid, output, force, sample })?;
    if !options.quiet {
        let capture = quoted_path(&answer.capture);
        let pid = pid.unwrap_or(recording.client.pid());
        message::line(format_args!("memtrack: recording process {pid} into {capture}"));
    }
    Ok(0)
}

fn end(options: &EndArgs, command: ControlCommand, how: &str) -> Result<u8> {
    let mut recording = recordings::of(options.pid)?;
    let captures = captures(&recording);
    let mut answer = recording.client.ask::<StopAnswer>(command.clone());
    if matches!(answer, Err(ControlError::Ended))
        && let Ok(other) = recordings::of(options.pid)
        && other.client.recorder() != recording.client.recorder()
    {
        // The one that was asked was ending already, and the process has got another since.
        recording = other;
        answer = recording.client.ask(command.clone());
    }
    if matches!((&answer, &command), (Err(ControlError::Ended), ControlCommand::Detach)) {
        answer = Ok(finished(recording.client.pid(), captures)?);
    }
    let answer = answer?;
    if !options.quiet {
        let captures = named(&answer.captures);
        let first = recording.client.pid();
        // What was attached to ends as a whole.
        let pid = if matches!(command, ControlCommand::Stop { .. }) { options.pid.unwrap_or(first) } else { first };
        message::line(format_args!("memtrack: process {pid} {how}: {captures}"));
    }
    Ok(0)
}

/// The captures of a recording, by paths that stay when its recording process has ended.
fn captures(recording: &RunningRecording) -> Vec<PathBuf> {
    let of =
        |process: &ProcessStatus| Some(recordings::as_seen_here(process.capture.as_ref()?, recording.status.recorder));
    recording.status.processes.iter().filter_map(of).collect()
}

/// What a recording process that has ended without an answer had done of what it was asked for. Where the process is not as it was
/// before, as a recording process that was killed leaves it, this puts it back.
fn finished(pid: u32, captures: Vec<PathBuf>) -> Result<StopAnswer> {
    if recordings::of(Some(pid)).is_ok() {
        return Err(ControlError::Ended.into());
    }
    restore(pid.cast_signed())?;
    let is_complete = |path: &PathBuf| CaptureReader::open(path).is_ok_and(|capture| capture.complete());
    if captures.iter().all(is_complete) {
        return Ok(StopAnswer { captures });
    }
    bail!(
        "the recording process has ended without completing {}, which has what was written until then; process {pid} is as it was \
         before",
        named(&captures)
    )
}

/// Captures in a message. Of a server that starts its workers again there may be thousands, which are named after the first one.
fn named(captures: &[PathBuf]) -> String {
    let named = |captures: &[PathBuf]| captures.iter().map(|path| quoted_path(path)).collect::<Vec<_>>().join(" ");
    match captures {
        [] => "nothing was recorded".into(),
        [first, others @ ..] if captures.len() > MOST_NAMED => {
            let others = count(others.len() as u64);
            format!("{}, and {others} captures of processes that it started beside it", quoted_path(first))
        }
        all => named(all),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    #[test]
    fn few_captures_are_named_and_many_counted() {
        let captures: Vec<_> = (0..1234).map(|number| PathBuf::from(format!("/d/c-{number}.bin"))).collect();
        assert_eq!(super::named(&[]), "nothing was recorded");
        assert_eq!(super::named(&captures[..2]), "/d/c-0.bin /d/c-1.bin");
        let many = super::named(&captures);
        assert_eq!(many, "/d/c-0.bin, and 1,233 captures of processes that it started beside it");
    }
}
