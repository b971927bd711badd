//! A model of a recorded process: threads call the hooks of malloc and its family, whose originals are a heap of the
//! model's own, while a reader follows what they record.
//!
//! It is a test like others, and runs under Miri by `scripts/miri`. Miri has no assembly, no shared memory and no
//! interpreter, but hooks, guard, state, ring, protocol and codec are those of the library; it reports borrows that
//! contradict each other, races, and reads of what was never written. Invariant that is checked: each thread's stream,
//! decoded, is what the thread did.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by a panic")]

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};

use memtrack_format::Allocator;
use memtrack_format::record::MAX_RECORD;
use memtrack_transport::layout::{ALL_SEGMENTS, SEGMENT_ROOM, SlotHeader};
use memtrack_transport::{Area, segment_chain};

use super::hooks::heap;
use crate::platform::{recording_switch, shared_area};
use crate::recording::inherited_memory::InheritedMemory;
use crate::recording::thread::{self, FreeOutcome, PythonCall, Recorder};

mod program_heap;
mod stream_reader;

use program_heap::LARGEST;
use stream_reader::{StreamReader, read_during};

/// Slots of the shared memory.
const SLOTS: u32 = 8;
/// Threads that record at once.
const THREADS: usize = if cfg!(miri) { 2 } else { 3 };
/// How often a thread fills a segment.
const SEGMENTS: usize = if cfg!(miri) { STEPS / THREADS } else { 30 * STEPS };
/// Steps between two that fill a segment.
const STEPS_IN_SEGMENT: usize = if cfg!(miri) { 6 } else { 100 };
/// The longest name that is recorded, to fill segments with few records.
const LONGEST_NAME: usize = 4000;

/// What is to be found in a thread's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelEvent {
    Alloc(Allocator, usize, usize),
    Free(usize),
    FreeUndo,
    FailedAlloc(Allocator, usize),
    /// A name of this length.
    Name(usize),
}

use ModelEvent::{Alloc, FailedAlloc, Free, FreeUndo, Name};

/// What [`ModelThread::step`] knows.
const STEPS: usize = 6;

/// A thread that calls hooks, and notes what they should have recorded.
struct ModelThread {
    area: &'static Area,
    events: Vec<ModelEvent>,
    live: Vec<usize>,
    random: usize,
}

impl ModelThread {
    fn new(area: &'static Area, seed: usize) -> Self {
        Self { area, events: Vec::new(), live: Vec::new(), random: seed }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % below
    }

    fn malloc(&mut self, size: usize) -> usize {
        // SAFETY: any size may be asked for.
        let address = unsafe { heap::malloc(size) };
        self.events.push(Alloc(Allocator::Malloc, address, size));
        self.live.push(address);
        address
    }

    /// A block that the thread had.
    fn take(&mut self) -> usize {
        if self.live.is_empty() {
            self.malloc(24);
        }
        let at = self.random(self.live.len());
        self.live.swap_remove(at)
    }

    fn free(&mut self) {
        let address = self.take();
        self.events.push(Free(address));
        // SAFETY: a block that nobody uses.
        unsafe { heap::free(address) };
    }

    fn realloc(&mut self) {
        let (address, size) = (self.take(), 200 + self.random(2) * 8);
        // SAFETY: a block that nobody uses.
        let moved = unsafe { heap::realloc(address, size) };
        self.events.extend([Free(address), Alloc(Allocator::Realloc, moved, size)]);
        self.live.push(moved);
    }

    fn failing_malloc(&mut self) {
        // SAFETY: any size may be asked for.
        assert_eq!(unsafe { heap::malloc(LARGEST + 1) }, 0);
        self.events.push(FailedAlloc(Allocator::Malloc, LARGEST + 1));
    }

    fn failing_realloc(&mut self) {
        let address = self.take();
        // SAFETY: a block that nobody uses, and that stays.
        assert_eq!(unsafe { heap::realloc(address, LARGEST + 1) }, 0);
        self.events.extend([Free(address), FreeUndo, FailedAlloc(Allocator::Realloc, LARGEST + 1)]);
        self.live.push(address);
    }

    /// One of Python's allocators frees a block; the same as its wrapper, which stands in a table of the process.
    fn python_free(&mut self) {
        let (block, other) = (self.take(), self.take());
        self.events.push(Free(block));
        let recorder = recorded_free(block);
        recorder.frees_python(block, PythonCall::Frees);
        self.inside_python_free(block, other);
        recorder.freed_python();
    }

