//! The calls of the C library's allocation functions that a capture has, up to a moment, for making them again.
//!
//! Blocks have numbers in place of addresses, which another heap gives differently. A capture records a realloc as a free and
//! an allocation that follows in the thread; it is one call here, since it may keep the block in its place.
//!
//! Invariant: each block that a call names is live: allocated by an earlier one, and not freed since.

use memtrack_format::Allocator;
use memtrack_format::pymalloc::LARGEST_BLOCK;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::event::{Event, EventKind, Snapshot, Thread, ThreadId};
use crate::frames::Frames;
use crate::source::Consumer;

/// The strictest alignment that is derived from an address.
const LARGEST_ALIGNMENT: u64 = 4096;

/// A call, or what tells by which thread and when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapCall {
    /// A block of so many bytes is allocated, as this function does it.
    Allocate(u32, u64, HeapFunction),
    /// A block is changed to this size.
    Reallocate(u32, u64),
    /// A block is freed.
    Free(u32),
    /// This thread makes the next calls.
    Thread(ThreadId),
    /// The thread of the calls before has ended.
    ThreadEnd,
    /// It is this time, in nanoseconds since recording began.
    Time(u64),
}

/// How a block is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapFunction {
    /// `malloc`.
    Malloc,
    /// `calloc`.
    Calloc,
    /// `posix_memalign` with an alignment of two to this power.
    Aligned(u8),
}

/// A consumer of events that knows, for each thread, its last event.
#[derive(Clone, Debug, Default)]
pub struct ThreadEnds {
    last: Vec<u64>,
    last_ns: u64,
}

impl Consumer for ThreadEnds {
    #[inline]
    fn event(&mut self, event: &Event, _frames: &Frames) {
        let index = event.thread.0 as usize;
        if index >= self.last.len() {
            self.last.resize(index + 1, 0);
        }
        self.last[index] = event.order;
        self.last_ns = self.last_ns.max(event.time_ns);
    }
}

impl ThreadEnds {
    /// When the last event was, in nanoseconds since recording began.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Threads without one of these system ids have ended with their last event.
    #[must_use]
    pub fn without(mut self, threads: &[Thread], alive: &FxHashSet<u32>) -> Self {
        for (last, thread) in self.last.iter_mut().zip(threads) {
            if alive.contains(&thread.tid.cast_unsigned()) {
                *last = u64::MAX;
            }
        }
        self
    }
}

/// What a thread has freed last.
#[derive(Clone, Copy, Debug, Default)]
struct PendingFree {
    /// Address and number of the block, unless it is known that no realloc follows.
    block: Option<(u64, u32)>,
    /// Whether the thread is among those that wait.
    is_waiting: bool,
}

/// A consumer of events that calls `sink` with each call up to a moment.
#[derive(Debug)]
pub struct HeapCalls<S> {
    sink: S,
    until_ns: u64,
    is_over: bool,
    ends: ThreadEnds,
    thread: Option<ThreadId>,
    numbers: FxHashMap<u64, u32>,
    /// Numbers so far, and those of them that no block has.
    blocks: u32,
    unused: Vec<u32>,
    /// What threads have freed last.
    freed: Vec<PendingFree>,
    /// Threads that may have one, each once.
    waiting: Vec<ThreadId>,
    /// Python's allocator cuts larger blocks, too.
    has_mimalloc: bool,
}

impl<S: FnMut(HeapCall)> HeapCalls<S> {
    /// The calls before this time, in nanoseconds since recording began.
    pub fn new(until_ns: u64, ends: ThreadEnds, sink: S) -> Self {
        Self {
            sink,
            until_ns,
            is_over: false,
            ends,
            thread: None,
            numbers: FxHashMap::default(),
            blocks: 0,
            unused: Vec::new(),
            freed: Vec::new(),
            waiting: Vec::new(),
            has_mimalloc: false,
        }
    }

    /// Makes the calls that wait; returns the sink.
    pub fn finish(mut self) -> S {
        self.free_waiting();
        self.sink
    }

    /// Calls are made by this thread.
    fn turn_to(&mut self, thread: ThreadId) {
        if self.thread != Some(thread) {
            self.thread = Some(thread);
            (self.sink)(HeapCall::Thread(thread));
        }
    }

    /// The thread's last free, if it was not made.
    fn take_freed(&mut self, thread: ThreadId) -> Option<(u64, u32)> {
        self.freed.get_mut(thread.0 as usize)?.block.take()
    }

