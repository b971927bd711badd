//! Follows an aggregated capture: its sums, each time that the recording has written them.
//!
//! A recording with `--aggregate` writes all its sums every few seconds. What is known is their state at those moments, so a
//! window is the time between two of them: what was allocated in it is the difference of the sums, what was freed in it what
//! is no longer live.
//!
//! Invariant: a capture that is just being written is read again later, and never half.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use memtrack_format::Allocator;
use memtrack_format::aggregate::Aggregate;
use rustc_hash::FxHashMap;

use super::grid::LiveTotals;
use super::history::LiveHistory;
use crate::aggregate::restore_into;
use crate::analysis::{Analysis, GroupFlow, Sum, Tally, View};
use crate::error::Error;
use crate::event::{StackId, Thread, ThreadId};
use crate::frames::Frames;
use crate::source::CaptureReader;

/// How often the capture is looked at.
const PAUSE: Duration = Duration::from_millis(100);

/// What is new in a capture.
#[derive(Debug)]
pub(super) enum SumsStep {
    /// Nothing, or it is just being written.
    Nothing,
    /// These sums.
    Sums(Box<Analysis>),
    /// These sums, the last ones.
    Last(Box<Analysis>),
}

/// An aggregated capture that may be written on.
#[derive(Debug)]
pub(super) struct FollowedSums {
    path: PathBuf,
    pub(super) capture: CaptureReader,
    /// Of all readings: stacks keep their numbers.
    pub(super) frames: Frames,
    pub(super) threads: Vec<Thread>,
    looked: Option<Instant>,
    /// When it was looked at and could be read.
    pub(super) known: Option<Instant>,
    /// Time and events of the last sums.
    last: Option<(u64, u64)>,
}

impl FollowedSums {
    pub(super) fn new(path: PathBuf, capture: CaptureReader) -> Self {
        Self { path, capture, frames: Frames::new(), threads: Vec::new(), looked: None, known: None, last: None }
    }

    /// Reads the sums, if there are newer ones.
    ///
    /// # Errors
    /// Ids run out.
    pub(super) fn step(&mut self) -> Result<SumsStep, Error> {
        if self.looked.is_some_and(|looked| looked.elapsed() < PAUSE) {
            return Ok(SumsStep::Nothing);
        }
        self.looked = Some(Instant::now());
        self.read()
    }

    /// Reads the sums now.
    ///
    /// # Errors
    /// Ids run out.
    pub(super) fn read(&mut self) -> Result<SumsStep, Error> {
        let begun = Instant::now();
        let Ok(capture) = CaptureReader::open(&self.path) else { return Ok(SumsStep::Nothing) };
        let payload = capture.aggregate().ok().flatten();
        let Some(sums) = payload.and_then(|payload| Aggregate::decode(&payload)) else { return Ok(SumsStep::Nothing) };
        self.known = Some(begun);
        let (analysis, threads) = restore_into(&mut self.frames, &sums)?;
        let is_complete = capture.complete();
        let now = (analysis.totals.end_time_ns, analysis.totals.events);
        if !is_complete && self.last == Some(now) {
            return Ok(SumsStep::Nothing);
        }
        (self.capture, self.threads, self.last) = (capture, threads, Some(now));
        let analysis = Box::new(analysis);
        Ok(if is_complete { SumsStep::Last(analysis) } else { SumsStep::Sums(analysis) })
    }
}

/// What the sums say that were read last.
#[derive(Debug, Default)]
pub(super) struct ReadSums {
    flows: Vec<GroupFlow>,
    /// The place of each group in `flows`, which it keeps.
    places: FxHashMap<(StackId, Allocator, ThreadId), usize>,
    pub(super) totals: LiveTotals,
    /// They are no estimates.
    pub(super) is_exact: bool,
    /// Snapshots up to this time are in the history.
    known_ns: Option<u64>,
}

impl ReadSums {
    pub(super) fn flows(&self) -> impl Iterator<Item = GroupFlow> + '_ {
        self.flows.iter().copied()
    }

    /// Takes over newer sums, and what they add to the history.
    pub(super) fn update(&mut self, analysis: &Analysis, history: &mut LiveHistory) {
        self.is_exact = analysis.variances.is_none();
        for (number, row) in analysis.groups.iter().enumerate() {
            let (stack, thread, allocator) = (row.stack, row.thread, row.allocator);
            let tally = |sum: Sum, view| Tally { variance: analysis.variance(number, view), ..sum.tally() };
            let (allocated, live) =
                (tally(row.allocated, View::Allocated), tally(row.leaked_at_exit, View::LeaksAtExit));
            let flow = GroupFlow { stack, thread, allocator, allocated, freed: allocated.less(live), live, peak: None };
            let place = *self.places.entry((stack, allocator, thread)).or_insert(self.flows.len());
            match self.flows.get_mut(place) {
                Some(known) => *known = flow,
                None => self.flows.push(flow),
            }
        }
        let new =
            analysis.snapshots.iter().filter(|snapshot| self.known_ns.is_none_or(|known| known < snapshot.time_ns));
        new.for_each(|snapshot| history.add(snapshot.time_ns, snapshot.heap_bytes, snapshot.rss_bytes));
        self.known_ns = self.known_ns.max(analysis.snapshots.last().map(|snapshot| snapshot.time_ns));
        let totals = &analysis.totals;
        self.totals = LiveTotals {
            time_ns: totals.end_time_ns,
            events: totals.events,
            live: totals.leaked_at_exit,
            peak_bytes: totals.peak.bytes,
            peak_time_ns: totals.peak.at.map_or(0, |at| at.time_ns),
            rss_bytes: totals.rss_last_bytes,
            rss_peak_bytes: totals.rss_peak_bytes,
            unmatched_frees: totals.unmatched_frees,
        };
    }
}
