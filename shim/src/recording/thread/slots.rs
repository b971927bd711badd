//! The slots of threads: how a thread claims one, and the memory of its state.
//!
//! A slot is taken once its thread has ended, by the next thread that looks at it. Invariant: the state of a slot, once
//! made, is there for good, and is used by the thread that owns the slot only.

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use memtrack_transport::layout::SLOT_COUNTS;
use memtrack_transport::segment_chain;
use memtrack_transport::{Area, NotMapped};

use super::hot_path::{ALLOC_FIRST, first_alloc};
use super::{FailedCall, PythonCall, RecordingState, RecordingThread, StateAccess};
use crate::events::ring::Ring;
use crate::platform::arena;
use crate::platform::mapped_vec::MappedVec;
use crate::platform::own_ids;
use crate::platform::own_memory::map_zeroed;
use crate::platform::seccomp::{self, OwnCall};
use crate::recording::sampling::{NextHit, Sampler};
use crate::stacks::native::{self, NativeStack};
use crate::stacks::python::{self, Chain};

/// The most slots an area has.
const MAX_SLOTS: usize = SLOT_COUNTS[0] as usize;
/// At how many slots a new thread looks for one whose thread has ended: with twice as many slots as there are threads,
/// all but one in sixteen find one.
const INHERITANCE_LOOKS: u32 = 4;

/// The thread of each slot that was ever claimed.
pub(super) static THREADS: [AtomicPtr<RecordingThread>; MAX_SLOTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SLOTS];
/// Slots below this one have been claimed before.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
/// The slot at which the next new thread looks first for one whose thread has ended.
static CURSOR: AtomicU32 = AtomicU32::new(0);
/// Events without a slot since a slot was last looked for in vain.
static PATIENCE: AtomicUsize = AtomicUsize::new(0);

/// Slots below this one may belong to a thread.
pub(super) fn highest() -> u32 {
    HIGHEST.load(Acquire)
}

/// Forgets what was told of all threads, and that they have slots: none of them is in this process but `own`, which has forked. The
/// tables of the others are given back; the rest stays. A signal handler may have forked that interrupted a hook of `own`, which
/// goes on with what it has loaded.
pub(super) fn forget_all(own: Option<&RecordingThread>) {
    let highest = HIGHEST.swap(0, Relaxed);
    (0..highest).for_each(|slot| python::object_of(slot).forget());
    for place in THREADS.iter().take(highest as usize) {
        // SAFETY: null, or a slot's thread, which is never freed.
        if let Some(thread) = unsafe { place.load(Acquire).as_ref() } {
            // SAFETY: no thread of this process has the slot, or this one, which does not use the state until this returns.
            let mut access = unsafe { StateAccess::new(thread) };
            if own.is_some_and(|own| ptr::eq(own, thread)) { access.begin_apart() } else { access.begin_again() }
        }
    }
    native::forget_code_pages();
}

/// Begins the stream of each thread that has a slot anew, in new shared memory: its thread-local word leads there still.
/// Recording is off, and no thread is inside a hook. In a forked child one of the words is its first thread's, and
/// which one is not known: so that thread gets them all.
pub(super) fn begin_anew(area: &'static Area, is_forked: bool) {
    native::forget_code_pages();
    for index in 0..highest().min(area.slot_count()) {
        python::object_of(index).forget();
        let (Some(place), Some(slot)) = (THREADS.get(index as usize), area.slot(index)) else { continue };
        // SAFETY: null, or a slot's thread, which is never freed.
        let Some(thread) = (unsafe { place.load(Acquire).as_ref() }) else { continue };
        // SAFETY: recording is off, so no thread uses the state.
        let mut access = unsafe { StateAccess::new(thread) };
        access.begin_again();
        // SAFETY: no arguments, cannot fail.
        let tid = if is_forked { unsafe { libc::getpid() } } else { access.state().ring.tid() };
        if tid != 0 && !has_ended(tid) && area.ensure_mapped(index).is_ok() {
            area.control().note_claimed(index);
            slot.owner.store(tid, Release);
            segment_chain::enter_hook(slot);
            access.begin_anew(tid);
            segment_chain::leave_hook(slot);
        }
    }
}

