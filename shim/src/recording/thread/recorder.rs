//! Converts hook calls into records.
//!
//! Each call takes the event's place in the total order, writes it with what has changed of the stack, and publishes it.
//! Frees are told before the real call and allocations after it, so the order of the records is one in which every
//! address is freed before it is handed out again, whichever thread does it.
//!
//! Invariant: no call here can fail in a way the program would notice.

use std::hint::cold_path;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::{AllocHead, Encoder};
use memtrack_format::{Allocator, MapClass};
use memtrack_transport::layout::image;
use memtrack_transport::segment_chain;

use super::frees::FreeStep;
use super::{FailedCall, PythonCall, RecordingState, StateAccess, slots};
use crate::platform::errno::Errno;
use crate::platform::seccomp::{self, OwnCall};
use crate::platform::{own_ids, shared_area};
use crate::recording::{finalize_barrier, sampling};
use crate::stacks::python::{self, NameLookup, News, ThreadObject};

/// 1 once the beginning of Python's finalization is recorded.
static FINALIZING: AtomicU32 = AtomicU32::new(0);
/// 1 once the names of threads were looked at for the last time.
static NAMES_ARE_LAST: AtomicU32 = AtomicU32::new(0);

/// Nothing of the interpreter's end is recorded yet: the shared memory is new.
pub(super) fn begin_again() {
    FINALIZING.store(0, Relaxed);
    NAMES_ARE_LAST.store(0, Relaxed);
}

/// The guard of one hook, and what it may record. Dropping it ends both.
pub(crate) struct Recorder {
    access: StateAccess<'static>,
}

impl Recorder {
    /// Of a thread that was just made busy.
    #[inline(always)]
    pub(super) const fn new(access: StateAccess<'static>) -> Self {
        Self { access }
    }

    /// A block was allocated; the guard ends. Gives the address back.
    #[inline(always)]
    pub(crate) fn alloc(self, allocator: Allocator, address: usize, size: usize) -> usize {
        let this = ManuallyDrop::new(self);
        let mut access = StateAccess { thread: this.access.thread, borrow: PhantomData };
        let alloc_and_leave = access.state().alloc_and_leave;
        alloc_and_leave(access, AllocHead::of(allocator), address, size)
    }

    /// As [`Recorder::alloc`], where samples are recorded.
    #[inline(always)]
    pub(crate) fn alloc_sampling(self, allocator: Allocator, address: usize, size: usize) -> usize {
        let this = ManuallyDrop::new(self);
        let access = StateAccess { thread: this.access.thread, borrow: PhantomData };
        access.alloc_sampling_here(AllocHead::of(allocator), address, size)
    }

    /// A block is about to be freed.
    #[inline(always)]
    pub(crate) fn free(&mut self, address: usize) {
        self.access.reborrow().free(address);
    }

    /// The fast path of [`Recorder::free`].
    #[inline(always)]
    pub(super) fn free_fast(&mut self, address: usize) -> FreeStep {
        self.access.free_fast(address)
    }

    /// As [`Recorder::free`], after [`free_fast`](crate::recording::thread::free_fast) has left it pending.
    #[inline(always)]
    pub(crate) fn free_pending(&mut self, address: usize) {
        self.access.reborrow().free_pending(address);
    }

    /// As [`Recorder::free`], where it stands.
    #[inline(always)]
    pub(crate) fn free_here(&mut self, address: usize) {
        self.access.reborrow().free_here(address);
    }

    /// An allocator of Python's is about to free or move a block, which is recorded; [`Recorder::freed_python`] follows.
    #[inline(always)]
    pub(crate) fn frees_python(&self, block: usize, call: PythonCall) {
        self.access.thread.python_block.set(block);
        self.access.thread.python_call.set(call);
    }

    /// It has done so, or failed to.
    #[inline(always)]
    pub(crate) fn freed_python(&self) {
        self.access.thread.python_block.set(0);
    }

