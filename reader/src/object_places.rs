//! Which stack allocated the block in which an object is: the blocks that were live at the moment of a picture.
//!
//! Invariant: an object is in a block only if it begins where the block does, but for headers of the interpreter; so an arena
//! in which many objects are is the block of none.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

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
#[derive(Debug)]
pub struct LiveBlocks(Replay);

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
        LiveBlocks(self.replay)
    }
}

impl LiveBlocks {
    /// Address and size of each.
    pub fn all(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.live_blocks().filter(|block| block.mapped.is_none()).map(|block| (block.start, block.bytes))
    }

    /// The blocks of the objects at these addresses, which ascend.
    pub fn of_each(&self, addresses: impl Iterator<Item = u64>) -> impl Iterator<Item = Option<ObjectBlock>> {
        let groups: Vec<_> = self.0.group_keys().collect();
        let mut further = self.0.live_blocks().peekable();
        let mut last: Option<LiveExtent> = None;
        addresses.map(move |address| {
            while let Some(block) = further.next_if(|block| block.start <= address) {
                last = Some(block);
            }
            let block = last?;
            let before = address.checked_sub(block.start)?;
            (before <= MOST_HEADER && before < block.bytes).then_some(())?;
            let (stack, allocator, thread) = *groups.get(block.group as usize)?;
            Some(ObjectBlock { stack, allocator, thread, time_ns: block.time_ns })
        })
    }
}

impl LiveBlocks {
    /// The blocks in which these addresses are, with their size.
    pub fn around(&self, addresses: &[u64]) -> FxHashMap<u64, (ObjectBlock, u64)> {
        let groups: Vec<_> = self.0.group_keys().collect();
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let (mut found, mut rest) = (FxHashMap::default(), sorted.as_slice());
        for block in self.0.live_blocks().filter(|block| block.mapped.is_none()) {
            let end = block.start.saturating_add(block.bytes);
            let before = rest.partition_point(|address| *address < block.start);
            let (_, from_start) = rest.split_at(before);
            let within = from_start.iter().take_while(|address| **address < end);
            if let Some(&(stack, allocator, thread)) = groups.get(block.group as usize) {
                let of = ObjectBlock { stack, allocator, thread, time_ns: block.time_ns };
                found.extend(within.map(|address| (*address, (of, block.bytes))));
            }
            // A block may lie in another one: an arena.
            rest = from_start;
        }
        found
    }

    /// The same; of an object with a known block for its contents that one: most of its bytes are there, and its own block may be
    /// that of an earlier object, which the interpreter used again. `contents`: rows among the objects, ascending, and the
    /// addresses of these blocks.
    pub fn of_objects(
        &self,
        addresses: impl Iterator<Item = u64>,
        contents: impl Iterator<Item = (u32, u64)>,
    ) -> impl Iterator<Item = Option<ObjectBlock>> {
        let mut contents: Vec<(u64, u32)> = contents.map(|(row, address)| (address, row)).collect();
        contents.sort_unstable();
        let blocks = self.of_each(contents.iter().map(|(address, _)| *address));
        let found = contents.iter().zip(blocks).filter_map(|((_, row), block)| Some((*row, block?)));
        let mut found: Vec<(u32, ObjectBlock)> = found.collect();
        found.sort_unstable_by_key(|(row, _)| *row);
        let mut found = found.into_iter().peekable();
        self.of_each(addresses).zip(0_u32..).map(move |(own, row)| {
            let of_contents = found.next_if(|(of, _)| *of == row).map(|(_, block)| block);
            of_contents.or(own)
        })
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

    use super::{ObjectBlock, PictureScan};
    use crate::analysis::Options;
    use crate::event::{Event, EventKind, StackId, ThreadId};

    #[test]
    fn addresses_are_in_the_innermost_block_around_them() {
        let mut scan = PictureScan::new(&Options::default(), u64::MAX);
        let kind = EventKind::Alloc(Allocator::Malloc);
        for (order, (address, size, stack)) in (0..).zip([(4096, 4096, 1), (4160, 16, 2), (1 << 40, 8, 3)]) {
            let (stack, thread) = (StackId(stack), ThreadId(0));
            scan.replay.event(&Event { kind, address, size, stack, thread, order, time_ns: 0 });
        }
        let found = scan.finish().around(&[1 << 40, 4168, 4095, 4096, 4176, 8191, 8192, 4168]);
        let mut found: Vec<_> = found.into_iter().map(|(at, (block, bytes))| (at, block.stack.0, bytes)).collect();
        found.sort_unstable();
        assert_eq!(found, [(4096, 1, 4096), (4168, 2, 16), (4176, 1, 4096), (8191, 1, 4096), (1 << 40, 3, 8)]);
    }

    #[test]
    fn objects_begin_where_their_blocks_do() {
        let mut scan = PictureScan::new(&Options::default(), u64::MAX);
        let (kind, malloc) = (EventKind::Alloc(Allocator::Malloc), Allocator::Malloc);
        let blocks = [(1 << 40, 16, 7), (8192, 1 << 20, 8), (4096, 64, 7), (4096 - 24, 24, 9)];
        for (order, (address, size, stack)) in (0..).zip(blocks) {
            let (stack, thread) = (StackId(stack), ThreadId(stack - 6));
            scan.replay.event(&Event { kind, address, size, stack, thread, order, time_ns: address / 2 });
        }
        let addresses = [5, 4080, 4096, 4112, 4128, 4136, 4160, 8192 + 48, 1 << 40, (1 << 40) + 16];
        let expected = [None, Some(9), Some(7), Some(7), Some(7), None, None, None, Some(7), None];
        let blocks = scan.finish();
        let found: Vec<_> = blocks.of_each(addresses.into_iter()).collect();
        assert_eq!(found.iter().map(|block| block.map(|block| block.stack.0)).collect::<Vec<_>>(), expected);
        let first = ObjectBlock { stack: StackId(7), allocator: malloc, thread: ThreadId(1), time_ns: 2048 };
        assert_eq!(found[3], Some(first));
        let contents = [(0, 1 << 40), (1, 8192), (3, 8192), (7, 4128)];
        let found = blocks.of_objects(addresses.into_iter(), contents.into_iter());
        let found: Vec<_> = found.map(|block| block.map(|block| block.stack.0)).collect();
        assert_eq!(found, [Some(7), Some(8), Some(7), Some(8), Some(7), None, None, Some(7), Some(7), None]);
    }
}
