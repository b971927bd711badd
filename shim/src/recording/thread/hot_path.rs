//! The two events that there are millions of: an allocation and a free.
//!
//! What there is to know of a thread for good is known by which function records its allocations. In each of these, and in
//! that for frees, the usual case is one straight line that calls nobody: where anything else is to be done it ends, and
//! another function does the whole from the beginning. So the usual case needs no register to be saved and no stack,
//! which had been a tenth of its instructions.
//!
//! Invariant: the usual case changes nothing before it is certain to be one.

use std::hint::{black_box, cold_path};

use memtrack_format::record::{AllocHead, Surprise};

use super::Thread;
use crate::events::order::Block;
use crate::recording::deferred_block::Stray;
use crate::stacks::python::{self, ForVersion, Glance, Version, for_version};

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

/// With native stacks.
struct AllocWithNativeAs<const TIMED: bool>;

impl<const TIMED: bool> ForVersion for AllocWithNativeAs<TIMED> {
    type Made = AllocAndLeave;

    fn of<V: Version>() -> AllocAndLeave {
        Thread::alloc_with_native_as::<V, TIMED>
    }
}

/// Allocations.
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

    /// Of a thread that may run Python.
    fn alloc_as<V: Version, const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        let Some(time) = self.ring.time_at_once::<TIMED>() else {
            return self.alloc_in_full::<V, TIMED>(head, address, size, 0);
        };
        if !self.is_usual(Block::new(address, size)) {
            cold_path();
            return self.alloc_in_full::<V, TIMED>(head, address, size, time);
        }
        match self.chain.glance::<V>() {
            Glance::Same => {}
            Glance::Moved(position) => return self.alloc_moved::<V, TIMED>(head, address, size, time, position),
            Glance::Unknown => return self.alloc_looking::<V, TIMED>(head, address, size, time),
            Glance::Unasked => return self.alloc_in_full::<V, TIMED>(head, address, size, time),
        }
        let Some(written) = self.write_expected::<TIMED>(head, address, size, time) else {
            cold_path();
            return self.alloc_in_full::<V, TIMED>(head, address, size, time);
        };
        match written {
            Ok(()) => self.leave(address),
            Err(Surprise::Size) => self.write_surprising_size::<TIMED>(head, address, size, time),
            Err(Surprise::Address) => self.write_surprising_address::<TIMED>(head, address, size, time),
        }
    }

    #[inline(never)]
    fn alloc_in_full<V: Version, const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
    ) -> usize {
        self.record_alloc::<TIMED>(head, address, size, time, |thread| thread.chain.update_as::<V>(&mut thread.ring));
        self.leave_at_last(address)
    }

    /// The event has its place in the order; a glance at the stack was not enough.
    #[inline(never)]
    fn alloc_looking<V: Version, const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
    ) -> usize {
        if self.chain.update_looking::<V>(&mut self.ring) {
            cold_path();
            self.write_alloc::<TIMED>(head, address, size, time);
            self.name_from_python();
            return self.leave_at_last(address);
        }
        self.alloc_here::<TIMED>(head, address, size, time)
    }

    /// The event has its place in the order; the newest frame stands at another position.
    #[inline(never)]
    fn alloc_moved<V: Version, const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
        position: usize,
    ) -> usize {
        self.chain.update_moved::<V>(position, &mut self.ring);
        self.alloc_here::<TIMED>(head, address, size, time)
    }

    /// The event has its place in the order, and the stack is written.
    #[inline(never)]
    fn alloc_here<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize, time: u64) -> usize {
        match self.write_expected::<TIMED>(head, address, size, time) {
            Some(Ok(())) => self.leave_at_last(address),
            Some(Err(Surprise::Size)) => self.write_surprising_size::<TIMED>(head, address, size, time),
            Some(Err(Surprise::Address)) => self.write_surprising_address::<TIMED>(head, address, size, time),
            None => self.alloc_in_next::<TIMED>(head, address, size, time),
        }
    }

    /// As [`Thread::alloc_here`], where the segment has no room.
    #[cold]
    #[inline(never)]
    fn alloc_in_next<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize, time: u64) -> usize {
        self.write_alloc::<TIMED>(head, address, size, time);
        self.leave_at_last(address)
    }

    /// Of a program without Python.
    fn alloc_without_python<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        let Some(time) = self.ring.time_at_once::<TIMED>() else {
            return self.alloc_without_python_in_full::<TIMED>(head, address, size, 0);
        };
        let is_usual = python::build().is_none() && self.is_usual(Block::new(address, size));
        let written = if is_usual { self.write_expected::<TIMED>(head, address, size, time) } else { None };
        match written {
            Some(Ok(())) => self.leave(address),
            Some(Err(Surprise::Size)) => self.write_surprising_size::<TIMED>(head, address, size, time),
            Some(Err(Surprise::Address)) => self.write_surprising_address::<TIMED>(head, address, size, time),
            None => self.alloc_without_python_in_full::<TIMED>(head, address, size, time),
        }
    }

    #[inline(never)]
    fn alloc_without_python_in_full<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
    ) -> usize {
        if python::build().is_some() {
            cold_path();
            return self.alloc_first(head, address, size);
        }
        self.record_alloc::<TIMED>(head, address, size, time, |_| false);
        self.leave_at_last(address)
    }

    /// Without Python.
    fn alloc_with_native<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize) -> usize {
        if python::build().is_some() {
            cold_path();
            return self.alloc_first(head, address, size);
        }
        self.record_alloc::<TIMED>(head, address, size, 0, |Self { ring, chain, native, .. }| {
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
        self.record_alloc::<TIMED>(head, address, size, 0, |Self { ring, chain, native, .. }| match native {
            Some(native) => native.update_as::<V>(chain, ring),
            None => false,
        });
        self.leave(address)
    }

    /// Any allocation of any thread.
    #[inline(never)]
    pub(crate) fn alloc(&mut self, head: AllocHead, address: usize, size: usize) {
        let update = |Self { ring, chain, native, .. }: &mut Self| match native {
            None => chain.update(ring),
            Some(native) => native.update(chain, ring),
        };
        if self.ring.is_timed() {
            self.record_alloc::<true>(head, address, size, 0, update)
        } else {
            self.record_alloc::<false>(head, address, size, 0, update)
        }
    }

    /// Whether there is nothing to do for an event of this block but to write it.
    #[inline(always)]
    fn is_usual(&mut self, block: Block) -> bool {
        !python::finalizing() && self.ring.is_in_turn(block)
    }

    /// Writes the record of an allocation whose size and address are as expected. `None`: it has no room, and has done
    /// nothing.
    #[inline(always)]
    fn write_expected<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
    ) -> Option<Result<(), Surprise>> {
        let (encoder, room, at) = self.ring.room()?;
        let written =
            encoder.expected_alloc(|| room.bytes(), at, head, (address as u64, size as u64), TIMED.then_some(time));
        Some(written.map(|at| at.map_or((), |at| self.ring.written(at))))
    }

    #[inline(never)]
    fn write_surprising_size<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
    ) -> usize {
        self.write_surprising::<TIMED>(head, address, size, time, Surprise::Size)
    }

    #[inline(never)]
    fn write_surprising_address<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
    ) -> usize {
        self.write_surprising::<TIMED>(head, address, size, time, Surprise::Address)
    }

    /// Goes on with what [`Thread::write_expected`] could not write, for which it had found room; the hook ends.
    #[inline(always)]
    fn write_surprising<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
        surprise: Surprise,
    ) -> usize {
        if let Some((encoder, room, at)) = self.ring.room() {
            let (bytes, how) = (room.bytes(), (surprise, TIMED.then_some(time)));
            if let Some(at) = encoder.surprising_alloc(bytes, at, head, (address as u64, size as u64), how) {
                self.ring.written(at);
            }
        }
        self.leave_at_last(address)
    }

    /// Writes the record of any allocation.
    #[inline(always)]
    fn write_alloc<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize, time: u64) {
        let (block, time) = ((address as u64, size as u64), TIMED.then_some(time));
        self.ring.record(move |encoder, bytes, at| encoder.alloc_as(bytes, at, head, block, time));
    }

    /// Records an allocation, after what `update` writes of the stack; that says whether the thread should be asked for
    /// its name. `time` is what has been read, or 0.
    #[inline(always)]
    fn record_alloc<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: u64,
        update: impl FnOnce(&mut Self) -> bool,
    ) {
        self.note_finalizing();
        let time = self.ring.next_place::<TIMED>(Block::new(address, size), time);
        let is_unnamed = update(self);
        let (block, time) = ((address as u64, size as u64), TIMED.then_some(time));
        // Not by `write_alloc`, whose closure is one for all that call it, and so a function of its own.
        self.ring.record(move |encoder, bytes, at| encoder.alloc_as(bytes, at, head, block, time));
        if is_unnamed {
            cold_path();
            self.name_from_python();
        }
    }

    /// The guard of the hook ends.
    #[inline(always)]
    fn leave(&self, address: usize) -> usize {
        self.ring.set_busy(false);
        address
    }

    /// As [`Thread::leave`], in a function that the usual case ends with. If the compiler knew that this gives back what it
    /// was given, the usual case would keep that itself, in a register that it has to save.
    #[inline(always)]
    fn leave_at_last(&self, address: usize) -> usize {
        black_box(self.leave(address))
    }
}