/// Claims a free slot and makes it this thread's. It is busy then.
pub(super) fn claim(area: &'static Area) -> Option<&'static RecordingThread> {
    let tid = own_ids::thread_id();
    let found = claim_slot(area, tid);
    found.into_iter().for_each(|index| area.control().note_claimed(index));
    let slot = found.and_then(|index| area.slot(index));
    // First: whoever gives back what a slot has sees that it is in use.
    slot.into_iter().for_each(segment_chain::enter_hook);
    let Some(thread) = found.and_then(|index| occupy(area, index)) else {
        area.control().events_without_slot.fetch_add(1, Relaxed);
        return None;
    };
    // SAFETY: this thread owns the slot, and its hooks do not know of it yet.
    unsafe { StateAccess::new(thread) }.begin_anew(tid);
    Some(thread)
}

/// Makes sure that a claimed slot has its memory; gives it up again where there is none. Its next claim is tried only now and then.
/// Where the system has no room for it, as under a limit of the address space, recording stops: what this thread frees and nobody
/// records would count as live from now on. Where a filter forbids the thread to ask, the others are recorded all the same.
fn occupy(area: &'static Area, index: u32) -> Option<&'static RecordingThread> {
    let place = THREADS.get(index as usize)?;
    // SAFETY: null, or a slot's thread, which is never freed.
    let known = unsafe { place.load(Acquire).as_ref() };
    let or_new = || known.or_else(|| make(area, index));
    // The system is asked for no memory that it would end the program for; a slot that was used before has its own.
    let may_map =
        (known.is_some() || seccomp::may(OwnCall::Map)) && (area.is_mapped(index) || seccomp::may(OwnCall::Extend));
    let segments = may_map.then(|| area.ensure_mapped(index));
    let thread = if segments == Some(Ok(())) { or_new() } else { None };
    if segments == Some(Err(NotMapped::NoRoom)) || (segments == Some(Ok(())) && thread.is_none()) {
        arena::note_shortage();
    }
    if let Some(thread) = thread {
        place.store(ptr::from_ref(thread).cast_mut(), Release);
        return Some(thread);
    }
    let slot = area.slot(index)?;
    segment_chain::leave_hook(slot);
    slot.owner.store(0, Release);
    area.control().slot_hint.0.store(area.slot_count(), Release);
    None
}

fn claim_slot(area: &Area, tid: i32) -> Option<u32> {
    let hint = &area.control().slot_hint.0;
    let first = hint.load(Acquire);
    // Where there are none, look again only now and then: this is asked at every event of every thread that has none.
    if first >= area.slot_count() && !PATIENCE.fetch_add(1, Relaxed).is_multiple_of(1024) {
        return None;
    }
    if let Some(inherited) = inherit_slot(area, tid) {
        return Some(inherited);
    }
    let start = if first >= area.slot_count() { 0 } else { first };
    let found = (start..area.slot_count()).find(|&index| {
        area.slot(index).is_some_and(|slot| slot.owner.compare_exchange(0, tid, AcqRel, Relaxed).is_ok())
    });
    let next = found.map_or(area.slot_count(), |index| index.wrapping_add(1));
    // Fails when the collector has lowered it meanwhile, which is right.
    let _ = hint.compare_exchange(first, next, AcqRel, Relaxed);
    HIGHEST.fetch_max(next, Relaxed);
    found
}

/// Takes the slot of a thread that has ended, if one is found at once. A program that starts and ends threads faster
/// than the collector looks after them would else go through all slots.
fn inherit_slot(area: &Area, tid: i32) -> Option<u32> {
    let highest = HIGHEST.load(Relaxed).min(area.slot_count());
    (0..INHERITANCE_LOOKS.min(highest)).find_map(|_| {
        let index = CURSOR.fetch_add(1, Relaxed).checked_rem(highest)?;
        let owner = &area.slot(index)?.owner;
        let before = owner.load(Acquire);
        let is_free = before == 0 || has_ended(before);
        (is_free && owner.compare_exchange(before, tid, AcqRel, Relaxed).is_ok()).then_some(index)
    })
}

/// Whether there is no such thread in this process any more. Where a filter forbids to ask, the collector finds out.
pub(super) fn has_ended(tid: i32) -> bool {
    // Miri does not know the call.
    if cfg!(miri) || !seccomp::may(OwnCall::ThreadLife) {
        return false;
    }
    let process = own_ids::process_id();
    // SAFETY: signal 0 sends nothing.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, tid, 0) };
    // SAFETY: gives the address of this thread's errno, which is always valid.
    let error = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno can always be read.
    sent != 0 && unsafe { error.read() } == libc::ESRCH
}

/// Memory for the thread of a slot, made in place: a new thread's stack may be small.
fn make(area: &'static Area, index: u32) -> Option<&'static RecordingThread> {
    let slot = area.slot(index)?;
    let thread: *mut RecordingThread = map_zeroed(size_of::<RecordingThread>())?.as_ptr().cast();
    macro_rules! put {
        ($owner:ident.$field:ident = $value:expr) => {
            // SAFETY: a field of fresh memory of the right size, page-aligned.
            let place = unsafe { &raw mut (*$owner).$field };
            // SAFETY: nobody else knows the memory yet, and nothing is there to be dropped.
            unsafe { place.write($value) };
        };
    }
    put!(thread.slot = slot);
    put!(thread.python_block = Cell::new(0));
    put!(thread.python_call = Cell::new(PythonCall::Frees));
    put!(thread.next_hit = NextHit::new());
    put!(thread.fork_ticket = Cell::new(0));
    // SAFETY: a field of fresh memory of the right size, page-aligned.
    let state: *mut RecordingState = UnsafeCell::raw_get(unsafe { &raw const (*thread).state });
    put!(state.alloc_and_leave = first_alloc());
    put!(state.exact_alloc = ALLOC_FIRST);
    put!(state.sampler = Sampler::new());
    put!(state.chain = Chain::new());
    put!(state.deferred = None);
    put!(state.failed_new = FailedCall::default());
    put!(state.native = if native::is_on() { make_native() } else { None });
    put!(state.unused_native = None);
    // SAFETY: a field of fresh memory of the right size, page-aligned.
    let ring = unsafe { &raw mut (*state).ring };
    // SAFETY: it is zeroed, and nobody else knows it.
    unsafe { Ring::make(ring, area, slot, index) };
    // SAFETY: every field was written just now; the memory is never given back.
    unsafe { thread.as_ref() }
}

impl RecordingState {
    /// Has what native stacks need exactly where they are recorded.
    pub(super) fn choose_native(&mut self) {
        if native::is_on() {
            self.native = self.native.take().or_else(|| self.unused_native.take()).or_else(make_native);
        } else if let Some(native) = self.native.take() {
            self.unused_native = Some(native);
        }
    }
}

/// Memory for the native side of a slot.
fn make_native() -> Option<&'static mut NativeStack> {
    let mut memory: MappedVec<u8> = MappedVec::new();
    if !memory.grow(size_of::<NativeStack>()) {
        return None;
    }
    let place: *mut NativeStack = memory.as_mut_slice().as_mut_ptr().cast();
    // SAFETY: fresh memory of the right size, page-aligned, that is never given back.
    unsafe { place.write(NativeStack::new()) };
    // SAFETY: just written; the slot's state is its only owner.
    unsafe { place.as_mut() }
}