    /// Makes the thread's last free, which no realloc has followed.
    fn free_last(&mut self, thread: ThreadId) {
        if let Some((_, block)) = self.take_freed(thread) {
            self.turn_to(thread);
            (self.sink)(HeapCall::Free(block));
            self.unused.push(block);
        }
    }

    fn free_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for thread in waiting.drain(..) {
            self.free_last(thread);
            self.freed[thread.0 as usize].is_waiting = false;
        }
        self.waiting = waiting;
    }

    /// The number of a new block at this address. A block that was there has lost its free.
    fn number(&mut self, address: u64) -> u32 {
        if let Some(lost) = self.numbers.remove(&address) {
            (self.sink)(HeapCall::Free(lost));
            self.unused.push(lost);
        }
        let block = self.unused.pop().unwrap_or_else(|| {
            self.blocks += 1;
            self.blocks - 1
        });
        self.numbers.insert(address, block);
        block
    }

    fn allocate(&mut self, event: &Event, allocator: Allocator) {
        let freed = self.take_freed(event.thread);
        self.turn_to(event.thread);
        if is_realloc(allocator)
            && let Some((_, block)) = freed
        {
            self.numbers.insert(event.address, block);
            (self.sink)(HeapCall::Reallocate(block, event.size));
            return;
        }
        if let Some((_, block)) = freed {
            (self.sink)(HeapCall::Free(block));
            self.unused.push(block);
        }
        let block = self.number(event.address);
        (self.sink)(HeapCall::Allocate(block, event.size, function(allocator, event.address)));
    }

    fn free(&mut self, event: &Event) {
        self.free_last(event.thread);
        let Some(block) = self.numbers.remove(&event.address) else { return };
        let index = event.thread.0 as usize;
        if index >= self.freed.len() {
            self.freed.resize(index + 1, PendingFree::default());
        }
        let last = &mut self.freed[index];
        last.block = Some((event.address, block));
        if !std::mem::replace(&mut last.is_waiting, true) {
            self.waiting.push(event.thread);
        }
    }

    /// Whether the C library's allocator serves such a request.
    fn is_call(&self, allocator: Allocator, bytes: u64) -> bool {
        use Allocator::{
            PymallocCalloc, PymallocCallocMem, PymallocMalloc, PymallocMallocMem, PymallocRealloc, PymallocReallocMem,
        };
        match allocator {
            PymallocMalloc | PymallocCalloc | PymallocRealloc | PymallocMallocMem | PymallocCallocMem
            | PymallocReallocMem => bytes > LARGEST_BLOCK && !self.has_mimalloc,
            other => !other.is_mapping(),
        }
    }
}

impl<S: FnMut(HeapCall)> Consumer for HeapCalls<S> {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        if self.is_over {
            return;
        }
        match event.kind {
            EventKind::Alloc(allocator) if self.is_call(allocator, event.size) => self.allocate(event, allocator),
            EventKind::Free => self.free(event),
            EventKind::FreeUndo => {
                if let Some((address, block)) = self.take_freed(event.thread) {
                    self.numbers.insert(address, block);
                }
            }
            EventKind::Map(Allocator::MimallocArena, _) => self.has_mimalloc = true,
            _ => self.free_last(event.thread),
        }
        if self.ends.last.get(event.thread.0 as usize) == Some(&event.order) {
            self.free_last(event.thread);
            if self.thread == Some(event.thread) {
                (self.sink)(HeapCall::ThreadEnd);
                self.thread = None;
            }
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.tick(0, snapshot.time_ns);
    }

    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        if !self.is_over {
            self.free_waiting();
            self.is_over = time_ns >= self.until_ns;
            (self.sink)(HeapCall::Time(time_ns));
        }
    }

    fn replaced(&mut self) {
        if !self.is_over {
            self.free_waiting();
            let mut blocks: Vec<u32> = self.numbers.drain().map(|(_, block)| block).collect();
            blocks.sort_unstable();
            blocks.iter().for_each(|block| (self.sink)(HeapCall::Free(*block)));
            self.unused.append(&mut blocks);
        }
    }
}

const fn is_realloc(allocator: Allocator) -> bool {
    use Allocator::{PymallocRealloc, PymallocReallocMem, PymallocReallocRaw, Realloc, Reallocarray};
    matches!(allocator, Realloc | Reallocarray | PymallocRealloc | PymallocReallocMem | PymallocReallocRaw)
}

