//! Which stack allocated the block in which an object is: the blocks that were live at the moment of a picture.
//!
//! Invariant: an object is in a block only if it begins where the block does, but for headers of the interpreter; so an arena
//! in which many objects are is the block of none.

use memtrack_format::Allocator;

use crate::analysis::Options;
use crate::event::{Event, Snapshot, StackId, ThreadId};
use crate::frames::Frames;
use crate::live_extent::LiveExtent;
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
    /// By address.
    blocks: Vec<LiveExtent>,
    /// Stack, allocator and thread of each group.
    groups: Vec<(StackId, Allocator, ThreadId)>,
}

/// Who allocated the block of an object, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBlock {
    /// The stack.
    pub stack: StackId,
    /// The function that did it.
    pub allocator: Allocator,
    /// The thread.
    pub thread: ThreadId,
    /// Nanoseconds since recording began.
    pub time_ns: u64,
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
        let mut blocks = self.replay.live_extents();
        blocks.retain(|extent| extent.mapped.is_none());
        blocks.sort_unstable_by_key(|extent| extent.start);
        LiveBlocks { blocks, groups: self.replay.group_keys().collect() }
    }
}

impl LiveBlocks {
    /// The block of the object at this address.
    #[must_use]
    pub fn of(&self, address: u64) -> Option<ObjectBlock> {
        let after = self.blocks.partition_point(|block| block.start <= address);
        let block = self.blocks.get(after.checked_sub(1)?)?;
        let before = address - block.start;
        (before <= MOST_HEADER && before < block.bytes).then_some(())?;
        let (stack, allocator, thread) = *self.groups.get(block.group as usize)?;
        Some(ObjectBlock { stack, allocator, thread, time_ns: block.time_ns })
    }
}

impl Consumer for PictureScan {
    #[inline]
    fn event(&mut self, event: &Event, frames: &Frames) {
        self.events(std::iter::once(*event), frames);
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        if !self.is_over {
            self.replay.events(events);
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
    use memtrack_format::Allocator;

    use super::{LiveBlocks, LiveExtent, ObjectBlock};
    use crate::event::{StackId, ThreadId};

    #[test]
    fn objects_begin_where_their_blocks_do() {
        let blocks = [(4096, 64, 0), (8192, 1 << 20, 1), (1 << 40, 16, 0)];
        let block = |(start, bytes, group)| LiveExtent { start, bytes, group, time_ns: start / 2, mapped: None };
        let groups =
            [(7, 1), (8, 2)].map(|(stack, thread)| (StackId(stack), Allocator::Malloc, ThreadId(thread))).to_vec();
        let blocks = LiveBlocks { blocks: blocks.map(block).to_vec(), groups };
        let found = [4096, 4112, 4128, 4136, 4160, 8192 + 48, 1 << 40, (1 << 40) + 16, 5];
        let expected = [Some(7), Some(7), Some(7), None, None, None, Some(7), None, None];
        assert_eq!(found.map(|address| blocks.of(address).map(|block| block.stack.0)), expected);
        let first = ObjectBlock { stack: StackId(7), allocator: Allocator::Malloc, thread: ThreadId(1), time_ns: 2048 };
        assert_eq!(blocks.of(4112), Some(first));
    }
}
