//! The visible rows of the tree: expanded calls, line by line.
//!
//! A chain of single callees is not indented further; small siblings are collapsed into one expandable row. If stacks
//! are folded and not all calls are shown, a chain of single library calls has rows for its first and last call only,
//! and small siblings get a row only if they are not small together. Invariant: the figures of the rows directly below
//! a call add up to its total less its own, except for what is too small for a row.

use std::collections::HashSet;

use memtrack_reader::analysis::Tally;

use super::forest::{Forest, SiblingOrder};

/// Maximum width of the branches before a name; even, as each branch has two characters.
const MOST_BRANCHES: usize = 24;

/// What a row represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TreeItem {
    /// A call, by node.
    Call(u32),
    /// The small callees of this node, collapsed into one row.
    Rest(u32),
}

impl TreeItem {
    /// The node of the call, or the caller of the collapsed calls.
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
    /// The branches drawn before the name.
    pub(super) branches: String,
    /// Number of calls without rows between this row and its caller's.
    pub(super) skipped: usize,
    pub(super) total: Tally,
    /// Number of calls collapsed into this row.
    pub(super) rest: usize,
    /// Whether the row can be expanded.
    pub(super) has_more: bool,
    pub(super) is_open: bool,
    /// Whether it is the only callee of its caller.
    single: bool,
    /// Whether the row is not indented.
    edge: bool,
}

/// The inputs that determine the rows.
pub(super) struct RowRules<'a> {
    pub(super) forest: &'a Forest<'a>,
    pub(super) sort: SiblingOrder,
    /// Calls with a smaller figure have no row of their own.
    pub(super) floor: u64,
    /// Calls that have rows in any case; `None`: all calls have rows.
    pub(super) revealed: Option<&'a HashSet<u32>>,
}

/// The rows directly below a row.
#[derive(Debug, Default)]
pub(super) struct RowsBelow {
    /// Calls, each with the number of skipped calls before it.
    pub(super) calls: Vec<(u32, usize)>,
    /// Small calls, collapsed into one row.
    pub(super) small: Vec<u32>,
}

impl RowsBelow {
    /// The call, if it is the only row.
    pub(super) fn only(&self) -> Option<u32> {
        match (&self.calls[..], &self.small[..]) {
            ([(only, _)], []) => Some(*only),
            _ => None,
        }
    }
}

/// All visible rows.
pub(super) fn rows(rules: &RowRules<'_>, open: &HashSet<TreeItem>) -> Vec<TreeRow> {
    let builder = RowBuilder { rules, open };
    let mut rows = Vec::new();
    let mut todo = builder.below(&TreeRow::root(rules.forest));
    todo.reverse();
    while let Some(row) = todo.pop() {
        let mut below = if row.is_open { builder.below(&row) } else { Vec::new() };
        below.reverse();
        rows.push(row);
        todo.append(&mut below);
    }
    rows
}

/// The figure that decides whether a call is small.
pub(super) fn figure(tally: Tally, sort: SiblingOrder) -> u64 {
    if sort == SiblingOrder::Count { tally.count } else { tally.bytes }
}

/// The callees of a node, split into large and small ones.
pub(super) fn parted(forest: &Forest<'_>, node: u32, sort: SiblingOrder, floor: u64) -> (Vec<u32>, Vec<u32>) {
    let (large, small): (Vec<u32>, Vec<u32>) =
        forest.below(node, sort).into_iter().partition(|node| figure(forest.total(*node), sort) >= floor);
    // Do not collapse a single call, or all of them.
    if small.len() == 1 || large.is_empty() { (forest.below(node, sort), Vec::new()) } else { (large, small) }
}