    /// Records what was deferred.
    pub(super) fn settle_deferred(&mut self) {
        self.access.settle_deferred();
    }

    /// Defers the next event, if it is an allocation.
    pub(super) fn defer_next(&mut self) {
        self.access.defer_next();
    }

    /// The free that this thread recorded last did not happen.
    #[cold]
    pub(crate) fn free_undo(&mut self) {
        if sampling::is_on() && !self.access.state().sampler.undoes() {
            return;
        }
        let ring = &mut self.access.state().ring;
        ring.next_place_and_time();
        ring.put(Encoder::free_undo);
        ring.publish();
    }

    /// A call for memory failed; the guard ends. Gives null.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(mut self, allocator: Allocator, size: usize) -> usize {
        self.note_failed(allocator, size);
        0
    }

    /// The same of an `operator new` that is now called to throw. Before it does, it asks other hooked functions for the
    /// same memory once more: until this thread's next record, or its next block where samples are recorded, such calls are
    /// not counted again.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed_new(mut self, size: usize) -> usize {
        self.note_failed(Allocator::OperatorNew, size);
        self.access.state().failed_new = self.failed_call(size);
        0
    }

    fn failed_call(&mut self, bytes: usize) -> FailedCall {
        let allocations = self.access.thread.slot.allocations.load(Relaxed);
        FailedCall { position: self.access.state().ring.position(), allocations, bytes }
    }

    fn note_failed(&mut self, allocator: Allocator, size: usize) {
        let errno = Errno::keep();
        let call = self.failed_call(size);
        let state = self.access.state();
        let is_counted = state.failed_new == call;
        if size == 0 || is_counted || !is_out_of_memory(allocator, errno.value()) {
            return;
        }
        state.note_finalizing();
        let time = state.ring.next_place_and_time();
        let naming = state.update_stack();
        let size = size as u64;
        state.ring.record(move |encoder, bytes, at| encoder.failed_alloc(bytes, at, allocator, size, time));
        if naming == NameLookup::Due {
            state.name_from_python();
        }
    }

    /// The interpreter has begun to finalize, without an event of its own.
    #[cold]
    pub(crate) fn begins_to_finalize(mut self) {
        let state = self.access.state();
        state.note_finalizing();
        state.ring.publish();
    }

    /// A range was mapped by `Mmap` or `Mremap`.
    pub(crate) fn map(&mut self, allocator: Allocator, address: usize, length: usize, class: MapClass) {
        let state = self.access.state();
        state.note_finalizing();
        let time = state.ring.next_place_and_time();
        let naming = state.update_stack();
        let range = (address as u64, length as u64);
        state.ring.record(move |encoder, bytes, at| encoder.map(bytes, at, (allocator, class), range, time));
        if naming == NameLookup::Due {
            state.name_from_python();
        }
    }

    /// A range is about to be unmapped.
    pub(crate) fn unmap(&mut self, address: usize, length: usize) {
        let state = self.access.state();
        state.note_finalizing();
        let ring = &mut state.ring;
        let time = ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.unmap(bytes, at, address as u64, length as u64, time));
        ring.publish();
    }

    /// A range is about to be moved or resized; [`Recorder::map`] or [`Recorder::unmap_undo`] follows.
    pub(crate) fn remap_from(&mut self, address: usize, length: usize) {
        let ring = &mut self.access.state().ring;
        let time = ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.remap_from(bytes, at, address as u64, length as u64, time));
        ring.publish();
    }

    /// The unmapping that this thread recorded last did not happen.
    #[cold]
    pub(crate) fn unmap_undo(&mut self) {
        let ring = &mut self.access.state().ring;
        ring.next_place_and_time();
        ring.put(Encoder::unmap_undo);
        ring.publish();
    }

    /// A thread got a name.
    pub(crate) fn thread_name(&mut self, tid: i32, name: &[u8]) {
        let ring = &mut self.access.state().ring;
        ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.thread_name(bytes, at, tid, name));
        ring.publish();
    }

    /// The process is about to fork.
    #[cold]
    pub(crate) fn fork_begins(&mut self) {
        let ticket = self.access.state().ring.begin_run();
        self.access.thread.fork_ticket.set(ticket);
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
        let Some(area) = shared_area::area() else { return false };
        // Where a filter forbids to ask, it is not known whether this is the recorded process.
        if !seccomp::may(OwnCall::ProcessId) || own_ids::process_id() != area.control().pid.load(Relaxed) {
            return false; // the child of a vfork: its exec is not this process's
        }
        let ring = &mut self.access.state().ring;
        ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| encoder.exec(bytes, at, state == image::RUNNING));
        ring.publish();
        area.control().image.store(state, Relaxed);
        true
    }
}

