//! Threads of which samples are recorded: what each allocates is counted in its slot, recorded or not, and what is recorded
//! is complete.
//!
//! Invariant that is checked: a call that gave a block is counted once and one that failed is not, whatever path it took;
//! and a block's free is recorded exactly where its allocation was.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, Release};

use memtrack_format::Allocator;
use memtrack_transport::Area;
use memtrack_transport::layout::SlotHeader;

use super::ModelEvent::{self, Alloc, Counted, FailedAlloc, Free, FreeUndo};
use super::program_heap::{self, LARGEST};
use super::stream_reader::read_during;
use super::{THREADS, own_slot, readers, slots};
use crate::interposition::hooks::heap;
use crate::platform::recording_switch;
use crate::recording::{sampling, thread};

/// The mean distance of samples: what fails is less than it, so that it is counted, and taken back.
const MEAN_BYTES: u64 = LARGEST as u64 + LARGEST as u64 / 2;
const STEPS: usize = if cfg!(miri) { 60 } else { 3000 };
/// The most blocks that a thread has.
const LIVE: usize = 12;

/// A thread that calls hooks, and notes what they should have counted and recorded.
#[derive(Default)]
struct SampledThread {
    random: usize,
    slot: u32,
    counted: (u64, u64),
    events: Vec<ModelEvent>,
    live: Vec<usize>,
    sampled: BTreeSet<usize>,
}

impl SampledThread {
    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % below
    }

    /// A call that gives a block.
    fn allocates(&mut self, slot: &SlotHeader, allocator: Allocator, size: usize, call: impl FnOnce() -> usize) {
        let samples = slot.samples.load(Relaxed);
        let address = call();
        self.counted = (self.counted.0 + 1, self.counted.1 + size as u64);
        if slot.samples.load(Relaxed) != samples {
            self.sampled.insert(address);
            self.events.push(Alloc(allocator, address, size));
        }
        self.live.push(address);
    }

    /// A block that the thread had; whether it was sampled.
    fn take(&mut self) -> (usize, bool) {
        let at = self.random(self.live.len());
        let address = self.live.swap_remove(at);
        (address, self.sampled.contains(&address))
    }

    fn free(&mut self) {
        let (address, is_sampled) = self.take();
        if is_sampled {
            self.sampled.remove(&address);
            self.events.push(Free(address));
        }
        // SAFETY: a block that nobody uses.
        unsafe { heap::free_sampled(address) };
    }

    fn realloc(&mut self, slot: &SlotHeader) {
        let size = self.random(3) * 40;
        let (address, is_sampled) = self.take();
        if is_sampled {
            self.sampled.remove(&address);
            self.events.push(Free(address));
        }
        // SAFETY: a block that nobody uses.
        self.allocates(slot, Allocator::Realloc, size, || unsafe { heap::realloc_sampled(address, size) });
    }

    fn failing_realloc(&mut self) {
        let (address, is_sampled) = self.take();
        self.live.push(address);
        if is_sampled {
            self.events.extend([Free(address), FreeUndo]);
        }
        // SAFETY: a block that nobody uses, and that stays.
        assert_eq!(unsafe { heap::realloc_sampled(address, LARGEST + 1) }, 0);
        self.events.push(FailedAlloc(Allocator::Realloc, LARGEST + 1));
    }

    fn failing_malloc(&mut self) {
        // SAFETY: any size may be asked for.
        assert_eq!(unsafe { heap::malloc_sampled(LARGEST + 1) }, 0);
        self.events.push(FailedAlloc(Allocator::Malloc, LARGEST + 1));
    }

    fn step(&mut self, slot: &SlotHeader) {
        let most = if self.live.is_empty() { 4 } else { 8 };
        match if self.live.len() > LIVE { 4 } else { self.random(most) } {
            // SAFETY: any size may be asked for.
            0 | 1 => self.allocates(slot, Allocator::Malloc, 56, || unsafe { heap::malloc_sampled(56) }),
            // SAFETY: as above.
            2 => self.allocates(slot, Allocator::Malloc, 0, || unsafe { heap::malloc_sampled(0) }),
            // SAFETY: as above.
            3 => self.allocates(slot, Allocator::Calloc, 600, || unsafe { heap::calloc_sampled(3, 200) }),
            4 | 5 => self.free(),
            6 => self.realloc(slot),
            _ if self.random(2) == 0 => self.failing_malloc(),
            _ => self.failing_realloc(),
        }
    }

    fn run(mut self, area: &'static Area) -> Self {
        let first = thread::enter().unwrap();
        let (index, slot) = own_slot(area).unwrap();
        drop(first);
        self.slot = index;
        (0..STEPS).for_each(|_| self.step(slot));
        assert_eq!((slot.allocations.load(Relaxed), slot.allocated_bytes.load(Relaxed)), self.counted);
        // Few steps may have none.
        let samples = slot.samples.load(Relaxed);
        assert!((cfg!(miri) || samples > 0) && self.counted.0 > samples);
        self
    }
}

/// Recording begins anew in the process, of samples; `unguarded`: as where the real functions are the C library's.
pub(super) fn samples_are_complete(area: &'static Area, unguarded: bool) {
    begin(area, unguarded);
    let mut readers = readers();
    let spawn_all = || {
        std::thread::scope(|scope| {
            let begin = |number| SampledThread { random: number, ..SampledThread::default() };
            let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || begin(number).run(area))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut threads = read_during(area, &mut readers, spawn_all);
    for thread in &mut threads {
        assert_eq!(readers[thread.slot as usize].take_events(), std::mem::take(&mut thread.events));
    }
    // Others have their slots and their blocks, and write first what they had counted.
    slots(area).for_each(|(_, slot)| slot.owner.store(0, Release));
    let counted: Vec<_> = threads.iter().map(|thread| (thread.slot, thread.counted)).collect();
    let Some(before) = threads.pop() else { return };
    let next = SampledThread { counted: (0, 0), events: Vec::new(), ..before };
    let run = || std::thread::scope(|scope| scope.spawn(|| next.run(area)).join().unwrap());
    let next = read_during(area, &mut readers, run);
    let of_slot = counted.iter().find(|(slot, _)| *slot == next.slot);
    let mut events: Vec<_> = of_slot.iter().map(|(_, (allocations, bytes))| Counted(*allocations, *bytes)).collect();
    events.extend(next.events);
    assert_eq!(readers[next.slot as usize].take_events(), events);
    recording_switch::off();
    slots(area).for_each(|(_, slot)| slot.owner.store(0, Release));
}

fn begin(area: &'static Area, unguarded: bool) {
    recording_switch::off();
    program_heap::call_hooks(!unguarded);
    let control = area.control();
    control.sample_bytes.store(MEAN_BYTES, Relaxed);
    // As where samples are recorded.
    control.timestamps.store(1, Relaxed);
    sampling::begin(&control.sample_bytes, false);
    if unguarded {
        sampling::frees_call_no_hook();
        sampling::allocations_call_no_hook();
    }
    for (_, slot) in slots(area) {
        slot.owner.store(0, Relaxed);
        slot.current.store(0, Relaxed);
        slot.taken.store(0, Relaxed);
        // As new memory is.
        for count in [&slot.allocations, &slot.allocated_bytes, &slot.samples] {
            count.store(0, Relaxed);
        }
    }
    thread::begin_again();
    recording_switch::on();
}
