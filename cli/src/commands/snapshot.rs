//! `memtrack snapshot`: a complete capture of everything up to now, of a program that is being recorded.
//!
//! Invariant: the file appears whole or not at all, and the recording goes on as if nothing had been.

use std::path::Path;

use anyhow::{Result, bail};
use memtrack_collector::control::protocol::{ProcessState, ProcessStatus};

use crate::args::running::SnapshotArgs;
use crate::control::recordings::RunningRecording;
use crate::control::{recordings, snapshot};
use crate::message;
use crate::output::ReportOutput;
use crate::reports::capture_info::quoted_path;
use crate::units::size;

/// Writes the snapshot.
///
/// # Errors
/// No recording, or an output that cannot be written.
pub(crate) fn run(options: &SnapshotArgs) -> Result<u8> {
    let mut recording = recordings::of(options.pid)?;
    let pid = options.pid.unwrap_or(recording.client.pid());
    let Some(process) = recording.process(options.pid) else { bail!("process {pid} has not begun to record yet") };
    // Beside the first process's captures those of children have other names, which snapshots must not have.
    let first = recording.status.of_recording(process.recording).find(|process| process.number == 0);
    let capture = first.filter(|first| first.number != process.number).map_or(process.capture.clone(), |first| {
        let path = first.capture.as_ref()?;
        Some(path.with_file_name(format!("{}.{pid}.bin", path.file_stem()?.to_string_lossy())))
    });
    let path = snapshot::new_name(Path::new(""), capture.as_deref(), pid, None);
    let mut out = ReportOutput::capture(options.output.as_deref().or(Some(&path)), options.force, &path, "snapshot")?;
    let goes_on = if is_over(&recording, process) { "its recording has ended" } else { "the recording goes on" };
    let mut captures = snapshot::take(&mut recording, options.pid)?;
    let bytes = snapshot::write(&mut captures, &mut out)?;
    if let Some(path) = out.finish()?.filter(|_| !options.quiet) {
        let path = quoted_path(&path);
        let several = if captures.len() > 1 { format!(", {} processes", captures.len()) } else { String::new() };
        message::line(format_args!("{path}: {}{several}, everything up to now; {goes_on}", size(bytes)));
    }
    Ok(0)
}

/// Whether nothing more comes of what a snapshot of this process has: of the first one it is that of all.
fn is_over(recording: &RunningRecording, process: &ProcessStatus) -> bool {
    let has_ended = |process: &ProcessStatus| process.state == ProcessState::Ended;
    let mut all = recording.status.of_recording(process.recording);
    has_ended(process) && (process.number > 0 || all.all(has_ended))
}