/// Whether the errno of a failed call means out of memory, rather than an invalid argument or an occupied address.
fn is_out_of_memory(allocator: Allocator, errno: i32) -> bool {
    match allocator {
        Allocator::Mmap | Allocator::Mremap => matches!(errno, libc::ENOMEM | libc::EAGAIN),
        Allocator::AlignedAlloc | Allocator::Memalign => errno != libc::EINVAL,
        _ => true,
    }
}

/// Rare records.
impl RecordingState {
    /// Tells the name that Python knows this thread by, where the operating system does not know it.
    #[cold]
    pub(super) fn name_from_python(&mut self) {
        let (object, mut buffer) = (python::object_of(self.ring.index()), [0; python::LONGEST_NAME]);
        if !self.chain.may_read_names() {
            return;
        }
        let tid = self.ring.tid();
        if object.tid() != tid {
            self.last_name_from_python(object);
        }
        if let Some(name) = self.chain.thread_name(tid, (object, &mut buffer)) {
            self.tell_python_name(object, name);
        }
    }

    /// Tells the name that a thread has now, which may have changed since its last event. This thread holds the GIL.
    fn last_name_from_python(&mut self, object: &ThreadObject) {
        let mut buffer = [0; python::LONGEST_NAME];
        // SAFETY: the caller's promise.
        if let Some(name) = unsafe { object.name(&mut buffer) } {
            self.tell_python_name(object, name);
        }
    }

    /// A name that differs from the one before was given by the program.
    fn tell_python_name(&mut self, object: &ThreadObject, name: &[u8]) {
        let (name, tid) = (name.get(..python::LONGEST_NAME).unwrap_or(name), object.tid());
        let write = match object.tell(name) {
            News::None => return,
            News::First => Encoder::python_name,
            News::Renamed => Encoder::thread_name,
        };
        let ring = &mut self.ring;
        ring.next_place_and_time();
        ring.put(move |encoder, bytes, at| write(encoder, bytes, at, tid, name));
        ring.publish();
    }

    /// Leak reports refer to the first event after finalization began.
    #[inline(always)]
    pub(super) fn note_finalizing(&mut self) {
        if python::finalizing() {
            cold_path();
            self.finalizing();
        }
    }

    #[inline(never)]
    fn finalizing(&mut self) {
        finalize_barrier::wait(self.ring.slot(), slots::highest());
        if NAMES_ARE_LAST.load(Relaxed) == 0 && python::finalizes_here() {
            NAMES_ARE_LAST.store(1, Relaxed);
            // What a filter of system calls allows is not known.
            if !seccomp::has_seccomp_filter() {
                // Who finalizes the interpreter holds the GIL.
                (0..slots::highest()).for_each(|slot| self.last_name_from_python(python::object_of(slot)));
            }
        }
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
        segment_chain::leave_hook(self.access.thread.slot);
    }
}

#[cfg(test)]
impl Recorder {
    /// What no hook may do: a borrow of the state lives while the program's function runs. See `hook_model`.
    pub(crate) fn keep_borrow_over(&mut self, call: impl FnOnce()) {
        let state = self.access.state();
        call();
        state.ring.publish();
    }
}
