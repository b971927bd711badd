//! A call tree, keyed by frames or by functions without lines.
//!
//! Summary, differences and flame graphs all sum along call paths with it: two captures can be inserted into one tree,
//! where equal paths share a node. Invariant: a node has a larger number than its parent, so one backward pass over the
//! nodes sums any figure from callees to callers.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::Tally;
use crate::event::StackId;
use crate::frames::{FrameId, Frames};

/// A node of the tree. Node 0 is the root, which stands for the whole program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallNode {
    /// The caller's node; the root is its own.
    pub parent: u32,
    /// Its key, which no sibling shares.
    pub key: u32,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct CallTree {
    nodes: Vec<CallNode>,
    /// Index of all nodes except the root by parent and key; empty until a child is looked up.
    children: HashTable<u32>,
}

fn hash(node: CallNode) -> u64 {
    FxBuildHasher.hash_one(node)
}

impl Default for CallTree {
    fn default() -> Self {
        Self { nodes: vec![CallNode { parent: 0, key: Self::NO_FRAME }], children: HashTable::new() }
    }
}

impl CallTree {
    /// The key of the node for stacks without any frame, a child of the root.
    pub const NO_FRAME: u32 = u32::MAX;

    /// All nodes; parents come before their children.
    #[must_use]
    pub fn nodes(&self) -> &[CallNode] {
        &self.nodes
    }

