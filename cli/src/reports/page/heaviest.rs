//! Selects the call sites with the most bytes from a tree of possibly millions, for display on a page.
//!
//! One pass over all nodes, callees first, keeps only partial sums of callers that are not yet reached, and the
//! heaviest nodes so far; so only the reduced tree is ever built. Invariant: the callers of a kept node are kept, too:
//! they weigh at least as much.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memtrack_reader::StackId;
use memtrack_reader::analysis::{CallTree, Group};
use rustc_hash::FxHashMap;

use super::VIEWS;
use super::side::PageSide;
use crate::reports::capture_info::Capture;

/// The heaviest nodes of a tree.
pub(super) struct Heaviest {
    pub(super) tree: CallTree,
    /// For each node, its largest share of any view's total, callees included.
    pub(super) weights: Vec<f64>,
    /// Number of nodes of the complete tree.
    pub(super) all: usize,
}

impl Heaviest {
    /// Builds the tree of the `most` heaviest nodes of a capture; groups of omitted nodes are assigned to the nearest
    /// caller.
    pub(super) fn of_stacks(capture: &Capture, most: usize) -> (Self, PageSide<'_>) {
        let (frames, groups) = (&capture.frames, &capture.analysis.groups);
        // A stack's node has the stack's number; the node of empty stacks, which calls nothing, has the number after
        // them.
        let no_frame = frames.stacks().len() as u32 + 1;
        let stack = |node: u32| if node == no_frame { StackId::EMPTY } else { StackId(node) };
        let caller = |node: u32| frames.node(stack(node)).map_or(0, |node| node.parent.0);
        let of_group = |group: Group| if group.stack == StackId::EMPTY { no_frame } else { group.stack.0 };
        let sides = [PageSide::new(capture, groups.iter().map(of_group).collect())];
        let HeaviestNodes { nodes, all } = HeaviestNodes::new(&sides, (no_frame + 1, caller), most);

        let [PageSide { mut places, owners, .. }] = sides;
        nearest(&mut places, no_frame + 1, caller, &nodes);
        let (tree, placed) =
            CallTree::of_stacks(frames, places.iter().filter(|&&node| node != 0).map(|&node| stack(node)));
        const UNKNOWN: f64 = -1.0;
        let mut weights = vec![UNKNOWN; tree.nodes().len()];
        weights[0] = nodes.get(&0).copied().unwrap_or(0.0);
        let mut placed = placed.into_iter();
        for place in &mut places {
            let mut node = *place;
            // Groups at the root stay at the root.
            *place = if node == 0 { 0 } else { placed.next().unwrap_or(0) };
            let mut at = *place;
            while weights[at as usize] == UNKNOWN {
                weights[at as usize] = nodes.get(&node).copied().unwrap_or(0.0);
                (at, node) = (tree.nodes()[at as usize].parent, caller(node));
            }
        }
        (Self { tree, weights, all }, PageSide { capture, places, owners, matched_elsewhere: Vec::new() })
    }

