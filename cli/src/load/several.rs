//! Loads several captures for one report: in one joint replay if they share a clock, otherwise one by one.
//!
//! Invariant: the high-water mark was live at one moment, or the report says that it is a sum of per-process peaks.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use anyhow::Result;
use memtrack_reader::Options;
use memtrack_reader::analysis::Tally;
use memtrack_reader::combine::{CapturePart, combine};
use memtrack_reader::source::{self, DataLoss};
use memtrack_reader::together::{self, JointCapture, JointReplay};

use super::clock::{CaptureStart, have_one_clock};
use super::{LoadWarnings, Request, capture_from, capture_info, finished, load_one, opened};
use crate::message;
use crate::reports::capture_info::{Capture, CaptureInfo, CombinedPeaks, ProcessRow};
use crate::reports::presentation::Presentation;
use crate::terminal::Progress;

/// Loads several captures, filtered; returns each with the sum of all its allocations.
pub(super) fn load_several(
    paths: &[PathBuf],
    request: &Request<'_>,
    options: &Options,
    problems: &mut LoadWarnings,
) -> Result<(Vec<(Capture, Tally)>, CombinedPeaks)> {
    let spans = paths.iter().map(|path| Ok(CaptureSpan::of(&request.open_any(path)?))).collect::<Result<Vec<_>>>()?;
    let no_joint_peak = why_not_simultaneous(&spans);
    let all = if no_joint_peak.is_some() {
        let mut all = Vec::new();
        for path in paths {
            let (mut capture, allocated) = load_one(path, request, options, problems)?;
            capture.info.own_peak_bytes = Some(capture.analysis.totals.peak.bytes);
            all.push((capture, allocated));
        }
        all
    } else {
        replay_together(paths, &spans, request, options, problems)?
    };
    let sum = |of: fn(&Capture) -> Option<u64>| all.iter().map(|(capture, _)| of(capture)).sum::<Option<u64>>();
    let several = CombinedPeaks {
        sum_of_peaks: sum(|capture| capture.info.own_peak_bytes),
        rss_sum_of_peaks: sum(|capture| Some(capture.analysis.totals.rss_peak_bytes)).unwrap_or(0),
        no_joint_peak,
        at_least: all.iter().filter_map(|(capture, _)| capture.info.own_peak_bytes).max().unwrap_or(0),
    };
    Ok((all, several))
}

/// Of each capture the order of its last event at the joint high-water mark; `None`: it held nothing then.
pub(crate) type JointPeaks = HashMap<PathBuf, Option<u64>>;

/// Replays several captures to find their joint high-water mark. Where there is none, prints why, and returns nothing.
///
/// # Errors
/// A capture that cannot be read.
pub(crate) fn joint_peaks(paths: &[PathBuf]) -> Result<JointPeaks> {
    let sums = Request { without_names: true, without_paths: true, without_columns: true, ..Request::default() };
    let spans = paths.iter().map(|path| Ok(CaptureSpan::of(&sums.open_any(path)?))).collect::<Result<Vec<_>>>()?;
    if let Some(reason) = why_not_simultaneous(&spans) {
        message::note(format_args!(
            "{} captures combined: the peak is that of each process alone; the joint peak is unknown: {reason}",
            paths.len()
        ));
        return Ok(JointPeaks::default());
    }
    let starts: Vec<u64> = spans.iter().map(|span| span.start.ns.unwrap_or(0)).collect();
    let mut progress = Progress::new(spans.iter().map(|span| span.record_bytes).sum(), "reading");
    let open = |number: usize| {
        let file = sums.open(&paths[number])?;
        let (exact_times, unknown_blocks) = (file.has_timestamps(), file.unknown_blocks());
        let sample_bytes = file.sample_bytes();
        anyhow::Ok((file, Options { exact_times, unknown_blocks, sample_bytes, ..Options::default() }))
    };
    let joint = together::read(&starts, open, |bytes| progress.add(bytes))?;
    let peaks = joint.members.into_iter().map(|member| member.last_at_peak);
    Ok(paths.iter().cloned().zip(peaks).collect())
}

/// When a capture was recorded, and whether it can be replayed jointly with others.
struct CaptureSpan {
    start: CaptureStart,
    aggregated: bool,
    record_bytes: u64,
}

