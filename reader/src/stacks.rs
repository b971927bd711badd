//! A compact table of stacks: a capture may have tens of millions of them.
//!
//! A stack is interned after its caller, and most new stacks come in sequence, each called from the previous one. So
//! the caller of a stack is the one with the previous number, unless a bit says otherwise: only then is the caller
//! stored, and only such stacks are indexed, since the next stack's caller and frame can be compared directly.
//!
//! Invariant: equal stacks have one number; numbers are dense and in the order of first interning, and a caller has a
//! smaller one.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;

use crate::error::Error;
use crate::event::StackId;
use crate::frame::{FrameId, StackNode};
use crate::interner::next_id;

/// Stacks that share a word of bits.
const BITS: u32 = u64::BITS;

/// All stacks; the first is the empty one.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackTable {
    nodes: PackedNodes,
    /// Index of the stacks with a stored caller.
    ids: HashTable<u32>,
}

/// What each stack is.
#[derive(Clone, Debug)]
struct PackedNodes {
    /// The innermost frame of each.
    frames: FrameIds,
    jumps: Vec<Jumps>,
    /// The stored callers, in the order of the stacks' numbers.
    callers: Vec<StackId>,
}

/// Frame numbers, stored in 2 to 4 bytes each, as the largest requires: most captures have fewer than 2^24 frames.
#[derive(Clone, Debug, Default)]
struct FrameIds {
    low: Vec<u16>,
    /// The next eight bits, up to the last number that has any.
    middle: Vec<u8>,
    /// The highest eight bits, likewise.
    high: Vec<u8>,
}

impl FrameIds {
    fn len(&self) -> usize {
        self.low.len()
    }

    #[inline]
    fn get(&self, at: usize) -> Option<FrameId> {
        let low = u32::from(*self.low.get(at)?);
        // One by one: the mapping of an array is not inlined here, and took a quarter of the time of a report.
        let middle = self.middle.get(at).map_or(0, |bits| u32::from(*bits));
        let high = self.high.get(at).map_or(0, |bits| u32::from(*bits));
        Some(FrameId(high << 24 | middle << 16 | low))
    }

    fn push(&mut self, FrameId(frame): FrameId) {
        let at = self.low.len();
        self.low.push(frame as u16);
        for (bits, shift) in [(&mut self.middle, 16), (&mut self.high, 24)] {
            let part = (frame >> shift) as u8;
            if part != 0 {
                bits.resize(at, 0);
                bits.push(part);
            }
        }
    }
}

/// For 64 stacks, which of them have a stored caller.
#[derive(Clone, Copy, Debug, Default)]
struct Jumps {
    bits: u64,
    /// The number of stored callers before these stacks.
    before: u32,
}

impl Default for PackedNodes {
    fn default() -> Self {
        // No interned frame has this number, so the empty stack is never found as a callee.
        let mut frames = FrameIds::default();
        frames.push(FrameId(u32::MAX));
        Self { frames, jumps: vec![Jumps::default()], callers: Vec::new() }
    }
}

impl PackedNodes {
    fn len(&self) -> usize {
        self.frames.len()
    }

    /// The node of a stack that is there, and is not the empty one.
    #[inline]
    fn get(&self, id: u32) -> StackNode {
        StackNode { parent: self.caller(id), frame: self.frames.get(id as usize).unwrap_or_default() }
    }

    /// Adds one that is not there.
    fn push(&mut self, StackNode { parent, frame }: StackNode) -> Result<u32, Error> {
        let id = next_id(self.len(), "stacks")?;
        if id % BITS == 0 {
            self.jumps.push(Jumps { bits: 0, before: self.callers.len() as u32 });
        }
        if parent.0 + 1 != id {
            self.jumps[(id / BITS) as usize].bits |= 1 << (id % BITS);
            self.callers.push(parent);
        }
        self.frames.push(frame);
        Ok(id)
    }

    /// Whether an existing stack has a stored caller.
    #[inline]
    fn jumps(&self, id: u32) -> bool {
        self.jumps[(id / BITS) as usize].bits & 1 << (id % BITS) != 0
    }

