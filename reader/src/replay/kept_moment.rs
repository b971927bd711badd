//! What was live at an earlier moment, while the replay goes on.
//!
//! A report of resident memory needs the live blocks of one moment, and which moment it is shows only later. To copy all
//! live blocks at each candidate would take longer than the replay. What was live at the moment is what is live now and
//! is older than it, and what was older and has ended since: only the latter is stored. A later moment discards it.
//!
//! Invariant: each block that was live at the moment is live, or in `ended`, or in both (where its free was undone).

use rayon::slice::ParallelSliceMut;

use super::heap::LiveHeap;
use super::mappings::Mappings;
use crate::analysis::{LiveBlock, Tally};
use crate::decode_threads;
use crate::live_extent::LiveExtent;

/// The moment, and what has ended since.
#[derive(Debug, Default)]
pub(super) struct KeptMoment {
    /// Events with a smaller order came before it; 0: there is no moment.
    before: u64,
    ended: Vec<LiveExtent>,
    /// All mappings at the moment.
    mapped: Vec<LiveExtent>,
    live: Tally,
}

impl KeptMoment {
    /// The moment is now, before the event of this order.
    pub(super) fn set(&mut self, order: u64, mappings: &Mappings, live: Tally) {
        (self.before, self.live) = (order, live);
        self.ended.clear();
        self.mapped.clear();
        self.mapped.extend(mapped_extents(mappings));
    }

    /// A block ends.
    #[inline]
    pub(super) fn end(&mut self, address: u64, block: &LiveBlock) {
        if block.order < self.before {
            self.ended.push(block_extent(address, block));
        }
    }

    /// What was live at the moment, by address, and the heap's sum.
    pub(super) fn take(self, heap: &LiveHeap) -> (Vec<LiveExtent>, Tally) {
        let Self { before, ended: mut all, mapped, live } = self;
        all.reserve(heap.len());
        let older = heap.blocks_at().filter(|(_, block)| block.order < before);
        older.for_each(|(address, block)| all.push(block_extent(address, block)));
        decode_threads::start();
        all.par_sort_unstable_by_key(|extent| extent.start);
        // A free that was undone: at one moment one block was live at an address.
        all.dedup_by_key(|extent| extent.start);
        (with_mapped(all, mapped.into_iter()), live)
    }
}

/// Blocks and mappings together, each by address before.
pub(super) fn with_mapped(mut all: Vec<LiveExtent>, mapped: impl Iterator<Item = LiveExtent>) -> Vec<LiveExtent> {
    all.extend(mapped);
    all.sort_by_key(|extent| extent.start);
    all
}

/// A live block.
pub(super) fn block_extent(start: u64, block: &LiveBlock) -> LiveExtent {
    LiveExtent { start, bytes: block.size, time_ns: block.time_ns, group: block.group, mapped: None }
}

/// All parts of mappings.
pub(super) fn mapped_extents(mappings: &Mappings) -> impl Iterator<Item = LiveExtent> + '_ {
    mappings.ranges().map(|(start, end, class, block)| LiveExtent {
        start,
        bytes: end - start,
        time_ns: block.time_ns,
        group: block.group,
        mapped: Some(class),
    })
}
