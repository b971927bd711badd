//! The own code that a changed function of a library was called by: whom its row in text begins with, as in `table`.
//!
//! A row is a function with its own figures, and in C++ what changed is `std::__new_allocator<…>::allocate`. Invariant: the
//! figures of a row are the function's; the caller named is the one with most of the change, and has it in the same direction.

use std::cmp::Reverse;

use memtrack_reader::analysis::diff::{DiffRow, FigurePair, MergedTree};
use memtrack_reader::analysis::{CallTree, Tally};
use rustc_hash::{FxHashMap, FxHashSet};

use super::diff_rows::Measure;

/// The caller of a function with most of its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnCaller {
    /// Its number in the merged tree.
    pub(super) function: u32,
    /// Further callers of own code with a change.
    pub(super) more: u64,
}

/// The own caller of each of these functions that is not own code itself, by function; `own` are the figures of the tree's
/// nodes in the base and in the new capture. None where total figures are compared: the callers have rows of their own then.
pub(super) fn own_callers(
    merged: &MergedTree,
    [base, new]: [Vec<Tally>; 2],
    (rows, measure): (&[DiffRow], &Measure),
    is_own: impl Fn(u32) -> bool,
) -> FxHashMap<u32, OwnCaller> {
    if measure.by_total {
        return FxHashMap::default();
    }
    let nodes = merged.tree.nodes();
    let change = |node: usize| {
        let of = |all: &[Tally]| all.get(node).copied().unwrap_or_default();
        measure.change(&FigurePair { base: of(&base), new: of(&new) })
    };
    let own: Vec<i128> = (0..nodes.len()).map(change).collect();
    let mut total = own.clone();
    for (at, node) in nodes.iter().enumerate().skip(1).rev() {
        total[node.parent as usize] += total[at];
    }
    let wanted: FxHashMap<u32, (bool, i128)> = rows
        .iter()
        .filter(|row| row.function != CallTree::NO_FRAME && !is_own(row.function))
        .map(|row| (row.function, (measure.is_by_total(row), measure.changed(row))))
        .collect();
    // The innermost own function above each node.
    let mut above = vec![CallTree::NO_FRAME; nodes.len()];
    let mut sums: FxHashMap<u32, FxHashMap<u32, i128>> = FxHashMap::default();
    for (at, node) in nodes.iter().enumerate().skip(1) {
        let parent = node.parent as usize;
        let key = nodes[parent].key;
        above[at] = if key != CallTree::NO_FRAME && is_own(key) { key } else { above[parent] };
        if let Some((by_total, _)) = wanted.get(&node.key) {
            let change = if *by_total { total[at] } else { own[at] };
            *sums.entry(node.key).or_default().entry(above[at]).or_default() += change;
        }
    }
    let most = |(function, callers): (u32, FxHashMap<u32, i128>)| {
        let (_, whole) = wanted.get(&function)?;
        let toward: Vec<_> = callers.into_iter().filter(|(_, change)| change.signum() == whole.signum()).collect();
        let (first, _) = toward.iter().max_by_key(|(caller, change)| (change.unsigned_abs(), Reverse(*caller)))?;
        let others: FxHashSet<u32> = toward.iter().map(|(caller, _)| *caller).collect();
        let others = others.iter().filter(|caller| *caller != first && **caller != CallTree::NO_FRAME).count();
        (*first != CallTree::NO_FRAME).then_some((function, OwnCaller { function: *first, more: others as u64 }))
    };
    sums.into_iter().filter_map(most).collect()
}