    /// The child of `parent` with this key, made if it is not there.
    pub fn child(&mut self, parent: u32, key: u32) -> u32 {
        let (node, next) = (CallNode { parent, key }, self.nodes.len() as u32);
        let hash_of = |&known: &u32| hash(self.nodes[known as usize]);
        if self.children.is_empty() {
            (1..next).for_each(|known| _ = self.children.insert_unique(hash_of(&known), known, hash_of));
        }
        match self.children.entry(hash(node), |&known| self.nodes[known as usize] == node, hash_of) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                new.insert(next);
                self.push(node)
            }
        }
    }

    fn push(&mut self, node: CallNode) -> u32 {
        self.nodes.push(node);
        // A tree of 2^32 nodes would take a hundred gigabytes first.
        (self.nodes.len() - 1) as u32
    }

    /// A tree with one node for each of these stacks, by frames, and the node of each. Distinct stacks have distinct
    /// nodes, so none needs to be looked up.
    #[must_use]
    pub fn of_stacks(frames: &Frames, stacks: impl IntoIterator<Item = StackId>) -> (Self, Vec<u32>) {
        let mut tree = Self::default();
        let mut no_frame = None;
        let places = tree.placed(frames, stacks, |tree, parent, frame| match frame {
            Some(frame) => tree.push(CallNode { parent, key: frame.0 }),
            None => *no_frame.get_or_insert_with(|| tree.push(CallNode { parent, key: Self::NO_FRAME })),
        });
        (tree, places)
    }

    /// The tree without the nodes that `is_kept` rejects, and for each node its nearest kept ancestor, or itself. The root
    /// and the callers of kept nodes are kept.
    #[must_use]
    pub fn cut(&self, is_kept: impl Fn(u32) -> bool) -> (Self, Vec<u32>) {
        let mut tree = Self::default();
        let mut nodes = vec![0];
        for (number, node) in (0..).zip(&self.nodes).skip(1) {
            let parent = nodes[node.parent as usize];
            nodes.push(if is_kept(number) { tree.push(CallNode { parent, ..*node }) } else { parent });
        }
        (tree, nodes)
    }

    /// The node of each of these stacks; `key` gives the key of a frame.
    pub fn places(
        &mut self,
        frames: &Frames,
        stacks: impl IntoIterator<Item = StackId>,
        mut key: impl FnMut(FrameId) -> u32,
    ) -> Vec<u32> {
        self.placed(frames, stacks, |tree, parent, frame| tree.child(parent, frame.map_or(Self::NO_FRAME, &mut key)))
    }

    /// The same, with `child` as the function that returns a node's child for a frame, or for a stack without frames.
    fn placed(
        &mut self,
        frames: &Frames,
        stacks: impl IntoIterator<Item = StackId>,
        mut child: impl FnMut(&mut Self, u32, Option<FrameId>) -> u32,
    ) -> Vec<u32> {
        // The node of each stack; 0 where it is not known, or is the root's.
        let mut known = vec![0; frames.stacks().len() + 1];
        let mut path = Vec::new();
        let mut place = |stack: StackId| {
            let (mut at, mut node) = (stack, 0);
            while let Some(found) = frames.node(at) {
                node = known[at.0 as usize];
                if node != 0 {
                    break;
                }
                path.push((at, found.frame));
                at = found.parent;
            }
            for (stack, frame) in path.drain(..).rev() {
                node = child(self, node, Some(frame));
                known[stack.0 as usize] = node;
            }
            if node == 0 { child(self, 0, None) } else { node }
        };
        stacks.into_iter().map(&mut place).collect()
    }

    /// Adds up own figures: each node's own and those of everything it called.
    #[must_use]
    pub fn totals(&self, own: &[Tally]) -> Vec<Tally> {
        let mut totals = own.to_vec();
        totals.resize(self.nodes.len(), Tally::default());
        for (index, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let total = totals[index];
            totals[node.parent as usize] += total;
        }
        totals
    }

    /// The nodes in preorder with their depths, siblings in the order of `rank`.
    #[must_use]
    pub fn preorder<R: Ord>(&self, mut rank: impl FnMut(u32) -> R) -> Vec<(u32, u32)> {
        let (starts, mut children) = self.children();
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut open = vec![(0, 0)];
        while let Some((node, depth)) = open.pop() {
            order.push((node, depth));
            let below = &mut children[starts[node as usize]..starts[node as usize + 1]];
            if below.len() > 1 {
                below.sort_by_key(|&child| std::cmp::Reverse(rank(child)));
            }
            open.extend(below.iter().map(|&child| (child, depth + 1)));
        }
        order
    }

    /// The children of all nodes in one list: those of node `n` stand in `starts[n]..starts[n + 1]`.
    #[must_use]
    pub fn children(&self) -> (Vec<usize>, Vec<u32>) {
        let mut starts = vec![0; self.nodes.len() + 1];
        self.nodes.iter().skip(1).for_each(|node| starts[node.parent as usize + 1] += 1);
        (1..starts.len()).for_each(|node| starts[node] += starts[node - 1]);
        let mut free = starts.clone();
        let mut children = vec![0; self.nodes.len() - 1];
        for (index, node) in (0u32..).zip(&self.nodes).skip(1) {
            let place = &mut free[node.parent as usize];
            children[*place] = index;
            *place += 1;
        }
        (starts, children)
    }

    /// For each key in the tree its own and total figures, in the order in which keys appear. A function that calls
    /// itself, directly or not, counts once in its total.
    #[must_use]
    pub fn by_key(&self, own: &[Tally]) -> Vec<KeyRow> {
        let totals = self.totals(own);
        let mut sums = KeySums::default();
        for (node, depth) in self.preorder(|node| node).into_iter().skip(1) {
            let index = node as usize;
            let own = own.get(index).copied().unwrap_or_default();
            sums.add(self.nodes[index].key, depth as usize, own, totals[index]);
        }
        sums.rows
    }
}

/// The sums of one key over all its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// The key.
    pub key: u32,
    /// Allocated by the function itself.
    pub own: Tally,
    /// Allocated by the function and everything it called.
    pub total: Tally,
}

/// Sums by key during a preorder walk of the tree.
#[derive(Default)]
struct KeySums {
    rows: Vec<KeyRow>,
    places: FxHashMap<u32, usize>,
    /// The rows of the nodes from the root to the current node.
    path: Vec<usize>,
    /// How many of these nodes each row has.
    on_path: Vec<u32>,
}

impl KeySums {
    fn add(&mut self, key: u32, depth: usize, own: Tally, total: Tally) {
        while self.path.len() >= depth {
            let Some(left) = self.path.pop() else { break };
            self.on_path[left] -= 1;
        }
        let row = self.row(key);
        self.rows[row].own += own;
        if self.on_path[row] == 0 {
            self.rows[row].total += total;
        }
        self.on_path[row] += 1;
        self.path.push(row);
    }