    /// While a block is freed, another is made, and one is freed: such hooks are inside of one, and record all the same.
    fn inside_python_free(&mut self, block: usize, other: usize) {
        // SAFETY: any size may be asked for.
        let address = unsafe { heap::calloc(2, 12) };
        self.events.extend([Alloc(Allocator::Calloc, address, 24), Free(other)]);
        self.live.push(address);
        // SAFETY: a block that nobody uses.
        unsafe { heap::free(other) };
        // SAFETY: a block that nobody uses; its record is there.
        unsafe { heap::free(block) };
    }

    /// Fills the segment with names, so that the next record finds no room.
    fn fill_segment(&mut self) {
        let (index, slot) = own_slot(self.area).unwrap();
        let header = self.area.segment(index, slot.current.load(Relaxed) - 1).unwrap();
        while let Some(left) = (SEGMENT_ROOM - header.fill.load(Relaxed) as usize).checked_sub(MAX_RECORD) {
            self.name(left.min(LONGEST_NAME));
        }
    }

    fn name(&mut self, length: usize) {
        thread::enter().unwrap().thread_name(1, &[b'n'; LONGEST_NAME][..length]);
        self.events.push(Name(length));
    }

    fn step(&mut self, which: usize) {
        match which {
            0 => drop(self.malloc([24, 24, 100, 2000][self.live.len() % 4])),
            1 => self.free(),
            2 => self.realloc(),
            3 => self.python_free(),
            4 => self.failing_malloc(),
            _ => self.failing_realloc(),
        }
    }

    /// Makes steps; all threads together make each where a segment is full.
    fn run(&mut self, number: usize) {
        for segment in 0..SEGMENTS {
            for _ in 0..STEPS_IN_SEGMENT {
                let which = self.random(STEPS);
                self.step(which);
            }
            self.fill_segment();
            self.step((number * SEGMENTS + segment) % STEPS);
        }
    }

    /// Compares what was read of the thread's slot with what it did since it was compared last.
    fn compare(&mut self, slot: u32, readers: &mut [StreamReader]) {
        assert_eq!(readers[slot as usize].take_events(), std::mem::take(&mut self.events));
    }
}

/// The free of a block by one of Python's allocators is recorded; the guard is held.
fn recorded_free(block: usize) -> Recorder {
    match thread::free_fast(block) {
        FreeOutcome::Recorded(recorder) => recorder,
        FreeOutcome::Pending(mut recorder) => {
            recorder.free_pending(block);
            recorder
        }
        FreeOutcome::Nested | FreeOutcome::NotHandled | FreeOutcome::NotOn => {
            panic!("recording is on, and the thread in no hook")
        }
    }
}

/// The slot of the calling thread, and its number.
fn own_slot(area: &'static Area) -> Option<(u32, &'static SlotHeader)> {
    // SAFETY: no arguments, cannot fail.
    let tid = unsafe { libc::gettid() };
    slots(area).find(|(_, slot)| slot.owner.load(Relaxed) == tid)
}

fn slots(area: &'static Area) -> impl Iterator<Item = (u32, &'static SlotHeader)> {
    (0..SLOTS).map(|index| (index, area.slot(index).unwrap()))
}

fn readers() -> Vec<StreamReader> {
    (0..SLOTS).map(StreamReader::new).collect()
}

/// Starts recording, as the library's constructor does.
fn start() -> &'static Area {
    program_heap::store_originals();
    #[cfg(miri)]
    let area = Area::create_unshared(SLOTS).unwrap();
    #[cfg(not(miri))]
    let (area, _file) = Area::create(SLOTS, &std::env::temp_dir()).unwrap();
    let area = shared_area::set_area(area);
    recording_switch::on();
    area
}

/// One test for all, since a process has one recording.
#[test]
fn what_is_read_is_what_the_threads_did() {
    let area = start();
    let mut readers = readers();
    let live = threads_record_at_once(area, &mut readers);
    a_slot_has_another_thread(area, &mut readers, live);
    a_thread_waits_for_a_free_segment(area, &mut readers);
    a_block_of_a_debug_hook_is_deferred(area, &mut readers);
    a_forked_child_begins_again(area);
    recording_switch::off();
}

/// Several threads, of which every other one records times. Gives the blocks that they have left.
fn threads_record_at_once(area: &'static Area, readers: &mut [StreamReader]) -> Vec<usize> {
    let all_have_slots = Barrier::new(THREADS);
    let run = |number| {
        area.control().timestamps.store(number as u32 % 2, Relaxed);
        let mut thread = ModelThread::new(area, number);
        thread.malloc(24);
        all_have_slots.wait();
        thread.run(number);
        (own_slot(area).unwrap().0, thread)
    };
    let threads = read_during(area, readers, || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || run(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    });
    let mut live = Vec::new();
    for (slot, mut thread) in threads {
        thread.compare(slot, readers);
        live.append(&mut thread.live);
    }
    live
}

