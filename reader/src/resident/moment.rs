//! The blocks that were live at the moment of an account: a replay of the capture up to there.
//!
//! Invariant: events after the moment change nothing.

use memtrack_format::Allocator;
use memtrack_format::resident::ResidentAccount;

use super::allocator_trace::AllocatorTrace;
use super::block_pages::BlockPages;
use super::fullest_blocks::FullestBlocks;
use crate::analysis::{Analysis, Options, Tally};
use crate::event::{Event, RunEvent, Snapshot, StackId, Thread};
use crate::frames::Frames;
use crate::live_extent::LiveExtent;
use crate::replay::Replay;
use crate::source::Consumer;

/// What was live at the moment of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMoment {
    /// By address.
    pub(super) extents: Vec<LiveExtent>,
    /// Chunks that threads cache: the address of the block and the bytes of the chunk.
    pub(super) cached: Vec<(u64, u64)>,
    /// The stack and allocator of each group.
    pub(super) groups: Vec<(StackId, Allocator)>,
    /// Live blocks and bytes of the heap.
    pub live: Tally,
    /// Bytes that glibc's arenas held more at their own peaks than at the peak of all.
    pub(super) arena_excess: u64,
    /// Pages that have had a block.
    pub(super) block_pages: BlockPages,
    /// What large blocks had in memory at other accounts, if they were followed.
    pub(super) fullest: FullestBlocks,
    /// When most was live in the recording, in nanoseconds since it began, if they were followed.
    pub(super) peak_ns: Option<u64>,
}

/// A consumer of events that replays them up to a moment.
#[derive(Debug)]
pub struct MomentScan {
    replay: Replay,
    trace: AllocatorTrace,
    /// The tick of the moment, in nanoseconds since recording began.
    time_ns: u64,
    is_over: bool,
    /// The snapshot of most resident memory, of all.
    most: Option<(u64, u64)>,
}

impl MomentScan {
    /// Nothing is live yet. `time_ns`: the moment, in nanoseconds since recording began. `trace`: with its account.
    #[must_use]
    pub fn new(options: &Options, time_ns: u64, trace: AllocatorTrace) -> Self {
        Self { replay: Replay::new(options), trace, time_ns, is_over: false, most: None }
    }

    /// The most resident memory of all snapshots, later ones included, and its time; `None`: there are none.
    #[must_use]
    pub const fn most_resident(&self) -> Option<(u64, u64)> {
        self.most
    }

    /// What was live at the moment of this account, and the replay up to it.
    #[must_use]
    pub fn finish(self, account: &ResidentAccount, threads: &[Thread]) -> (LiveMoment, Replay) {
        let cached = self.trace.caches.chunks_at(account, threads);
        (LiveMoment::of(&self.replay, cached, &self.trace, Vec::new()), self.replay)
    }
}

impl LiveMoment {
    /// What is live now; `cached`: by threads. `memory`: of earlier extents.
    pub(super) fn of(
        replay: &Replay,
        cached: Vec<(u64, u64)>,
        trace: &AllocatorTrace,
        memory: Vec<LiveExtent>,
    ) -> Self {
        Self {
            extents: replay.live_extents(memory),
            cached,
            groups: replay.group_keys().map(|(stack, allocator, _)| (stack, allocator)).collect(),
            live: replay.live(),
            arena_excess: trace.arenas.excess(),
            block_pages: trace.pages.clone(),
            fullest: FullestBlocks::default(),
            peak_ns: None,
        }
    }

    /// Groups were merged: `numbers` has the new number of each, or none where all stay, and `analysis` the groups.
    pub fn regroup(&mut self, numbers: &[u32], analysis: &Analysis) {
        for extent in &mut self.extents {
            // Of mappings that are not heap it is a number that no group has.
            extent.group = numbers.get(extent.group as usize).copied().unwrap_or(extent.group);
        }
        self.groups = analysis.groups.iter().map(|group| (group.stack, group.allocator)).collect();
    }
}

impl Consumer for MomentScan {
    #[inline]
    fn event(&mut self, event: &Event, frames: &Frames) {
        self.events(std::iter::once(*event), frames);
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        if !self.is_over {
            let trace = &mut self.trace;
            self.replay.run_then(events.map(RunEvent::from), |replay, event| trace.note(replay, event));
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.tick(0, snapshot.time_ns);
        if self.most.is_none_or(|(most, _)| snapshot.rss_bytes > most) {
            self.most = Some((snapshot.rss_bytes, snapshot.time_ns));
        }
        if !self.is_over {
            self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes);
        }
    }

    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        self.is_over |= time_ns >= self.time_ns;
    }

    fn replaced(&mut self) {
        if !self.is_over {
            self.replay.replaced();
            self.trace.clear();
        }
    }
}