    fn row(&mut self, key: u32) -> usize {
        let next = self.rows.len();
        let place = *self.places.entry(key).or_insert(next);
        if place == next {
            self.rows.push(KeyRow { key, own: Tally::default(), total: Tally::default() });
            self.on_path.push(0);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::{CallTree, KeyRow};
    use crate::analysis::Tally;
    use crate::event::StackId;
    use crate::frames::Frames;

    fn tally(bytes: u64) -> Tally {
        Tally { bytes, count: 1, ..Tally::default() }
    }

    /// main -> work -> work -> read, with own figures at work, the inner work, and read.
    fn recursive() -> (CallTree, Vec<Tally>) {
        let mut frames = Frames::new();
        let [main, work, read] = ["main", "work", "read"].map(|name| frames.frame_named(name, "app.py", 1).unwrap());
        let outer = frames.stack_of(&[main, work]).unwrap();
        let inner = frames.stack_of(&[main, work, work]).unwrap();
        let deep = frames.stack_of(&[main, work, work, read]).unwrap();
        let mut tree = CallTree::default();
        let places = tree.places(&frames, [deep, outer, inner, StackId::EMPTY], |frame| frame.0);
        let mut own = vec![Tally::default(); tree.nodes().len()];
        for (place, bytes) in places.into_iter().zip([100, 10, 1, 7]) {
            own[place as usize] = tally(bytes);
        }
        (tree, own)
    }

    #[test]
    fn recursion_counts_once_in_totals() {
        let (tree, own) = recursive();
        let sum = |bytes, count| Tally { bytes, count, ..Tally::default() };
        assert_eq!(tree.totals(&own)[0], sum(118, 4));
        let rows = tree.by_key(&own);
        assert_eq!(rows[0], KeyRow { key: 0, own: sum(0, 0), total: sum(111, 3) });
        assert_eq!(rows[1], KeyRow { key: 1, own: sum(11, 2), total: sum(111, 3) });
        assert_eq!(rows[2], KeyRow { key: 2, own: sum(100, 1), total: sum(100, 1) });
        assert_eq!(rows[3], KeyRow { key: CallTree::NO_FRAME, own: sum(7, 1), total: sum(7, 1) });
    }

    #[test]
    fn a_tree_of_stacks_is_the_same_with_and_without_looking_for_children() {
        let mut frames = Frames::new();
        let ids: Vec<_> = (0..4).map(|line| frames.frame_named("f", "f", line).unwrap()).collect();
        let stacks = [&[0, 1, 2][..], &[], &[0, 1], &[3], &[0, 3, 1]].map(|path| {
            let path: Vec<_> = path.iter().map(|&at: &usize| ids[at]).collect();
            frames.stack_of(&path).unwrap()
        });
        let mut tree = CallTree::default();
        let places = tree.places(&frames, stacks, |frame| frame.0);
        let (mut other, other_places) = CallTree::of_stacks(&frames, stacks);
        assert_eq!((tree.nodes(), &places), (other.nodes(), &other_places));
        assert_eq!((other.child(places[2], 2), other.child(0, 9)), (places[0], tree.nodes().len() as u32));
    }

    #[test]
    fn what_is_cut_off_is_its_nearest_kept_callers() {
        let (tree, _) = recursive();
        let (cut, nodes) = tree.cut(|node| node < 3);
        assert_eq!((cut.nodes(), nodes), (&tree.nodes()[..3], vec![0, 1, 2, 2, 2, 0]));
    }

    #[test]
    fn equal_paths_meet_in_one_node() {
        let (mut tree, _) = recursive();
        let before = tree.nodes().len();
        let main = tree.child(0, 0);
        assert_eq!((tree.child(main, 1), tree.nodes().len()), (2, before));
        let order: Vec<_> = tree.preorder(|node| node);
        assert_eq!(order, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 1)]);
    }
}
