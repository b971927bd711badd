//! Removes from two captures' rows what also differs between two runs of the same program.
//!
//! Three things do. The number of arenas of Python's allocators depends on how objects are placed in them. What imports
//! hold depends on which modules had to be compiled. And a block that is allocated once in a while, as when a shared
//! table grows, is attributed to whichever function triggered it. So arenas and imports are summed up separately, and a
//! few surplus blocks of one function cancel blocks of equal size and allocator that another function has fewer of. A
//! function's surplus above [`FEW`] blocks is never cancelled.
//!
//! Invariant: the remaining rows, the separate sums and the cancelled blocks add up to the rows of each capture.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

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
type FunctionKey = (String, String);

impl ReducedRows {
    /// Splits the rows of two captures.
    #[must_use]
    pub fn of(base: CaptureRows<'_>, new: CaptureRows<'_>) -> Self {
        let functions = [base.frames, new.frames].map(Innermost::of);
        let set_off = [&base, &new].map(|side| vec![Tally::default(); side.rows.len()]);
        let [base, new] = [base, new].map(SplitRows::of);
        let mut quiet = Self {
            base: base.left,
            new: new.left,
            arenas: FigurePair { base: base.arenas, new: new.arenas },
            imports: FigurePair { base: base.imports, new: new.imports },
            set_off,
        };
        let taken = quiet.set_off_few(functions);
        for (all, (indices, taken)) in quiet.set_off.iter_mut().zip([base.indices, new.indices].into_iter().zip(taken))
        {
            indices.into_iter().zip(taken).for_each(|(at, taken)| all[at] = taken);
        }
        quiet
    }

    /// Removes the cancelled blocks from the rows; returns what was removed from each.
    fn set_off_few(&mut self, [mut base, mut new]: [Innermost<'_>; 2]) -> [Vec<Tally>; 2] {
        let mut numbers: FxHashMap<(SizeClass, FunctionKey), [u64; 2]> = FxHashMap::default();
        for (side, rows, innermost) in [(0, &self.base, &mut base), (1, &self.new, &mut new)] {
            for row in rows {
                numbers.entry((class(row), innermost.function(row))).or_default()[side] += row.count;
            }
        }
        let mut surplus: FxHashMap<SizeClass, [u64; 2]> = FxHashMap::default();
        numbers.retain(|_, [base, new]| (1..=FEW).contains(&base.abs_diff(*new)));
        for ((class, _), [base, new]) in &numbers {
            let of_class = surplus.entry(*class).or_default();
            of_class[usize::from(new > base)] += base.abs_diff(*new);
        }
        let each = surplus.into_iter().map(|(class, [base, new])| (class, base.min(new)));
        let room: FxHashMap<SizeClass, u64> = each.filter(|(_, number)| *number > 0).collect();
        [(0, &mut self.base, &mut base), (1, &mut self.new, &mut new)].map(|(side, rows, innermost)| {
            take(rows, room.clone(), |row| {
                let [base, new] = numbers.get(&(class(row), innermost.function(row))).copied().unwrap_or_default();
                if side == 0 { base.saturating_sub(new) } else { new.saturating_sub(base) }
            })
        })
    }
}

/// Removes blocks from rows: of each class as many as there is room for, of each row as many as `surplus` says.
fn take(
    rows: &mut Vec<GroupRow>,
    mut room: FxHashMap<SizeClass, u64>,
    mut surplus: impl FnMut(&GroupRow) -> u64,
) -> Vec<Tally> {
    let mut taken = vec![Tally::default(); rows.len()];
    for (row, taken) in rows.iter_mut().zip(&mut taken) {
        let Some(left) = room.get_mut(&class(row)) else { continue };
        let number = surplus(row).min(row.count).min(*left);
        if number > 0 {
            *left -= number;
            let bytes = if number == row.count { row.bytes } else { row.bytes / row.count * number };
            taken.add(bytes, number);
            row.bytes -= bytes;
            row.count -= number;
        }
    }
    rows.retain(|row| row.count > 0 || row.bytes > 0);
    taken
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
        let mut frames = [Frames::new(), Frames::new()];
        let rows = [(0, base), (1, new)].map(|(side, blocks)| rows(&mut frames[side], blocks, "load"));
        let ([base, new], [of_base, of_new]) = (frames.each_ref(), rows);
        let base = CaptureRows { frames: base, rows: of_base };
        let quiet = ReducedRows::of(base, CaptureRows { frames: new, rows: of_new });
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
}
