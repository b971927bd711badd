//! Follows an aggregated capture: its sums, each time that the recording has written them.
//!
//! A recording with `--aggregate` writes all sums every few seconds. A window is the time between two of these: what was allocated
//! in it is the difference of the sums, what was freed in it what is no longer live. Invariant: a capture that is just being
//! written is read again later, and never half.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;
use memtrack_format::Allocator;
use memtrack_format::aggregate::Aggregate;
use memtrack_reader::analysis::{GroupFlow, Tally};
use memtrack_reader::live::{LivePoint, LiveTotals};
use memtrack_reader::source::CaptureReader;
use memtrack_reader::{Analysis, Frames, StackId, Thread, aggregate};
use rustc_hash::FxHashMap;

use super::{FedPicture, FeedRequest, Shared};
use crate::live::picture::LivePicture;
use crate::live::source::LiveSource;
use crate::live_windows::message::{Lag, group};

/// How often the capture is looked at.
const PAUSE: Duration = Duration::from_millis(250);
/// Points of the charts at most.
const POINTS: usize = 2000;

/// A group in every reading of the capture.
type SumsKey = (StackId, Allocator, i32);

/// What a group had allocated, freed and held at a reading.
#[derive(Clone, Copy, Default)]
struct GroupSums {
    allocated: Tally,
    freed: Tally,
    live: Tally,
}

/// Follows one capture.
pub(super) struct SumsFollower<'a> {
    source: LiveSource,
    shared: &'a Shared,
    asked: Receiver<FeedRequest>,
    /// The frames of all readings: stacks keep their numbers.
    frames: Frames,
    before: FxHashMap<SumsKey, GroupSums>,
    mark: FxHashMap<SumsKey, Tally>,
    mark_ns: u64,
    /// Time and events of the last reading.
    last: (u64, u64),
}

/// Whether the capture has sums in place of events; `false` too where that is not known yet.
pub(super) fn has_sums(source: &LiveSource) -> bool {
    CaptureReader::open(source.path()).is_ok_and(|capture| capture.aggregated())
}

impl<'a> SumsFollower<'a> {
    pub(super) fn new(source: LiveSource, shared: &'a Shared, asked: Receiver<FeedRequest>) -> Self {
        let (before, mark) = (FxHashMap::default(), FxHashMap::default());
        Self { source, shared, asked, frames: Frames::new(), before, mark, mark_ns: 0, last: (0, 0) }
    }

    /// Shows each reading until the view ends.
    ///
    /// # Errors
    /// More call stacks than this version can number.
    pub(super) fn run(&mut self) -> Result<()> {
        let mut ended = false;
        while !self.shared.stopped.load(Relaxed) {
            if !ended {
                let may_grow = self.source.may_grow();
                let read = self.read()?;
                ended = !may_grow || read.as_ref().is_some_and(|(capture, ..)| capture.complete());
                if let Some((capture, analysis, threads)) = read
                    && (ended || (analysis.totals.end_time_ns, analysis.totals.events) != self.last)
                {
                    self.show(&capture, &analysis, threads, ended);
                }
            }
            match self.asked.recv_timeout(PAUSE) {
                Ok(FeedRequest::Mark) => {
                    self.mark = self.before.iter().map(|(key, sums)| (*key, sums.live)).collect();
                    self.mark_ns = self.last.0;
                    // Growth is shown from now on.
                    (self.last, ended) = ((0, 0), false);
                }
                Ok(FeedRequest::Snapshot) => {
                    let told = self.source.write_snapshot().unwrap_or_else(|error| format!("no snapshot: {error:#}"));
                    self.shared.lock().message = Some(told);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        Ok(())
    }

    /// The sums that the capture has now; `None` where they are just being written, or none are there yet.
    fn read(&mut self) -> Result<Option<(CaptureReader, Analysis, Vec<Thread>)>> {
        let Ok(capture) = CaptureReader::open(self.source.path()) else { return Ok(None) };
        let Some(sums) = capture.aggregate().ok().flatten().and_then(|payload| Aggregate::decode(&payload)) else {
            return Ok(None);
        };
        let (analysis, threads) = aggregate::restore_into(&mut self.frames, &sums)?;
        Ok(Some((capture, analysis, threads)))
    }

    fn show(&mut self, capture: &CaptureReader, analysis: &Analysis, threads: Vec<Thread>, ended: bool) {
        let totals = totals(analysis);
        let mut now = FxHashMap::default();
        for row in analysis.groups.iter() {
            let tid = threads.get(row.thread.0 as usize).map_or(0, |thread| thread.tid);
            let (allocated, live) = (row.allocated.tally(), row.leaked_at_exit.tally());
            let sums = GroupSums { allocated, live, freed: allocated.less(live) };
            now.insert((row.stack, row.allocator, tid), (row.thread, sums));
        }
        let groups = now.iter().map(|(key, (thread, sums))| {
            let before = self.before.get(key).copied().unwrap_or_default();
            let (stack, allocator, _) = *key;
            let (allocated, freed) = (sums.allocated.less(before.allocated), sums.freed.less(before.freed));
            let flow = GroupFlow { stack, thread: *thread, allocator, allocated, freed, live: sums.live, peak: None };
            group(&flow, self.mark.get(key).copied().unwrap_or_default())
        });
        let of = (self.source.path().to_owned(), capture.process().clone());
        let picture = LivePicture::received(of, (groups.collect(), &self.frames, threads), totals, ended);
        let all = |part: fn(&GroupSums) -> Tally| now.values().map(|(_, sums)| part(sums)).sum();
        let (time_ns, events) = self.last;
        let fed = FedPicture {
            picture,
            totals,
            points: points(analysis),
            window_ns: totals.time_ns.saturating_sub(time_ns),
            events: totals.events.saturating_sub(events),
            allocated_ever: all(|sums| sums.allocated),
            freed_ever: all(|sums| sums.freed),
            mark_ns: self.mark_ns,
            ended,
            lag: Lag::default(),
        };
        self.before = now.into_iter().map(|(key, (_, sums))| (key, sums)).collect();
        self.last = (totals.time_ns, totals.events);
        self.shared.show(fed);
    }
}

fn totals(analysis: &Analysis) -> LiveTotals {
    let totals = &analysis.totals;
    LiveTotals {
        time_ns: totals.end_time_ns,
        events: totals.events,
        live: totals.leaked_at_exit,
        peak_bytes: totals.peak.bytes,
        peak_time_ns: totals.peak.at.map_or(0, |at| at.time_ns),
        rss_bytes: totals.rss_last_bytes,
        rss_peak_bytes: totals.rss_peak_bytes,
        unmatched_frees: totals.unmatched_frees,
    }
}

/// Memory over time, of many snapshots some.
fn points(analysis: &Analysis) -> Vec<LivePoint> {
    let step = analysis.snapshots.len() / POINTS + 1;
    let most = |part: &[memtrack_reader::Snapshot]| {
        let first = part.first()?;
        let live_bytes = part.iter().map(|snapshot| snapshot.heap_bytes).max()?;
        let rss_bytes = part.iter().map(|snapshot| snapshot.rss_bytes).max()?;
        Some(LivePoint { time_ns: first.time_ns, live_bytes, rss_bytes })
    };
    analysis.snapshots.chunks(step).filter_map(most).collect()
}