impl CaptureSpan {
    fn of(file: &source::CaptureReader) -> Self {
        Self {
            start: CaptureStart::of(file.process()),
            aggregated: file.aggregated(),
            record_bytes: file.total_record_bytes(),
        }
    }
}

/// Why these captures cannot be replayed jointly; `None` if they can.
fn why_not_simultaneous(spans: &[CaptureSpan]) -> Option<&'static str> {
    if spans.iter().any(|span| span.aggregated) {
        return Some("an aggregated capture has no events, only totals at the peak of its own process");
    }
    let starts: Vec<&CaptureStart> = spans.iter().map(|span| &span.start).collect();
    (!have_one_clock(&starts)).then_some("the captures have no common clock")
}

/// Replays the records of several captures in one order of time.
fn replay_together(
    paths: &[PathBuf],
    spans: &[CaptureSpan],
    request: &Request<'_>,
    options: &Options,
    problems: &mut LoadWarnings,
) -> Result<Vec<(Capture, Tally)>> {
    let starts: Vec<u64> = spans.iter().map(|span| span.start.ns.unwrap_or(0)).collect();
    let mut known: Vec<Option<(CaptureInfo, u64)>> = paths.iter().map(|_| None).collect();
    let mut progress = Progress::new(spans.iter().map(|span| span.record_bytes).sum(), "reading");
    let open = |number: usize| {
        let (file, options) = opened(&paths[number], request, options, &mut problems.samples)?;
        known[number] = Some((capture_info(&file, DataLoss::default()), file.file_bytes()));
        anyhow::Ok((file, options))
    };
    let JointReplay { members, curve } = together::read(&starts, open, |bytes| progress.add(bytes))?;
    drop(progress);
    let mut curve = (options.moments > 0).then_some(curve);
    let mut captures = Vec::new();
    for (member, known) in members.into_iter().zip(known) {
        let JointCapture { read, analysis, allocated, own_peak, .. } = member;
        let (info, file_bytes) = known.unwrap_or_default();
        let mut capture = capture_from(info, read, analysis, &mut problems.unnamed);
        capture = finished(capture, allocated, file_bytes, request, problems)?;
        capture.info.own_peak_bytes = (!request.narrows()).then_some(own_peak.bytes);
        capture.analysis.curve = curve.take();
        captures.push((capture, allocated));
    }
    Ok(captures)
}

/// Combines several captures into one. Its process metadata is that of the process that started first.
pub(super) fn combined(mut captures: Vec<Capture>, several: CombinedPeaks) -> Result<Capture> {
    let start = |capture: &Capture| capture.info.process.start.monotonic_ns.unwrap_or(0);
    captures.sort_by_key(start);
    let trees: BTreeSet<_> = captures.iter().filter_map(|capture| capture.info.process.tree.recording).collect();
    if trees.len() > 1 {
        message::warning(format_args!("these captures are of {} recordings, not of one process tree", trees.len()));
    }
    for capture in &mut captures {
        let peak = capture.analysis.totals.peak;
        let mut row = ProcessRow::of(capture);
        row.at_peak = several.no_joint_peak.is_none().then_some(Tally {
            bytes: peak.bytes,
            count: peak.allocations,
            ..Tally::default()
        });
        capture.info.processes = vec![row];
    }
    let mut info = captures.iter().map(|capture| capture.info.clone()).reduce(CaptureInfo::and).unwrap_or_default();
    info.combined_peaks = Some(several);
    let curve = captures.iter_mut().find_map(|capture| capture.analysis.curve.take());
    let CapturePart { mut analysis, frames, threads, start_ns, end_ns } = combine(parts_of(captures))?;
    // A capture that is cut off or goes on has no end of its own.
    let end = info.process.start.monotonic_ns.map(|start| start.saturating_add(end_ns.saturating_sub(start_ns)));
    info.process.end.monotonic_ns = end;
    if info.combined_peaks.as_ref().is_some_and(|several| several.no_joint_peak.is_none()) {
        analysis.curve = curve;
    } else {
        // That of one of the processes is not that of the sum.
        analysis.totals.peak.at = None;
    }
    Ok(Capture { info, analysis, frames, threads, shown: Presentation::default() })
}

