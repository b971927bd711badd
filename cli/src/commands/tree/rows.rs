//! The rows that are shown: what is open of the tree, line by line.
//!
//! Calls in single file stay in one column, so that deep stacks stay readable; small siblings are summed up in a row
//! that can be opened like a call. Invariant: the figures of the rows directly below a call add up to its total less
//! its own.

use std::collections::HashSet;

use memtrack_reader::analysis::Tally;

use super::forest::{Forest, SiblingOrder};

/// Characters of branches before a name; even, as each branch takes two.
const MOST_BRANCHES: usize = 24;

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TreeItem {
    /// A call, by its node.
    Call(u32),
    /// The small ones among the calls that this node made.
    Rest(u32),
}

impl TreeItem {
    /// The node that the row is, or belongs to.
    pub(super) fn node(self) -> u32 {
        match self {
            Self::Call(node) | Self::Rest(node) => node,
        }
    }
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct TreeRow {
    pub(super) item: TreeItem,
    /// What stands before the name: the branches that lead to it.
    pub(super) branches: String,
    pub(super) total: Tally,
    /// How many small calls a row for the rest stands for.
    pub(super) rest: usize,
    /// Whether there is anything below it.
    pub(super) has_more: bool,
    pub(super) is_open: bool,
    /// Whether it is all that its caller called.
    single: bool,
    /// Whether it stands at the left edge.
    edge: bool,
}

/// The rows of all that is open; siblings with less than `least` percent of the whole are summed up.
pub(super) fn rows(forest: &Forest<'_>, open: &HashSet<TreeItem>, sort: SiblingOrder, least: f64) -> Vec<TreeRow> {
    let whole = figure(forest.total(0), sort);
    let shown = RowBuilder { forest, open, sort, floor: (whole as f64 * least / 100.0).ceil() as u64 };
    let mut rows = Vec::new();
    let mut todo = shown.below(&TreeRow::root(forest));
    todo.reverse();
    while let Some(row) = todo.pop() {
        let mut below = if row.is_open { shown.below(&row) } else { Vec::new() };
        below.reverse();
        rows.push(row);
        todo.append(&mut below);
    }
    rows
}

/// The figure that decides what is small.
pub(super) fn figure(tally: Tally, sort: SiblingOrder) -> u64 {
    if sort == SiblingOrder::Count { tally.count } else { tally.bytes }
}

/// The calls directly below a node that are not small, and those that are.
pub(super) fn parted(forest: &Forest<'_>, node: u32, sort: SiblingOrder, floor: u64) -> (Vec<u32>, Vec<u32>) {
    let (large, small): (Vec<u32>, Vec<u32>) =
        forest.below(node, sort).into_iter().partition(|node| figure(forest.total(*node), sort) >= floor);
    // A row for a single call, or for all of them, would only be in the way.
    if small.len() == 1 || large.is_empty() { (forest.below(node, sort), Vec::new()) } else { (large, small) }
}

struct RowBuilder<'a> {
    forest: &'a Forest<'a>,
    open: &'a HashSet<TreeItem>,
    sort: SiblingOrder,
    floor: u64,
}

impl RowBuilder<'_> {
    fn below(&self, caller: &TreeRow) -> Vec<TreeRow> {
        let (large, small) = parted(self.forest, caller.item.node(), self.sort, self.floor);
        if let TreeItem::Rest(_) = caller.item {
            let count = small.len();
            return small
                .into_iter()
                .enumerate()
                .map(|(at, node)| self.call(caller, node, at + 1 == count, false))
                .collect();
        }
        let count = large.len() + usize::from(!small.is_empty());
        let calls = large.into_iter().enumerate();
        let mut below: Vec<TreeRow> =
            calls.map(|(at, node)| self.call(caller, node, at + 1 == count, count == 1)).collect();
        if !small.is_empty() {
            below.push(self.rest(caller, &small));
        }
        below
    }

    fn call(&self, caller: &TreeRow, node: u32, is_last: bool, single: bool) -> TreeRow {
        let item = TreeItem::Call(node);
        TreeRow {
            item,
            branches: branches(caller, is_last, single),
            total: self.forest.total(node),
            rest: 0,
            has_more: self.forest.has_below(node),
            is_open: self.open.contains(&item),
            single,
            edge: caller.item == TreeItem::Call(0),
        }
    }

    fn rest(&self, caller: &TreeRow, small: &[u32]) -> TreeRow {
        let item = TreeItem::Rest(caller.item.node());
        let mut total = Tally::default();
        for node in small {
            let more = self.forest.total(*node);
            total.add(more.bytes, more.count);
        }
        let (is_open, edge) = (self.open.contains(&item), caller.item == TreeItem::Call(0));
        let branches = branches(caller, true, false);
        TreeRow { item, branches, total, rest: small.len(), has_more: true, is_open, single: false, edge }
    }
}

impl TreeRow {
    fn root(forest: &Forest<'_>) -> Self {
        Self {
            item: TreeItem::Call(0),
            branches: String::new(),
            total: forest.total(0),
            rest: 0,
            has_more: true,
            is_open: true,
            single: false,
            edge: false,
        }
    }
}

fn branches(caller: &TreeRow, is_last: bool, single: bool) -> String {
    if caller.item == TreeItem::Call(0) {
        return String::new();
    }
    if single && (caller.single || caller.edge) && is_last {
        // One column for calls in single file; at the edge there is no branch to repeat.
        return if caller.branches.is_empty() { "└ ".into() } else { caller.branches.clone() };
    }
    let inner = caller.branches.replace("├ ", "│ ").replace("└ ", "  ");
    cut(inner + if is_last { "└ " } else { "├ " })
}

/// Branches without their outer part where there are so many that names would have no room.
fn cut(branches: String) -> String {
    let len = branches.chars().count();
    if len <= MOST_BRANCHES {
        return branches;
    }
    let tail = branches.chars().skip(len - MOST_BRANCHES + 2);
    ['…', ' '].into_iter().chain(tail).collect()
}
