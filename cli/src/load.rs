//! From the path of a capture to what reports are made of.
//!
//! Invariant: reports do not know whether their sums were made now from records, or while the program ran.

use std::path::Path;

use anyhow::{Context, Result, bail};
use memtrack_format::aggregate::Aggregate;
use memtrack_reader::source::{self, Loss};
use memtrack_reader::{Frames, Options, Replay, Thread, aggregate};

use crate::message;
use crate::reports::facts::{Capture, Facts};
use crate::terminal::Progress;

/// Reads a capture, with a bar on a terminal, and says on standard error what is missing in it.
///
/// # Errors
/// A file that is no capture, cannot be read, or does not have what `options` ask for.
pub(crate) fn load(path: &Path, options: &Options) -> Result<Capture> {
    let file = source::Capture::open(path)?;
    let capture = if file.aggregated() { restore(&file, options)? } else { replay(&file, options)? };
    for warning in capture.facts.warnings() {
        message::warning(format_args!("{}: {warning}", path.display()));
    }
    Ok(capture)
}

/// Replays the records.
fn replay(file: &source::Capture, options: &Options) -> Result<Capture> {
    let mut replay = Replay::new(&Options { exact_times: file.has_timestamps(), ..*options });
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut replay, |bytes| progress.add(bytes))?;
    drop(progress);
    let mut facts = facts(file, read.lost);
    facts.unknown_frames = read.unknown_frames;
    Ok(Capture { facts, analysis: replay.finish(), frames: read.frames, threads: read.threads })
}

/// Takes over sums that were made while the program ran.
fn restore(file: &source::Capture, options: &Options) -> Result<Capture> {
    let payload = file.aggregate()?;
    let aggregate = payload.and_then(|payload| Aggregate::decode(&payload));
    let aggregate =
        aggregate.with_context(|| format!("{}: its sums are damaged and cannot be read", file.path().display()))?;
    let (analysis, frames, threads): (_, Frames, Vec<Thread>) = aggregate::restore(&aggregate)?;
    let (wanted, known) = (options.temporary_threshold, analysis.totals.temporary_threshold);
    if wanted != known {
        bail!(
            "{}: an aggregated capture, which knows temporary allocations for the threshold {known} only, not {wanted}",
            file.path().display()
        );
    }
    Ok(Capture { facts: facts(file, file.lost()), analysis, frames, threads })
}

fn facts(file: &source::Capture, lost: Loss) -> Facts {
    Facts {
        file: file.path().into(),
        format_version: file.format_version(),
        process: file.process().clone(),
        aggregated: file.aggregated(),
        complete: file.complete(),
        lost_blocks: lost.blocks,
        lost_bytes: lost.bytes,
        unknown_frames: 0,
    }
}
