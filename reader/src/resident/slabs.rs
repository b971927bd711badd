//! What a live block keeps beside its own pages: the memory that its allocator has cut up for blocks of its size.
//!
//! jemalloc serves blocks of one size from a slab of pages, which it gives back only as a whole. A slab is as long as the
//! smallest number of pages that its blocks fill without a rest, so one block's address tells where its slab begins. A larger
//! block has its pages alone, rounded up to the next size.
//!
//! Invariant: slabs that are returned ascend and do not overlap.

use crate::live_extent::LiveExtent;

const PAGE: u64 = 4096;
/// jemalloc: the step between its smallest sizes, and the largest size that is served from slabs.
const STEP: u64 = 16;
const LARGEST_SMALL: u64 = 14 << 10;
/// jemalloc adds a page to larger blocks, so that not all of them begin at the same place of a page.
const PADDING: u64 = PAGE;

/// The slabs of jemalloc's in which these blocks are, which are by address.
pub(super) fn jemalloc_slabs<'a>(blocks: impl Iterator<Item = &'a LiveExtent>) -> Vec<(u64, u64)> {
    let mut slabs: Vec<(u64, u64)> = Vec::new();
    let mut is_sorted = true;
    for block in blocks {
        let slab = jemalloc_slab(block.start, block.bytes);
        match slabs.last_mut() {
            Some(last) if slab.0 >= last.0 && slab.0 <= last.1 => last.1 = last.1.max(slab.1),
            last => {
                is_sorted &= last.is_none_or(|last| last.1 < slab.0);
                slabs.push(slab);
            }
        }
    }
    if !is_sorted {
        slabs.sort_unstable();
        slabs.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
    }
    slabs
}

/// The slab of one block.
fn jemalloc_slab(address: u64, requested: u64) -> (u64, u64) {
    let size = jemalloc_size(requested);
    let page = address & !(PAGE - 1);
    if size > LARGEST_SMALL {
        return (page, page.saturating_add(size).saturating_add(PADDING));
    }
    // The number of pages that its blocks fill without a rest: what of the size is not a factor of a page.
    let pages = size / (1 << size.trailing_zeros().min(PAGE.trailing_zeros()));
    let begins = |start: &u64| (address - start).is_multiple_of(size);
    let starts = (0..pages).filter_map(|before| page.checked_sub(before * PAGE));
    let start = starts.into_iter().find(begins).unwrap_or(page);
    (start, start.saturating_add(pages * PAGE))
}

/// What jemalloc rounds so many bytes up to: four sizes between powers of two.
fn jemalloc_size(requested: u64) -> u64 {
    match requested {
        0..=8 => 8,
        9..=128 => requested.next_multiple_of(STEP),
        _ => {
            let step = 1_u64 << ((requested - 1).ilog2() - 2);
            requested.checked_next_multiple_of(step).unwrap_or(requested)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{jemalloc_size, jemalloc_slab, jemalloc_slabs};
    use crate::live_extent::LiveExtent;

    #[test]
    fn sizes_are_jemallocs() {
        let sizes = [0, 8, 9, 17, 128, 129, 161, 257, 1025, 14336, 14337, 16385, 32769];
        let found = sizes.map(jemalloc_size);
        assert_eq!(found, [8, 8, 16, 32, 128, 160, 192, 320, 1280, 14336, 16384, 20480, 40960]);
    }

    #[test]
    fn a_run_is_found_from_each_of_its_blocks() {
        let start = 0x7f00_0000_3000;
        for (size, pages) in [(8, 1), (48, 3), (80, 5), (112, 7), (4096, 1), (7168, 7), (12288, 3), (14336, 7)] {
            for block in 0..pages * 4096 / size {
                let slab = jemalloc_slab(start + block * size, size);
                assert_eq!(slab, (start, start + pages * 4096), "{size} {block}");
            }
        }
        assert_eq!(jemalloc_slab(start + 64, 33_000), (start, start + 40960 + 4096));
    }

    #[test]
    fn runs_are_joined() {
        let block = |start, bytes| LiveExtent { start, bytes, time_ns: 0, group: 0, mapped: None };
        let blocks = [block(0x1000, 32), block(0x1100, 32), block(0x2000, 32), block(0x7070, 112)];
        assert_eq!(jemalloc_slabs(blocks.iter()), [(0x1000, 0x3000), (0x7000, 0xe000)]);
    }
}
