//! Which pages have had a block of malloc's since the program began.
//!
//! An account shows no more than that a page is resident. Where another allocator than glibc's is loaded, a page without a
//! live block is free memory of the allocator's if a block was on it once, and else its own data; and a mapping
//! without any live block is known as the allocator's by the blocks that were in it.
//!
//! Invariant: without such an allocator nothing is noted; a page that is not noted has had no recorded block.

use memtrack_format::PythonDomain;
use memtrack_format::resident::ResidentAccount;
use rustc_hash::FxHashMap;

use super::loaded_allocators::loaded_allocator;
use crate::event::{Event, EventKind};

/// The pages that are told apart.
const PAGE: u64 = 4096;
/// Bytes of a region, whose pages are noted together, and words of its bits.
const REGION: u64 = 128 << 20;
const WORDS: usize = (REGION / PAGE / 64) as usize;
/// Maximum number of regions, and of bytes of a block that are noted.
const MOST_REGIONS: usize = 1 << 16;
const MOST_BYTES: u64 = 64 << 30;

/// A bit for each page of a region.
type RegionBits = Box<[u64; WORDS]>;

/// The pages that have had a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockPages {
    is_of_use: bool,
    regions: FxHashMap<u64, RegionBits>,
}

impl BlockPages {
    /// An account of the capture: it says whether another allocator is loaded.
    pub(super) fn add_account(&mut self, account: &ResidentAccount) {
        self.is_of_use |= loaded_allocator(account).is_some();
    }

    /// Notes the block of an event.
    #[inline]
    pub(super) fn note(&mut self, event: &Event) {
        if let EventKind::Alloc(allocator) = event.kind
            && self.is_of_use
            && allocator.python_domain().is_none_or(|domain| domain == PythonDomain::Raw)
        {
            self.add(event.address, event.address.saturating_add(event.size.clamp(1, MOST_BYTES)));
        }
    }

    pub(super) fn add(&mut self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let region = at / REGION;
            let region_end = (region + 1).saturating_mul(REGION);
            if self.regions.len() >= MOST_REGIONS && !self.regions.contains_key(&region) {
                return;
            }
            let bits = self.regions.entry(region).or_insert_with(|| Box::new([0; WORDS]));
            masks(at, end.min(region_end)).for_each(|(word, mask)| bits[word] |= mask);
            at = region_end;
        }
    }

    /// Bytes of the pages of a range that have had a block.
    pub(super) fn bytes(&self, start: u64, end: u64) -> u64 {
        let (mut pages, mut at) = (0, start);
        while at < end {
            let region = at / REGION;
            let region_end = (region + 1).saturating_mul(REGION);
            if let Some(bits) = self.regions.get(&region) {
                let of_word = |(word, mask): (usize, u64)| u64::from((bits[word] & mask).count_ones());
                pages += masks(at, end.min(region_end)).map(of_word).sum::<u64>();
            }
            at = region_end;
        }
        pages * PAGE
    }

    /// The program has replaced itself.
    pub(super) fn clear(&mut self) {
        self.regions.clear();
    }
}

/// The words of a region with the bits of the pages of a range in it, which is not empty.
fn masks(start: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (start % REGION / PAGE, (end - 1) % REGION / PAGE);
    (first / 64..=last / 64).map(move |word| {
        let (low, high) = (first.max(word * 64) % 64, last.min(word * 64 + 63) % 64);
        (word as usize, (u64::MAX << low) & (u64::MAX >> (63 - high)))
    })
}

#[cfg(test)]
mod tests {
    use super::{BlockPages, PAGE, REGION};

    #[test]
    fn pages_of_blocks_are_counted_once() {
        let mut pages = BlockPages::default();
        pages.add(3 * PAGE + 100, 3 * PAGE + 200);
        pages.add(3 * PAGE, 3 * PAGE + 1);
        pages.add(5 * PAGE - 1, 5 * PAGE + 1);
        assert_eq!(pages.bytes(0, 10 * PAGE), 3 * PAGE);
        assert_eq!(pages.bytes(5 * PAGE, 6 * PAGE), PAGE);
        // From the last page of a region to the first of the one after the next.
        pages.add(2 * REGION - 1, 3 * REGION + 1);
        assert_eq!(pages.bytes(REGION, 4 * REGION), REGION + 2 * PAGE);
        pages.add(u64::MAX - 10, u64::MAX);
        pages.clear();
        assert_eq!(pages.bytes(0, 4 * REGION), 0);
    }
}