/// Frees.
impl Thread {
    /// Records a free without its time, if nothing else is to be done; `false`: it has done nothing.
    #[inline(always)]
    pub(crate) fn free_at_once(&mut self, address: usize) -> bool {
        !self.ring.is_timed() && self.free_usual::<false>(address)
    }

    /// What [`Thread::free_at_once`] has not done.
    #[inline(always)]
    pub(crate) fn free_begun(&mut self, address: usize) {
        if !self.ring.is_timed() || !self.free_usual::<true>(address) {
            cold_path();
            self.free(address);
        }
    }

    #[inline(always)]
    fn free_usual<const TIMED: bool>(&mut self, address: usize) -> bool {
        let Some(time) = self.ring.time_at_once::<TIMED>() else { return false };
        if !self.is_usual(Block::new(address, 0)) {
            cold_path();
            return false;
        }
        let Some((encoder, room, at)) = self.ring.room() else { return false };
        let time = TIMED.then_some(time);
        let Some(at) = encoder.free_as(room.bytes(), at, address as u64, time) else { return false };
        self.ring.written(at);
        true
    }

    /// Any free of any thread.
    #[inline(never)]
    pub(crate) fn free(&mut self, address: usize) {
        self.free_here(address);
    }

    #[inline(always)]
    pub(crate) fn free_here(&mut self, address: usize) {
        if self.ring.is_timed() {
            cold_path();
            return self.free_with_time(address);
        }
        self.free_as::<false>(address);
    }

    #[inline(never)]
    fn free_with_time(&mut self, address: usize) {
        self.free_as::<true>(address);
    }

    #[inline(always)]
    fn free_as<const TIMED: bool>(&mut self, address: usize) {
        self.note_finalizing();
        let time = self.ring.next_place::<TIMED>(Block::new(address, 0), 0);
        let (address, time) = (address as u64, TIMED.then_some(time));
        self.ring.record(move |encoder, bytes, at| encoder.free_as(bytes, at, address, time));
    }
}
