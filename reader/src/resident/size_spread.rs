//! How much of the pages of blocks the blocks of each size fill: fragmentation by size.
//!
//! Invariant: the sums over all sizes are the live bytes of private memory and the rest of their pages.

use super::used::UsedRange;

/// Blocks of one power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeSpread {
    /// The smallest and the largest block.
    pub sizes: (u64, u64),
    /// Live bytes of these blocks in resident pages.
    pub live: u64,
    /// The rest of these pages; where blocks of several sizes share one, in proportion to their bytes on it.
    pub rest: u64,
}

/// The sums while pages are counted, by the number of bits of the size less one byte.
#[derive(Debug)]
pub(super) struct SpreadSums([SizeSpread; 65]);

impl Default for SpreadSums {
    fn default() -> Self {
        Self([SizeSpread::default(); 65])
    }
}

impl SpreadSums {
    /// Counts pages with so many live bytes; `used`: from the first range on them on.
    pub(super) fn add(&mut self, used: &[UsedRange], (start, end): (u64, u64), live: u64) {
        let mut rest = (end - start).saturating_sub(live);
        let (all, mut left) = (rest, live);
        for one in used.iter().take_while(|one| one.start < end) {
            let part = one.live_end.min(end).saturating_sub(one.live_start.max(start));
            if part == 0 {
                continue;
            }
            left = left.saturating_sub(part);
            let share = if left == 0 { rest } else { all.saturating_mul(part) / live.max(1) };
            rest = rest.saturating_sub(share);
            let bits = u64::BITS - (one.live_end - one.live_start).saturating_sub(1).leading_zeros();
            if let Some(sum) = self.0.get_mut(bits as usize) {
                sum.live += part;
                sum.rest += share;
            }
        }
    }

    /// Those that have something, smallest first.
    pub(super) fn finish(self) -> Vec<SizeSpread> {
        let bounds = |bits: u32| {
            (if bits == 0 { 0 } else { (1_u64 << (bits - 1)) + 1 }, 1_u64.checked_shl(bits).unwrap_or(u64::MAX))
        };
        let all = (0..).zip(self.0).map(|(bits, sum)| SizeSpread { sizes: bounds(bits), ..sum });
        all.filter(|sum| sum.live > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{SizeSpread, SpreadSums};
    use crate::resident::used::UsedRange;

    #[test]
    fn the_rest_of_a_page_is_shared_by_bytes() {
        let used = |start: u64, bytes: u64| UsedRange {
            start,
            end: start + bytes,
            live_start: start,
            live_end: start + bytes,
            time_ns: 0,
            group: Some(0),
            can_contain: false,
        };
        let mut sums = SpreadSums::default();
        sums.add(&[used(0, 64), used(64, 64), used(1000, 384)], (0, 4096), 512);
        // A page that one block fills.
        sums.add(&[used(4096, 10_000)], (4096, 8192), 4096);
        let found = sums.finish();
        assert_eq!(found[0], SizeSpread { sizes: (33, 64), live: 128, rest: 896 });
        assert_eq!(found[1], SizeSpread { sizes: (257, 512), live: 384, rest: 2688 });
        assert_eq!(found[2], SizeSpread { sizes: (8193, 16384), live: 4096, rest: 0 });
        assert_eq!(found.len(), 3);
    }
}
