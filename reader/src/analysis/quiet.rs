//! Removes from two captures' rows what also differs between two runs of the same program.
//!
//! Three things do. The number of arenas of Python's allocators depends on how objects are placed in them. What imports
//! hold depends on which modules had to be compiled. And a block that is allocated once in a while, as when a shared
//! table grows, is attributed to whichever function triggered it. So arenas and imports are summed up separately, and a
//! few surplus blocks of one function cancel blocks of equal size and allocator that another function has fewer of. A
//! function's surplus above [`FEW`] blocks is never cancelled, nor is anything of functions that a report shows: their
//! rows have all of their bytes, and so must the rows of the functions that they would have been cancelled with.
//!
//! Invariant: the remaining rows, the separate sums and the cancelled blocks add up to the rows of each capture.

use std::collections::VecDeque;

use memtrack_format::Allocator;
use rustc_hash::{FxHashMap, FxHashSet};

use super::diff::FigurePair;
use super::{GroupRow, Tally};
use crate::frames::{FrameId, Frames, NameId};
use crate::origin::{Whose, whose};
use crate::paths::short;

/// Maximum number of cancelled blocks of a function.
const FEW: u64 = 3;

/// The rows of two captures that remain, and what was separated from them.
#[derive(Clone, Debug, Default)]
pub struct ReducedRows {
    /// The rows of the base that are left.
    pub base: Vec<GroupRow>,
    /// Those of the new capture.
    pub new: Vec<GroupRow>,
    /// Arenas of Python's allocators.
    pub arenas: FigurePair,
    /// What imports hold.
    pub imports: FigurePair,
    /// The cancelled part of each given row, of the base and of the new capture.
    pub set_off: [Vec<Tally>; 2],
    /// The cancelled blocks, by the functions that have them in the base and in the new capture.
    pub moved: Vec<MovedBlocks>,
}

/// Blocks of one allocator and size that one function has in the base, and another in the new capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedBlocks {
    /// The function in the base.
    pub from: FunctionKey,
    /// The function in the new capture.
    pub to: FunctionKey,
    /// How many.
    pub blocks: u64,
    /// Their bytes in the base and in the new capture: sizes are within a quarter of a power of two.
    pub bytes: [u64; 2],
}

/// The rows of a capture.
#[derive(Clone, Debug)]
pub struct CaptureRows<'a> {
    /// What their stacks are.
    pub frames: &'a Frames,
    /// The rows.
    pub rows: Vec<GroupRow>,
}

/// The class of blocks that may cancel each other: one allocator, sizes within a quarter of a power of two.
type SizeClass = (Allocator, u32);
/// Name and shortened path of the innermost function; empty for no stack.
pub type FunctionKey = (String, String);
/// Cancelled blocks of one row.
type CancelledBlocks = (SizeClass, FunctionKey, Tally);

impl ReducedRows {
    /// Splits the rows of two captures. Blocks of the functions in `kept` cancel nothing.
    #[must_use]
    pub fn of(base: CaptureRows<'_>, new: CaptureRows<'_>, kept: &FxHashSet<FunctionKey>) -> Self {
        let functions = [base.frames, new.frames].map(Innermost::of);
        let set_off = [&base, &new].map(|side| vec![Tally::default(); side.rows.len()]);
        let [base, new] = [base, new].map(SplitRows::of);
        let mut quiet = Self {
            base: base.left,
            new: new.left,
            arenas: FigurePair { base: base.arenas, new: new.arenas },
            imports: FigurePair { base: base.imports, new: new.imports },
            set_off,
            moved: Vec::new(),
        };
        let taken = quiet.set_off_few(functions, kept);
        for (all, (indices, taken)) in quiet.set_off.iter_mut().zip([base.indices, new.indices].into_iter().zip(taken))
        {
            indices.into_iter().zip(taken).for_each(|(at, taken)| all[at] = taken);
        }
        quiet
    }