/// How a block is allocated. Its alignment is not recorded: it is what its address has.
fn function(allocator: Allocator, address: u64) -> HeapFunction {
    use Allocator::{
        AlignedAlloc, Calloc, Memalign, PosixMemalign, Pvalloc, PymallocCalloc, PymallocCallocMem, PymallocCallocRaw,
        Valloc,
    };
    match allocator {
        Calloc | PymallocCalloc | PymallocCallocMem | PymallocCallocRaw => HeapFunction::Calloc,
        PosixMemalign | AlignedAlloc | Memalign | Valloc | Pvalloc => {
            let power = (address | LARGEST_ALIGNMENT).trailing_zeros().max(4);
            HeapFunction::Aligned(u8::try_from(power).unwrap_or(4))
        }
        _ => HeapFunction::Malloc,
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator::{self, Calloc, Malloc, PosixMemalign, PymallocMalloc, Realloc};

    use super::HeapCall::{Allocate, Free, Reallocate, Thread, ThreadEnd, Time};
    use super::{HeapCall, HeapCalls, HeapFunction, ThreadEnds};
    use crate::event::{Event, EventKind, StackId, ThreadId};
    use crate::frames::Frames;
    use crate::source::Consumer;

    /// The calls of events that are given as thread, kind, address and size; one of address 0 and size 0 is a tick.
    fn calls(events: &[(u32, EventKind, u64, u64)]) -> Vec<HeapCall> {
        let frames = Frames::default();
        let mut ends = ThreadEnds::default();
        let event = |(order, (thread, kind, address, size)): (u64, &(u32, EventKind, u64, u64))| Event {
            kind: *kind,
            address: *address,
            size: *size,
            stack: StackId::EMPTY,
            thread: ThreadId(*thread),
            order,
            time_ns: 0,
        };
        let events: Vec<Event> = (0..).zip(events).map(event).collect();
        events.iter().for_each(|event| ends.event(event, &frames));
        let mut made = Vec::new();
        let mut scan = HeapCalls::new(100, ends, |call| made.push(call));
        for event in &events {
            if event.address == 0 {
                scan.tick(0, event.order);
            } else {
                scan.event(event, &frames);
            }
        }
        let _ = scan.finish();
        made
    }

    fn alloc(allocator: Allocator) -> EventKind {
        EventKind::Alloc(allocator)
    }

    #[test]
    fn a_realloc_is_one_call_also_where_another_thread_takes_the_old_address_first() {
        let made = calls(&[
            (0, alloc(Malloc), 16, 100),
            (0, EventKind::Free, 16, 0),
            (1, alloc(Malloc), 16, 100),
            (0, alloc(Realloc), 32, 200),
            (0, EventKind::Free, 32, 0),
            (1, EventKind::Free, 16, 0),
        ]);
        let malloc = HeapFunction::Malloc;
        assert_eq!(made[..2], [Thread(ThreadId(0)), Allocate(0, 100, malloc)]);
        assert_eq!(made[2..4], [Thread(ThreadId(1)), Allocate(1, 100, malloc)]);
        assert_eq!(
            made[4..],
            [Thread(ThreadId(0)), Reallocate(0, 200), Free(0), ThreadEnd, Thread(ThreadId(1)), Free(1), ThreadEnd,]
        );
    }

    #[test]
    fn a_failed_realloc_frees_nothing_and_a_free_before_other_calls_or_a_tick_is_a_free() {
        let (free, undo) = (EventKind::Free, EventKind::FreeUndo);
        let made = calls(&[
            (0, alloc(Malloc), 16, 1),
            (0, free, 16, 0),
            (0, undo, 16, 0),
            (0, free, 16, 0),
            (0, alloc(Calloc), 16, 2),
            (0, free, 16, 0),
            (0, EventKind::Exec, 0, 0),
            (0, alloc(Realloc), 16, 3),
        ]);
        let expected = [
            Thread(ThreadId(0)),
            Allocate(0, 1, HeapFunction::Malloc),
            Free(0),
            Allocate(0, 2, HeapFunction::Calloc),
            Free(0),
            Time(6),
            Allocate(0, 3, HeapFunction::Malloc),
            ThreadEnd,
        ];
        assert_eq!(made, expected);
    }

    #[test]
    fn only_requests_that_the_c_library_serves_are_calls() {
        let made = calls(&[
            (0, alloc(PymallocMalloc), 16, 512),
            (0, alloc(PymallocMalloc), 32, 513),
            (0, alloc(Allocator::Mmap), 4096, 4096),
            (0, alloc(PosixMemalign), 192, 10),
            (0, EventKind::Free, 16, 0),
        ]);
        let expected = [
            Thread(ThreadId(0)),
            Allocate(0, 513, HeapFunction::Malloc),
            Allocate(1, 10, HeapFunction::Aligned(6)),
            ThreadEnd,
        ];
        assert_eq!(made, expected);
    }
}
