//! Per-thread recording state, its lookup, and the guard that keeps memtrack from recording itself.
//!
//! A thread that meets its first hook claims a slot ([`slots`]); its thread-local word then points to the slot's
//! [`RecordingThread`]. Nothing is done when a thread ends: frees of its last destructors are recorded like any other,
//! and the collector or the next new thread takes the slot away when the system says that the thread is gone. The state
//! of a slot therefore outlives its threads.
//!
//! Hooks nest: the real function calls allocators that are hooked, too, and signal handlers interrupt whatever runs. So
//! a [`RecordingThread`] is only ever shared, what a nested hook reads or writes of it are cells and the slot's `busy`,
//! and the rest, [`RecordingState`], is reached through a [`StateAccess`] only, whose borrows end before the real
//! function is called. At most one exists per thread; `busy` is set while it does. Two functions deviate; their
//! comments say why that is sound.
//!
//! Invariant: between [`enter`] and the drop of what it gave, every hook of this thread passes straight through.

use std::cell::{Cell, UnsafeCell};
use std::hint::cold_path;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::Allocator;
use memtrack_format::record::AllocHead;
use memtrack_transport::Area;
use memtrack_transport::layout::SlotHeader;
use memtrack_transport::segment_chain;

use crate::events::ring::Ring;
use crate::platform::errno::Errno;
use crate::platform::shared_area::area;
use crate::platform::{own_ids, recording_switch, tls};
use crate::recording::deferred_block::{self, DeferredBlock};
use crate::recording::sampling::{self, NextHit, Sampler};
use crate::recording::{finalize_barrier, sampled_addresses};
use crate::stacks::native::{self, NativeStack};
use crate::stacks::python::{self, Chain};

mod forks;
mod frees;
mod give_back;
mod hot_path;
mod live_sizes;
pub(crate) mod most_bytes;
pub(crate) mod recorded_sums;
mod recorder;
mod samples;
mod slots;
mod span_sums;
mod unknown;

pub(crate) use forks::{before_fork, stay_inside, take_fork_ticket};
pub(crate) use give_back::give_back_all;
pub(crate) use recorder::Recorder;

use frees::FreeStep;
use hot_path::{ALLOC_FIRST, AllocAndLeave, first_alloc};

/// The thread-local word of a thread that is claiming its slot, whose slot belongs to a process that is its parent, or
/// of which nothing is recorded any more.
const CLAIMING: *const () = std::ptr::without_provenance(LAST_MARK);
/// The highest word that is no address.
const LAST_MARK: usize = 1;

/// A slot with the thread that owns it: what nested hooks share, and the state that one hook at a time uses. What every
/// event needs stands together at its start.
#[repr(C)]
pub(crate) struct RecordingThread {
    /// The slot's shared header: its `busy` is set while a hook uses the state.
    slot: &'static SlotHeader,
    /// The block that an allocator of Python's is freeing or moving; 0 for none.
    python_block: Cell<usize>,
    /// What it does with it.
    python_call: Cell<PythonCall>,
    /// Where its next sample is, where samples are recorded.
    next_hit: NextHit,
    state: UnsafeCell<RecordingState>,
    /// The ticket that was taken for a fork; 0 for none, or [`forks::INSIDE`].
    fork_ticket: Cell<u64>,
}

/// A call that failed. An equal call that it makes itself is not counted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FailedCall {
    /// Where the thread's records ended.
    position: usize,
    /// Allocations that were counted, where samples are recorded.
    allocations: u64,
    /// What was asked for.
    bytes: usize,
}

/// What the hook that has the guard uses.
#[repr(C)]
struct RecordingState {
    /// What records this thread's allocations.
    alloc_and_leave: AllocAndLeave,
    chain: Chain,
    ring: Ring,
    /// The block whose record waits for the next event.
    deferred: Option<DeferredBlock>,
    /// What native stacks need; `None` where they are not recorded.
    native: Option<&'static mut NativeStack>,
    /// The `operator new` that failed last.
    failed_new: FailedCall,
    /// The memory of `native` while native stacks are not recorded.
    unused_native: Option<&'static mut NativeStack>,
    /// What records this thread's samples, where samples are recorded.
    exact_alloc: AllocAndLeave,
    sampler: Sampler,
}

/// What an allocator of Python's does with a block that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PythonCall {
    /// It frees it.
    Frees = 0,
    /// It moves it.
    Moves = 1,
}

impl RecordingThread {
    /// Whether the thread is inside a hook.
    #[inline(always)]
    fn is_busy(&self) -> bool {
        self.slot.busy.load(Relaxed) != 0
    }
}