    /// Removes the cancelled blocks from the rows; returns what was removed from each.
    fn set_off_few(
        &mut self,
        [mut base, mut new]: [Innermost<'_>; 2],
        kept: &FxHashSet<FunctionKey>,
    ) -> [Vec<Tally>; 2] {
        let mut numbers: FxHashMap<(SizeClass, FunctionKey), [u64; 2]> = FxHashMap::default();
        for (side, rows, innermost) in [(0, &self.base, &mut base), (1, &self.new, &mut new)] {
            for row in rows {
                numbers.entry((class(row), innermost.function(row))).or_default()[side] += row.count;
            }
        }
        let mut surplus: FxHashMap<SizeClass, [u64; 2]> = FxHashMap::default();
        numbers
            .retain(|(_, function), [base, new]| (1..=FEW).contains(&base.abs_diff(*new)) && !kept.contains(function));
        for ((class, _), [base, new]) in &numbers {
            let of_class = surplus.entry(*class).or_default();
            of_class[usize::from(new > base)] += base.abs_diff(*new);
        }
        let each = surplus.into_iter().map(|(class, [base, new])| (class, base.min(new)));
        let room: FxHashMap<SizeClass, u64> = each.filter(|(_, number)| *number > 0).collect();
        let [(base, of_base), (new, of_new)] =
            [(0, &mut self.base, &mut base), (1, &mut self.new, &mut new)].map(|(side, rows, innermost)| {
                let more =
                    |[base, new]: [u64; 2]| if side == 0 { base.saturating_sub(new) } else { new.saturating_sub(base) };
                let surplus = numbers.iter().map(|(key, numbers)| (key.clone(), more(*numbers))).collect();
                take(rows, room.clone(), surplus, innermost)
            });
        self.moved = moved(of_base, of_new);
        [base, new]
    }
}

/// Removes blocks from rows: of each class as many as there is room for, of each function and class its `surplus`.
/// Returns what was removed from each row, and of which function and class it is.
fn take(
    rows: &mut Vec<GroupRow>,
    mut room: FxHashMap<SizeClass, u64>,
    mut surplus: FxHashMap<(SizeClass, FunctionKey), u64>,
    innermost: &mut Innermost<'_>,
) -> (Vec<Tally>, Vec<CancelledBlocks>) {
    let mut taken = vec![Tally::default(); rows.len()];
    let mut cancelled = Vec::new();
    for (row, taken) in rows.iter_mut().zip(&mut taken) {
        let Some(left) = room.get_mut(&class(row)) else { continue };
        let key = (class(row), innermost.function(row));
        let Some(surplus) = surplus.get_mut(&key) else { continue };
        let number = row.count.min(*surplus).min(*left);
        if number > 0 {
            *left -= number;
            *surplus -= number;
            let bytes = if number == row.count { row.bytes } else { row.bytes / row.count * number };
            taken.add(bytes, number);
            cancelled.push((key.0, key.1, *taken));
            row.bytes -= bytes;
            row.count -= number;
        }
    }
    rows.retain(|row| row.count > 0 || row.bytes > 0);
    (taken, cancelled)
}

/// Pairs the cancelled blocks of the base with those of the new capture, class by class in the order of rows.
fn moved(base: Vec<CancelledBlocks>, new: Vec<CancelledBlocks>) -> Vec<MovedBlocks> {
    let mut waiting: FxHashMap<SizeClass, VecDeque<(FunctionKey, Tally)>> = FxHashMap::default();
    base.into_iter().for_each(|(class, from, tally)| waiting.entry(class).or_default().push_back((from, tally)));
    let (mut moved, mut known): (Vec<MovedBlocks>, FxHashMap<_, usize>) = Default::default();
    for (class, to, mut tally) in new {
        let Some(queue) = waiting.get_mut(&class) else { continue };
        while let Some((from, first)) = queue.front_mut().filter(|_| tally.count > 0) {
            let blocks = tally.count.min(first.count);
            let bytes = [split(first, blocks), split(&mut tally, blocks)];
            let at = *known.entry((from.clone(), to.clone())).or_insert_with(|| {
                moved.push(MovedBlocks { from: from.clone(), to: to.clone(), blocks: 0, bytes: [0; 2] });
                moved.len() - 1
            });
            moved[at].blocks += blocks;
            moved[at].bytes.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
            if first.count == 0 {
                queue.pop_front();
            }
        }
    }
    moved
}

/// Takes the bytes of this many blocks out of a sum of at least as many.
fn split(tally: &mut Tally, blocks: u64) -> u64 {
    let bytes = if blocks == tally.count { tally.bytes } else { tally.bytes / tally.count * blocks };
    *tally = tally.less(Tally { bytes, count: blocks, ..Tally::default() });
    bytes
}

/// The rows of a capture without arenas and imports.
#[derive(Default)]
struct SplitRows {
    left: Vec<GroupRow>,
    /// Where these stood.
    indices: Vec<usize>,
    arenas: Tally,
    imports: Tally,
}

impl SplitRows {
    fn of(CaptureRows { frames, rows }: CaptureRows<'_>) -> Self {
        let whose = whose(frames);
        let mut split = Self::default();
        for (index, row) in rows.into_iter().enumerate() {
            if row.allocator.is_python_arena() {
                split.arenas += row.tally();
            } else if whose.get(row.stack.0 as usize) == Some(&Whose::Imports) {
                split.imports += row.tally();
            } else {
                split.indices.push(index);
                split.left.push(row);
            }
        }
        split
    }
}

/// The class of a row's blocks, by their mean size.
fn class(row: &GroupRow) -> SizeClass {
    let size = row.bytes.checked_div(row.count).unwrap_or(0).max(4);
    let power = size.ilog2();
    (row.allocator.function(), power * 4 + ((size >> (power - 2)) & 3) as u32)
}

/// The innermost functions of a capture's stacks.
struct Innermost<'a> {
    frames: &'a Frames,
    known: FxHashMap<(NameId, NameId), FunctionKey>,
}

