//! Which files a report reads: merged files are expanded, and captures of different recordings are refused.
//!
//! Invariant: only a merged file has captures of several recordings.

use std::path::PathBuf;

use anyhow::{Result, bail};
use memtrack_reader::source;

use crate::message;
use crate::reports::capture_info::rfc3339;

/// The captures of a report, with merged files expanded. Captures of different recordings are accepted only from a
/// merged file.
///
/// # Errors
/// A file that is no capture, and files of different recordings.
pub(crate) fn of_one_recording(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
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