/// The right to use the state of a thread. What it lends has to end before the program's functions are called.
#[repr(transparent)]
struct StateAccess<'a> {
    thread: &'static RecordingThread,
    borrow: PhantomData<&'a mut RecordingState>,
}

impl StateAccess<'_> {
    /// # Safety
    /// The calling thread owns the slot, or no thread does; and no other access to the state is in use, nor will one be
    /// used while this one is.
    #[inline(always)]
    const unsafe fn new(thread: &'static RecordingThread) -> Self {
        Self { thread, borrow: PhantomData }
    }

    /// The same right, for as long as this one is borrowed.
    #[inline(always)]
    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "the mutable borrow is what makes the new one the only one in use"
    )]
    const fn reborrow(&mut self) -> StateAccess<'_> {
        StateAccess { thread: self.thread, borrow: PhantomData }
    }

    #[inline(always)]
    const fn state(&mut self) -> &mut RecordingState {
        // SAFETY: who made this access promised that it is the only one in use, and it is borrowed for as long as this
        // is.
        unsafe { &mut *self.thread.state.get() }
    }

    /// Gives the state of a slot to a thread, at a new segment.
    fn begin_anew(&mut self, tid: i32) {
        self.thread.python_block.set(0);
        let state = self.state();
        state.chain.reset();
        if native::is_on() && state.native.is_none() {
            state.choose_native();
            (state.alloc_and_leave, state.exact_alloc) = (first_alloc(), ALLOC_FIRST);
        }
        if let Some(native) = &mut state.native {
            native.reset();
        }
        state.deferred = None;
        state.failed_new = FailedCall::default();
        state.ring.take_over(tid);
        if sampling::is_on() {
            self.begin_stretch(tid);
        }
    }

    /// Forgets what was told, as [`StateAccess::begin_again`], and gives nothing back: whoever was interrupted while it used the tables
    /// finds them as they were. They are not used again.
    fn begin_apart(&mut self) {
        self.thread.python_block.set(0);
        self.thread.fork_ticket.set(0);
        let state = self.state();
        state.ring.forget();
        state.chain.reset();
        state.chain = Chain::new();
        (state.native, state.unused_native) = (None, None);
        state.deferred = None;
        (state.alloc_and_leave, state.exact_alloc) = (first_alloc(), ALLOC_FIRST);
    }

    /// Forgets what was told, and gives its memory back: the shared memory is new, or no longer needed.
    fn begin_again(&mut self) {
        self.thread.python_block.set(0);
        self.thread.fork_ticket.set(0);
        let state = self.state();
        state.ring.begin_again();
        state.chain.begin_again();
        state.native.iter_mut().chain(&mut state.unused_native).for_each(|native| native.begin_again());
        state.choose_native();
        state.deferred = None;
        // Other settings may hold now.
        (state.alloc_and_leave, state.exact_alloc) = (first_alloc(), ALLOC_FIRST);
    }
}

/// The thread that a thread-local word stands for.
#[inline(always)]
fn of_word(word: *const ()) -> Option<&'static RecordingThread> {
    if word.addr() <= LAST_MARK {
        return None;
    }
    // SAFETY: a word above the marks points to a slot's thread, which is never freed, and only ever shared.
    Some(unsafe { &*word.cast() })
}

/// The thread, where it may use its slot: in a forked child that is not recorded the slot is its parent's, and its
/// switch is off.
#[inline(always)]
fn recorded() -> Option<&'static RecordingThread> {
    of_word(tls::get()).filter(|_| recording_switch::is_on())
}

/// This thread is about to jump out of what it is in. If that is a hook, the thread records anew.
pub(crate) fn leave_hook() {
    if let Some(thread) = recorded().filter(|thread| thread.is_busy()) {
        let _errno = Errno::keep();
        // SAFETY: the hook that uses the state will not be returned to; until `busy` is cleared, no other begins.
        let mut access = unsafe { StateAccess::new(thread) };
        access.begin_anew(own_ids::thread_id());
        segment_chain::leave_hook(thread.slot);
    }
}

/// Called before this thread waits for others: their events and its own are ordered from here on.
pub(crate) fn synchronize_before_wait() {
    // In a signal handler that has interrupted a hook, nothing is recorded.
    if let Some(thread) = recorded().filter(|thread| !thread.is_busy()) {
        segment_chain::enter_hook(thread.slot);
        // SAFETY: no hook of this thread uses the state, and none will before `busy` is cleared.
        let mut access = unsafe { StateAccess::new(thread) };
        access.state().ring.synchronize_before_wait();
        segment_chain::leave_hook(thread.slot);
    }
}

