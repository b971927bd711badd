//! Live memory that is not there, by stack: the parts of large blocks and mappings that are neither in memory nor swapped out, since
//! nobody has touched them, or they were given back. Allocators reserve in this way what they hand out later.
//!
//! Invariant: only extents from [`LARGE`] on are looked at, so it takes no time where blocks are many and small.

use std::cmp::Reverse;

use memtrack_format::MapClass;
use memtrack_format::resident::{AccountMapping, ResidentAccount};
use rustc_hash::FxHashMap;

use super::fullest_blocks::FullestBlock;
use super::moment::LiveMoment;
use crate::event::StackId;
use crate::live_extent::LiveExtent;

/// Bytes of a block or mapping from which it may be listed.
pub(super) const LARGE: u64 = 1 << 20;

/// Blocks and mappings of a stack with pages that are neither in memory nor swapped out: those of the moment, or if they were followed
/// through all accounts ([`FullestScan`](super::FullestScan)), of these those that were live when most was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntouchedBlocks {
    /// The stack.
    pub stack: StackId,
    /// How many blocks and mappings.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, bytes of pages that are neither in memory nor swapped out; where they were followed, at no account, and not in memory
    /// between two of them for certain.
    pub untouched: u64,
    /// Bytes besides that no account has in memory either, but which may have been in memory between two.
    pub unseen: u64,
    /// Of the blocks of the moment that no account has gone, bytes of pages that are neither in memory nor swapped out at the last one.
    pub at_last: u64,
}

/// The stacks with untouched memory in large extents, most first.
pub(super) fn by_stack<'a>(
    account: &ResidentAccount,
    moment: &LiveMoment,
    extents: impl Iterator<Item = &'a LiveExtent>,
) -> Vec<UntouchedBlocks> {
    let mut stacks: FxHashMap<StackId, (UntouchedBlocks, UnseenBytes)> = FxHashMap::default();
    for extent in extents.filter(|extent| extent.bytes >= LARGE) {
        let FullestBlock { life_ns: (begun, ended), touched, at_last, unseen } = fullest(account, moment, extent);
        let Some((stack, _)) = moment.groups.get(extent.group as usize) else { continue };
        let untouched = extent.bytes.saturating_sub(touched);
        if untouched >= LARGE && moment.peak_ns.is_none_or(|peak| (begun..ended).contains(&peak)) {
            let (row, all_unseen) = stacks.entry(*stack).or_default();
            row.blocks += 1;
            row.bytes = row.bytes.saturating_add(extent.bytes);
            row.untouched = row.untouched.saturating_add(untouched);
            all_unseen.add(unseen, untouched);
        }
        let left = extent.bytes.saturating_sub(at_last);
        if left >= LARGE && ended == u64::MAX {
            let (row, _) = stacks.entry(*stack).or_default();
            row.at_last = row.at_last.saturating_add(left);
        }
    }
    let less = |(stack, (row, unseen)): (StackId, (UntouchedBlocks, UnseenBytes))| {
        let unseen = unseen.sum().min(row.untouched);
        UntouchedBlocks { stack, untouched: row.untouched - unseen, unseen, ..row }
    };
    let is_large = |row: &UntouchedBlocks| row.untouched >= LARGE || row.at_last >= LARGE;
    let mut rows: Vec<UntouchedBlocks> = stacks.into_iter().map(less).filter(is_large).collect();
    rows.sort_by_key(|row| (Reverse(row.untouched), row.stack));
    rows
}

/// What a block has in memory or swapped out, at the account, or if it was followed, at the fullest one.
fn fullest(account: &ResidentAccount, moment: &LiveMoment, extent: &LiveExtent) -> FullestBlock {
    let (start, end) = (extent.start, extent.start.saturating_add(extent.bytes));
    moment.fullest.of(start, end).unwrap_or_else(|| {
        let touched = touched(account, start, end);
        FullestBlock { life_ns: (extent.time_ns, u64::MAX), touched, at_last: touched, unseen: 0 }
    })
}

/// What no account has seen of blocks. By as much as resident memory was larger at a moment, all blocks of that moment together may have been
/// in memory, and each as far as it is large.
#[derive(Debug, Default)]
struct UnseenBytes {
    /// The untouched bytes of the blocks, by how much larger it was.
    blocks: FxHashMap<u64, u64>,
}

impl UnseenBytes {
    fn add(&mut self, unseen: u64, untouched: u64) {
        let bytes = self.blocks.entry(unseen).or_default();
        *bytes = bytes.saturating_add(untouched);
    }

    fn sum(&self) -> u64 {
        self.blocks
            .iter()
            .map(|(unseen, untouched)| unseen.min(untouched))
            .fold(0, |sum, more| sum.saturating_add(*more))
    }
}

/// Bytes that large blocks have in memory at fuller accounts than this one, or may have had between accounts.
pub(super) fn later_touched<'a>(
    account: &ResidentAccount,
    moment: &LiveMoment,
    extents: impl Iterator<Item = &'a LiveExtent>,
) -> u64 {
    let (mut later, mut all_unseen) = (0_u64, UnseenBytes::default());
    for extent in extents.filter(|extent| extent.bytes >= LARGE) {
        let now = touched(account, extent.start, extent.start.saturating_add(extent.bytes));
        let FullestBlock { touched, unseen, .. } = fullest(account, moment, extent);
        later = later.saturating_add(touched - now);
        all_unseen.add(unseen, extent.bytes.saturating_sub(touched));
    }
    later.saturating_add(all_unseen.sum())
}

/// Bytes between these addresses that are in memory or swapped out.
pub(super) fn touched(account: &ResidentAccount, start: u64, end: u64) -> u64 {
    let mappings = &account.mappings;
    let first = mappings.partition_point(|mapping| mapping.end <= start);
    let of_mapping = |mapping: &AccountMapping| -> u64 {
        let first = mapping.runs.partition_point(|run| run.end <= start);
        let runs = mapping.runs.get(first..).unwrap_or_default().iter().take_while(|run| run.start < end);
        runs.map(|run| run.end.min(end) - run.start.max(start)).sum()
    };
    let mappings = mappings.get(first..).unwrap_or_default().iter();
    mappings.take_while(|mapping| mapping.start < end).map(of_mapping).sum()
}

/// Whether it counts as heap, as all blocks do.
pub(super) fn is_heap(extent: &LiveExtent) -> bool {
    extent.mapped.is_none_or(|class| class == MapClass::Heap)
}

#[cfg(test)]
mod tests {
    use super::UnseenBytes;

    #[test]
    fn what_was_larger_at_a_moment_was_in_all_blocks_together() {
        let mut unseen = UnseenBytes::default();
        (0..4).for_each(|_| unseen.add(147, 256));
        assert_eq!(unseen.sum(), 147);
        // At another moment it was larger than this block.
        unseen.add(320, 42);
        assert_eq!(unseen.sum(), 189);
    }
}
