//! The events of a capture as records, written while it is read.
//!
//! A free has the size, allocator and call stack of the block that it frees, and an unmapping the call stack of the
//! mapping that begins at its address. Memory grows with the live heap and the tables, not with the events.
//!
//! Invariant: rows are in the total order of events; after a write error nothing more is written, and reading goes on.

use std::io::{self, Write};

use memtrack_format::Allocator;
use memtrack_reader::source::{Consumer, RunPosition};
use memtrack_reader::{Event, EventKind, Frames, StackId, ThreadId};
use rustc_hash::FxHashMap;

use super::{BATCH, RecordLines, allocator_index};
use crate::allocation_filter::{AllocationFilter, KeptEvents};

/// The names of the kinds of event, as in the tables of `transform parquet`.
const KINDS: [&str; 11] = [
    "alloc",
    "free",
    "free_undo",
    "map",
    "unmap",
    "remap_from",
    "unmap_undo",
    "failed_alloc",
    "finalizing",
    "exec",
    "sample_distance",
];

fn kind_index(kind: EventKind) -> usize {
    match kind {
        EventKind::Alloc(_) => 0,
        EventKind::Free => 1,
        EventKind::FreeUndo => 2,
        EventKind::Map(..) => 3,
        EventKind::Unmap => 4,
        EventKind::RemapFrom => 5,
        EventKind::UnmapUndo => 6,
        EventKind::FailedAlloc(_) => 7,
        EventKind::Finalizing => 8,
        EventKind::Exec => 9,
        EventKind::SampleDistance => 10,
    }
}

/// A live block or mapping, by its address.
#[derive(Clone, Copy, Debug)]
struct BlockOrigin {
    size: u64,
    allocator: Option<Allocator>,
    /// Its number among the records.
    stack: u32,
}

impl BlockOrigin {
    /// What is known of a block whose allocation was not seen.
    const UNKNOWN: Self = Self { size: 0, allocator: None, stack: 0 };
}

/// Rows in columns, until they are a line.
#[derive(Debug, Default)]
struct EventColumns {
    kinds: Vec<usize>,
    times_ns: Vec<u64>,
    addresses: Vec<u64>,
    sizes: Vec<u64>,
    allocators: Vec<usize>,
    tids: Vec<i32>,
    stacks: Vec<u32>,
}

/// Writes events as they are read.
#[derive(Debug)]
pub(crate) struct EventRecords<'a, W> {
    lines: RecordLines<W>,
    columns: EventColumns,
    kept: KeptEvents<'a>,
    live: FxHashMap<u64, BlockOrigin>,
    /// The last block that each thread freed, which its next event may undo.
    freed: FxHashMap<ThreadId, (u64, BlockOrigin)>,
    tid: i32,
    /// When the recording of this capture began, after the earliest one of all that are written.
    start_ns: u64,
    written: io::Result<()>,
}

