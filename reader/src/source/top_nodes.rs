//! The nodes of stack tops: programs go from one call path to another and back, and mostly to where they were.
//!
//! Invariant: nodes that are put back are those that the frames of the top have above this caller.

use memtrack_format::record::{MAX_TOP, PlacedTop};

/// Tops whose nodes are kept; a power of two. A recording has this many, or twice as many with native stacks.
const KEPT: usize = 512;

/// Where tops stood last: by their number, of which the last digits count. Definitions tell apart what shares a place.
#[derive(Debug, Default)]
pub(super) struct StackTopNodes {
    list: Vec<NodesOfTop>,
}

#[derive(Clone, Copy, Debug)]
struct NodesOfTop {
    definition: u64,
    /// The node of the frames below it.
    below: u32,
    /// 0: it stood nowhere.
    length: u32,
    nodes: [u32; MAX_TOP],
}

impl NodesOfTop {
    const NONE: Self = Self { definition: 0, below: 0, length: 0, nodes: [0; MAX_TOP] };
}

impl StackTopNodes {
    /// Appends the nodes of a top to those below it, and returns its own, if it stood above the same frames before.
    #[inline(always)]
    pub(super) fn put_back(&self, top: &PlacedTop, path: &mut Vec<u32>) -> Option<u32> {
        let below = path.last().copied().unwrap_or(0);
        let known = self.list.get(top.number as usize % KEPT)?;
        if (known.definition, known.below) != (top.definition, below) {
            return None;
        }
        let length = known.length as usize;
        let node = *known.nodes.get(length.checked_sub(1)?)?;
        let end = path.len() + length;
        // As many as it can have: a few moves, where a copy of the few that it has would be a call.
        path.extend_from_slice(&known.nodes);
        path.truncate(end);
        Some(node)
    }

    /// Notes the nodes of a top, the last ones of the path.
    pub(super) fn note(&mut self, top: &PlacedTop, path: &[u32]) {
        let (below, nodes) = path.split_at_checked(top.below).unwrap_or_default();
        let below = below.last().copied().unwrap_or(0);
        let mut known =
            NodesOfTop { definition: top.definition, below, length: nodes.len() as u32, ..NodesOfTop::NONE };
        let Some(places) = known.nodes.get_mut(..nodes.len()) else { return };
        places.copy_from_slice(nodes);
        let number = top.number as usize % KEPT;
        if self.list.len() <= number {
            self.list.resize(number + 1, NodesOfTop::NONE);
        }
        self.list[number] = known;
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_format::record::{CallSite, Encoder, RawFrame, RecordBytes};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use crate::source::segment::{Batch, DecodeProgress, SegmentReader};
    use crate::source::segment_nodes::SegmentNode;

    const TOPS: usize = 3;

    /// A segment that does so, as far as it makes sense, with an allocation behind each change; and the stacks of these.
    fn encoded(acts: &[(u8, u8, u8)]) -> (Vec<u8>, Vec<Vec<RawFrame>>) {
        let mut bytes = vec![0; 64 + 64 * acts.len()];
        let (mut encoder, mut stack, mut tops) = (Encoder::new(false), Vec::new(), vec![Vec::new(); TOPS]);
        let (mut stacks, mut at) = (Vec::new(), encoder.begin(&mut bytes, 0, 1, 0, 7).unwrap());
        for &(act, place, count) in acts {
            let (number, count) = (usize::from(place) % TOPS, usize::from(count % 5).min(stack.len()));
            let newest = |stack: &[RawFrame]| stack.last().copied().unwrap_or(RawFrame::NONE);
            let kept = stack.len() - count;
            at = match act % 8 {
                0 | 1 if kept > 0 && kept < stack.len() => {
                    stack.truncate(kept);
                    encoder.pop(&mut bytes, at, count as u32, newest(&stack)).unwrap()
                }
                2 if kept < stack.len() => {
                    tops[number] = stack[kept..].to_vec();
                    encoder.define_top(&mut bytes, at, number as u32, count as u32).unwrap()
                }
                3..=5 if !tops[number].is_empty() => {
                    stack.truncate(kept);
                    stack.extend_from_slice(&tops[number]);
                    let site = CallSite::of(newest(&stack));
                    encoder.replace_top(&mut bytes, at, count as u32, number as u32, site).unwrap()
                }
                _ => {
                    let frame = RawFrame { code: u32::from(place % 3), instruction: u32::from(act % 2) };
                    stack.push(frame);
                    encoder.push(&mut bytes, at, frame).unwrap()
                }
            };
            // Not behind each, so that several changes come together.
            if act % 3 > 0 {
                at = encoder.alloc(&mut bytes, at, Allocator::Malloc, 0x1000, 8, 0).unwrap();
                stacks.push(stack.clone());
            }
        }
        bytes.truncate(at);
        (bytes, stacks)
    }

    fn frames_of(nodes: &[SegmentNode], mut node: u32) -> Vec<RawFrame> {
        let mut frames = Vec::new();
        while let Some(at) = (node as usize).checked_sub(1) {
            frames.push(nodes[at].frame);
            node = nodes[at].parent;
        }
        frames.reverse();
        frames
    }

    proptest! {
        #[test]
        fn nodes_are_those_of_the_stacks(acts in prop::collection::vec(any::<(u8, u8, u8)>(), 1..200)) {
            let (bytes, stacks) = encoded(&acts);
            let (mut reader, mut batch) = (SegmentReader::default(), Batch::default());
            let progress = reader.decode(&mut RecordBytes::at(&bytes, 0), &mut batch, usize::MAX);
            prop_assert_eq!(progress, DecodeProgress::End);
            let found: Vec<_> = batch.events.iter().map(|event| frames_of(&batch.nodes, event.node)).collect();
            prop_assert_eq!(found, stacks);
        }
    }
}