    /// The `most` heaviest nodes of a tree in which the groups of the sides have their nodes; groups of omitted nodes
    /// are assigned to the nearest caller.
    pub(super) fn of_tree<const SIDES: usize>(tree: &CallTree, sides: &mut [PageSide<'_>; SIDES], most: usize) -> Self {
        let caller = |node: u32| tree.nodes()[node as usize].parent;
        let HeaviestNodes { nodes, all } = HeaviestNodes::new(sides, (tree.nodes().len() as u32, caller), most);
        let (cut, nearest) = tree.cut(|node| nodes.contains_key(&node));
        for place in sides.iter_mut().flat_map(|side| &mut side.places) {
            *place = nearest[*place as usize];
        }
        let mut nodes: Vec<(u32, f64)> = nodes.into_iter().collect();
        nodes.sort_unstable_by_key(|(node, _)| *node);
        Self { tree: cut, weights: nodes.into_iter().map(|(_, weight)| weight).collect(), all }
    }

    /// Which of the nodes are among the `most` heaviest of the complete tree.
    pub(super) fn kept(&self, most: usize) -> Vec<bool> {
        if self.all <= most || self.weights.len() < most {
            return vec![true; self.weights.len()];
        }
        let least = nth_largest(self.weights.clone(), most);
        let mut kept: Vec<bool> = self.weights.iter().map(|weight| *weight > least).collect();
        kept[0] = true;
        kept
    }
}

fn nth_largest(mut weights: Vec<f64>, n: usize) -> f64 {
    let at = weights.len() - n;
    *weights.select_nth_unstable_by(at, f64::total_cmp).1
}

/// Replaces each node by the nearest kept one: itself or a caller.
fn nearest(places: &mut [u32], nodes: u32, caller: impl Fn(u32) -> u32, kept: &FxHashMap<u32, f64>) {
    let mut found: Vec<u32> = Vec::with_capacity(nodes as usize);
    for node in 0..nodes {
        found.push(if node == 0 || kept.contains_key(&node) { node } else { found[caller(node) as usize] });
    }
    places.iter_mut().for_each(|place| *place = found[*place as usize]);
}

/// Total bytes and numbers of a node in every view, for each side.
type ViewFigures<const SIDES: usize> = [[u64; 2 * VIEWS.len()]; SIDES];

/// The kept nodes, always including the root.
struct HeaviestNodes {
    /// Nodes and their weights.
    nodes: FxHashMap<u32, f64>,
    /// Number of all nodes with a nonzero total, and the root.
    all: usize,
}

impl HeaviestNodes {
    /// The `most` heaviest of `nodes` nodes; callers have smaller numbers than callees.
    fn new<const SIDES: usize>(
        sides: &[PageSide<'_>; SIDES],
        (nodes, caller): (u32, impl Fn(u32) -> u32),
        most: usize,
    ) -> Self {
        let (whole, none) = (whole(sides), || [[0; 2 * VIEWS.len()]; SIDES]);
        let mut groups = sides.each_ref().map(by_place);
        // Partial sums of callers; separately that of the next node, which is the caller in most cases.
        let (mut waiting, mut carried) = (FxHashMap::default(), None);
        let mut top_nodes = TopNodes { most, heap: BinaryHeap::new(), all: 0, last: 0.0 };
        for node in (0..nodes).rev() {
            let mut figures = carried.take().or((node == 0).then(none));
            if let Some(more) = waiting.remove(&node) {
                add(figures.get_or_insert_with(none), &more);
            }
            for (number, (side, groups)) in sides.iter().zip(&mut groups).enumerate() {
                while let Some(group) = groups.pop_if(|group| side.places[*group as usize] == node) {
                    let own = side.capture.analysis.groups.get(group as usize);
                    let figures = figures.get_or_insert_with(none);
                    own.into_iter().for_each(|own| add_group(&mut figures[number], &own));
                }
            }
            let Some(figures) = figures else { continue };
            top_nodes.offer(node, weight(&figures, &whole));
            let caller = caller(node);
            if caller + 1 == node {
                carried = Some(figures);
            } else if node != 0 {
                add(waiting.entry(caller).or_insert_with(none), &figures);
            }
        }
        top_nodes.kept()
    }
}

/// The heaviest nodes so far.
struct TopNodes {
    most: usize,
    /// Ordered by the bit pattern of the weight: for non-negative floats it sorts like the value.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    all: usize,
    /// The weight of the last node.
    last: f64,
}

impl TopNodes {
    #[inline]
    fn offer(&mut self, node: u32, weight: f64) {
        (self.all, self.last) = (self.all + 1, weight);
        let weight = weight.to_bits();
        if self.heap.len() < self.most {
            self.heap.push(Reverse((weight, node)));
        } else if let Some(mut least) = self.heap.peek_mut().filter(|least| weight > least.0.0) {
            *least = Reverse((weight, node));
        }
    }

