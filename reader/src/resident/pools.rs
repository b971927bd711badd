//! Pools of Python's allocator by size class, and what their free blocks cost.
//!
//! pymalloc cuts arenas into pools and each pool into blocks of one size. A pool with one live block serves no other size,
//! and its arena stays. A pool is known by its live blocks; their offsets prove the size.
//!
//! Invariant: a pool is counted once, and only if the offsets of all its blocks fit its size class.

use memtrack_format::pymalloc::{BLOCK_STEP, LARGEST_BLOCK, POOL_HEADER};
use memtrack_format::resident::{PageRun, PageState};

use super::used::UsedRange;

/// The pools of one size class that have a live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolClass {
    /// Bytes of a block: a multiple of 16, at most 512.
    pub block_bytes: u64,
    /// Number of pools.
    pub pools: u64,
    /// Live blocks in them.
    pub blocks: u64,
    /// Bytes that were requested for these blocks.
    pub live: u64,
    /// Resident bytes of the pools.
    pub resident: u64,
    /// The pools into which the blocks would fit.
    pub needed: u64,
}

impl PoolClass {
    /// Resident bytes that would be free if the blocks lay in as few pools as they fit in.
    #[must_use]
    pub const fn excess(&self) -> u64 {
        match self.resident.checked_div(self.pools) {
            Some(bytes) => bytes * self.pools.saturating_sub(self.needed),
            None => 0,
        }
    }
}

/// The sums while ranges are counted, by size class.
#[derive(Debug)]
pub(super) struct PoolSums {
    pool_bytes: u64,
    classes: [PoolClass; (LARGEST_BLOCK / BLOCK_STEP) as usize],
}

impl PoolSums {
    pub(super) fn new(pool_bytes: u64) -> Self {
        Self { pool_bytes, classes: Default::default() }
    }

    /// Counts the pools of a range of arenas: its runs of pages, and what is in use in it, both by address.
    pub(super) fn add(&mut self, runs: &[PageRun], used: &[UsedRange]) {
        let mask = !(self.pool_bytes - 1);
        let mut runs = runs;
        for blocks in used.chunk_by(|one, next| one.start & mask == next.start & mask) {
            let Some(start) = blocks.first().map(|first| first.start & mask) else { continue };
            let end = start.saturating_add(self.pool_bytes);
            let Some(sum) =
                size_class(start, blocks).and_then(|class| self.classes.get_mut((class / BLOCK_STEP) as usize - 1))
            else {
                continue;
            };
            runs = &runs[runs.partition_point(|run| run.end <= start)..];
            let here = runs.iter().take_while(|run| run.start < end).filter(|run| run.state != PageState::Swapped);
            sum.pools += 1;
            sum.blocks += blocks.len() as u64;
            sum.live += blocks.iter().map(|block| block.live_end - block.live_start).sum::<u64>();
            sum.resident += here.map(|run| run.end.min(end) - run.start.max(start)).sum::<u64>();
        }
    }

    /// Those that have a pool, smallest blocks first.
    pub(super) fn finish(self) -> Vec<PoolClass> {
        let pool_bytes = self.pool_bytes;
        let finished = (1..).zip(self.classes).filter(|(_, sum)| sum.pools > 0).map(|(number, sum)| {
            let block_bytes = number * BLOCK_STEP;
            let needed = sum.blocks.div_ceil((pool_bytes - POOL_HEADER) / block_bytes);
            PoolClass { block_bytes, needed, ..sum }
        });
        finished.collect()
    }
}

/// The size class of the pool that begins there, which has these blocks.
///
/// A block that has shrunk by at most a quarter stays where it is, so that the class may be larger than all of them.
fn size_class(pool: u64, blocks: &[UsedRange]) -> Option<u64> {
    let largest = blocks.iter().map(|block| block.live_end - block.live_start).max()?;
    let is_small = |class: &u64| (BLOCK_STEP..=LARGEST_BLOCK).contains(class);
    let least = largest.max(1).next_multiple_of(BLOCK_STEP);
    let fits = |class: &u64| {
        blocks.iter().all(|block| {
            let offset = block.start.checked_sub(pool + POOL_HEADER);
            offset.is_some_and(|offset| offset.is_multiple_of(*class)) && !block.can_contain && block.group.is_some()
        })
    };
    (least..least.saturating_mul(4).div_ceil(3)).step_by(BLOCK_STEP as usize).filter(is_small).find(fits)
}

#[cfg(test)]
mod tests {
    use super::{POOL_HEADER, PoolClass, PoolSums};
    use crate::resident::used::UsedRange;
    use memtrack_format::resident::{PageRun, PageState};

    const POOL: u64 = 16 << 10;
    const ARENA: u64 = 0x7f00_0000_0000;

    fn block(start: u64, bytes: u64) -> UsedRange {
        let end = start + bytes;
        UsedRange { start, end, live_start: start, live_end: end, time_ns: 0, group: Some(0), can_contain: false }
    }

    fn found(pool_bytes: u64, runs: &[PageRun], used: &[UsedRange]) -> Vec<PoolClass> {
        let mut sums = PoolSums::new(pool_bytes);
        sums.add(runs, used);
        sums.finish()
    }

    #[test]
    fn pools_are_counted_by_the_size_of_their_blocks() {
        let in_pool = |pool: u64, number: u64, class: u64| ARENA + pool * POOL + POOL_HEADER + number * class;
        // Pools of 80 bytes with one block each, of which the second has shrunk; a full one; one of 32 bytes.
        let mut used = vec![block(in_pool(0, 5, 80), 70), block(in_pool(1, 7, 80), 61)];
        used.extend((0..204).map(|number| block(in_pool(2, number, 80), 80)));
        used.push(block(in_pool(3, 1, 32), 17));
        // No pool of Python's: the offset fits no class.
        used.push(block(ARENA + 4 * POOL + 8, 64));
        let all = PageRun { start: ARENA, end: ARENA + 3 * POOL + 4096, state: PageState::Anonymous };
        let live = 70 + 61 + 204 * 80;
        let of_80 = PoolClass { block_bytes: 80, pools: 3, blocks: 206, live, resident: 3 * POOL, needed: 2 };
        let of_32 = PoolClass { block_bytes: 32, pools: 1, blocks: 1, live: 17, resident: 4096, needed: 1 };
        assert_eq!(found(POOL, &[all], &used), [of_32, of_80]);
        assert_eq!([of_32, of_80].map(|class| class.excess()), [0, POOL]);
    }

    #[test]
    fn swapped_pages_and_mappings_are_not_counted() {
        let runs = [
            PageRun { start: ARENA, end: ARENA + 4096, state: PageState::Swapped },
            PageRun { start: ARENA + 4096, end: ARENA + 8192, state: PageState::Anonymous },
        ];
        let first = block(ARENA + POOL_HEADER, 512);
        let of_mapping = UsedRange { can_contain: true, ..block(ARENA + POOL + POOL_HEADER, 512) };
        let of_512 = PoolClass { block_bytes: 512, pools: 1, blocks: 1, live: 512, resident: 4096, needed: 1 };
        assert_eq!(found(POOL, &runs, &[first, of_mapping]), [of_512]);
    }
}