/// Stops recording this thread; the result is for [`resume`].
pub(crate) fn suspend() -> *const () {
    let word = tls::get();
    tls::set(CLAIMING);
    word
}

/// Resumes recording after [`suspend`].
pub(crate) fn resume(left: *const ()) {
    tls::set(left);
}

/// Forgets the slots of all threads, and gives back the tables of the others: in a forked child, which is to have shared memory of its own.
pub(crate) fn begin_again() {
    let own = of_word(tls::get());
    tls::set(std::ptr::null());
    python::forget_specific();
    slots::forget_all(own);
}

/// Gives all threads their slots again, in new shared memory: recording begins once more in this process. Recording is
/// off, and no thread is inside a hook. In a forked child they are those of its parent.
pub(crate) fn begin_anew_in_all(area: &'static Area, is_forked: bool) {
    recorder::begin_again();
    recorded_sums::begin_again();
    slots::begin_anew(area, is_forked);
}

/// Whether the calling thread is inside a hook.
pub(crate) fn is_inside() -> bool {
    of_word(tls::get()).is_some_and(RecordingThread::is_busy)
}

/// Waits until no thread is inside a hook, which recording must have been turned off for; `false`: one still is.
pub(crate) fn wait_until_outside(area: &Area) -> bool {
    finalize_barrier::wait_until_outside(area, slots::highest())
}

/// Begins one record; `None` when recording is off, in a forked child, inside memtrack itself and in nested calls: then
/// the hook just calls the original function.
#[inline(always)]
pub(crate) fn enter() -> Option<Recorder> {
    if !recording_switch::records_without_checks() && !enter_watching() {
        return None;
    }
    let word = tls::get();
    let Some(thread) = of_word(word) else { return enter_first(word) };
    if thread.is_busy() {
        return None;
    }
    Some(begin(thread))
}

/// Closes the guard of a thread that is in no hook.
#[inline(always)]
fn begin(thread: &'static RecordingThread) -> Recorder {
    segment_chain::enter_hook(thread.slot);
    // SAFETY: it was not busy, so nothing else uses the state; and `busy` is cleared when the recorder is dropped.
    Recorder::new(unsafe { StateAccess::new(thread) })
}

/// What [`free_fast`] has done.
pub(crate) enum FreeOutcome {
    /// The free is recorded.
    Recorded(Recorder),
    /// The guard is held, and the free is still to be recorded.
    Pending(Recorder),
    /// Nothing: another hook of this thread has called this one, and records the free if it is to be recorded.
    Nested,
    /// Nothing, for [`enter`] may have to do more than this does.
    NotHandled,
    /// The same; and only samples may be recorded: see [`enter_unsampled_free`].
    NotOn,
}

/// Begins the record of a free, and writes it if that is all there is to do. It makes no call.
#[inline(always)]
pub(crate) fn free_fast(address: usize) -> FreeOutcome {
    if address == 0 || !recording_switch::is_on_without_checks() {
        cold_path();
        return FreeOutcome::NotOn;
    }
    let Some(thread) = of_word(tls::get()) else {
        cold_path();
        return FreeOutcome::NotHandled;
    };
    if thread.is_busy() {
        cold_path();
        return if thread.python_block.get() == 0 { FreeOutcome::Nested } else { FreeOutcome::NotHandled };
    }
    let mut recorder = begin(thread);
    match recorder.free_fast(address) {
        FreeStep::Recorded => FreeOutcome::Recorded(recorder),
        FreeStep::NotBegun => {
            cold_path();
            FreeOutcome::Pending(recorder)
        }
    }
}

/// As [`enter`], where samples are recorded; it makes no call. `None`: [`enter`] has to decide.
#[inline(always)]
pub(crate) fn enter_sampling() -> Option<Recorder> {
    if !recording_switch::is_sampling() {
        return None;
    }
    of_word(tls::get()).filter(|thread| !thread.is_busy()).map(begin)
}

/// Begins the free of a block that was not sampled, where samples are recorded; it makes no call. `None`: the block may
/// have been sampled, or [`enter`] has to decide.
#[inline(always)]
pub(crate) fn enter_unsampled_free(address: usize) -> Option<Recorder> {
    if sampled_addresses::may_hold(address) { None } else { enter_sampling() }
}

/// Whether an allocation of this size is not sampled, so that a hook beneath this one may count it.
#[inline(always)]
pub(crate) fn passes_alloc(size: usize) -> bool {
    recording_switch::is_sampling() && of_word(tls::get()).is_some_and(|thread| thread.passes(size))
}

