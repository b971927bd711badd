//! What is said when the program has ended: where the capture is, what is in it, and what to do next.
//!
//! Invariant: the figures are those that `stats` shows; of a capture that takes long to read, only its size is said.

use std::fs;

use memtrack_collector::{Error, Summary};
use memtrack_reader::Options;

use crate::load::load;
use crate::message;
use crate::output::CaptureFile;
use crate::reports::facts::quoted;
use crate::target::Program;
use crate::units::{count, duration, size};

/// Records up to this many bytes are read back in about half a second.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Says how the recording went; what went wrong also when `quiet`.
pub(super) fn report(quiet: bool, capture: CaptureFile, program: &Program, result: Result<Summary, Error>) {
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            message::error(format_args!("{}: {error}", capture.path().display()));
            return;
        }
    };
    if let Some(nothing) = &summary.nothing {
        if !quiet {
            message::warning(format_args!("nothing was recorded of {}: {nothing}", program.path.display()));
        }
        // A program that allocated nothing has a capture that says so: scripts go on to read it.
        if summary.process.is_none() {
            capture.discard();
        }
        return;
    }
    if !quiet {
        summary.notes.iter().for_each(message::warning);
        recorded(&capture, &summary);
    }
}

fn recorded(capture: &CaptureFile, summary: &Summary) {
    let path = capture.path();
    let shown = quoted(&path.display().to_string());
    let bytes = fs::metadata(path).map(|metadata| metadata.len()).unwrap_or(0);
    message::line(format_args!("\nmemtrack: {} in {shown}, recorded in {}", size(bytes), duration(nanos(summary))));
    if !path.is_file() {
        return;
    }
    if summary.record_bytes <= MAX_RECORD_BYTES {
        figures(capture);
    }
    message::line(format_args!("  next        memtrack stats {shown}"));
    message::line(format_args!("              memtrack transform speedscope {shown}"));
}

fn figures(capture: &CaptureFile) {
    let capture = match load(&capture.path().to_path_buf(), &Options::default()) {
        Ok(capture) => capture,
        Err(error) => return message::error(format_args!("{error:#}")),
    };
    let totals = &capture.analysis.totals;
    let (peak, leaked) = (totals.peak, totals.leaked);
    message::line(format_args!("  events      {}", count(totals.events)));
    message::line(format_args!("  peak        {} in {} allocations", size(peak.bytes), count(peak.allocations)));
    message::line(format_args!("  leaked      {} in {} allocations", size(leaked.bytes), count(leaked.count)));
}

fn nanos(summary: &Summary) -> u64 {
    u64::try_from(summary.duration.as_nanos()).unwrap_or(u64::MAX)
}
