//! The moment at which resident memory and live blocks differ most, found while a capture is replayed once.
//!
//! The accounts of a capture are known before its events are read, what was live at each of them only then. So the replay
//! keeps what was live at the best account so far.
//!
//! Invariant: accounts are judged in the order of time, each by the last snapshot up to it and before any later event.

use memtrack_format::resident::{AccountCause, PageRun, PageState, ResidentAccount};

use super::allocator_trace::AllocatorTrace;
use super::bands::{BandScan, ClassesAt};
use super::moment::LiveMoment;
use super::process_facts::ProcessFacts;
use super::thread_cache::ThreadCaches;
use crate::analysis::Options;
use crate::event::{Event, RunEvent, Snapshot, Thread};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::source::{Consumer, ShortLivedUse};

/// Anonymous memory without a live block from which a moment is of interest, and its part of all in percent; and so for live
/// memory that takes none.
const LEAST_GAP: u64 = 4 << 20;
const LEAST_GAP_PERCENT: u64 = 10;

/// What of an account decides whether its moment is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountOutline {
    /// Nanoseconds since recording began.
    pub time_ns: u64,
    /// Resident bytes of anonymous memory.
    pub anonymous: u64,
    /// Bytes of large private mappings that are neither in memory nor swapped out, here and at later accounts, as
    /// [`AccountOutlines`](super::AccountOutlines) finds them: what is live there takes no memory.
    pub untouched: u64,
    /// It was taken as Python began to finalize.
    pub is_finalizing: bool,
}

impl AccountOutline {
    /// Of an account, taken so many nanoseconds after recording began. What is untouched is not known from one alone.
    pub(super) fn of(account: &ResidentAccount, time_ns: u64) -> Self {
        let runs = account.mappings.iter().flat_map(|mapping| &mapping.runs);
        let anonymous = runs.filter(|run| run.state == PageState::Anonymous).map(PageRun::bytes).sum();
        Self { time_ns, anonymous, untouched: 0, is_finalizing: account.cause == AccountCause::Finalizing }
    }

    /// Bytes by which memory and live blocks differ: of live blocks what takes no memory, and anonymous memory without a live block, each
    /// where it is much; `None` where neither is.
    fn rank(&self, live_bytes: u64) -> Option<u64> {
        // More is live than there is memory. Large mappings alone say nothing: the account may have one that was not live yet. Nor
        // does what is missing alone: it may be what a block is being filled with.
        let missing = live_bytes.saturating_sub(self.anonymous).min(self.untouched);
        let is_untouched = missing >= LEAST_GAP && missing >= live_bytes / 100 * LEAST_GAP_PERCENT;
        let untouched = if is_untouched { self.untouched.min(live_bytes) } else { 0 };
        let gap = self.anonymous.saturating_sub(live_bytes - untouched);
        let is_much = gap >= LEAST_GAP && gap >= self.anonymous / 100 * LEAST_GAP_PERCENT;
        (is_much || is_untouched).then_some(untouched.saturating_add(if is_much { gap } else { 0 }))
    }
}

/// A consumer of events that replays all of them, and keeps what was live at the widest moment.
#[derive(Debug)]
pub struct WidestScan {
    replay: Replay,
    trace: AllocatorTrace,
    /// Those that were not judged, by time, the next one last; empty once none of them counts.
    accounts: Vec<AccountOutline>,
    widest: Option<WidestMoment>,
    /// Moments at which resident memory is divided into classes.
    bands: Option<BandScan>,
    /// The time of the last tick, and the live bytes of the last snapshot.
    tick_ns: Option<u64>,
    live_bytes: u64,
}

#[derive(Debug)]
struct WidestMoment {
    /// See [`AccountOutline::rank`]. Of equal ones the last counts.
    rank: u64,
    time_ns: u64,
    trace: AllocatorTrace,
}

impl WidestScan {
    /// Nothing is live yet. `accounts`: all of the capture, by time; `trace`: with all accounts.
    #[must_use]
    pub fn new(options: &Options, mut accounts: Vec<AccountOutline>, trace: AllocatorTrace) -> Self {
        accounts.reverse();
        Self { replay: Replay::new(options), trace, accounts, widest: None, bands: None, tick_ns: None, live_bytes: 0 }
    }

    /// Divides resident memory into classes at these accounts, too, which are by time, in nanoseconds since recording began.
    #[must_use]
    pub fn with_bands(self, accounts: Vec<(u64, ResidentAccount)>, process: ProcessFacts) -> Self {
        Self { bands: Some(BandScan::new(accounts, process)), ..self }
    }

    /// Judges the accounts before this time; the last events before them were replayed.
    fn judge_before(&mut self, time_ns: u64) {
        if let Some(bands) = &mut self.bands {
            bands.take_before(time_ns, &self.replay, &self.trace);
        }
        while let Some(account) = self.accounts.pop_if(|account| account.time_ns < time_ns) {
            self.judge(&account);
        }
    }