/// Whether nothing is to be done for the free of this address, not even a guard for what the real function calls.
#[inline(always)]
pub(crate) fn passes_free(address: usize) -> bool {
    sampled_addresses::needs_nothing(address)
}

/// What happens inside of the free of a block by one of Python's allocators, [`enter`] having said no: what is not about
/// that block is recorded all the same. tracemalloc, which may stand between two allocators, drops there what it has
/// noted of the block, and made that note where it was seen.
#[cold]
fn nested_thread() -> Option<&'static RecordingThread> {
    let thread = inside()?;
    (thread.python_block.get() != 0).then_some(thread)
}

/// The thread, if it is inside of another hook.
#[inline(always)]
fn inside() -> Option<&'static RecordingThread> {
    recorded().filter(|thread| thread.is_busy())
}

/// Whether this thread may be inside of the free of a block by one of Python's allocators: where it is not, what [`enter`]
/// has said no to is not recorded.
#[inline(always)]
pub(crate) fn frees_python_block() -> bool {
    of_word(tls::get()).is_some_and(|thread| thread.python_block.get() != 0)
}

/// A free that [`enter`] has said no to. Until the result is dropped, nothing else is recorded of this block.
#[cold]
pub(crate) fn free_nested(address: usize) -> Option<NestedCall> {
    /// What the interpreter's debug hooks put before a block: no other block begins that near.
    const BEFORE: usize = 16;
    let thread = nested_thread().filter(|_| address != 0)?;
    // While this is recorded, a signal handler's hooks find no block, and record nothing.
    let outer = thread.python_block.replace(0);
    if outer.wrapping_sub(address) > BEFORE {
        // SAFETY: there was a block, so the outer hook waits for Python's allocator, and uses no state meanwhile.
        unsafe { StateAccess::new(thread) }.free(address);
    }
    thread.python_block.set(address);
    Some(NestedCall { thread, outer })
}

/// A new block that [`enter`] has said no to.
#[cold]
pub(crate) fn alloc_nested(allocator: Allocator, address: usize, size: usize) {
    // Where a block is moved, this may be the block.
    let is_another = |thread: &&RecordingThread| thread.python_call.get() == PythonCall::Frees && address != 0;
    if let Some(thread) = nested_thread().filter(is_another) {
        // As in `free_nested`.
        let outer = thread.python_block.replace(0);
        // SAFETY: there was a block, so the outer hook waits for Python's allocator, and uses no state meanwhile.
        unsafe { StateAccess::new(thread) }.alloc(AllocHead::of(allocator), address, size);
        thread.python_block.set(outer);
    }
}

/// See [`free_nested`].
pub(crate) struct NestedCall {
    thread: &'static RecordingThread,
    outer: usize,
}

impl Drop for NestedCall {
    fn drop(&mut self) {
        // 0: the thread has begun anew meanwhile.
        if self.thread.python_block.get() != 0 {
            self.thread.python_block.set(self.outer);
        }
    }
}

/// What is called before each event while the switch says that there is something to look after first; whether it
/// changed where allocations come from.
static BEFORE_EVENTS: OnceLock<fn() -> bool> = OnceLock::new();

/// Has this called before each event for as long as the recording switch watches.
pub(crate) fn before_events(call: fn() -> bool) {
    // There is one such function.
    let _ = BEFORE_EVENTS.set(call);
}

/// Recording is off (`false`), or there is something to look after first.
#[cold]
#[inline(never)]
fn enter_watching() -> bool {
    if recording_switch::has_pending_checks() {
        let _errno = Errno::keep();
        look_after_allocators();
    }
    recording_switch::is_on()
}

/// Until the interpreter has started: settles what was deferred, and puts the wrappers of its allocators back.
fn look_after_allocators() {
    let mut idle = of_word(tls::get()).filter(|thread| !thread.is_busy()).map(begin);
    if let Some(recorder) = &mut idle {
        recorder.settle_deferred();
    }
    if !deferred_block::are_held()
        && BEFORE_EVENTS.get().is_some_and(|before| before())
        && let Some(recorder) = &mut idle
    {
        recorder.defer_next();
    }
}

/// The first hook of a thread.
#[cold]
fn enter_first(word: *const ()) -> Option<Recorder> {
    if word == CLAIMING {
        return None;
    }
    let _errno = Errno::keep();
    tls::set(CLAIMING);
    let thread = area().and_then(slots::claim);
    tls::set(thread.map_or(std::ptr::null(), |thread| std::ptr::from_ref(thread).cast()));
    // SAFETY: the slot was just claimed, `busy` is set, and nobody else uses its state.
    Some(Recorder::new(unsafe { StateAccess::new(thread?) }))
}
