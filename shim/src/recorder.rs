//! What hooks say, turned into records.
//!
//! Each call takes the event's place in the total order, writes it with what has changed of the stack, and publishes it.
//! Frees are told before the real call and allocations after it, so the order of the records is one in which every
//! address is freed before it is handed out again, whichever thread does it.
//!
//! Invariant: no call here can fail in a way the program would notice.

use std::hint::cold_path;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::{AllocHead, Encoder};
use memtrack_format::{Allocator, MapClass};
use memtrack_transport::layout::image;

use crate::grace;
use crate::order::Block;
use crate::python::{self, ForVersion, Version, for_version};
use crate::stray::Stray;
use crate::thread::{self, Thread};

/// 1 once the beginning of Python's finalization is recorded.
static FINALIZING: AtomicU32 = AtomicU32::new(0);

/// The guard of one hook, and what it may record. Dropping it ends both.
pub(crate) struct Recorder {
    thread: &'static mut Thread,
}

impl Recorder {
    /// For a thread whose ring was just made busy.
    #[inline(always)]
    pub(crate) fn new(thread: &'static mut Thread) -> Self {
        Self { thread }
    }

    /// A block was allocated; the guard ends. Gives the address back.
    #[inline(always)]
    pub(crate) fn alloc(self, allocator: Allocator, address: usize, size: usize) -> usize {
        let mut this = ManuallyDrop::new(self);
        let thread = &mut *this.thread;
        (thread.alloc_and_leave)(thread, AllocHead::of(allocator), address, size)
    }

    /// A block was allocated inside of what another guard is for, which goes on.
    #[cold]
    pub(crate) fn alloc_beneath(self, allocator: Allocator, address: usize, size: usize) {
        ManuallyDrop::new(self).thread.alloc(AllocHead::of(allocator), address, size);
    }

    /// A block is about to be freed.
    #[inline(always)]
    pub(crate) fn free(&mut self, address: usize) {
        self.thread.free(address);
    }

    /// As [`Recorder::free`], without a call: for the functions that free nearly everything.
    #[inline(always)]
    pub(crate) fn free_at_once(&mut self, address: usize) {
        self.thread.free_here(address);
    }

    /// An allocator of Python's is about to free or move a block; [`Recorder::freed_python`] follows.
    #[inline(always)]
    pub(crate) fn free_python(&mut self, block: usize, moves: bool) {
        self.free_at_once(block);
        self.thread.python_block = block;
        self.thread.python_moves = moves;
    }

    /// It has done so, or failed to.
    #[inline(always)]
    pub(crate) fn freed_python(&mut self) {
        self.thread.python_block = 0;
    }

    /// The free that this thread recorded last did not happen.
    #[cold]
    pub(crate) fn free_undo(&mut self) {
        let ring = &mut self.thread.ring;
        ring.next_place_and_time();
        ring.put(Encoder::free_undo);
        ring.publish();
    }

    /// A range was mapped by `Mmap` or `Mremap`.
    pub(crate) fn map(&mut self, allocator: Allocator, address: usize, length: usize, class: MapClass) {
        self.thread.note_finalizing();
        let (time, unnamed) = self.thread.next_place_and_stack();
        let range = (address as u64, length as u64);
        self.thread.ring.record(move |encoder, bytes, at| encoder.map(bytes, at, (allocator, class), range, time));
        if unnamed {
            self.thread.name_from_python();
        }
    }