    /// The caller of a stack that is there, and is not the empty one.
    #[inline]
    fn caller(&self, id: u32) -> StackId {
        let (Jumps { bits, before }, bit) = (self.jumps[(id / BITS) as usize], 1 << (id % BITS));
        if bits & bit == 0 {
            StackId(id - 1)
        } else {
            self.callers[(before + (bits & (bit - 1)).count_ones()) as usize]
        }
    }
}

fn hash(node: StackNode) -> u64 {
    FxBuildHasher.hash_one(node)
}

impl StackTable {
    /// Their number, with the empty one.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What the stack with this number is; `None` for the empty one and for numbers that are not there.
    pub(crate) fn node(&self, id: u32) -> Option<StackNode> {
        (id != 0 && (id as usize) < self.len()).then(|| self.nodes.get(id))
    }

    /// The number of a stack whose caller is there.
    #[inline]
    pub(crate) fn intern(&mut self, node: StackNode) -> Result<u32, Error> {
        let next = node.parent.0.wrapping_add(1);
        match self.nodes.frames.get(next as usize) {
            Some(frame) if frame == node.frame && !self.nodes.jumps(next) => Ok(next),
            // The last one has called nobody yet.
            None => self.nodes.push(node),
            Some(_) => self.intern_jump(node),
        }
    }

    /// Frees the index; it is rebuilt at the next look-up.
    pub(crate) fn forget_ids(&mut self) {
        self.ids = HashTable::new();
    }

    fn intern_jump(&mut self, node: StackNode) -> Result<u32, Error> {
        if self.ids.is_empty() {
            self.remember_ids();
        }
        let Self { nodes, ids } = self;
        match ids.entry(hash(node), |&id| nodes.get(id) == node, |&id| hash(nodes.get(id))) {
            Entry::Occupied(id) => Ok(*id.get()),
            Entry::Vacant(vacant) => {
                vacant.insert(next_id(nodes.len(), "stacks")?);
                nodes.push(node)
            }
        }
    }

    #[cold]
    fn remember_ids(&mut self) {
        let Self { nodes, ids } = self;
        ids.reserve(nodes.callers.len(), |&id| hash(nodes.get(id)));
        for id in (0..nodes.len() as u32).filter(|&id| nodes.jumps(id)) {
            ids.insert_unique(hash(nodes.get(id)), id, |&id| hash(nodes.get(id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};
    use rustc_hash::FxHashMap;

    use super::{FrameIds, StackNode, StackTable};
    use crate::event::StackId;
    use crate::frame::FrameId;

    #[test]
    fn frames_have_numbers_of_any_size() {
        let mut ids = FrameIds::default();
        let numbers = [u32::MAX, 3, 0x1_0000, 0xffff, 0, 0x100_0000, 0x12_3456, 9];
        numbers.iter().for_each(|number| ids.push(FrameId(*number)));
        assert_eq!((0..).map_while(|at| ids.get(at)).collect::<Vec<_>>(), numbers.map(FrameId));
        assert_eq!((ids.len(), ids.middle.len(), ids.high.len()), (8, 7, 6));
    }

    proptest! {
        /// Long rows of new stacks, and stacks that are called from any that was there.
        #[test]
        fn it_numbers_stacks_like_a_map(
            steps in prop::collection::vec((any::<u16>(), 1_u32..40, 0_u32..3), 1..100), forgets in any::<u8>(),
        ) {
            let (mut stacks, mut map, mut nodes) = (StackTable::default(), FxHashMap::default(), vec![None]);
            for (at, (seed, len, frame)) in steps.into_iter().enumerate() {
                let mut parent = StackId(u32::from(seed) % nodes.len() as u32);
                for step in 0..len {
                    let node = StackNode { parent, frame: FrameId(frame + step % 2) };
                    let next = nodes.len() as u32;
                    let id = *map.entry(node).or_insert(next);
                    if id == next {
                        nodes.push(Some(node));
                    }
                    prop_assert_eq!(stacks.intern(node).unwrap(), id);
                    parent = StackId(id);
                }
                if at % 16 == usize::from(forgets) {
                    stacks.forget_ids();
                }
            }
            prop_assert_eq!(stacks.len(), nodes.len());
            for (id, node) in (0..).zip(nodes) {
                prop_assert_eq!(stacks.node(id), node);
            }
            prop_assert_eq!(stacks.node(stacks.len() as u32), None);
        }
    }
}
