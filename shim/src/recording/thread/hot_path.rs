//! Hot path: records one allocation.
//!
//! A thread's [`AllocAndLeave`] is a function for what does not change: the version of Python, native stacks or not,
//! times or not. In each of these, and in that for frees, the fast path is straight-line code without calls. If
//! anything else is needed, it tail-calls a function that starts over. So the fast path saves no registers and uses no
//! stack, which had cost a tenth of its instructions.
//!
//! Which function records an allocation in a thread that may run Python (without native stacks; each leaves the hook):
//!
//! ```text
//! alloc_first       chooses the thread's function: at its first allocation, and when an interpreter was found since
//! alloc_as          the fast path; it goes on to one of these at the first question whose answer is not the usual one:
//!   the time takes a call, the interpreter ends,
//!   or another thread has recorded since (its turn is over) ...... alloc_slow          takes the place in the order, then all the rest
//!   the thread state takes a call ................................ alloc_slow
//!   the fast comparison of the stack says Unknown ................ alloc_other_top     looks for a known top, writes its number
//!                                                                  else alloc_full_compare: what changed, writes that
//!   only the newest frame has moved .............................. alloc_frame_moved   writes that
//!   the segment has no room ...................................... alloc_slow          -> the next segment
//!   the size is not the expected one ............................. finish_size         the second step of the encoder
//!   the address is not the expected one .......................... finish_address      the second step of the encoder
//! Where the stack has changed, the record is written without a second step: size and address are rarely the expected ones,
//! too. If the segment has no room, the function that takes calls writes all of it.
//! ```
//!
//! Without Python, `alloc_without_python` asks the same questions but for the stack; with native stacks, every
//! allocation goes by `record_alloc`. `defer` holds the one block that [`DeferredBlock`] describes.
//!
//! Invariant: the fast path changes nothing before it is certain to be the right one.

use std::hint::cold_path;

use memtrack_format::record::{AllocHead, AllocStep, PendingAlloc};
use memtrack_transport::segment_chain;

use super::unknown::unknown;
use super::{RecordingState, StateAccess};
use crate::events::event_time::EventTime;
use crate::events::order::EventBlock;
use crate::events::stack_model::StackWriter;
use crate::recording::deferred_block::DeferredBlock;
use crate::recording::sampling;
use crate::stacks::python::{self, FastComparison, ForVersion, NameLookup, Version};