    /// A range is about to be unmapped.
    pub(crate) fn unmap(&mut self, address: usize, length: usize) {
        self.thread.note_finalizing();
        let ring = &mut self.thread.ring;
        let time = ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.unmap(bytes, at, address as u64, length as u64, time));
        ring.publish();
    }

    /// A range is about to be moved or resized; [`Recorder::map`] or [`Recorder::unmap_undo`] follows.
    pub(crate) fn remap_from(&mut self, address: usize, length: usize) {
        let ring = &mut self.thread.ring;
        let time = ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.remap_from(bytes, at, address as u64, length as u64, time));
        ring.publish();
    }

    /// The unmapping that this thread recorded last did not happen.
    #[cold]
    pub(crate) fn unmap_undo(&mut self) {
        let ring = &mut self.thread.ring;
        ring.next_place_and_time();
        ring.put(Encoder::unmap_undo);
        ring.publish();
    }

    /// A thread got a name.
    pub(crate) fn thread_name(&mut self, tid: i32, name: &[u8]) {
        let ring = &mut self.thread.ring;
        ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.thread_name(bytes, at, tid, name));
        ring.publish();
    }

    /// The process is about to fork.
    #[cold]
    pub(crate) fn fork_begins(&mut self) {
        self.thread.fork_ticket = self.thread.ring.begin_run();
    }

    /// The process is about to replace itself; whether it is the recorded one that does.
    pub(crate) fn exec_begins(&mut self) -> bool {
        self.exec(image::IN_EXEC)
    }

    /// It could not.
    pub(crate) fn exec_failed(&mut self) {
        self.exec(image::RUNNING);
    }

    fn exec(&mut self, state: u32) -> bool {
        let Some(area) = thread::area() else { return false };
        // SAFETY: no arguments, cannot fail.
        let me = unsafe { libc::getpid() };
        if me != area.control().pid.load(Relaxed) {
            return false; // the child of a vfork: its exec is not this process's
        }
        let ring = &mut self.thread.ring;
        ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.exec(bytes, at, state == image::RUNNING));
        ring.publish();
        area.control().image.store(state, Relaxed);
        true
    }
}

/// Records an allocation and ends the hook's guard; gives the address back.
pub(crate) type AllocAndLeave = fn(&mut Thread, AllocHead, usize, usize) -> usize;

/// The first of a thread's: decides which it is from now on.
pub(crate) const ALLOC_FIRST: AllocAndLeave = Thread::alloc_first;

/// [`Thread::alloc_as`] for the versions of Python.
struct AllocAs<const TIMED: bool>;

impl<const TIMED: bool> ForVersion for AllocAs<TIMED> {
    type Made = AllocAndLeave;

    fn of<V: Version>() -> AllocAndLeave {
        Thread::alloc_as::<V, TIMED>
    }
}

/// The same with native stacks.
struct AllocWithNativeAs<const TIMED: bool>;

impl<const TIMED: bool> ForVersion for AllocWithNativeAs<TIMED> {
    type Made = AllocAndLeave;

    fn of<V: Version>() -> AllocAndLeave {
        Thread::alloc_with_native_as::<V, TIMED>
    }
}

/// The two events that there are millions of. What there is to know of a thread for good is known by which function it
/// calls, and in each of these the usual case is one straight line.
impl Thread {
    fn alloc_first(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        let is_timed = self.ring.is_timed();
        self.alloc_and_leave = match (&self.native, python::build()) {
            (Some(_), Some(build)) if is_timed => for_version::<AllocWithNativeAs<true>>(build),
            (Some(_), Some(build)) => for_version::<AllocWithNativeAs<false>>(build),
            (Some(_), None) if is_timed => Self::alloc_with_native::<true>,
            (Some(_), None) => Self::alloc_with_native::<false>,
            (None, Some(build)) if is_timed => for_version::<AllocAs<true>>(build),
            (None, Some(build)) => for_version::<AllocAs<false>>(build),
            (None, None) if is_timed => Self::alloc_without_python::<true>,
            (None, None) => Self::alloc_without_python::<false>,
        };
        self.alloc(head, address, size);
        self.leave(address)
    }

    /// The next event, if it is an allocation, may be beneath an allocator of Python's.
    #[cold]
    pub(crate) fn expect_stray(&mut self) {
        self.alloc_and_leave = Self::hold_stray;
    }

    fn hold_stray(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        self.stray = Some(Stray::hold(head, address, size));
        self.leave(address)
    }

    /// Records what was held; allocations are recorded at once from now on.
    #[cold]
    pub(crate) fn settle_stray(&mut self) {
        self.alloc_and_leave = ALLOC_FIRST;
        if let Some((head, address, size)) = self.stray.take().map(Stray::settle) {
            self.ring.set_busy(true);
            self.alloc(head, address, size);
            self.ring.set_busy(false);
        }
    }

