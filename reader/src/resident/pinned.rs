//! Resident pages that blocks of one stack alone keep, summed up by stack and by group.
//!
//! Invariant: both have the same pages and blocks.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::used::UsedRange;
use crate::analysis::Tally;
use crate::event::StackId;

/// The resident pages in which only blocks of one stack are live, and which they do not fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedPages {
    /// The stack.
    pub stack: StackId,
    /// Its blocks in these pages.
    pub blocks: u64,
    /// Their bytes in these pages.
    pub live_bytes: u64,
    /// Bytes of these pages.
    pub pinned_bytes: u64,
    /// When the first of these blocks was allocated, and the last, in nanoseconds since recording began.
    pub allocated_ns: (u64, u64),
}

/// The sums while pages are counted.
#[derive(Debug, Default)]
pub(super) struct PinnedSums {
    /// By stack; the last block counted, too.
    stacks: FxHashMap<StackId, (PinnedPages, u64)>,
    groups: FxHashMap<u32, Tally>,
}

impl PinnedSums {
    /// Counts a page that only blocks of this stack keep.
    pub(super) fn add(&mut self, stack: StackId, rest: &[UsedRange], (page, end): (u64, u64)) {
        let (pinned, counted) = self
            .stacks
            .entry(stack)
            .or_insert_with(|| (PinnedPages { stack, allocated_ns: (u64::MAX, 0), ..PinnedPages::default() }, 0));
        pinned.pinned_bytes += end - page;
        let blocks = rest.iter().take_while(|used| used.start < end);
        let mut page_bytes = end - page;
        for block in blocks.filter(|block| block.live_start < end && block.live_end > page) {
            pinned.live_bytes += block.live_end.min(end) - block.live_start.max(page);
            // A block on several pages counts once.
            let is_new = u64::from(*counted != block.live_start);
            pinned.blocks += is_new;
            if let Some(group) = block.group {
                self.groups.entry(group).or_default().add(std::mem::take(&mut page_bytes), is_new);
            }
            *counted = block.live_start;
            let (first, last) = &mut pinned.allocated_ns;
            (*first, *last) = ((*first).min(block.time_ns), (*last).max(block.time_ns));
        }
    }

    /// By stack, those that keep most first; and by group.
    pub(super) fn finish(self) -> (Vec<PinnedPages>, Vec<(u32, Tally)>) {
        let mut stacks: Vec<PinnedPages> = self.stacks.into_values().map(|(pinned, _)| pinned).collect();
        stacks.sort_by_key(|pinned| (Reverse(pinned.pinned_bytes), pinned.stack));
        let mut groups: Vec<(u32, Tally)> = self.groups.into_iter().collect();
        groups.sort_unstable_by_key(|(group, _)| *group);
        (stacks, groups)
    }
}
