//! A breakdown as numbers, for reports that come later.
//!
//! Each list is its length and that many rows. Invariant: what is restored is what was written, and numbers that were
//! not written so are none.

use memtrack_format::resident::{AllocatorFigures, HugePages};
use memtrack_format::varint::{unzigzag, zigzag};

use super::classes::{
    AllocatorArena, AllocatorStatisticsAt, GLIBC, JEMALLOC, MemoryClass, PYMALLOC, ResidentBreakdown, ResidentSizes,
};
use super::pinned::PinnedPages;
use super::pools::PoolClass;
use super::size_spread::SizeSpread;
use super::untouched::UntouchedBlocks;
use crate::analysis::Tally;
use crate::event::StackId;

/// The names that arenas and statistics have.
const ALLOCATORS: [&str; 6] = [GLIBC, JEMALLOC, PYMALLOC, "mimalloc", "tcmalloc", "other"];

impl ResidentBreakdown {
    /// All of it; `None` where an allocator has another name.
    #[must_use]
    pub fn to_numbers(&self) -> Option<Vec<u64>> {
        // Names each field, so that none is forgotten.
        let Self {
            rss: ResidentSizes { anonymous, file, shared },
            classes,
            untouched,
            never_touched,
            untouched_blocks,
            swapped,
            arenas,
            arena_excess,
            pinned,
            pinned_groups,
            python_arenas,
            shared_mapped,
            huge: HugePages { bytes, zeroes },
            statistics,
            exception_reserve,
            sizes,
            pools,
        } = self;
        let mut out = vec![*anonymous, *file, *shared];
        out.extend(classes);
        out.extend([*untouched, *never_touched, *swapped, *arena_excess, *python_arenas, *shared_mapped]);
        out.extend([*bytes, *zeroes]);
        rows(&mut out, arenas, of_arena)?;
        rows(&mut out, untouched_blocks, |row| {
            let UntouchedBlocks { stack, blocks, bytes, untouched, unseen, at_last } = *row;
            Some([u64::from(stack.0), blocks, bytes, untouched, unseen, at_last])
        })?;
        rows(&mut out, pinned, |row| Some(of_pinned(row)))?;
        rows(&mut out, pinned_groups, |(group, tally)| Some([u64::from(*group), tally.bytes, tally.count]))?;
        rows(&mut out, statistics.as_slice(), of_statistics)?;
        rows(&mut out, exception_reserve.as_slice(), |(bytes, resident)| Some([*bytes, *resident]))?;
        rows(&mut out, sizes, |row| Some([row.sizes.0, row.sizes.1, row.live, row.rest]))?;
        rows(&mut out, pools, |row| {
            let PoolClass { block_bytes, pools, blocks, live, resident, needed } = *row;
            Some([block_bytes, pools, blocks, live, resident, needed])
        })?;
        Some(out)
    }

    /// The breakdown that was written as these numbers; `None`: they are of none.
    pub fn from_numbers(numbers: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let [anonymous, file, shared] = next(numbers)?;
        let classes = next::<{ MemoryClass::ALL.len() }>(numbers)?;
        let [untouched, never_touched, swapped, arena_excess, python_arenas, shared_mapped] = next(numbers)?;
        let [bytes, zeroes] = next(numbers)?;
        Some(Self {
            rss: ResidentSizes { anonymous, file, shared },
            classes,
            untouched,
            never_touched,
            swapped,
            arena_excess,
            python_arenas,
            shared_mapped,
            huge: HugePages { bytes, zeroes },
            arenas: listed(numbers, to_arena)?,
            untouched_blocks: listed(numbers, |[stack, blocks, bytes, untouched, unseen, at_last]| {
                let stack = StackId(u32::try_from(stack).ok()?);
                Some(UntouchedBlocks { stack, blocks, bytes, untouched, unseen, at_last })
            })?,
            pinned: listed(numbers, to_pinned)?,
            pinned_groups: listed(numbers, |[group, bytes, count]| {
                Some((u32::try_from(group).ok()?, Tally { bytes, count, ..Tally::default() }))
            })?,
            statistics: listed(numbers, to_statistics)?.pop(),
            exception_reserve: listed(numbers, |[bytes, resident]| Some((bytes, resident)))?.pop(),
            sizes: listed(numbers, |[least, most, live, rest]| Some(SizeSpread { sizes: (least, most), live, rest }))?,
            pools: listed(numbers, |[block_bytes, pools, blocks, live, resident, needed]| {
                Some(PoolClass { block_bytes, pools, blocks, live, resident, needed })
            })?,
        })
    }
}

fn next<const N: usize>(numbers: &mut impl Iterator<Item = u64>) -> Option<[u64; N]> {
    let mut row = [0; N];
    for number in &mut row {
        *number = numbers.next()?;
    }
    Some(row)
}

fn rows<T, const N: usize>(out: &mut Vec<u64>, all: &[T], row: impl Fn(&T) -> Option<[u64; N]>) -> Option<()> {
    out.push(all.len() as u64);
    all.iter().try_for_each(|one| row(one).map(|numbers| out.extend(numbers)))
}

/// Takes no more memory than the numbers that there are.
fn listed<T, const N: usize>(
    numbers: &mut impl Iterator<Item = u64>,
    row: impl Fn([u64; N]) -> Option<T>,
) -> Option<Vec<T>> {
    let count = numbers.next()?;
    (0..count).map(|_| row(next(numbers)?)).collect()
}