    /// Without Python.
    fn alloc_with_native<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        if python::build().is_some() {
            cold_path();
            return self.alloc_first(head, address, size);
        }
        self.record_alloc::<TIMED>(head, address, size, |Self { ring, chain, native, .. }| {
            if let Some(native) = native {
                native.update_natives(chain, ring);
            }
            false
        });
        self.leave(address)
    }

    fn alloc_with_native_as<V: Version, const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
    ) -> usize {
        self.record_alloc::<TIMED>(head, address, size, |Self { ring, chain, native, .. }| match native {
            Some(native) => native.update_as::<V>(chain, ring),
            None => false,
        });
        self.leave(address)
    }

    fn alloc_without_python<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        if python::build().is_some() {
            cold_path();
            return self.alloc_first(head, address, size);
        }
        self.record_alloc::<TIMED>(head, address, size, |_| false);
        self.leave(address)
    }

    fn alloc_as<V: Version, const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        self.record_alloc::<TIMED>(head, address, size, |thread| thread.chain.update_as::<V>(&mut thread.ring));
        self.leave(address)
    }

    /// Any allocation of any thread.
    #[inline(never)]
    fn alloc(&mut self, head: AllocHead, address: usize, size: usize) {
        let update = |Self { ring, chain, native, .. }: &mut Self| match native {
            None => chain.update(ring),
            Some(native) => native.update(chain, ring),
        };
        if self.ring.is_timed() {
            self.record_alloc::<true>(head, address, size, update)
        } else {
            self.record_alloc::<false>(head, address, size, update)
        }
    }

    /// Records an allocation, after what `update` writes of the stack; that says whether the thread should be asked for
    /// its name.
    #[inline(always)]
    fn record_alloc<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        update: impl FnOnce(&mut Self) -> bool,
    ) {
        self.note_finalizing();
        let time = self.ring.next_place::<TIMED>(Block::new(address, size));
        let is_unnamed = update(self);
        let (address, size) = (address as u64, size as u64);
        self.ring.record(move |encoder, bytes, at| match TIMED {
            true => encoder.alloc(bytes, at, head, address, size, time),
            false => encoder.untimed_alloc(bytes, at, head, address, size),
        });
        if is_unnamed {
            cold_path();
            self.name_from_python();
        }
    }

    #[inline(never)]
    fn free(&mut self, address: usize) {
        self.free_here(address);
    }

    #[inline(always)]
    fn free_here(&mut self, address: usize) {
        self.note_finalizing();
        if self.ring.is_timed() {
            cold_path();
            return self.free_with_time(address);
        }
        self.ring.next_place::<false>(Block::new(address, 0));
        let address = address as u64;
        self.ring.record(move |encoder, bytes, at| encoder.untimed_free(bytes, at, address));
    }

    #[inline(never)]
    fn free_with_time(&mut self, address: usize) {
        let time = self.ring.next_place::<true>(Block::new(address, 0));
        let address = address as u64;
        self.ring.record(move |encoder, bytes, at| encoder.free(bytes, at, address, time));
    }

    /// The guard of the hook ends.
    #[inline(always)]
    fn leave(&self, address: usize) -> usize {
        self.ring.set_busy(false);
        address
    }

    /// The place and the time of the next event, and whether this thread should be asked for its name, its stack being
    /// written.
    #[inline(always)]
    fn next_place_and_stack(&mut self) -> (u64, bool) {
        let Self { ring, chain, native, .. } = self;
        let time = ring.next_place_and_time();
        let unnamed = match native {
            None => chain.update(ring),
            Some(native) => native.update(chain, ring),
        };
        (time, unnamed)
    }

    /// Tells the name that Python knows this thread by, where the operating system does not know it.
    #[cold]
    fn name_from_python(&mut self) {
        let mut buffer = [0; python::LONGEST_NAME];
        let Some(name) = self.chain.thread_name(&mut buffer) else { return };
        // SAFETY: no arguments, cannot fail.
        let tid = unsafe { libc::gettid() };
        let name = name.get(..python::LONGEST_NAME).unwrap_or(name);
        let ring = &mut self.ring;
        ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.python_name(bytes, at, tid, name));
        ring.publish();
    }

    /// The moment that leak reports are about is the first event that sees it.
    #[inline(always)]
    fn note_finalizing(&mut self) {
        if python::finalizing() {
            cold_path();
            self.finalizing();
        }
    }

    #[inline(never)]
    fn finalizing(&mut self) {
        grace::wait(self.ring.slot());
        if FINALIZING.load(Relaxed) == 0 && FINALIZING.swap(1, Relaxed) == 0 {
            python::forget_specific();
            let ring = &mut self.ring;
            ring.next_place_and_time();
            ring.put(Encoder::finalizing);
        }
    }
}

impl Drop for Recorder {
    #[inline(always)]
    fn drop(&mut self) {
        self.thread.ring.set_busy(false);
    }
}
