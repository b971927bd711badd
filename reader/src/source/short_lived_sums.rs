//! Sums the blocks of a run that are marked as short-lived.
//!
//! Invariant: a run has no sums if one of its events asks what is live, or may have allocated or not.

use memtrack_format::MapClass;

use crate::analysis::short_lived_sums::{ShortLivedGroup, ShortLivedSums, Stretch};
use crate::decoded_run::Compact;
use crate::event::EventKind;
use crate::replay::short_lived::{PLACES, place};

/// Fewer short-lived blocks in a run are not worth their sums.
const LEAST_BLOCKS: usize = if cfg!(test) { 1 } else { 32 };
/// Entries of the table of groups: a power of two.
const RECENT: usize = 1024;

/// A block that has begun.
#[derive(Clone, Copy, Debug, Default)]
struct BegunBlock {
    size: u32,
    /// The number of its event.
    at: u32,
    /// Allocations of the run up to its own.
    nth: u32,
    group: u32,
}

/// The group last used by a node and an allocator.
#[derive(Clone, Copy, Debug, Default)]
struct RecentGroup {
    node: u32,
    allocator: u32,
    /// Of which run, counted from 1.
    run: u32,
    group: u32,
}

/// Sums up the runs of one batch.
#[derive(Debug)]
pub(super) struct ShortLivedSummer {
    /// How many further allocations of its thread a temporary block may outlive.
    threshold: u32,
    begun: [BegunBlock; PLACES],
    recent: [RecentGroup; RECENT],
    /// Runs so far.
    run: u32,
}

impl ShortLivedSummer {
    pub(super) fn new(threshold: u32) -> Self {
        Self { threshold, begun: [BegunBlock::default(); PLACES], recent: [RecentGroup::default(); RECENT], run: 0 }
    }

    /// The sums of the next run, if they are worth it.
    pub(super) fn sum(&mut self, events: &[Compact]) -> Option<Box<ShortLivedSums>> {
        if events.len() < 2 * LEAST_BLOCKS {
            return None;
        }
        self.run += 1;
        let mut sums = Box::<ShortLivedSums>::default();
        let ShortLivedSums { groups, stretches, others, sizes, blocks } = &mut *sums;
        let mut stretch = Stretch::default();
        let (mut allocations, mut length) = (0, 0);
        for (at, event) in (0..).zip(events) {
            if !event.short_lived {
                allocations += allocations_of(event)?;
                others.push(at);
                if length > 0 {
                    stretches.push(std::mem::take(&mut stretch));
                    length = 0;
                }
                continue;
            }
            length += 1;
            let block = &mut self.begun[place(event.address)];
            if let EventKind::Alloc(allocator) = event.kind {
                allocations += 1;
                // Sums of larger ones could overflow.
                let size = u32::try_from(event.size).ok()?;
                let key = RecentGroup { node: event.node, allocator: allocator as u32, run: self.run, group: 0 };
                let group = group_of(&mut self.recent, groups, key, at);
                *block = BegunBlock { size, at, nth: allocations, group };
                let sum = &mut groups[group as usize].allocated;
                *sum = (sum.0 + event.size, sum.1 + 1);
                sizes.add(event.size, 1);
                stretch.allocate(at, i64::from(size));
            } else {
                stretch.free(i64::from(block.size));
                *blocks += 1;
                if allocations - block.nth <= self.threshold {
                    groups[block.group as usize].count_temporary(block.at, u64::from(block.size));
                }
            }
        }
        if length > 0 {
            stretches.push(stretch);
        }
        (sums.blocks >= LEAST_BLOCKS as u64).then_some(sums)
    }
}

/// How many allocations the replay will count for an event; `None`: that is not known, or the event asks what is live.
#[inline]
fn allocations_of(event: &Compact) -> Option<u32> {
    match event.kind {
        EventKind::Alloc(_) => Some(1),
        EventKind::Map(_, MapClass::Heap) => Some(u32::from(event.size > 0)),
        EventKind::Map(_, MapClass::Inherited)
        | EventKind::SampleDistance
        | EventKind::Finalizing
        | EventKind::Exec => None,
        EventKind::Free
        | EventKind::FreeUndo
        | EventKind::Map(..)
        | EventKind::Unmap
        | EventKind::RemapFrom
        | EventKind::UnmapUndo
        | EventKind::FailedAlloc(_) => Some(0),
    }
}

/// The number of a group, which is added if it is not the one last used of those with its hash.
#[inline]
fn group_of(
    recent: &mut [RecentGroup; RECENT],
    groups: &mut Vec<ShortLivedGroup>,
    key: RecentGroup,
    first: u32,
) -> u32 {
    let last = &mut recent[(key.node ^ (key.allocator << 7)) as usize % RECENT];
    if (last.node, last.allocator, last.run) != (key.node, key.allocator, key.run) {
        *last = RecentGroup { group: groups.len() as u32, ..key };
        groups.push(ShortLivedGroup::new(first));
    }
    last.group
}
