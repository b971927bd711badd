//! Which stack allocated the block in which an object is: the blocks that were live at the moment of a picture.
//!
//! Invariant: an object is in a block only if it begins where the block does, but for headers of the interpreter; so an arena
//! in which many objects are is the block of none.

use memtrack_format::Allocator;

use crate::analysis::Options;
use crate::event::{Event, Snapshot, StackId};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::source::Consumer;

/// Bytes of headers before an object at most: the collector's, and pointers to its attributes.
const MOST_HEADER: u64 = 32;

/// A consumer of events that replays them up to the moment of a picture.
#[derive(Debug)]
pub struct PictureScan {
    replay: Replay,
    /// The tick of the moment, in nanoseconds since recording began.
    time_ns: u64,
    is_over: bool,
}

/// The blocks that were live then.
#[derive(Clone, Debug, Default)]
pub struct LiveBlocks {
    /// By address: first address, bytes, group.
    blocks: Vec<(u64, u64, u32)>,
    /// The stack and allocator of each group.
    groups: Vec<(StackId, Allocator)>,
}

impl PictureScan {
    /// Nothing is live yet. `time_ns`: the moment, in nanoseconds since recording began.
    #[must_use]
    pub fn new(options: &Options, time_ns: u64) -> Self {
        Self { replay: Replay::new(options), time_ns, is_over: false }
    }

    /// What was live at the moment.
    #[must_use]
    pub fn finish(self) -> LiveBlocks {
        let extents = self.replay.live_extents().into_iter().filter(|extent| extent.mapped.is_none());
        let mut blocks: Vec<_> = extents.map(|extent| (extent.start, extent.bytes, extent.group)).collect();
        blocks.sort_unstable();
        LiveBlocks { blocks, groups: self.replay.group_keys().collect() }
    }
}

impl LiveBlocks {
    /// The stack that allocated the block of the object at this address.
    #[must_use]
    pub fn stack_of(&self, address: u64) -> Option<StackId> {
        let after = self.blocks.partition_point(|(start, ..)| *start <= address);
        let (start, bytes, group) = self.blocks.get(after.checked_sub(1)?)?;
        let before = address - start;
        (before <= MOST_HEADER && before < *bytes).then_some(())?;
        self.groups.get(*group as usize).map(|(stack, _)| *stack)
    }
}

impl Consumer for PictureScan {
    #[inline]
    fn event(&mut self, event: &Event, _frames: &Frames) {
        if !self.is_over {
            self.replay.event(event);
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.tick(0, snapshot.time_ns);
        if !self.is_over {
            self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes);
        }
    }

    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        self.is_over |= time_ns >= self.time_ns;
    }

    fn replaced(&mut self) {
        if !self.is_over {
            self.replay.replaced();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LiveBlocks;
    use crate::event::StackId;
    use memtrack_format::Allocator;

    #[test]
    fn objects_begin_where_their_blocks_do() {
        let blocks = LiveBlocks {
            blocks: vec![(4096, 64, 0), (8192, 1 << 20, 1), (1 << 40, 16, 0)],
            groups: vec![(StackId(7), Allocator::Malloc), (StackId(8), Allocator::Malloc)],
        };
        let found = [4096, 4112, 4128, 4136, 4160, 8192 + 48, 1 << 40, (1 << 40) + 16, 5];
        let expected = [Some(7), Some(7), Some(7), None, None, None, Some(7), None, None];
        assert_eq!(found.map(|address| blocks.stack_of(address).map(|stack| stack.0)), expected);
    }
}