impl<'a> Innermost<'a> {
    fn of(frames: &'a Frames) -> Self {
        Self { frames, known: FxHashMap::default() }
    }

    fn function(&mut self, row: &GroupRow) -> FunctionKey {
        let Some(node) = self.frames.node(row.stack) else { return FunctionKey::default() };
        let id: FrameId = node.frame;
        let frame = self.frames.frame(id);
        let name = || (self.frames.function(id).to_owned(), short(self.frames, self.frames.file(id)).into_owned());
        self.known.entry((frame.function, frame.file)).or_insert_with(name).clone()
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator::{self, Calloc, Malloc, PymallocArena};

    use rustc_hash::FxHashSet;

    use super::{CaptureRows, ReducedRows};
    use crate::analysis::{GroupRow, Tally};
    use crate::frames::Frames;

    /// Function, allocator, bytes and number.
    type RowFigures<'a> = (&'a str, Allocator, u64, u64);

    /// Function, bytes and number, of the base and of the new capture.
    type Left = [Vec<(String, u64, u64)>; 2];

    fn rows(frames: &mut Frames, blocks: &[RowFigures<'_>], import: &str) -> Vec<GroupRow> {
        let mut row = |&(function, allocator, bytes, count): &RowFigures<'_>| {
            let file = if function == import { "<frozen importlib._bootstrap>" } else { "app.py" };
            let frame = frames.frame_named(function, file, 1).unwrap();
            GroupRow::example(frames.stack_of(&[frame]).unwrap(), allocator, bytes, count)
        };
        blocks.iter().map(&mut row).collect()
    }

    fn quiet(base: &[RowFigures<'_>], new: &[RowFigures<'_>]) -> (ReducedRows, Left) {
        without(&[], base, new)
    }

    /// Of these functions nothing is set off.
    fn without(kept: &[&str], base: &[RowFigures<'_>], new: &[RowFigures<'_>]) -> (ReducedRows, Left) {
        let mut frames = [Frames::new(), Frames::new()];
        let rows = [(0, base), (1, new)].map(|(side, blocks)| rows(&mut frames[side], blocks, "load"));
        let ([base, new], [of_base, of_new]) = (frames.each_ref(), rows);
        let base = CaptureRows { frames: base, rows: of_base };
        let kept = kept.iter().map(|name| ((*name).to_owned(), "app.py".to_owned())).collect::<FxHashSet<_>>();
        let quiet = ReducedRows::of(base, CaptureRows { frames: new, rows: of_new }, &kept);
        let named = |frames: &Frames, rows: &[GroupRow]| {
            let named = |row: &GroupRow| {
                let function = frames.function(frames.node(row.stack).unwrap().frame).to_owned();
                (function, row.bytes, row.count)
            };
            rows.iter().map(named).collect::<Vec<_>>()
        };
        let left = [named(&frames[0], &quiet.base), named(&frames[1], &quiet.new)];
        (quiet, left)
    }

    fn left(base: &[RowFigures<'_>], new: &[RowFigures<'_>]) -> Left {
        quiet(base, new).1
    }

