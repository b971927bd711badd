//! Compares two captures: the figures of each function and each call path in the base and in the new capture.
//!
//! Paths are compared by function and file without lines, so that moved code matches; files are compared by their names
//! without the directory of installation or checkout. Figures are absolute, never scaled. Invariant: whether a capture
//! has something depends on its count and bytes, never on a percentage, and every sum is complete before a report
//! leaves rows out.

use rustc_hash::FxHashMap;

use super::{CallTree, GroupRow, Tally};
use crate::event::StackId;
use crate::frames::{Frames, NameId};
use crate::paths::short;

/// Functions that are equal in both captures have one number.
#[derive(Clone, Debug, Default)]
pub struct SharedFunctions {
    /// By name and shortened path.
    numbers: FxHashMap<(String, String), u32>,
    list: Vec<SharedFunction>,
}

/// A function that either capture has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFunction {
    /// Its name.
    pub name: String,
    /// The path of its file, as in the first capture that has it; empty where unknown.
    pub file: String,
    /// The path without the directory of installation or checkout: equal in both captures.
    pub short: String,
}

impl SharedFunctions {
    /// The number of this function; `short` is its file's path without the directory of installation or checkout.
    pub fn number(&mut self, function: &str, file: &str, short: &str) -> u32 {
        *self.numbers.entry((function.to_owned(), short.to_owned())).or_insert_with(|| {
            let [name, file, short] = [function, file, short].map(str::to_owned);
            self.list.push(SharedFunction { name, file, short });
            (self.list.len() - 1) as u32
        })
    }

    /// `None` for [`CallTree::NO_FRAME`].
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&SharedFunction> {
        self.list.get(number as usize)
    }

    /// All of them by number.
    #[must_use]
    pub fn list(&self) -> &[SharedFunction] {
        &self.list
    }
}

/// The call paths of two captures in one tree.
#[derive(Clone, Debug, Default)]
pub struct MergedTree {
    /// The functions that the tree's keys stand for.
    pub functions: SharedFunctions,
    /// The paths of both.
    pub tree: CallTree,
}

/// A figure in both captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FigurePair {
    /// In the base.
    pub base: Tally,
    /// In the new capture.
    pub new: Tally,
}

impl FigurePair {
    /// Whether the base has it.
    #[must_use]
    pub fn in_base(&self) -> bool {
        self.base != Tally::default()
    }

    /// Whether the new capture has it.
    #[must_use]
    pub fn in_new(&self) -> bool {
        self.new != Tally::default()
    }
}

/// One function in both captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffRow {
    /// Its number in [`MergedTree::functions`], or [`CallTree::NO_FRAME`].
    pub function: u32,
    /// What it allocated itself.
    pub own: FigurePair,
    /// What it allocated with everything that it called.
    pub total: FigurePair,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Difference {
    /// A row for each function that has something in either.
    pub rows: Vec<DiffRow>,
    /// Everything.
    pub whole: FigurePair,
    /// Distinct call paths with allocations of their own that only the new capture has.
    pub new_stacks: u64,
    /// The same that only the base has.
    pub vanished_stacks: u64,
}

impl MergedTree {
    /// The place in the tree of each stack.
    pub fn places(&mut self, frames: &Frames, stacks: impl IntoIterator<Item = StackId>) -> Vec<u32> {
        let mut known: FxHashMap<(NameId, NameId), u32> = FxHashMap::default();
        let functions = &mut self.functions;
        self.tree.places(frames, stacks, |id| {
            let frame = frames.frame(id);
            *known.entry((frame.function, frame.file)).or_insert_with(|| {
                let file = frames.file(id);
                functions.number(frames.function(id), file, &short(frames, file))
            })
        })
    }

    /// The figures of one capture for every node of the tree.
    pub fn own(&mut self, frames: &Frames, rows: &[GroupRow]) -> Vec<Tally> {
        let places = self.places(frames, rows.iter().map(|row| row.stack));
        let mut own = vec![Tally::default(); self.tree.nodes().len()];
        for (row, place) in rows.iter().zip(places) {
            own[place as usize] += row.tally();
        }
        own
    }

    /// Compares what [`own`](Self::own) gave for the base and for the new capture. `is_chance`: the difference may be chance, so
    /// that a call path is not known to be new or to have vanished.
    #[must_use]
    pub fn compare(&self, base: &[Tally], new: &[Tally], is_chance: impl Fn(&FigurePair) -> bool) -> Difference {
        let mut difference = Difference::default();
        for (&base, &new) in extended(base, self.len()).iter().zip(&extended(new, self.len())) {
            let own = FigurePair { base, new };
            difference.whole.base += base;
            difference.whole.new += new;
            if own.in_new() != own.in_base() && !is_chance(&own) {
                *(if own.in_new() { &mut difference.new_stacks } else { &mut difference.vanished_stacks }) += 1;
            }
        }
        let (base, new) = (self.tree.by_key(base), self.tree.by_key(new));
        // Both walk the same tree, so their keys come in the same order.
        let pairs = base.iter().zip(&new).map(|(base, new)| DiffRow {
            function: base.key,
            own: FigurePair { base: base.own, new: new.own },
            total: FigurePair { base: base.total, new: new.total },
        });
        difference.rows = pairs.filter(|row| row.total.in_base() || row.total.in_new()).collect();
        difference
    }