/// A thread that begins when others have ended takes one of their slots, and frees their blocks.
fn a_slot_has_another_thread(area: &'static Area, readers: &mut [StreamReader], live: Vec<usize>) {
    // As the collector does.
    slots(area).for_each(|(_, slot)| slot.owner.store(0, Release));
    let run = || {
        let mut thread = ModelThread { live, ..ModelThread::new(area, 7) };
        (0..20).for_each(|_| thread.free());
        thread.fill_segment();
        thread.python_free();
        (own_slot(area).unwrap().0, thread)
    };
    let (slot, mut thread) =
        read_during(area, readers, || std::thread::scope(|scope| scope.spawn(run).join().unwrap()));
    assert!((slot as usize) < THREADS, "it is not a new one");
    thread.compare(slot, readers);
}

/// A thread has filled all segments that are free, and nobody reads; then somebody does.
fn a_thread_waits_for_a_free_segment(area: &'static Area, readers: &mut [StreamReader]) {
    let mut thread = ModelThread::new(area, 8);
    thread.malloc(24);
    let (index, slot) = own_slot(area).unwrap();
    while (ALL_SEGMENTS & !slot.taken.load(Relaxed)).count_ones() > 2 {
        segment_chain::take_free(slot).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while slot.waiting.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            readers[index as usize].read(area);
        });
        for _ in 0..3 {
            thread.fill_segment();
            thread.free();
        }
    });
    assert!(area.control().waits.load(Relaxed) > 0);
    readers[index as usize].read(area);
    thread.compare(index, readers);
}

/// The record of a block waits until a debug hook of Python's has written its header there.
fn a_block_of_a_debug_hook_is_deferred(area: &'static Area, readers: &mut [StreamReader]) {
    static WRAPPERS_ARE_OUT: AtomicBool = AtomicBool::new(true);
    thread::before_events(|| WRAPPERS_ARE_OUT.swap(false, Relaxed));
    let mut thread = ModelThread::new(area, 9);
    recording_switch::watch();
    let block = thread.malloc(26);
    let header = [2_u64.to_be_bytes(), [b'r', 0xfd, 0xfd, 0xfd, 0xfd, 0xfd, 0xfd, 0xfd]];
    program_heap::write_block(block, header.as_flattened());
    thread.events = vec![Alloc(Allocator::PymallocMallocRaw, block + 16, 2)];
    thread.malloc(100);
    recording_switch::stop_watching();
    thread.free();
    let (slot, _) = own_slot(area).unwrap();
    readers[slot as usize].read(area);
    thread.compare(slot, readers);
}

/// The child of a fork has one thread. Nothing is recorded of it until it has memory of its own. A signal handler may have forked that
/// interrupted a hook after it had loaded the thread-local word, and before it was inside: the hook goes on with that word.
fn a_forked_child_begins_again(area: &'static Area) {
    let mut thread = ModelThread::new(area, 10);
    thread::enter().unwrap().fork_begins();
    recording_switch::off();
    let inherited = thread.malloc(24);
    assert!(thread::take_fork_ticket().is_some());
    for (_, slot) in slots(area) {
        slot.owner.store(0, Relaxed);
        slot.busy.store(0, Relaxed);
        slot.current.store(0, Relaxed);
        slot.taken.store(0, Relaxed);
    }
    let loaded = thread::suspend();
    thread::resume(loaded);
    InheritedMemory::give_back();
    recording_switch::on();
    thread::resume(loaded);
    thread::enter().unwrap();
    thread::resume(std::ptr::null());
    thread.events.clear();
    assert_eq!(thread.take(), inherited);
    thread.live.push(inherited);
    thread.free();
    thread.python_free();
    let (slot, _) = own_slot(area).unwrap();
    let mut readers = readers();
    readers[slot as usize].read(area);
    thread.compare(slot, &mut readers);
}

/// The deliberate fault: a borrow of the thread's state lives while the program's function is called, inside of which
/// other hooks use the state. `scripts/miri` fails if Miri does not report it.
#[test]
#[ignore = "has undefined behaviour on purpose, for scripts/miri"]
fn a_borrow_over_the_programs_function_is_found() {
    let area = start();
    let mut thread = ModelThread::new(area, 1);
    let (block, other) = (thread.malloc(24), thread.malloc(24));
    let mut recorder = recorded_free(block);
    recorder.frees_python(block, PythonCall::Frees);
    recorder.keep_borrow_over(|| thread.inside_python_free(block, other));
    recorder.freed_python();
}
