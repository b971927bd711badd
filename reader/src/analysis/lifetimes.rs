//! Lifetimes of allocations, and which thread freed what another one allocated.
//!
//! They are computed from single allocations, in a reading of their own. The call stacks of frees are unknown: a
//! capture has only the thread of a free. Invariant: each allocation is in one bin, or live, or lost.

use rustc_hash::FxHashMap;

use super::Tally;
use crate::allocation_record::{AllocationOutcome, AllocationRecord};
use crate::event::ThreadId;

/// The bins of freed allocations end below these lifetimes, in nanoseconds; the last bin has no end.
pub const LIFETIME_BOUNDS_NS: [u64; 7] =
    [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

/// The lifetimes of some allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Those that were freed, by [`LIFETIME_BOUNDS_NS`].
    pub freed: [Tally; LIFETIME_BOUNDS_NS.len() + 1],
    /// Those that were live at the end.
    pub live: Tally,
    /// Those whose free was not seen.
    pub lost: Tally,
    /// Those that another thread freed.
    pub cross_thread: Tally,
    /// The lifetimes of all of them, added up, in nanoseconds; what was live lived until the end.
    pub total_ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
}

impl Lifetimes {
    /// Counts one allocation.
    pub fn add(&mut self, life: &AllocationRecord) {
        let part = match life.fate {
            AllocationOutcome::Live => &mut self.live,
            AllocationOutcome::Lost { .. } => &mut self.lost,
            AllocationOutcome::Freed { thread, .. } => {
                if thread != life.thread {
                    self.cross_thread.add(life.size, 1);
                }
                &mut self.freed[LIFETIME_BOUNDS_NS.partition_point(|bound| *bound <= life.lifetime_ns)]
            }
        };
        part.add(life.size, 1);
        self.total_ns = self.total_ns.saturating_add(life.lifetime_ns);
        self.longest_ns = self.longest_ns.max(life.lifetime_ns);
    }

    /// Adds those of others.
    pub fn merge(&mut self, others: &Self) {
        self.freed.iter_mut().zip(others.freed).for_each(|(bin, more)| *bin += more);
        self.live += others.live;
        self.lost += others.lost;
        self.cross_thread += others.cross_thread;
        self.total_ns = self.total_ns.saturating_add(others.total_ns);
        self.longest_ns = self.longest_ns.max(others.longest_ns);
    }

    /// How many there are of them, with their bytes.
    #[must_use]
    pub fn all(&self) -> Tally {
        [self.freed(), self.live, self.lost].into_iter().sum()
    }

    /// Those that were freed.
    #[must_use]
    pub fn freed(&self) -> Tally {
        self.freed.into_iter().sum()
    }

    /// How long they lived on average, in nanoseconds; 0 where there are none.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.all().count).unwrap_or(0)
    }
}

/// Tallies by allocating and freeing thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handovers {
    pairs: FxHashMap<(ThreadId, ThreadId), Tally>,
}

impl Handovers {
    /// Counts one allocation, if it was freed.
    pub fn add(&mut self, life: &AllocationRecord) {
        if let AllocationOutcome::Freed { thread, .. } = life.fate {
            self.pairs.entry((life.thread, thread)).or_default().add(life.size, 1);
        }
    }

    /// Allocating thread, freeing thread and tally, the largest first.
    #[must_use]
    pub fn rows(&self) -> Vec<(ThreadId, ThreadId, Tally)> {
        let mut rows: Vec<_> = self.pairs.iter().map(|(&(made, freed), tally)| (made, freed, *tally)).collect();
        rows.sort_unstable_by_key(|&(made, freed, tally)| (std::cmp::Reverse((tally.bytes, tally.count)), made, freed));
        rows
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{Handovers, Lifetimes};
    use crate::allocation_record::{AllocationOutcome, AllocationRecord};
    use crate::event::{StackId, ThreadId};

    fn life(size: u64, lifetime_ns: u64, fate: AllocationOutcome) -> AllocationRecord {
        AllocationRecord {
            stack: StackId(0),
            allocator: Allocator::Malloc,
            thread: ThreadId(0),
            size,
            order: 0,
            time_ns: 0,
            lifetime_ns,
            fate,
            leaked: false,
            temporary: false,
            peak: false,
        }
    }

    #[test]
    fn bins_and_pairs_hold_everything_once() {
        let freed = |thread| AllocationOutcome::Freed { thread: ThreadId(thread), order: 9 };
        let all = [
            life(1, 9_999, freed(0)),
            life(2, 10_000, freed(1)),
            life(4, 10_000_000_000, freed(1)),
            life(8, 5, AllocationOutcome::Live),
            life(16, 5, AllocationOutcome::Lost { order: 3 }),
        ];
        let (mut lifetimes, mut handovers) = (Lifetimes::default(), Handovers::default());
        all.iter().for_each(|life| lifetimes.add(life));
        all.iter().for_each(|life| handovers.add(life));
        assert_eq!(lifetimes.freed.map(|bin| bin.bytes), [1, 2, 0, 0, 0, 0, 0, 4]);
        assert_eq!((lifetimes.live.bytes, lifetimes.lost.bytes, lifetimes.cross_thread.bytes), (8, 16, 6));
        assert_eq!((lifetimes.all().bytes, lifetimes.all().count), (31, 5));
        assert_eq!((lifetimes.longest_ns, lifetimes.mean_ns()), (10_000_000_000, 10_000_020_009 / 5));
        let mut twice = lifetimes.clone();
        twice.merge(&lifetimes);
        assert_eq!((twice.all().bytes, twice.mean_ns()), (62, lifetimes.mean_ns()));
        let rows: Vec<_> = handovers.rows().iter().map(|row| (row.0.0, row.1.0, row.2.bytes)).collect();
        assert_eq!(rows, [(0, 1, 6), (0, 0, 1)]);
    }
}