    fn len(&self) -> usize {
        self.tree.nodes().len()
    }
}

/// The figures, extended with zeroes for nodes that only the other capture has.
fn extended(own: &[Tally], len: usize) -> Vec<Tally> {
    let mut own = own.to_vec();
    own.resize(len, Tally::default());
    own
}

#[cfg(test)]
mod tests {
    use super::{DiffRow, Difference, MergedTree};
    use crate::analysis::GroupRow;
    use crate::frames::Frames;
    use memtrack_format::Allocator;

    /// A capture: stacks as `function:line` words, outermost first, with their bytes.
    type StackBytes<'a> = &'a [(&'a str, u64)];

    fn rows(frames: &mut Frames, stacks: StackBytes<'_>) -> Vec<GroupRow> {
        let mut stack_of = |text: &str| {
            let ids: Vec<_> = text
                .split_whitespace()
                .map(|word| {
                    let (name, line) = word.split_once(':').unwrap_or((word, "1"));
                    frames.frame_named(name, "app.py", line.parse().unwrap()).unwrap()
                })
                .collect();
            frames.stack_of(&ids).unwrap()
        };
        let row = |&(text, bytes): &(&str, u64)| GroupRow::example(stack_of(text), Allocator::Malloc, bytes, 1);
        stacks.iter().map(row).collect()
    }

    struct ComparedStacks(MergedTree, Difference);

    impl ComparedStacks {
        fn row(&self, name: &str) -> &DiffRow {
            let Self(merged, difference) = self;
            let named =
                |row: &&DiffRow| merged.functions.get(row.function).is_some_and(|function| function.name == name);
            difference.rows.iter().find(named).unwrap()
        }

        /// Own and total bytes in base and new.
        fn bytes(&self, name: &str) -> [u64; 4] {
            let row = self.row(name);
            [row.own.base.bytes, row.own.new.bytes, row.total.base.bytes, row.total.new.bytes]
        }
    }

    fn diff(base: StackBytes<'_>, new: StackBytes<'_>) -> ComparedStacks {
        let mut merged = MergedTree::default();
        let mut side = |stacks| {
            let mut frames = Frames::new();
            let rows = rows(&mut frames, stacks);
            merged.own(&frames, &rows)
        };
        let (base, new) = (side(base), side(new));
        let difference = merged.compare(&base, &new, |_| false);
        ComparedStacks(merged, difference)
    }

    #[test]
    fn an_empty_base_has_only_new_and_an_empty_new_only_vanished() {
        let grown = diff(&[], &[("main a", 100), ("main", 3)]);
        assert!(grown.1.rows.iter().all(|row| !row.total.in_base()));
        assert_eq!((grown.1.new_stacks, grown.1.vanished_stacks, grown.1.whole.new.bytes), (2, 0, 103));
        let gone = diff(&[("main a", 100)], &[]);
        assert!(gone.1.rows.iter().all(|row| !row.total.in_new()));
        assert_eq!((gone.1.new_stacks, gone.1.vanished_stacks, gone.1.whole.base.bytes), (0, 1, 100));
        assert!(diff(&[], &[]).1.rows.is_empty());
    }

    #[test]
    fn a_function_that_moved_in_its_file_matches() {
        let outcome = diff(&[("main:3 a:10", 60), ("main:4 a:12", 40)], &[("main:30 a:100", 100)]);
        assert_eq!(outcome.bytes("a"), [100, 100, 100, 100]);
        assert_eq!((outcome.1.new_stacks, outcome.1.vanished_stacks), (0, 0));
    }

    #[test]
    fn a_renamed_leaf_leaves_its_caller_unchanged() {
        let outcome = diff(&[("main load old", 100)], &[("main load young", 100)]);
        assert_eq!(outcome.bytes("load"), [0, 0, 100, 100]);
        assert!(!outcome.row("young").total.in_base() && !outcome.row("old").total.in_new());
        assert_eq!((outcome.1.new_stacks, outcome.1.vanished_stacks), (1, 1));
    }

    /// Prefixes of a stack that vanished are no stacks of their own.
    #[test]
    fn stacks_are_counted_not_nodes() {
        let outcome = diff(&[("main x y z", 10), ("main a", 1)], &[("main a", 1)]);
        assert_eq!(outcome.1.vanished_stacks, 1);
    }
}