impl<'a, W: Write> EventRecords<'a, W> {
    /// Begins with the names of kinds, and the process that all events are of; `start_ns`: when its recording began, after the earliest
    /// one of those that are written.
    ///
    /// # Errors
    /// A write error.
    pub(crate) fn new(kept: &'a AllocationFilter, (pid, start_ns): (Option<u32>, u64), out: W) -> io::Result<Self> {
        let mut lines = RecordLines::new(out)?;
        lines.write(&("kinds", KINDS))?;
        lines.write(&("process", pid))?;
        Ok(Self {
            lines,
            columns: EventColumns::default(),
            kept: KeptEvents::new(kept),
            live: FxHashMap::default(),
            freed: FxHashMap::default(),
            tid: 0,
            start_ns,
            written: Ok(()),
        })
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// The first write error.
    pub(crate) fn finish(mut self, frames: &Frames) -> io::Result<()> {
        self.flush(frames);
        self.written?;
        self.lines.end()
    }

    fn flush(&mut self, frames: &Frames) {
        let columns = std::mem::take(&mut self.columns);
        if self.written.is_ok() {
            self.written = self.lines.flush(frames);
        }
        if self.written.is_ok() && !columns.kinds.is_empty() {
            let EventColumns { kinds, times_ns, addresses, sizes, allocators, tids, stacks } = columns;
            self.written = self.lines.write(&("events", kinds, times_ns, addresses, sizes, allocators, tids, stacks));
        }
    }

    fn row(&mut self, event: &Event, address: u64, BlockOrigin { size, allocator, stack, .. }: BlockOrigin) {
        let columns = &mut self.columns;
        columns.kinds.push(kind_index(event.kind));
        columns.times_ns.push(event.time_ns.saturating_add(self.start_ns));
        columns.addresses.push(address);
        columns.sizes.push(size);
        columns.allocators.push(allocator_index(allocator));
        columns.tids.push(self.tid);
        columns.stacks.push(stack);
    }

    /// The address of the event, and what it is about; `None` for an undo of what is not known.
    fn origin(&mut self, event: &Event, frames: &Frames) -> Option<(u64, BlockOrigin)> {
        match event.kind {
            EventKind::Alloc(allocator) | EventKind::Map(allocator, _) | EventKind::FailedAlloc(allocator) => {
                let stack = if event.stack == StackId::EMPTY { 0 } else { self.lines.stack(event.stack, frames) };
                let origin = BlockOrigin { size: event.size, allocator: Some(allocator), stack };
                if matches!(event.kind, EventKind::FailedAlloc(_)) {
                    return Some((0, origin));
                }
                self.live.insert(event.address, origin);
                Some((event.address, origin))
            }
            EventKind::Free => {
                let origin = self.live.remove(&event.address).unwrap_or(BlockOrigin::UNKNOWN);
                self.freed.insert(event.thread, (event.address, origin));
                Some((event.address, origin))
            }
            EventKind::Unmap | EventKind::RemapFrom => {
                let origin = self.live.remove(&event.address).unwrap_or(BlockOrigin::UNKNOWN);
                Some((event.address, BlockOrigin { size: event.size, ..origin }))
            }
            EventKind::FreeUndo => {
                let (address, origin) = self.freed.remove(&event.thread)?;
                self.live.entry(address).or_insert(origin);
                Some((address, origin))
            }
            EventKind::UnmapUndo | EventKind::SampleDistance | EventKind::Finalizing | EventKind::Exec => {
                Some((0, BlockOrigin::UNKNOWN))
            }
        }
    }
}

impl<W: Write> Consumer for EventRecords<'_, W> {
    fn event(&mut self, event: &Event, frames: &Frames) {
        let Some(event) = self.kept.taken(event) else { return };
        if let Some((address, origin)) = self.origin(&event, frames) {
            self.row(&event, address, origin);
            if self.columns.kinds.len() >= BATCH {
                self.flush(frames);
            }
        }
    }

    fn run(&mut self, place: &RunPosition) {
        self.tid = place.tid;
    }

    fn replaced(&mut self) {
        self.kept.replaced();
        self.live.clear();
        self.freed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::EventRecords;
    use crate::allocation_filter::AllocationFilter;
    use memtrack_format::Allocator;
    use memtrack_reader::source::Consumer;
    use memtrack_reader::{Event, EventKind, Frames, ThreadId};

    #[test]
    fn a_free_has_what_its_block_had_and_an_undo_restores_it() {
        let mut frames = Frames::new();
        let frame = frames.frame_named("work", "a.py", 7).unwrap();
        let stack = frames.stack_of(&[frame]).unwrap();
        let kept = AllocationFilter::default();
        let mut text = Vec::new();
        let mut records = EventRecords::new(&kept, (Some(9), 0), &mut text).unwrap();
        let kinds = [
            EventKind::Alloc(Allocator::Malloc),
            EventKind::Free,
            EventKind::FreeUndo,
            EventKind::Free,
            EventKind::Free,
        ];
        for (order, kind) in (0..).zip(kinds) {
            let address = if kind == EventKind::FreeUndo { 0 } else { 16 };
            let (size, stack) = if order == 0 { (64, stack) } else { Default::default() };
            records.event(&Event { kind, address, size, stack, thread: ThreadId(0), order, time_ns: order }, &frames);
        }
        records.finish(&frames).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                r#"["process",9]"#,
                r#"["names",["work","a.py"]]"#,
                r#"["frames",[[0,1,7,0]]]"#,
                r#"["stacks",[[0,0]]]"#,
                r#"["events",[0,1,2,1,1],[0,1,2,3,4],[16,16,16,16,16],[64,64,64,64,0],[0,0,0,0,17],[0,0,0,0,0],[1,1,1,1,0]]"#,
                r#"["end"]"#,
            ]
        );
    }
}