fn number_of(allocator: &str) -> Option<u64> {
    ALLOCATORS.iter().position(|name| *name == allocator).map(|number| number as u64)
}

fn name_of(number: u64) -> Option<&'static str> {
    ALLOCATORS.get(usize::try_from(number).ok()?).copied()
}

fn of_arena(arena: &AllocatorArena) -> Option<[u64; 8]> {
    let AllocatorArena { allocator, address, state, resident, live, retained, held, behind } = *arena;
    Some([number_of(allocator)?, address, state, resident, live, retained, held, behind])
}

/// What is held is a part of what is retained: reports subtract it.
fn to_arena([allocator, address, state, resident, live, retained, held, behind]: [u64; 8]) -> Option<AllocatorArena> {
    let allocator = name_of(allocator)?;
    let arena = AllocatorArena { allocator, address, state, resident, live, retained, held, behind };
    (held <= retained).then_some(arena)
}

fn of_pinned(pages: &PinnedPages) -> [u64; 6] {
    let PinnedPages { stack, blocks, live_bytes, pinned_bytes, allocated_ns: (first, last) } = *pages;
    [stack.0.into(), blocks, live_bytes, pinned_bytes, first, last]
}

fn to_pinned([stack, blocks, live_bytes, pinned_bytes, first, last]: [u64; 6]) -> Option<PinnedPages> {
    let stack = StackId(u32::try_from(stack).ok()?);
    Some(PinnedPages { stack, blocks, live_bytes, pinned_bytes, allocated_ns: (first, last) })
}

/// The figures, each as one more than it is; 0: none.
fn of_statistics(of: &AllocatorStatisticsAt) -> Option<[u64; 2 + AllocatorFigures::COUNT]> {
    let mut row = [0; 2 + AllocatorFigures::COUNT];
    (row[0], row[1]) = (number_of(of.allocator)?, zigzag(of.age_ns));
    for (number, figure) in row[2..].iter_mut().zip(of.figures.to_array()) {
        *number = figure.map_or(Some(0), |figure| figure.checked_add(1))?;
    }
    Some(row)
}

fn to_statistics([allocator, age, figures @ ..]: [u64; 2 + AllocatorFigures::COUNT]) -> Option<AllocatorStatisticsAt> {
    let figures = AllocatorFigures::from_array(figures.map(|figure| figure.checked_sub(1)));
    Some(AllocatorStatisticsAt { allocator: name_of(allocator)?, age_ns: unzigzag(age), figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> ResidentBreakdown {
        let arena = AllocatorArena { allocator: "other", address: 1 << 40, retained: 9, held: 4, ..Default::default() };
        let figures = AllocatorFigures { allocated: Some(0), metadata: Some(7), ..AllocatorFigures::default() };
        ResidentBreakdown {
            rss: ResidentSizes { anonymous: 1, file: 2, shared: 3 },
            classes: [1, 2, 3, 4, 5, 6, 7, 8, 9],
            untouched: 10,
            never_touched: 8,
            untouched_blocks: vec![UntouchedBlocks {
                stack: StackId(5),
                blocks: 1,
                bytes: 9,
                untouched: 2,
                unseen: 3,
                at_last: 4,
            }],
            swapped: 11,
            arenas: vec![arena, AllocatorArena { allocator: GLIBC, ..arena }],
            arena_excess: 12,
            shared_mapped: 13,
            pinned: vec![PinnedPages { stack: StackId(3), allocated_ns: (4, u64::MAX), ..Default::default() }],
            pinned_groups: vec![(7, Tally { bytes: 8, count: 9, ..Tally::default() })],
            python_arenas: 13,
            huge: HugePages { bytes: 14, zeroes: 15 },
            statistics: Some(AllocatorStatisticsAt { allocator: JEMALLOC, age_ns: -3, figures }),
            exception_reserve: Some((16, 17)),
            sizes: vec![SizeSpread { sizes: (1, 2), live: 3, rest: 4 }; 2],
            pools: vec![PoolClass { block_bytes: 16, pools: 1, blocks: 2, live: 3, resident: 4, needed: 5 }],
        }
    }

    #[test]
    fn what_is_restored_is_what_was_written() {
        for breakdown in [example(), ResidentBreakdown::default()] {
            let numbers = breakdown.to_numbers().unwrap();
            let mut read = numbers.iter().copied();
            assert_eq!(ResidentBreakdown::from_numbers(&mut read), Some(breakdown));
            assert_eq!(read.next(), None);
            for end in 0..numbers.len() {
                assert_eq!(ResidentBreakdown::from_numbers(&mut numbers[..end].iter().copied()), None, "{end}");
            }
        }
    }

    #[test]
    fn what_reports_cannot_show_is_refused() {
        let numbers = example().to_numbers().unwrap();
        let arena = ResidentBreakdown::default().to_numbers().unwrap().len() - 7;
        for (at, wrong) in [(arena - 1, u64::MAX), (arena, 6), (arena + 6, 10)] {
            let mut changed = numbers.clone();
            changed[at] = wrong;
            assert_eq!(ResidentBreakdown::from_numbers(&mut changed.into_iter()), None, "{at}");
        }
        let unnamed = AllocatorArena { allocator: "unheard of", ..Default::default() };
        assert_eq!(ResidentBreakdown { arenas: vec![unnamed], ..example() }.to_numbers(), None);
    }
}
