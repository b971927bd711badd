//! Ranges of addresses that are in use, without overlaps.
//!
//! Invariant: what [`disjoint`] returns ascends, does not overlap, and covers the same addresses.

use std::cmp::Reverse;

/// A range of addresses that is in use: a live block or mapping, or a chunk that a thread caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedRange {
    /// With the allocator's header.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Of the block or mapping.
    pub(super) live_start: u64,
    pub(super) live_end: u64,
    /// When it was allocated, in nanoseconds since recording began.
    pub(super) time_ns: u64,
    /// `None`: it is cached.
    pub(super) group: Option<u32>,
    /// It is a mapping, in which the program may have blocks of its own.
    pub(super) can_contain: bool,
}

impl UsedRange {
    /// The part of it between these addresses, if there is one.
    fn part(&self, start: u64, end: u64) -> Option<Self> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        let clamp = |address: u64| address.clamp(start, end.max(start));
        let (live_start, live_end) = (clamp(self.live_start), clamp(self.live_end));
        (start < end).then_some(Self { start, end, live_start, live_end, ..*self })
    }
}

/// The same without overlaps: blocks in a mapping are taken out of it, and of two blocks the later one is cut.
pub(super) fn disjoint(mut used: Vec<UsedRange>) -> Vec<UsedRange> {
    used.sort_unstable_by_key(|one| (one.start, Reverse(one.end)));
    // Mostly they are: millions of blocks are not copied then.
    if used.iter().all(|one| one.start < one.end) && used.is_sorted_by(|one, next| one.end <= next.start) {
        return used;
    }
    let (mut all, mut outer, mut done) = (Vec::with_capacity(used.len()), None::<UsedRange>, 0);
    for one in used {
        if let Some(around) = outer {
            all.extend(around.part(done, one.start));
            done = done.max(around.end.min(one.start));
            outer = outer.filter(|around| around.end > one.start);
        }
        if one.can_contain && outer.is_none() {
            outer = Some(one);
        } else {
            all.extend(one.part(done, u64::MAX));
            done = done.max(one.end);
        }
    }
    all.extend(outer.and_then(|around| around.part(done, u64::MAX)));
    all
}

#[cfg(test)]
mod tests {
    use super::{UsedRange, disjoint};
    use proptest::prelude::*;

    fn used(start: u64, end: u64, can_contain: bool) -> UsedRange {
        UsedRange {
            start,
            end,
            live_start: start,
            live_end: end,
            time_ns: 0,
            group: Some(u32::from(can_contain)),
            can_contain,
        }
    }

    #[test]
    fn blocks_are_taken_out_of_their_mapping() {
        let all = disjoint(vec![used(0, 100, true), used(10, 20, false), used(15, 30, false), used(120, 130, false)]);
        let found: Vec<_> = all.iter().map(|one| (one.start, one.end, one.can_contain)).collect();
        let expected = [(0, 10, true), (10, 20, false), (20, 30, false), (30, 100, true), (120, 130, false)];
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn the_same_addresses_are_covered_once(ranges in prop::collection::vec((0u64..60, 1u64..30, any::<bool>()), 0..12)) {
            let ranges: Vec<UsedRange> = ranges.into_iter().map(|(start, bytes, outer)| used(start, start + bytes, outer)).collect();
            let all = disjoint(ranges.clone());
            for pair in all.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for address in 0..100 {
                let covers = |one: &UsedRange| (one.start..one.end).contains(&address);
                prop_assert_eq!(ranges.iter().any(covers), all.iter().any(covers), "{}", address);
            }
        }
    }
}