/// The captures at their times; without a common clock, each at its own time.
fn parts_of(captures: Vec<Capture>) -> Vec<CapturePart> {
    let starts: Vec<_> = captures.iter().map(|capture| CaptureStart::of(&capture.info.process)).collect();
    let one_clock = have_one_clock(&starts.iter().collect::<Vec<_>>());
    let part = |(capture, start): (Capture, &CaptureStart)| {
        let start_ns = start.ns.filter(|_| one_clock).unwrap_or(0);
        let end_ns = start_ns.saturating_add(capture.info.duration_ns(&capture.analysis));
        let Capture { mut analysis, frames, threads, .. } = capture;
        if !one_clock {
            // Which of them ran beside each other, so what they had together, is not known.
            analysis.snapshots.clear();
        }
        CapturePart { analysis, frames, threads, start_ns, end_ns }
    };
    captures.into_iter().zip(&starts).map(part).collect()
}

/// Prints how several captures were combined.
pub(super) fn note_combined(captures: usize, several: &CombinedPeaks) {
    match several.no_joint_peak {
        None => message::note(format_args!(
            "{captures} captures combined: totals are summed; the peak is that of all processes together"
        )),
        Some(reason) => message::note(format_args!(
            "{captures} captures combined: totals and per-process peaks are summed; the joint peak is unknown: {reason}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::meta::{EndTimes, StartTimes};
    use memtrack_reader::Snapshot;

    use super::{Capture, CombinedPeaks, combined};
    use crate::reports::fixture;
    use crate::reports::view::title;
    use memtrack_reader::View;

    const S: u64 = 1_000_000_000;

    /// A capture of a process that began at this second since boot, at this time of the day, and ended after so many seconds, or has
    /// its last event then.
    fn recorded(start_s: u64, (wall_s, lived_s): (u64, u64), ended: bool) -> Capture {
        let mut capture = fixture::capture();
        let process = &mut capture.info.process;
        let (monotonic_ns, realtime_ns) = (Some(start_s * S), Some(wall_s * S));
        process.start = StartTimes { monotonic_ns, realtime_ns, ..StartTimes::default() };
        process.end = EndTimes::default();
        process.end.monotonic_ns = ended.then_some((start_s + lived_s) * S);
        process.tree.recording = None;
        capture.analysis.totals.end_time_ns = lived_s * S;
        capture.analysis.snapshots = vec![Snapshot { rss_bytes: 100, ..Snapshot::default() }];
        capture
    }

    fn seconds(capture: &Capture) -> u64 {
        capture.info.duration_ns(&capture.analysis) / S
    }

    #[test]
    fn one_that_has_no_end_counts_up_to_its_last_event() {
        let all = vec![recorded(10, (1010, 60), false), recorded(20, (1020, 5), true)];
        assert_eq!(seconds(&combined(all, CombinedPeaks::default()).unwrap()), 60);
        let all = vec![recorded(10, (1010, 3), true), recorded(20, (1020, 7), false)];
        assert_eq!(seconds(&combined(all, CombinedPeaks::default()).unwrap()), 17);
    }

    /// Of two boots: the clocks have nothing to do with each other.
    #[test]
    fn without_a_common_clock_each_counts_from_its_own_start() {
        let all = vec![recorded(50_000, (1000, 30), true), recorded(10, (90_000, 40), true)];
        let several = CombinedPeaks { no_joint_peak: Some("no common clock"), ..CombinedPeaks::default() };
        let whole = combined(all, several).unwrap();
        assert_eq!((seconds(&whole), whole.analysis.totals.end_time_ns / S), (40, 40));
        assert!(whole.analysis.snapshots.is_empty() && whole.analysis.totals.peak.at.is_none());
        assert_ne!(whole.title(View::HighWaterMark), title(View::HighWaterMark));
    }

    #[test]
    fn sums_of_samples_and_of_everything_are_estimates() {
        let mut all = vec![recorded(10, (1010, 3), true), recorded(20, (1020, 7), true)];
        all[1].info.process.sample_bytes = Some(4096);
        assert_eq!(combined(all, CombinedPeaks::default()).unwrap().sample_bytes().map(Into::into), Some(4096_u64));
    }
}
