//! Call trees for all views, top-down and inverted, built on demand.
//!
//! Invariant: a call has the same node number in every view, so that what is open and selected stays when views change.

use std::cmp::Reverse;
use std::collections::HashMap;

use memtrack_format::Allocator;
use memtrack_reader::analysis::{CallTree, Tally};
use memtrack_reader::{FrameId, View};

use crate::reports::capture_info::Capture;
use crate::reports::tree::places;

/// Sort order of siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SiblingOrder {
    /// Total bytes, largest first.
    #[default]
    Total,
    /// Self bytes, largest first.
    Own,
    /// Total number of allocations, largest first.
    Count,
    /// Function and place.
    Name,
}

impl SiblingOrder {
    /// The next order, cyclically.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Total => Self::Own,
            Self::Own => Self::Count,
            Self::Count => Self::Name,
            Self::Name => Self::Total,
        }
    }
}

/// The tree in one direction: top-down or inverted.
#[derive(Debug)]
struct TreeDirection {
    tree: CallTree,
    /// The node of each of the capture's groups.
    places: Vec<u32>,
    /// The children of node n are `children[starts[n]..starts[n + 1]]`.
    starts: Vec<usize>,
    children: Vec<u32>,
    /// Own and total figures of each node by view.
    figures: HashMap<View, (Vec<Tally>, Vec<Tally>)>,
}

/// The call trees of a capture.
#[derive(Debug)]
pub(super) struct Forest<'a> {
    pub(super) capture: &'a Capture,
    view: View,
    inverted: bool,
    /// Top-down and inverted tree; the current one is always built.
    sides: [Option<TreeDirection>; 2],
}

impl<'a> Forest<'a> {
    /// The call trees of a capture, showing this view and direction first.
    pub(super) fn new(capture: &'a Capture, view: View, inverted: bool) -> Self {
        let mut forest = Self { capture, view, inverted, sides: [None, None] };
        forest.select(view, inverted);
        forest
    }

    /// Switches to this view and direction.
    pub(super) fn select(&mut self, view: View, inverted: bool) {
        (self.view, self.inverted) = (view, inverted);
        let capture = self.capture;
        let side = self.sides[usize::from(inverted)].get_or_insert_with(|| TreeDirection::new(capture, inverted));
        if !side.figures.contains_key(&view) {
            let figures = side.sum_up(capture, view);
            side.figures.insert(view, figures);
        }
    }

    fn side(&self) -> Option<&TreeDirection> {
        self.sides[usize::from(self.inverted)].as_ref()
    }

    /// The number of nodes; node 0 is the root.
    pub(super) fn len(&self) -> usize {
        self.side().map_or(0, |side| side.tree.nodes().len())
    }

    /// Total of a call, including its callees.
    pub(super) fn total(&self, node: u32) -> Tally {
        let figures = self.side().and_then(|side| side.figures.get(&self.view));
        figures.and_then(|(_, totals)| totals.get(node as usize)).copied().unwrap_or_default()
    }

    /// Self figure of a call. In the inverted tree, the nodes below the root are the allocating calls, and all memory
    /// is theirs.
    pub(super) fn own(&self, node: u32) -> Tally {
        let figures = self.side().and_then(|side| side.figures.get(&self.view));
        match self.inverted {
            true if self.parent(node) == 0 => self.total(node),
            true => Tally::default(),
            false => figures.and_then(|(own, _)| own.get(node as usize)).copied().unwrap_or_default(),
        }
    }

    /// The parent node; the root is its own parent.
    pub(super) fn parent(&self, node: u32) -> u32 {
        self.side().and_then(|side| side.tree.nodes().get(node as usize)).map_or(0, |node| node.parent)
    }

    /// The frame of a node: its number, or [`CallTree::NO_FRAME`].
    pub(super) fn key(&self, node: u32) -> u32 {
        let node = self.side().and_then(|side| side.tree.nodes().get(node as usize));
        node.map_or(CallTree::NO_FRAME, |node| node.key)
    }

    /// Whether a node is a call of own code; never if stacks are not folded.
    pub(super) fn is_own(&self, node: u32) -> bool {
        self.capture.is_own(FrameId(self.key(node)))
    }

    /// Function and place of a node.
    pub(super) fn described(&self, node: u32) -> (&str, String) {
        self.capture.described(self.key(node))
    }

