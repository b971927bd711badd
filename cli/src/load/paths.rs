//! Which files a report reads: merged files are expanded, and captures of different recordings are refused.
//!
//! Invariant: a report counts no process twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Result, bail};
use memtrack_reader::source;

use crate::message;
use crate::reports::capture_info::rfc3339;

/// The captures of a report, with merged files expanded; of several files of one recording of one process, such as
/// snapshots and the whole capture, the one that has most.
///
/// # Errors
/// A file that is no capture, and files of different recordings.
pub(crate) fn of_one_recording(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let all = checked(paths)?;
    if all.len() == 1 { Ok(all) } else { without_repeats(all) }
}

/// The captures at these paths, which may be of several recordings, with merged files expanded; of several files of one recording of
/// one process the one that has most.
///
/// # Errors
/// A file that is no capture.
pub(crate) fn to_merge(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    without_repeats(expanded(paths)?)
}

/// The captures at these paths, with merged files expanded. Captures of different recordings are accepted only from a
/// merged file.
///
/// # Errors
/// A file that is no capture, and files of different recordings.
pub(crate) fn checked(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let all = expanded(paths)?;
    if paths.len() == 1 {
        return Ok(all);
    }
    // One file of each recording. A capture without a recording id counts as a recording of its own.
    let mut recordings: Vec<(Option<u64>, PathBuf, Option<u64>)> = Vec::new();
    for path in paths {
        let first = source::members(path)?.paths.into_iter().next();
        let process = source::CaptureReader::open(first.as_ref().unwrap_or(path))?.process().clone();
        let is_known =
            |(run, ..): &(Option<u64>, PathBuf, Option<u64>)| run.is_some() && *run == process.tree.recording;
        if !recordings.iter().any(is_known) {
            recordings.push((process.tree.recording, path.clone(), process.start.realtime_ns));
        }
    }
    if recordings.len() > 1 {
        let number = recordings.len();
        let named = recordings.into_iter().take(RECORDINGS_TOLD).map(|(_, path, start)| {
            let start = start.map(|start| format!(" (started {})", rfc3339(start))).unwrap_or_default();
            format!("{}{start}", path.display())
        });
        bail!(
            "the captures belong to {number} different recordings: {}{}; pass the captures of one recording, compare two \
             with 'memtrack diff', or combine them with 'memtrack merge'",
            named.collect::<Vec<_>>().join(", "),
            if number > RECORDINGS_TOLD { ", …" } else { "" }
        );
    }
    Ok(all)
}

/// What two files share that have records of one recording of one process: its recording, the process, when it began, and
/// the span of it, if it is one.
type RecordingOfProcess = (Option<u64>, Option<u32>, Option<u64>, Option<u64>);

/// The captures without those whose process and recording another one has, too. Which of them are left out is said once.
fn without_repeats(all: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    struct Kept {
        path: PathBuf,
        /// Not a snapshot, and how many bytes of records: the larger, the more it has.
        extent: (bool, u64),
    }
    let mut kept: Vec<Kept> = Vec::new();
    let mut left_out: Vec<(PathBuf, usize)> = Vec::new();
    let mut places: HashMap<RecordingOfProcess, usize> = HashMap::new();
    for path in all {
        let file = source::CaptureReader::open(&path)?;
        let process = file.process();
        let of = (process.tree.recording, process.pid, process.start.monotonic_ns, process.span_ticket);
        let extent = (!process.snapshot, file.total_record_bytes());
        // Without the time of its beginning, a recording cannot be told from another one.
        match places.get(&of).copied().filter(|_| of.2.is_some()) {
            None => {
                places.insert(of, kept.len());
                kept.push(Kept { path, extent });
            }
            Some(place) if extent > kept[place].extent => {
                left_out.push((std::mem::replace(&mut kept[place].path, path), place));
                kept[place].extent = extent;
            }
            Some(place) => left_out.push((path, place)),
        }
    }
    static SAID: Once = Once::new();
    if !left_out.is_empty() {
        SAID.call_once(|| {
            for (path, place) in &left_out {
                note_left_out(path, &kept[*place].path);
            }
        });
    }
    Ok(kept.into_iter().map(|kept| kept.path).collect())
}

fn note_left_out(path: &Path, other: &Path) {
    message::note(format_args!(
        "{}: left out: {} has the same recording of the same process",
        path.display(),
        other.display()
    ));
}

/// The captures at these paths, with merged files expanded.
///
/// # Errors
/// A file that is no capture.
pub(crate) fn expanded(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        let mut members = source::members(path)?;
        if members.missing > 0 {
            message::warning(format_args!(
                "{}: truncated: the last {} of {} captures are missing",
                path.display(),
                members.missing,
                members.missing + members.paths.len()
            ));
        }
        all.append(&mut members.paths);
    }
    if all.is_empty() {
        bail!("no readable capture");
    }
    Ok(all)
}

/// Maximum number of recordings that an error lists.
const RECORDINGS_TOLD: usize = 5;