    #[test]
    fn a_block_that_another_function_came_upon_is_set_off() {
        let [base, new] = left(&[("a", Malloc, 50_000, 1), ("b", Malloc, 90, 3)], &[("c", Malloc, 52_000, 1)]);
        assert_eq!((base, new), (vec![("b".into(), 90, 3)], vec![]));
        let table = ("a", Malloc, 50_000, 1);
        assert_eq!(left(&[table], &[("c", Calloc, 50_000, 1)]).map(|rows| rows.len()), [1, 1], "another allocator");
        assert_eq!(left(&[table], &[("c", Malloc, 90_000, 1)]).map(|rows| rows.len()), [1, 1], "another size");
        // Two of three are set off: one is more than there was.
        let [base, new] = left(&[table, ("b", Malloc, 50_000, 1)], &[("c", Malloc, 150_000, 3)]);
        assert_eq!((base, new), (vec![], vec![("c".into(), 50_000, 1)]));
    }

    #[test]
    fn what_is_made_often_is_news() {
        let many = [("c", Malloc, 5_000, 100)];
        assert_eq!(left(&[("a", Malloc, 5_000, 100)], &many)[1], [("c".into(), 5_000, 100)]);
        assert_eq!(left(&[("c", Malloc, 5_000, 100), ("a", Malloc, 50, 1)], &many)[0].len(), 2);
    }

    #[test]
    fn arenas_and_imports_are_apart() {
        let base = [("a", PymallocArena, 1 << 20, 1), ("load", Malloc, 700, 2), ("a", Malloc, 10, 1)];
        let new = [("a", PymallocArena, 2 << 20, 2), ("load", Malloc, 900, 3), ("a", Malloc, 10, 1)];
        let (quiet, left) = quiet(&base, &new);
        assert_eq!((quiet.arenas.base.bytes, quiet.arenas.new.bytes), (1 << 20, 2 << 20));
        assert_eq!((quiet.imports.base.bytes, quiet.imports.new.bytes), (700, 900));
        assert_eq!(left[0], left[1]);
        assert_eq!(quiet.set_off, [vec![Tally::default(); 3], vec![Tally::default(); 3]]);
    }

    #[test]
    fn what_was_set_off_is_known_of_each_row() {
        let arena = ("a", PymallocArena, 1 << 20, 1);
        let (quiet, _) = quiet(&[arena, ("a", Malloc, 50_000, 1)], &[("c", Malloc, 104_000, 2)]);
        let taken = quiet.set_off.map(|rows| rows.iter().map(|row| (row.bytes, row.count)).collect::<Vec<_>>());
        assert_eq!(taken, [vec![(0, 0), (50_000, 1)], vec![(52_000, 1)]]);
    }

    #[test]
    fn what_was_set_off_is_known_of_the_functions() {
        let (quiet, _) = quiet(&[("a", Malloc, 50_000, 1), ("b", Malloc, 50_000, 1)], &[("c", Malloc, 104_000, 2)]);
        let moved = quiet.moved.iter().map(|moved| (&*moved.from.0, &*moved.to.0, moved.blocks, moved.bytes));
        let expected = [("a", "c", 1, [50_000, 52_000]), ("b", "c", 1, [50_000, 52_000])];
        assert_eq!(moved.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn of_functions_with_a_row_nothing_is_set_off() {
        let (base, new) = ([("a", Malloc, 50_000, 1)], [("c", Malloc, 150_000, 3)]);
        let (quiet, left) = without(&["c"], &base, &new);
        assert_eq!(left, [vec![("a".into(), 50_000, 1)], vec![("c".into(), 150_000, 3)]]);
        assert_eq!((quiet.moved, quiet.set_off), (vec![], [vec![Tally::default()], vec![Tally::default()]]));
    }

    /// The blocks of several rows of a function are no more than its surplus.
    #[test]
    fn a_function_with_several_rows_loses_its_surplus_once() {
        let base = [("a", Malloc, 50_000, 1), ("b", Malloc, 50_000, 1), ("c", Malloc, 250_000, 5)];
        let new = [("c", Malloc, 150_000, 3), ("c", Malloc, 150_000, 3)];
        let blocks = |rows: &[(String, u64, u64)]| rows.iter().map(|row| row.2).sum::<u64>();
        assert_eq!(left(&base, &new).map(|rows| blocks(&rows)), [6, 5]);
    }
}
