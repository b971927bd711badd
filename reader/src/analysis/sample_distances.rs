//! How far apart the samples of each thread were, at each place in the total order: `run --sample=auto` changes that.
//!
//! Invariant: an allocation has the same weights whenever they are asked for.

use std::num::NonZeroU64;

use super::estimate::SampleWeights;
use crate::event::ThreadId;

/// The distances of all threads.
#[derive(Clone, Debug)]
pub(super) struct SampleDistances {
    /// Of a thread that says nothing else.
    usual: SampleWeights,
    /// By thread: the orders of the changes, and what holds from there on.
    changes: Vec<Vec<(u64, SampleWeights)>>,
}

impl SampleDistances {
    pub(super) fn new(usual: NonZeroU64) -> Self {
        Self { usual: SampleWeights::new(usual), changes: Vec::new() }
    }

    /// From here on it is another one.
    pub(super) fn change(&mut self, thread: ThreadId, order: u64, bytes: NonZeroU64) {
        let place = thread.0 as usize;
        if place >= self.changes.len() {
            self.changes.resize_with(place + 1, Vec::new);
        }
        let (weights, changes) = (SampleWeights::new(bytes), &mut self.changes[place]);
        // It is said of each sample.
        if changes.last().is_none_or(|(_, last)| *last != weights) {
            changes.push((order, weights));
        }
    }

    /// What holds for an allocation of a thread at this place in the order.
    #[inline]
    pub(super) fn at(&self, thread: ThreadId, order: u64) -> SampleWeights {
        let Some(changes) = self.changes.get(thread.0 as usize) else { return self.usual };
        let before = changes.partition_point(|(change, _)| *change <= order);
        before.checked_sub(1).map_or(self.usual, |last| changes[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::{NonZeroU64, SampleDistances, SampleWeights, ThreadId};

    #[test]
    fn each_allocation_has_the_distance_of_its_thread_and_time() {
        let bytes = |bytes| NonZeroU64::new(bytes).unwrap();
        let weights = |number| SampleWeights::new(bytes(number));
        let mut distances = SampleDistances::new(bytes(100));
        for (thread, order, distance) in [(1, 10, 200), (1, 20, 200), (1, 30, 400), (0, 35, 50)] {
            distances.change(ThreadId(thread), order, bytes(distance));
        }
        let at = |thread, order| distances.at(ThreadId(thread), order);
        assert_eq!([at(1, 9), at(1, 10), at(1, 29), at(1, 31)], [100, 200, 200, 400].map(weights));
        assert_eq!([at(0, 34), at(0, 99), at(2, 99)], [100, 50, 100].map(weights));
        assert_eq!(distances.changes[1].len(), 2);
    }
}
