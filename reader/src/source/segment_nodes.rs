//! The stack tree of a group of segments: stacks as nodes, numbered in the order of their first use.
//!
//! Invariant: nodes that are equal have one number.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use memtrack_format::record::RawFrame;
use rustc_hash::FxBuildHasher;

/// A node of the segment's stack tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SegmentNode {
    pub(super) parent: u32,
    pub(super) frame: RawFrame,
}

/// Callees of a node that are compared before the table is searched.
const LOOKS: usize = 8;

/// The nodes of a segment. A node's callees form a ring in the order of their first use, which is mostly the order of
/// every use: so the callee that is looked up is mostly the last used one or one of its successors.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// By their numbers; the empty stack first, once there are any.
    links: Vec<StackLink>,
    /// Index of the nodes.
    numbers: HashTable<u32>,
}

#[derive(Clone, Copy, Debug)]
struct StackLink {
    node: SegmentNode,
    /// The next callee of its caller.
    next: u32,
    /// The callee used last; 0: none.
    last: u32,
}

impl Nodes {
    /// The number of a node; a new one is appended to `new`.
    #[inline]
    pub(super) fn intern(&mut self, new: &mut Vec<SegmentNode>, node: SegmentNode) -> u32 {
        let last = self.links.get(node.parent as usize).map_or(0, |caller| caller.last);
        if last == 0 {
            return self.add(new, node, last);
        }
        let mut at = last;
        for _ in 0..LOOKS {
            let link = &self.links[at as usize];
            if link.node.frame == node.frame {
                if at != last {
                    self.links[node.parent as usize].last = at;
                }
                return at;
            }
            at = link.next;
            if at == last {
                return self.add(new, node, last);
            }
        }
        self.look_up(new, node, last)
    }

    #[inline(never)]
    fn look_up(&mut self, new: &mut Vec<SegmentNode>, node: SegmentNode, last: u32) -> u32 {
        let links = &self.links;
        match self.numbers.find(hash(&node), |&id| links[id as usize].node == node) {
            Some(&id) => {
                self.links[node.parent as usize].last = id;
                id
            }
            None => self.add(new, node, last),
        }
    }

    /// Adds one, behind the callee of its caller that was used last.
    #[inline(never)]
    fn add(&mut self, new: &mut Vec<SegmentNode>, node: SegmentNode, last: u32) -> u32 {
        if self.links.is_empty() {
            self.links.push(StackLink {
                node: SegmentNode { parent: 0, frame: RawFrame { code: 0, instruction: 0 } },
                next: 0,
                last: 0,
            });
        }
        // A segment has fewer nodes than bytes, and those fit in 32 bits.
        let id = self.links.len() as u32;
        let next = if last == 0 { id } else { std::mem::replace(&mut self.links[last as usize].next, id) };
        self.links.push(StackLink { node, next, last: 0 });
        self.links[node.parent as usize].last = id;
        let links = &self.links;
        self.numbers.insert_unique(hash(&node), id, |&id| hash(&links[id as usize].node));
        new.push(node);
        id
    }
}

fn hash(node: &SegmentNode) -> u64 {
    FxBuildHasher.hash_one(node)
}

#[cfg(test)]
mod tests {
    use super::{LOOKS, Nodes, SegmentNode};
    use memtrack_format::record::RawFrame;

    #[test]
    fn nodes_have_numbers_in_the_order_of_their_first_use() {
        let (mut nodes, mut new, mut expected) = (Nodes::default(), Vec::new(), Vec::new());
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some have few callees, and some more than are looked at.
            let parent = (seed >> 50) as u32 % (expected.len() as u32 / 8 + 1);
            let callees = if parent.is_multiple_of(5) { 10 * LOOKS as u32 } else { parent % 5 };
            let node = SegmentNode { parent, frame: RawFrame { code: 7, instruction: (seed >> 33) as u32 % callees } };
            let known = expected.iter().position(|known| *known == node).unwrap_or(expected.len());
            if known == expected.len() {
                expected.push(node);
            }
            assert_eq!(nodes.intern(&mut new, node) as usize, known + 1);
        }
        assert!(new == expected && new.len() > 500, "{}", new.len());
    }
}
