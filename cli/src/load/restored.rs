//! Loads the sums of a capture that were computed before: during the recording, or for an earlier report.
//!
//! Invariant: a report cannot tell.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use memtrack_format::aggregate::Aggregate;
use memtrack_reader::analysis::Tally;
use memtrack_reader::program::Program;
use memtrack_reader::source::{CaptureReader, ReadSummary};
use memtrack_reader::symbols::{SymbolProblem, apply};
use memtrack_reader::{Analysis, Frames, Options, aggregate};

use super::kept_sums::FoundSums;
use super::{Request, capture_info, with_findings};
use crate::reports::capture_info::Capture;
use crate::reports::presentation::Presentation;

/// Loads an aggregated capture.
pub(super) fn restore(
    file: &CaptureReader,
    request: &Request<'_>,
    options: &Options,
    unnamed: &mut Vec<SymbolProblem>,
) -> Result<(Capture, Tally)> {
    let payload = file.aggregate()?;
    let aggregate = payload.and_then(|payload| Aggregate::decode(&payload));
    let aggregate = aggregate.with_context(|| format!("{}: the aggregated data is corrupt", file.path().display()))?;
    let (mut analysis, mut frames, threads) = aggregate::restore(&aggregate)?;
    with_names(file, request, &mut analysis, &mut frames, unnamed)?;
    let (wanted, known) = (options.temporary_threshold, analysis.totals.temporary_threshold);
    if wanted != known {
        bail!(
            "{}: this aggregated capture was recorded with --temporary-threshold {known}; {wanted} is not available",
            file.path().display()
        );
    }
    // The sums were made before the end was known.
    let totals = &mut analysis.totals;
    totals.end_time_ns = totals.end_time_ns.max(file.process().duration_ns().unwrap_or(0));
    let all = totals.allocations;
    let info = capture_info(file, file.lost());
    Ok((Capture { info, analysis, frames, threads, shown: Presentation::default() }, all))
}

/// Loads a capture with records from sums that were kept.
pub(super) fn restore_kept(
    file: &CaptureReader,
    request: &Request<'_>,
    options: &Options,
    found: FoundSums,
    unnamed: &mut Vec<SymbolProblem>,
) -> Result<(Capture, Tally)> {
    let FoundSums { mut analysis, read: ReadSummary { mut frames, .. }, .. } = found;
    analysis.exact_times = options.exact_times;
    with_names(file, request, &mut analysis, &mut frames, unnamed)?;
    let all = analysis.totals.allocations;
    let read = ReadSummary { frames, ..found.read };
    Ok((with_findings(file, read, analysis, found.resident, unnamed), all))
}

/// Looks up the names of native frames that were left as places, unless the request needs none; returns the new numbers of
/// the groups, if they have new ones.
pub(super) fn with_names(
    file: &CaptureReader,
    request: &Request<'_>,
    analysis: &mut Analysis,
    frames: &mut Frames,
    unnamed: &mut Vec<SymbolProblem>,
) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    if !request.without_names {
        let mut symbolizer = file.symbolizer();
        numbers = apply(&mut symbolizer, frames, analysis)?;
        unnamed.extend(symbolizer.problems());
    }
    frames.add_program(Arc::new(Program::of(file.process())));
    Ok(numbers)
}