impl RowRules<'_> {
    /// The rows directly below an expanded row.
    pub(super) fn below(&self, item: TreeItem) -> RowsBelow {
        let node = item.node();
        let (large, small) = self.parted(node);
        if let TreeItem::Rest(_) = item {
            return RowsBelow { calls: small.into_iter().map(|node| (node, 0)).collect(), small: Vec::new() };
        }
        let calls = match self.only_call(node) {
            Some(only) if node != 0 && !self.forest.is_own(node) => return self.chain(only),
            _ => large.into_iter().map(|node| (node, 0)).collect(),
        };
        let together: u64 = small.iter().map(|node| figure(self.forest.total(*node), self.sort)).sum();
        let is_said = self.revealed.is_none() || together >= self.floor;
        RowsBelow { calls, small: if is_said { small } else { Vec::new() } }
    }

    fn parted(&self, node: u32) -> (Vec<u32>, Vec<u32>) {
        let Some(revealed) = self.revealed else { return parted(self.forest, node, self.sort, self.floor) };
        let has_row = |call: &u32| figure(self.forest.total(*call), self.sort) >= self.floor || revealed.contains(call);
        let (large, small): (Vec<u32>, Vec<u32>) = self.forest.below(node, self.sort).into_iter().partition(has_row);
        if large.is_empty() { (small, large) } else { (large, small) }
    }

    /// The only callee of a node with a row, if chains of library calls are shortened.
    fn only_call(&self, node: u32) -> Option<u32> {
        self.revealed?;
        let [only] = self.parted(node).0[..] else { return None };
        let figure = |node| figure(self.forest.total(node), self.sort);
        let rest = figure(node).saturating_sub(figure(only));
        (rest == 0 || rest < self.floor).then_some(only)
    }

    /// The last call of a chain of single library callees that starts here, and the number of skipped calls.
    fn chain(&self, first: u32) -> RowsBelow {
        let (mut last, mut skipped) = (first, 0);
        let goes_on = |call: u32| !self.forest.is_own(call) && !self.revealed.is_some_and(|some| some.contains(&call));
        while goes_on(last) {
            match self.only_call(last) {
                Some(next) if !self.forest.is_own(next) => (last, skipped) = (next, skipped + 1),
                _ => break,
            }
        }
        RowsBelow { calls: vec![(last, skipped)], small: Vec::new() }
    }
}

struct RowBuilder<'a> {
    rules: &'a RowRules<'a>,
    open: &'a HashSet<TreeItem>,
}

impl RowBuilder<'_> {
    fn below(&self, caller: &TreeRow) -> Vec<TreeRow> {
        let RowsBelow { calls, small } = self.rules.below(caller.item);
        let count = calls.len() + usize::from(!small.is_empty());
        let single = count == 1 && matches!(caller.item, TreeItem::Call(_));
        let mut below: Vec<TreeRow> = calls
            .into_iter()
            .enumerate()
            .map(|(at, (node, skipped))| TreeRow { skipped, ..self.call(caller, node, at + 1 == count, single) })
            .collect();
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
            skipped: 0,
            total: self.rules.forest.total(node),
            rest: 0,
            has_more: self.rules.forest.has_below(node),
            is_open: self.open.contains(&item),
            single,
            edge: caller.item == TreeItem::Call(0),
        }
    }

    fn rest(&self, caller: &TreeRow, small: &[u32]) -> TreeRow {
        let item = TreeItem::Rest(caller.item.node());
        let mut total = Tally::default();
        for node in small {
            let more = self.rules.forest.total(*node);
            total.add(more.bytes, more.count);
        }
        let (is_open, edge) = (self.open.contains(&item), caller.item == TreeItem::Call(0));
        let branches = branches(caller, true, false);
        TreeRow { item, branches, skipped: 0, total, rest: small.len(), has_more: true, is_open, single: false, edge }
    }
}

impl TreeRow {
    fn root(forest: &Forest<'_>) -> Self {
        Self {
            item: TreeItem::Call(0),
            branches: String::new(),
            skipped: 0,
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
        // A chain of single callees repeats its caller's branches; at the left edge there are none to repeat.
        return if caller.branches.is_empty() { "└ ".into() } else { caller.branches.clone() };
    }
    let inner = caller.branches.replace("├ ", "│ ").replace("└ ", "  ");
    cut(inner + if is_last { "└ " } else { "├ " })
}

/// Cuts the outer branches if they leave too little room for names.
fn cut(branches: String) -> String {
    let len = branches.chars().count();
    if len <= MOST_BRANCHES {
        return branches;
    }
    let tail = branches.chars().skip(len - MOST_BRANCHES + 2);
    ['…', ' '].into_iter().chain(tail).collect()
}
