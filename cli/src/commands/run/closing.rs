//! What is said when the program has ended: where the capture is, what is in it, and what to do next.
//!
//! Invariant: the figures are those that `stats` shows; of a capture that takes long to read, only its size is said.

use std::fs;

use memtrack_collector::{Error, Followed, NothingRecorded, Summary};
use memtrack_reader::Options;

use super::children::{Children, pattern};
use crate::load::load;
use crate::message;
use crate::output::CaptureFile;
use crate::reports::facts::quoted;
use crate::target::Program;
use crate::units::{count, duration, plural, size};

/// Records up to this many bytes are read back in about half a second.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Says how the recording went; what went wrong also when `quiet`.
pub(super) fn report(
    quiet: bool,
    capture: CaptureFile,
    program: &Program,
    result: Result<Summary, Error>,
    children: &Children,
) {
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            message::error(format_args!("{}: {error}", capture.path().display()));
            return;
        }
    };
    let captures = finish_children(quiet, &summary, children);
    if let Some(nothing) = &summary.nothing {
        if !quiet {
            message::warning(format_args!("nothing was recorded of {}: {nothing}", program.path.display()));
        }
        // A program that allocated nothing has a capture that says so: scripts go on to read it.
        if summary.process.is_none() {
            capture.discard();
            return;
        }
        if captures == 0 {
            return;
        }
    }
    if !quiet {
        summary.notes.iter().for_each(message::warning);
        recorded(&capture, &summary, captures);
    }
}

/// Says what went wrong with the children's captures, and removes those of processes that never began; how many remain.
fn finish_children(quiet: bool, summary: &Summary, children: &Children) -> u64 {
    let mut captures = 0;
    for Followed { pid, number, summary } in &summary.followed {
        let Some(capture) = children.take(*number) else { continue };
        match summary {
            Err(error) => message::error(format_args!("{}: {error}", capture.path().display())),
            Ok(summary) if matches!(summary.nothing, Some(NothingRecorded::NotLoaded | NothingRecorded::NotBegun)) => {
                if !quiet {
                    message::warning(format_args!("nothing was recorded of process {pid}: it ended at once"));
                }
                capture.discard();
                continue;
            }
            Ok(summary) if !quiet => {
                let path = capture.path().display();
                summary.notes.iter().for_each(|note| message::warning(format_args!("{path}: {note}")));
            }
            Ok(_) => {}
        }
        captures += 1;
    }
    if summary.missing > 0 && !quiet {
        message::warning(format_args!(
            "{} not recorded: statically linked programs, or without a way to memtrack (another root directory or \
             user, no free descriptors)",
            plural(summary.missing.into(), "process that was started was", "processes that were started were")
        ));
    }
    captures
}

fn recorded(capture: &CaptureFile, summary: &Summary, children: u64) {
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
    let pattern = pattern(path);
    let shown = if children > 0 {
        let processes = plural(children, "process", "processes");
        message::line(format_args!("  children    {processes}, with a capture each, in {}", pattern.display()));
        // Quotes would keep the shell from finding them.
        pattern.display().to_string()
    } else {
        shown
    };
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