    /// Judges the accounts up to the last tick: an event comes after it.
    #[inline]
    fn judge_ticked(&mut self) {
        if let Some(tick_ns) = self.tick_ns {
            self.judge_before(tick_ns.saturating_add(1));
        }
    }

    fn judge(&mut self, account: &AccountOutline) {
        let finalizing = self.replay.totals().finalizing;
        // That of finalization itself is taken a little later than it is recorded.
        if finalizing.is_some_and(|moment| account.time_ns > moment.time_ns) && !account.is_finalizing {
            self.accounts.clear();
            return;
        }
        let Some(rank) = account.rank(self.live_bytes) else { return };
        if self.widest.as_ref().is_none_or(|widest| rank >= widest.rank) {
            self.replay.keep_moment();
            self.widest = Some(WidestMoment { rank, time_ns: account.time_ns, trace: self.trace.clone() });
        }
    }

    /// The time of the widest moment, and what was live at it; the classes at the moments that were asked for; and the
    /// replay.
    #[must_use]
    pub fn finish(mut self) -> (Option<KeptLive>, Vec<ClassesAt>, Replay) {
        self.judge_before(u64::MAX);
        let Self { mut replay, widest, bands, .. } = self;
        // Before: it has a copy of what was live at its last moment.
        let classes = bands.map(BandScan::finish).unwrap_or_default();
        let kept = widest.map(|WidestMoment { time_ns, trace: AllocatorTrace { caches, arenas, pages }, .. }| {
            let (extents, live) = replay.take_kept();
            let (arena_excess, block_pages) = (arenas.excess(), pages);
            KeptLive {
                time_ns,
                caches,
                live: LiveMoment { extents, live, arena_excess, block_pages, ..LiveMoment::default() },
            }
        });
        (kept, classes, replay)
    }
}

/// What was live at the widest moment.
#[derive(Debug)]
pub struct KeptLive {
    /// The moment of the account.
    pub time_ns: u64,
    caches: ThreadCaches,
    live: LiveMoment,
}

impl KeptLive {
    /// Joined with the account of the moment, whose threads had caches, and the replay's groups.
    #[must_use]
    pub fn moment(self, account: &ResidentAccount, threads: &[Thread], replay: &Replay) -> LiveMoment {
        let Self { caches, live, .. } = self;
        LiveMoment {
            cached: caches.chunks_at(account, threads),
            groups: replay.group_keys().map(|(stack, allocator, _)| (stack, allocator)).collect(),
            ..live
        }
    }
}

impl Consumer for WidestScan {
    #[inline]
    fn event(&mut self, event: &Event, frames: &Frames) {
        self.events(std::iter::once(*event), frames);
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, frames: &Frames) {
        self.run_events(events.map(RunEvent::from), frames);
    }

    fn short_lived(&self) -> ShortLivedUse {
        ShortLivedUse::Marks
    }

    #[inline]
    fn run_events(&mut self, events: impl ExactSizeIterator<Item = RunEvent> + Clone, _frames: &Frames) {
        self.judge_ticked();
        if self.accounts.is_empty() && self.bands.as_ref().is_none_or(BandScan::is_over) {
            return self.replay.run_and(events, |_, _| ());
        }
        let trace = &mut self.trace;
        self.replay.run_and(events, |replay, event| trace.note(replay, event));
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.replay.truncated_stacks(count);
    }

    fn ended(&mut self, time_ns: u64) {
        self.replay.ended(time_ns);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.tick(0, snapshot.time_ns);
        self.live_bytes = self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes).heap_bytes;
    }

    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        self.judge_before(time_ns);
        self.tick_ns = self.tick_ns.max(Some(time_ns));
    }

    fn replaced(&mut self) {
        self.judge_ticked();
        self.replay.replaced();
        self.trace.clear();
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::*;
    use crate::event::{EventKind, StackId, ThreadId};

    /// As of a program that has a library's buffers and frees much at its start, and reserves a gigabyte later.
    #[test]
    fn the_moment_is_the_one_at_which_most_differs() {
        const MB: u64 = 1 << 20;
        let block = |size: u64, order: u64| Event {
            kind: EventKind::Alloc(Allocator::Malloc),
            address: 0x1000_0000 * (order + 1),
            size,
            stack: StackId(1),
            thread: ThreadId(0),
            order,
            time_ns: order * 10,
        };
        let outline =
            |time_ns, anonymous, untouched| AccountOutline { time_ns, anonymous, untouched, is_finalizing: false };
        let accounts = vec![outline(5, 42 * MB, 67 * MB), outline(15, 150 * MB, 1_067 * MB)];
        let mut scan = WidestScan::new(&Options::default(), accounts, AllocatorTrace::default());
        for (size, order) in [(79 * MB, 0), (1_137 * MB, 1)] {
            scan.event(&block(size, order), &Frames::new());
            scan.snapshot(&Snapshot { time_ns: order * 10 + 1, order: order + 1, ..Snapshot::default() });
        }
        let (kept, ..) = scan.finish();
        assert_eq!(kept.map(|kept| kept.time_ns), Some(15));
    }
}