    /// Whether a node has a child with allocations in this view.
    pub(super) fn has_below(&self, node: u32) -> bool {
        self.all_below(node).iter().any(|node| self.total(*node) != Tally::default())
    }

    /// The children of a node with allocations in this view, sorted.
    pub(super) fn below(&self, node: u32, sort: SiblingOrder) -> Vec<u32> {
        let all = self.all_below(node).iter();
        let mut below: Vec<u32> = all.copied().filter(|node| self.total(*node) != Tally::default()).collect();
        match sort {
            SiblingOrder::Total => {
                below.sort_by_key(|node| Reverse((self.total(*node).bytes, self.total(*node).count)))
            }
            SiblingOrder::Own => below.sort_by_key(|node| Reverse((self.own(*node).bytes, self.total(*node).bytes))),
            SiblingOrder::Count => {
                below.sort_by_key(|node| Reverse((self.total(*node).count, self.total(*node).bytes)))
            }
            SiblingOrder::Name => below.sort_by_cached_key(|node| {
                let (function, place) = self.described(*node);
                (function.to_owned(), place)
            }),
        }
        below
    }

    fn all_below(&self, node: u32) -> &[u32] {
        let Some(side) = self.side() else { return &[] };
        let range = side.starts.get(node as usize).copied().zip(side.starts.get(node as usize + 1).copied());
        range.and_then(|(from, to)| side.children.get(from..to)).unwrap_or_default()
    }

    /// The nodes whose function or file contains the text, ignoring case.
    pub(super) fn matching(&self, text: &str) -> Vec<bool> {
        let needle = text.to_lowercase();
        let mut known: HashMap<u32, bool> = HashMap::new();
        let mut is_match = |key| {
            *known.entry(key).or_insert_with(|| {
                let (function, place) = self.capture.described(key);
                function.to_lowercase().contains(&needle) || place.to_lowercase().contains(&needle)
            })
        };
        let nodes = self.side().map_or(&[][..], |side| side.tree.nodes());
        (0..nodes.len()).map(|index| index > 0 && is_match(nodes[index].key)).collect()
    }

    /// Allocations at and below the matching nodes, each byte counted once.
    pub(super) fn matched(&self, matches: &[bool]) -> Tally {
        let mut sum = Tally::default();
        let mut covered = vec![false; matches.len()];
        for node in 1..matches.len() {
            let above = covered[self.parent(node as u32) as usize];
            covered[node] = above || matches[node];
            if matches[node] && !above {
                let total = self.total(node as u32);
                sum.add(total.bytes, total.count);
            }
        }
        sum
    }

    /// Total of a node by allocator, largest first.
    pub(super) fn allocators(&self, node: u32) -> Vec<(Allocator, Tally)> {
        let Some(side) = self.side() else { return Vec::new() };
        let mut inside = vec![false; side.tree.nodes().len()];
        for index in 0..inside.len() {
            inside[index] = index == node as usize || inside[side.tree.nodes()[index].parent as usize];
        }
        let mut sums: Vec<(Allocator, Tally)> = Vec::new();
        for (group, place) in self.capture.analysis.groups.iter().zip(&side.places) {
            let sum = group.sum(self.view);
            if !inside[*place as usize] || (sum.bytes, sum.count) == (0, 0) {
                continue;
            }
            match sums.iter_mut().find(|(allocator, _)| *allocator == group.allocator) {
                Some((_, tally)) => tally.add(sum.bytes, sum.count),
                None => sums.push((group.allocator, Tally { bytes: sum.bytes, count: sum.count, ..Tally::default() })),
            }
        }
        sums.sort_by_key(|(_, tally)| Reverse((tally.bytes, tally.count)));
        sums
    }
}

impl TreeDirection {
    fn new(capture: &Capture, inverted: bool) -> Self {
        let mut tree = CallTree::default();
        let stacks = capture.analysis.groups.iter().map(|group| group.stack);
        let places = places(&mut tree, &capture.frames, stacks, inverted);
        let (starts, children) = tree.children();
        Self { tree, places, starts, children, figures: HashMap::new() }
    }

    fn sum_up(&self, capture: &Capture, view: View) -> (Vec<Tally>, Vec<Tally>) {
        let mut own = vec![Tally::default(); self.tree.nodes().len()];
        for (group, place) in capture.analysis.groups.iter().zip(&self.places) {
            let sum = group.sum(view);
            own[*place as usize].add(sum.bytes, sum.count);
        }
        let totals = self.tree.totals(&own);
        (own, totals)
    }
}
