//! Individual allocations of captures, for reports that need more than totals.
//!
//! A capture is read twice: first for its tables and for the moments that queries refer to (high-water mark, end), then
//! for the allocations. Invariant: each warning about missing data is printed once.

use anyhow::{Result, bail};
use memtrack_reader::analysis::{Selection, Tally};
use memtrack_reader::query::units::Time;
use memtrack_reader::query::{
    AllocationRecord, AllocationScan, Amount, Comparison, Expr, KeyMoments, MatchContext, Matcher, Number,
};
use memtrack_reader::{Analysis, Frames, Options, Replay, columns, source};

use crate::load::{CaptureTimes, Request, capture_info};
use crate::reports::capture_info::{Capture, CaptureInfo};
use crate::reports::presentation::Presentation;
use crate::terminal::Progress;

/// The filters of a request as a query expression for this capture, in the times of the report.
///
/// # Errors
/// It has not the mark that the request names.
pub(crate) fn filters(request: &Request<'_>, file: &source::CaptureReader) -> Result<Expr> {
    let mut all = vec![request.filter.expr()];
    if request.min_bytes > 0 {
        all.push(Expr::Number(Number::Bytes, Comparison::AtLeast, Amount::Plain(request.min_bytes)));
    }
    let Selection { from_ns, to_ns, .. } = request.selection(file)?;
    let start_ns = if from_ns > 0 || to_ns < u64::MAX { request.times(file)?.start_ns } else { 0 };
    let [from_ns, to_ns] = [from_ns, to_ns].map(|ns| ns.saturating_add(start_ns));
    if from_ns > start_ns {
        all.push(Expr::Number(Number::Time, Comparison::AtLeast, Amount::Moment(Time::Ns(from_ns))));
    }
    if to_ns < u64::MAX {
        all.push(Expr::Number(Number::Time, Comparison::Less, Amount::Moment(Time::Ns(to_ns))));
    }
    Ok(Expr::And(all))
}

/// Refuses a capture that holds sums only.
///
/// # Errors
/// It does.
pub(crate) fn refuse_sums(file: &source::CaptureReader) -> Result<()> {
    if file.aggregated() {
        bail!("{}: an aggregated capture has no individual allocations", file.path().display());
    }
    Ok(())
}

/// Calls `take` for every allocation of one capture that satisfies `expr` and the filters of the request, in the order in which they end; returns the
/// capture. Times are those of the request's captures together. Stacks are matched as recorded; the returned capture is prepared for display if the
/// request says so.
///
/// # Errors
/// A capture that cannot be read, or that has no individual allocations.
pub(crate) fn for_each_allocation(
    file: &source::CaptureReader,
    request: &Request<'_>,
    expr: &Expr,
    mut take: impl FnMut(&Capture, &AllocationRecord),
) -> Result<Capture> {
    refuse_sums(file)?;
    let (mut capture, _) = whole(file, &Options::default())?;
    prepare(&mut capture, request)?;
    let CaptureTimes { start_ns, whole_ns } = request.times(file)?;
    let (frames, threads) = (&capture.frames, &capture.threads);
    let known = MatchContext { frames, threads, start_ns, duration_ns: whole_ns };
    let expr = Expr::And(vec![filters(request, file)?, expr.clone()]);
    let judge = Matcher::new(&expr, &known);
    let mut moments = KeyMoments::of(&capture.analysis.totals, Options::default().temporary_threshold);
    if let Some(peak) = request.joint_peaks.get(file.path()) {
        moments.peak = *peak;
    }
    let mut lives = AllocationScan::new(moments, Some(&judge), |life: &AllocationRecord| {
        take(&capture, &AllocationRecord { time_ns: life.time_ns.saturating_add(start_ns), ..*life });
    });
    let mut progress = Progress::new(file.total_record_bytes(), "looking");
    file.read(&mut lives, |bytes| progress.add(bytes))?;
    let _ = lives.finish();
    Ok(capture)
}

/// The allocations that satisfy `expr`, of numbers and flags only, in the order in which they end, from one reading; with the
/// capture's tables, without sums. `moments` are those of the same capture.
///
/// # Errors
/// A capture that cannot be read.
pub(crate) fn allocations_at(
    file: &source::CaptureReader,
    request: &Request<'_>,
    moments: KeyMoments,
    expr: &Expr,
) -> Result<(Capture, Vec<AllocationRecord>)> {
    let (frames, mut found) = (Frames::new(), Vec::new());
    let known = MatchContext { frames: &frames, threads: &[], start_ns: 0, duration_ns: moments.end_ns };
    let matcher = Matcher::new(expr, &known);
    let mut lives = AllocationScan::new(moments, Some(&matcher), |life: &AllocationRecord| found.push(*life));
    let mut progress = Progress::new(file.total_record_bytes(), "looking");
    let read = file.read(&mut lives, |bytes| progress.add(bytes))?;
    let _ = lives.finish();
    let info = CaptureInfo { unknown_frames: read.unknown_frames, ..capture_info(file, read.lost) };
    let mut capture = Capture {
        info,
        analysis: Analysis::default(),
        frames: read.frames,
        threads: read.threads,
        shown: Presentation::default(),
    };
    prepare(&mut capture, request)?;
    Ok((capture, found))
}

/// Prepares a capture for display if the request says so.
fn prepare(capture: &mut Capture, request: &Request<'_>) -> Result<()> {
    if request.shown {
        columns::keep_where_several(&mut capture.frames);
        capture.fold_beside(&request.display)?;
    }
    Ok(())
}

/// First reading: the capture and the sum of all its allocations. A second reading numbers stacks and threads the same
/// way.
///
/// # Errors
/// A capture that cannot be read.
pub(crate) fn whole(file: &source::CaptureReader, options: &Options) -> Result<(Capture, Tally)> {
    let options = Options {
        exact_times: file.has_timestamps(),
        unknown_blocks: file.unknown_blocks(),
        sample_bytes: file.sample_bytes(),
        ..*options
    };
    let mut replay = Replay::new(&options);
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut replay, |bytes| progress.add(bytes))?;
    let time_uncertainty_ns = Some(read.time_uncertainty_ns);
    let info =
        CaptureInfo { unknown_frames: read.unknown_frames, time_uncertainty_ns, ..capture_info(file, read.lost) };
    info.warn();
    let all = replay.allocated();
    let capture = Capture {
        info,
        analysis: replay.into_analysis(),
        frames: read.frames,
        threads: read.threads,
        shown: Presentation::default(),
    };
    Ok((capture, all))
}