    /// All nodes if they fit, else those heavier than the lightest one in the heap; and the root, which is offered
    /// last.
    fn kept(self) -> HeaviestNodes {
        let Self { most, heap, all, last } = self;
        let least = heap.peek().map(|least| least.0.0).filter(|_| all > most);
        let nodes = heap.into_iter().filter(|Reverse((weight, _))| least.is_none_or(|least| *weight > least));
        let nodes = nodes.map(|Reverse((weight, node))| (node, f64::from_bits(weight)));
        HeaviestNodes { nodes: nodes.chain([(0, last)]).collect(), all }
    }
}

/// The groups of a side, sorted by node.
fn by_place(side: &PageSide<'_>) -> Vec<u32> {
    let mut groups: Vec<u32> = (0..side.places.len() as u32).collect();
    groups.sort_unstable_by_key(|group| side.places[*group as usize]);
    groups
}

/// Totals of all views.
fn whole<const SIDES: usize>(sides: &[PageSide<'_>; SIDES]) -> ViewFigures<SIDES> {
    sides.each_ref().map(|side| {
        let mut figures = [0; 2 * VIEWS.len()];
        side.capture.analysis.groups.iter().for_each(|group| add_group(&mut figures, &group));
        figures
    })
}

fn add_group(figures: &mut [u64; 2 * VIEWS.len()], group: &Group) {
    for (at, view) in VIEWS.into_iter().enumerate() {
        let sum = group.sum(view);
        figures[2 * at] = figures[2 * at].saturating_add(sum.bytes);
        figures[2 * at + 1] = figures[2 * at + 1].saturating_add(sum.count);
    }
}

fn add<const SIDES: usize>(figures: &mut ViewFigures<SIDES>, more: &ViewFigures<SIDES>) {
    for (figure, more) in figures.as_flattened_mut().iter_mut().zip(more.as_flattened()) {
        *figure = figure.saturating_add(*more);
    }
}

/// The largest share of any total.
fn weight<const SIDES: usize>(figures: &ViewFigures<SIDES>, whole: &ViewFigures<SIDES>) -> f64 {
    let parts = figures.as_flattened().iter().zip(whole.as_flattened());
    parts.map(|(figure, whole)| *figure as f64 / (*whole).max(1) as f64).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_reader::analysis::{CallTree, Group, Sum, Tally};
    use memtrack_reader::{StackId, ThreadId, View};

    use super::super::side::PageSide;
    use super::Heaviest;
    use crate::reports::capture_info::Capture;
    use crate::reports::fixture;

    /// A few hundred groups of randomly branching stacks.
    fn capture() -> Capture {
        let mut capture = fixture::empty();
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let frames: Vec<_> = (0..5)
            .map(|line| {
                let name = capture.frames.name_id("work").unwrap();
                capture.frames.frame_id(name, name, line).unwrap()
            })
            .collect();
        for order in 0..400 {
            let mut stack = StackId(random(capture.frames.stacks().len() as u64 + 1) as u32);
            for _ in 0..random(6) {
                stack = capture.frames.stack_id(stack, frames[random(5) as usize]).unwrap();
            }
            if random(4) == 0 {
                continue;
            }
            let mut sum =
                || Sum { bytes: random(3) * random(1000), count: random(3), first_order: order, first_time_ns: 0 };
            let group = Group::new(stack, Allocator::Malloc, ThreadId(0));
            let group = Group { allocated: sum(), peak: sum(), temporary: sum(), ..group };
            capture.analysis.groups.push(&group);
        }
        capture
    }

    #[test]
    fn the_heaviest_stacks_are_those_of_the_tree_of_all() {
        let capture = capture();
        let stacks = || capture.analysis.groups.iter().map(|group| group.stack);
        for most in [1, 2, 10, 100, 500, 10_000] {
            let (kept, side) = Heaviest::of_stacks(&capture, most);
            let (tree, places) = CallTree::of_stacks(&capture.frames, stacks());
            let (all, mut sides) = (tree.nodes().len(), [PageSide::new(&capture, places)]);
            let expected = Heaviest::of_tree(&tree, &mut sides, most);
            assert_eq!((kept.tree.nodes(), &kept.weights), (expected.tree.nodes(), &expected.weights), "{most}");
            assert_eq!((&side.places, kept.all, expected.all), (&sides[0].places, all, all));
            assert!(kept.tree.nodes().len() <= most.min(all) && (most < all || kept.tree.nodes().len() == all));
        }
    }

    #[test]
    fn a_node_weighs_the_largest_part_that_it_and_its_callees_have() {
        let capture = capture();
        let (kept, side) = Heaviest::of_stacks(&capture, usize::MAX);
        let parts = |view: View, figure: fn(&Tally) -> u64| {
            let mut own = vec![Tally::default(); kept.tree.nodes().len()];
            for (group, place) in capture.analysis.groups.iter().zip(&side.places) {
                own[*place as usize].add(group.sum(view).bytes, group.sum(view).count);
            }
            let totals = kept.tree.totals(&own);
            let whole = figure(&totals[0]).max(1) as f64;
            totals.iter().map(|total| figure(total) as f64 / whole).collect::<Vec<_>>()
        };
        let views = [View::HighWaterMark, View::Temporary, View::Allocated];
        let all = views.map(|view| [parts(view, |tally| tally.bytes), parts(view, |tally| tally.count)]);
        for (node, weight) in kept.weights.iter().enumerate() {
            let largest = all.as_flattened().iter().map(|parts| parts[node]).fold(0.0, f64::max);
            assert!((largest - weight).abs() < 1e-12, "{node}: {largest} {weight}");
        }
    }
}