/// Records an allocation and ends the hook's guard; gives the address back.
pub(super) type AllocAndLeave = fn(StateAccess<'static>, AllocHead, usize, usize) -> usize;

/// The first of a thread's: decides which it is from now on.
pub(super) const ALLOC_FIRST: AllocAndLeave = StateAccess::alloc_first;

/// What a thread begins with: [`ALLOC_FIRST`], or what samples before it.
pub(super) fn first_alloc() -> AllocAndLeave {
    if sampling::is_on() { StateAccess::alloc_sampling } else { ALLOC_FIRST }
}

/// What came of writing an allocation's record in one step.
enum WriteOutcome {
    Done,
    /// The segment has no room, and nothing has been done.
    NoRoom,
    /// The encoder's second step has to follow.
    SizeDiffers(PendingAlloc<false>),
    AddressDiffers(PendingAlloc<true>),
}

/// [`StateAccess::alloc_as`] for the versions of Python.
struct AllocAs<const TIMED: bool>;

impl<const TIMED: bool> ForVersion for AllocAs<TIMED> {
    type Output = AllocAndLeave;

    fn run<V: Version>(self) -> AllocAndLeave {
        StateAccess::alloc_as::<V, TIMED>
    }
}

/// With native stacks.
struct AllocWithNativeAs<const TIMED: bool>;

impl<const TIMED: bool> ForVersion for AllocWithNativeAs<TIMED> {
    type Output = AllocAndLeave;

    fn run<V: Version>(self) -> AllocAndLeave {
        StateAccess::alloc_with_native_as::<V, TIMED>
    }
}

/// Allocations.
impl StateAccess<'_> {
    fn alloc_first(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        let state = self.state();
        let is_timed = state.ring.is_timed();
        let chosen: AllocAndLeave = match (&state.native, python::build()) {
            (Some(_), Some(build)) if is_timed => build.dispatch(AllocWithNativeAs::<true>),
            (Some(_), Some(build)) => build.dispatch(AllocWithNativeAs::<false>),
            (Some(_), None) if is_timed => StateAccess::alloc_with_native::<true>,
            (Some(_), None) => StateAccess::alloc_with_native::<false>,
            (None, Some(build)) if is_timed => build.dispatch(AllocAs::<true>),
            (None, Some(build)) => build.dispatch(AllocAs::<false>),
            (None, None) if is_timed => StateAccess::alloc_without_python::<true>,
            (None, None) => StateAccess::alloc_without_python::<false>,
        };
        *(if sampling::is_on() { &mut state.exact_alloc } else { &mut state.alloc_and_leave }) = chosen;
        self.reborrow().alloc_exact(head, address, size);
        self.leave(address)
    }

    /// The next event, if it is an allocation, may be beneath an allocator of Python's.
    #[cold]
    pub(super) fn defer_next(&mut self) {
        self.state().alloc_and_leave = StateAccess::defer;
    }

    fn defer(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        self.state().deferred = Some(DeferredBlock::hold(head, address, size));
        self.leave(address)
    }

    /// Records what was deferred; allocations are recorded at once from now on.
    #[cold]
    pub(super) fn settle_deferred(&mut self) {
        let state = self.state();
        state.alloc_and_leave = first_alloc();
        if let Some((head, address, size)) = state.deferred.take().map(DeferredBlock::settle) {
            self.reborrow().alloc(head, address, size);
        }
    }

    /// Of a thread that may run Python.
    fn alloc_as<V: Version, const TIMED: bool>(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        let state = self.state();
        let Some(time) = state.ring.time_at_once::<TIMED>() else {
            return self.alloc_slow::<V, TIMED>(head, address, size, EventTime::UNREAD);
        };
        if !state.is_usual(EventBlock::new(address, size)) {
            cold_path();
            return self.alloc_slow::<V, TIMED>(head, address, size, time);
        }
        match state.chain.compare_fast::<V>() {
            FastComparison::Same => {}
            FastComparison::Moved(position) => {
                return self.alloc_frame_moved::<V, TIMED>(head, address, size, time, position);
            }
            FastComparison::Unknown(newest) => {
                return self.alloc_other_top::<V, TIMED>(head, address, size, time, newest);
            }
            FastComparison::Unasked => return self.alloc_slow::<V, TIMED>(head, address, size, time),
        }
        match state.write_expected::<TIMED>(head, address, size, time) {
            WriteOutcome::Done => self.leave(address),
            WriteOutcome::SizeDiffers(pending) => self.finish_size::<TIMED>(pending, head, address, size, time),
            WriteOutcome::AddressDiffers(pending) => self.finish_address::<TIMED>(pending, head, address, size, time),
            WriteOutcome::NoRoom => {
                cold_path();
                self.alloc_slow::<V, TIMED>(head, address, size, time)
            }
        }
    }

    #[inline(never)]
    fn alloc_slow<V: Version, const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> usize {
        let update = |state: &mut RecordingState| state.chain.update_as::<V>(&mut state.ring);
        self.state().record_alloc::<TIMED>(head, address, size, time, update);
        self.leave_tail(address)
    }

    /// The event has its place in the order; the newest frames are others, perhaps known ones.
    #[inline(never)]
    fn alloc_other_top<V: Version, const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
        newest: usize,
    ) -> usize {
        let RecordingState { chain, ring, .. } = self.state();
        let block = (address as u64, size as u64);
        let Some(found) = chain.find_top_at_once::<V>(newest, |top| ring.has_room_for(top)) else {
            return self.alloc_full_compare::<V, TIMED>(head, address, size, time);
        };
        ring.alloc_with_top(chain.top(found), head, block, time.recorded::<TIMED>());
        ring.compared_full(true);
        chain.take_top::<V>(found);
        self.leave_tail(address)
    }

    /// The event has its place in the order; the fast comparison of the stack was not enough.
    #[inline(never)]
    fn alloc_full_compare<V: Version, const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> usize {
        let state = self.state();
        let naming = state.chain.update_full::<V>(&mut state.ring);
        if !state.write_varied::<TIMED>(head, address, size, time) {
            cold_path();
            state.write_alloc::<TIMED>(head, address, size, time);
        }
        if naming == NameLookup::Due {
            cold_path();
            state.name_from_python();
        }
        self.leave_tail(address)
    }

    /// The event has its place in the order; the newest frame stands at another position.
    #[inline(never)]
    fn alloc_frame_moved<V: Version, const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
        position: usize,
    ) -> usize {
        let RecordingState { chain, ring, .. } = self.state();
        let (block, recorded) = ((address as u64, size as u64), time.recorded::<TIMED>());
        let write = |instruction| ring.alloc_after_move(instruction, head, block, recorded);
        if !chain.instruction_at::<V>(position).is_some_and(write) {
            return self.alloc_frame_moved_slow::<V, TIMED>(head, address, size, time, position);
        }
        chain.take_position(position);
        self.leave_tail(address)
    }

    /// As [`StateAccess::alloc_frame_moved`], where that takes calls.
    #[cold]
    #[inline(never)]
    fn alloc_frame_moved_slow<V: Version, const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
        position: usize,
    ) -> usize {
        let state = self.state();
        state.chain.update_moved::<V>(position, &mut state.ring);
        state.write_alloc::<TIMED>(head, address, size, time);
        self.leave_tail(address)
    }

    /// Of a program without Python.
    fn alloc_without_python<const TIMED: bool>(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        let state = self.state();
        let Some(time) = state.ring.time_at_once::<TIMED>() else {
            return self.alloc_without_python_slow::<TIMED>(head, address, size, EventTime::UNREAD);
        };
        // Without an interpreter none is being finalized.
        let is_usual = python::build().is_none() && state.ring.is_in_turn(EventBlock::new(address, size));
        let write =
            if is_usual { state.write_expected::<TIMED>(head, address, size, time) } else { WriteOutcome::NoRoom };
        match write {
            WriteOutcome::Done => self.leave(address),
            WriteOutcome::SizeDiffers(pending) => self.finish_size::<TIMED>(pending, head, address, size, time),
            WriteOutcome::AddressDiffers(pending) => self.finish_address::<TIMED>(pending, head, address, size, time),
            WriteOutcome::NoRoom => self.alloc_without_python_slow::<TIMED>(head, address, size, time),
        }
    }

    #[inline(never)]
    fn alloc_without_python_slow<const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> usize {
        if python::build().is_some() {
            cold_path();
            return self.alloc_first(head, address, size);
        }
        self.state().record_alloc::<TIMED>(head, address, size, time, |_| NameLookup::Done);
        self.leave_tail(address)
    }

    /// Without Python.
    fn alloc_with_native<const TIMED: bool>(mut self, head: AllocHead, address: usize, size: usize) -> usize {
        if python::build().is_some() {
            cold_path();
            return self.alloc_first(head, address, size);
        }
        let update = |RecordingState { ring, chain, native, .. }: &mut RecordingState| {
            if let Some(native) = native {
                native.update_without_python(chain, ring);
            }
            NameLookup::Done
        };
        self.state().record_alloc::<TIMED>(head, address, size, EventTime::UNREAD, update);
        self.leave(address)
    }

    fn alloc_with_native_as<V: Version, const TIMED: bool>(
        mut self,
        head: AllocHead,
        address: usize,
        size: usize,
    ) -> usize {
        let update = |RecordingState { ring, chain, native, .. }: &mut RecordingState| match native {
            Some(native) => native.update_as::<V>(chain, ring),
            None => NameLookup::Done,
        };
        self.state().record_alloc::<TIMED>(head, address, size, EventTime::UNREAD, update);
        self.leave(address)
    }

    /// Any allocation of any thread. The guard of the hook stays.
    #[inline(never)]
    pub(super) fn alloc(mut self, head: AllocHead, address: usize, size: usize) {
        if !sampling::is_on() || self.samples(address, size) {
            self.alloc_exact(head, address, size);
        }
    }

    #[inline(never)]
    fn alloc_exact(mut self, head: AllocHead, address: usize, size: usize) {
        let state = self.state();
        if state.ring.is_timed() {
            state.record_alloc::<true>(head, address, size, EventTime::UNREAD, RecordingState::update_stack);
        } else {
            state.record_alloc::<false>(head, address, size, EventTime::UNREAD, RecordingState::update_stack);
        }
    }

    #[inline(never)]
    fn finish_size<const TIMED: bool>(
        self,
        pending: PendingAlloc<false>,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> usize {
        self.finish::<TIMED, false>(pending, head, address, size, time)
    }

    #[inline(never)]
    fn finish_address<const TIMED: bool>(
        self,
        pending: PendingAlloc<true>,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> usize {
        self.finish::<TIMED, true>(pending, head, address, size, time)
    }

    /// The second step of [`RecordingState::write_expected`], which had found room; the hook ends.
    #[inline(always)]
    fn finish<const TIMED: bool, const SIZE_EXPECTED: bool>(
        mut self,
        pending: PendingAlloc<SIZE_EXPECTED>,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> usize {
        let ring = &mut self.state().ring;
        if let Some((encoder, mut room, at)) = ring.room() {
            let (bytes, block) = (room.bytes(), (address as u64, size as u64));
            if let Some(at) = encoder.finish_alloc(pending, bytes, at, head, block, time.recorded::<TIMED>()) {
                ring.written(at);
            }
        }
        self.leave_tail(address)
    }

    /// The guard of the hook ends.
    #[inline(always)]
    pub(super) fn leave(self, address: usize) -> usize {
        segment_chain::leave_hook(self.thread.slot);
        address
    }

    /// As [`StateAccess::leave`], in a function that the fast path ends with. If the compiler knew that this gives back
    /// what it was given, the fast path would keep that itself, in a register that it has to save.
    #[inline(always)]
    fn leave_tail(self, address: usize) -> usize {
        unknown(self.leave(address))
    }
}

/// What allocations have in common.
impl RecordingState {
    /// Whether there is nothing to do for an event of this block but to write it.
    #[inline(always)]
    pub(super) fn is_usual(&mut self, block: EventBlock) -> bool {
        !python::finalizing() && self.ring.is_in_turn(block)
    }

    /// Writes what has changed of the stack.
    #[inline(always)]
    pub(super) fn update_stack(&mut self) -> NameLookup {
        let Self { ring, chain, native, .. } = self;
        match native {
            None => chain.update(ring),
            Some(native) => native.update(chain, ring),
        }
    }

    /// Writes the record of an allocation whose size and address are as expected.
    #[inline(always)]
    fn write_expected<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> WriteOutcome {
        let Some((encoder, mut room, at)) = self.ring.room() else { return WriteOutcome::NoRoom };
        let block = (address as u64, size as u64);
        match encoder.expected_alloc(|| room.bytes(), at, head, block, time.recorded::<TIMED>()) {
            AllocStep::Written(at) => {
                self.ring.written(at);
                WriteOutcome::Done
            }
            // There was room.
            AllocStep::NoRoom => WriteOutcome::Done,
            AllocStep::SizeDiffers(pending) => WriteOutcome::SizeDiffers(pending),
            AllocStep::AddressDiffers(pending) => WriteOutcome::AddressDiffers(pending),
        }
    }

    /// Writes the record of an allocation, which may have any size and address. `false`: the segment has no room, and
    /// nothing has been done.
    #[inline(always)]
    fn write_varied<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
    ) -> bool {
        let Some((encoder, mut room, at)) = self.ring.room() else { return false };
        let block = (address as u64, size as u64);
        if let Some(at) = encoder.alloc_varied(room.bytes(), at, head, block, time.recorded::<TIMED>()) {
            self.ring.written(at);
        }
        true
    }

    /// Writes the record of any allocation.
    #[inline(always)]
    fn write_alloc<const TIMED: bool>(&mut self, head: AllocHead, address: usize, size: usize, time: EventTime) {
        let (block, time) = ((address as u64, size as u64), time.recorded::<TIMED>());
        self.ring.record(move |encoder, bytes, at| encoder.alloc_as(bytes, at, head, block, time));
    }

    /// Records an allocation, after what `update` writes of the stack.
    #[inline(always)]
    fn record_alloc<const TIMED: bool>(
        &mut self,
        head: AllocHead,
        address: usize,
        size: usize,
        time: EventTime,
        update: impl FnOnce(&mut Self) -> NameLookup,
    ) {
        self.note_finalizing();
        let time = self.ring.next_place::<TIMED>(EventBlock::new(address, size), time);
        let naming = update(self);
        let (block, time) = ((address as u64, size as u64), time.recorded::<TIMED>());
        // Not by `write_alloc`, whose closure is one for all that call it, and so a function of its own.
        self.ring.record(move |encoder, bytes, at| encoder.alloc_as(bytes, at, head, block, time));
        if naming == NameLookup::Due {
            cold_path();
            self.name_from_python();
        }
    }
}
