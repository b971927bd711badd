//! Who records: this thread's state, how it is found, and the guard that keeps memtrack from recording itself.
//!
//! A thread that meets its first hook claims a slot; its thread-local word then points to the slot's state. Nothing is
//! done when a thread ends: frees of its last destructors are recorded like any other, and the collector or the next new
//! thread takes the slot away when the system says that the thread is gone. The state of a slot therefore outlives its
//! threads.
//!
//! Invariant: between [`enter`] and the drop of what it gave, every hook of this thread passes straight through.

use std::hint::cold_path;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use memtrack_format::Allocator;
use memtrack_transport::Area;
use memtrack_transport::layout::SLOT_COUNTS;

use crate::events::ring::Ring;
use crate::platform::errno::Errno;
use crate::platform::mapped_vec::Region;
use crate::platform::recording_switch;
use crate::platform::shared_area::area;
use crate::platform::tls;
use crate::recording::deferred_block::{self, Stray};
use crate::stacks::native::{self, Native};
use crate::stacks::python::{self, Chain};

mod hot_path;
mod recorder;

pub(crate) use recorder::Recorder;

use hot_path::{ALLOC_FIRST, AllocAndLeave};

/// The thread-local word of a thread that is claiming its slot, whose slot belongs to a process that is its parent, or of
/// which nothing is recorded any more.
const CLAIMING: usize = 1;
/// The highest word that is no address.
const LAST_MARK: usize = CLAIMING;
/// The most slots an area has.
const MAX_SLOTS: usize = SLOT_COUNTS[0] as usize;

/// The state of a slot and of the thread that owns it. What every event needs stands together at its start.
#[repr(C)]
pub(crate) struct Thread {
    /// What records this thread's allocations.
    pub(crate) alloc_and_leave: AllocAndLeave,
    pub(crate) chain: Chain,
    pub(crate) ring: Ring,
    /// The block that an allocator of Python's is freeing or moving; 0 for none.
    pub(crate) python_block: usize,
    /// It moves it.
    pub(crate) python_moves: bool,
    /// The block whose record waits for the next event.
    pub(crate) stray: Option<Stray>,
    /// What native stacks need; `None` where they are not recorded.
    pub(crate) native: Option<&'static mut Native>,
    /// The ticket that was taken for a fork; 0 for none.
    pub(crate) fork_ticket: u64,
}

/// The state of each slot that was ever claimed.
static THREADS: [AtomicPtr<Thread>; MAX_SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SLOTS];
/// Slots below this one have been claimed before.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
/// The slot at which the next new thread looks first for one whose thread has ended.
static CURSOR: AtomicU32 = AtomicU32::new(0);
/// At how many slots it looks: with twice as many slots as there are threads, all but one in sixteen find one.
const HEIRS_LOOKS: u32 = 4;
/// Events without a slot since a slot was last looked for in vain.
static PATIENCE: AtomicUsize = AtomicUsize::new(0);

/// Slots below this one may belong to a thread.
fn highest_slot() -> u32 {
    HIGHEST.load(Acquire)
}

/// The ticket that this thread took last for a fork, which is forgotten. `None`: it took none.
///
/// In the child this must not ask whether the thread is inside a hook: that stands in memory which is still its parent's,
/// and tells of what the parent does now.
pub(crate) fn take_fork_ticket() -> Option<u64> {
    let word = tls::get();
    if word <= LAST_MARK {
        return None;
    }
    // SAFETY: a word above the marks is the state of a slot that this thread owned before the fork.
    let thread = unsafe { &mut *(word as *mut Thread) };
    let ticket = std::mem::take(&mut thread.fork_ticket);
    (ticket != 0).then_some(ticket)
}

/// This thread is about to jump out of what it is in. If that is a hook, the thread records anew.
pub(crate) fn leave_hook() {
    let word = tls::get();
    // In a forked child that is not recorded the state is its parent's, and its switch is off.
    if word <= LAST_MARK || !recording_switch::is_on() {
        return;
    }
    // SAFETY: a word above the marks is the state of a slot that this thread owns; what used it will not be returned to.
    let thread = unsafe { &mut *(word as *mut Thread) };
    if thread.ring.busy() {
        let _errno = Errno::keep();
        // SAFETY: no arguments, cannot fail.
        begin_anew(thread, unsafe { libc::gettid() });
        thread.ring.set_busy(false);
    }
}

/// This thread is about to wait for others.
pub(crate) fn expect_others() {
    let word = tls::get();
    // In a forked child that is not recorded the state is its parent's, and its switch is off.
    if word <= LAST_MARK || !recording_switch::is_on() {
        return;
    }
    // SAFETY: a word above the marks is the state of a slot that this thread owns.
    let thread = unsafe { &mut *(word as *mut Thread) };
    // In a signal handler that has interrupted a hook, nothing is recorded.
    if !thread.ring.busy() {
        thread.ring.expect_others();
    }
}

/// What is called before each event while the switch says that there is something to look after first; whether it changed
/// where allocations come from.
static BEFORE_EVENTS: OnceLock<fn() -> bool> = OnceLock::new();

/// Has this called before each event for as long as the recording switch watches.
pub(crate) fn before_events(call: fn() -> bool) {
    // There is one such function.
    let _ = BEFORE_EVENTS.set(call);
}

/// Gives the state of a slot to a thread, at a new segment.
fn begin_anew(thread: &mut Thread, tid: i32) {
    thread.chain.reset();
    if let Some(native) = &mut thread.native {
        native.reset(tid);
    }
    thread.python_block = 0;
    thread.stray = None;
    thread.ring.take_over(tid);
}

/// Records nothing of this thread any more; what [`come_back`] takes.
pub(crate) fn leave() -> usize {
    let word = tls::get();
    tls::set(CLAIMING);
    word
}

/// Records again.
pub(crate) fn come_back(left: usize) {
    tls::set(left);
}

/// Forgets what was told of all threads: in a forked child, whose shared memory is new.
pub(crate) fn begin_again() {
    tls::set(0);
    python::forget_specific();
    let highest = HIGHEST.swap(0, Relaxed);
    (0..highest).for_each(|slot| python::object_of(slot).forget());
    for place in THREADS.iter().take(highest as usize) {
        // SAFETY: null, or the state of a slot, whose threads are not in this process.
        if let Some(thread) = unsafe { place.load(Acquire).as_mut() } {
            thread.ring.begin_again();
            thread.chain.begin_again();
            if let Some(native) = &mut thread.native {
                native.begin_again();
            }
            thread.python_block = 0;
            thread.stray = None;
        }
    }
}

/// Begins one record; `None` when recording is off, in a forked child, inside memtrack itself and in nested calls: then
/// the hook just calls the original function.
#[inline(always)]
pub(crate) fn enter() -> Option<Recorder> {
    if !recording_switch::is_simply_on() && !enter_watching() {
        return None;
    }
    let word = tls::get();
    if word <= LAST_MARK {
        return enter_first(word);
    }
    // SAFETY: a word above the marks is the state of a slot that this thread owns; it is never freed.
    let thread = unsafe { &mut *(word as *mut Thread) };
    if thread.ring.busy() {
        return None;
    }
    thread.ring.set_busy(true);
    Some(Recorder::new(thread))
}

/// What [`free_at_once`] has done.
pub(crate) enum Freeing {
    /// The free is recorded.
    Recorded(Recorder),
    /// It is still to be recorded.
    Begun(Recorder),
    /// Nothing, for [`enter`] may have to do more than this does.
    Nothing,
}

/// Begins the record of a free, and writes it if that is all there is to do. It calls nobody.
#[inline(always)]
pub(crate) fn free_at_once(address: usize) -> Freeing {
    if address == 0 || !recording_switch::is_simply_on() {
        cold_path();
        return Freeing::Nothing;
    }
    let word = tls::get();
    if word <= LAST_MARK {
        cold_path();
        return Freeing::Nothing;
    }
    // SAFETY: as in `enter`.
    let thread = unsafe { &mut *(word as *mut Thread) };
    if thread.ring.busy() {
        cold_path();
        return Freeing::Nothing;
    }
    thread.ring.set_busy(true);
    if !thread.free_at_once(address) {
        cold_path();
        return Freeing::Begun(Recorder::new(thread));
    }
    Freeing::Recorded(Recorder::new(thread))
}

/// What happens inside of the free of a block by one of Python's allocators, [`enter`] having said no: what is not about
/// that block is recorded all the same. tracemalloc, which may stand between two allocators, drops there what it has
/// noted of the block, and made that note where it was seen.
#[cold]
fn beneath() -> Option<&'static mut Thread> {
    let thread = inside()?;
    let inner = &thread.ring.slot().inner_calls;
    // This thread alone counts here.
    inner.store(inner.load(Relaxed).wrapping_add(1), Relaxed);
    (thread.python_block != 0).then_some(thread)
}

/// The thread, if it is inside of another hook.
#[inline(always)]
fn inside() -> Option<&'static mut Thread> {
    let word = tls::get();
    if word <= LAST_MARK || !recording_switch::is_on() {
        return None;
    }
    // SAFETY: as in `enter`; the outer hook of this thread uses it only after this one has returned.
    let thread = unsafe { &mut *(word as *mut Thread) };
    thread.ring.busy().then_some(thread)
}

/// A free that [`enter`] has said no to. Until the result is dropped, nothing else is recorded of this block.
#[cold]
pub(crate) fn free_beneath(address: usize) -> Option<Beneath> {
    /// What the interpreter's debug hooks put before a block: no other block begins that near.
    const BEFORE: usize = 16;
    let thread = beneath().filter(|_| address != 0)?;
    let outer = std::mem::replace(&mut thread.python_block, address);
    if outer.wrapping_sub(address) > BEFORE {
        // The outer hook's guard stays.
        ManuallyDrop::new(Recorder::new(thread)).free(address);
    }
    Some(Beneath { outer })
}

/// A new block that [`enter`] has said no to.
#[cold]
pub(crate) fn alloc_beneath(allocator: Allocator, address: usize, size: usize) {
    // Where a block is moved, this may be the block.
    if let Some(thread) = beneath().filter(|thread| !thread.python_moves && address != 0) {
        Recorder::new(thread).alloc_beneath(allocator, address, size);
    }
}

/// See [`free_beneath`].
pub(crate) struct Beneath {
    outer: usize,
}

impl Drop for Beneath {
    fn drop(&mut self) {
        if let Some(thread) = inside().filter(|thread| thread.python_block != 0) {
            thread.python_block = self.outer;
        }
    }
}

/// Recording is off (`false`), or there is something to look after first.
#[cold]
#[inline(never)]
fn enter_watching() -> bool {
    if recording_switch::is_watching() {
        let _errno = Errno::keep();
        look_after_allocators();
    }
    recording_switch::is_on()
}

/// Until the interpreter has started: settles what was held, and puts the wrappers of its allocators back.
fn look_after_allocators() {
    let word = tls::get();
    let idle = (word > LAST_MARK).then_some(word as *mut Thread);
    // SAFETY: as in `enter`; outside of hooks nobody else uses it.
    let mut idle = idle.and_then(|thread| unsafe { thread.as_mut() }).filter(|thread| !thread.ring.busy());
    if let Some(thread) = &mut idle {
        thread.settle_stray();
    }
    if !deferred_block::are_held()
        && BEFORE_EVENTS.get().is_some_and(|before| before())
        && let Some(thread) = idle
    {
        thread.expect_stray();
    }
}

/// The first hook of a thread.
#[cold]
fn enter_first(word: usize) -> Option<Recorder> {
    if word == CLAIMING {
        return None;
    }
    let _errno = Errno::keep();
    tls::set(CLAIMING);
    let thread = area().and_then(claim);
    tls::set(thread.map_or(0, |thread| thread as usize));
    // SAFETY: a slot that was just claimed, whose state nobody else uses.
    let thread = unsafe { thread?.as_mut() }?;
    Some(Recorder::new(thread))
}

/// Claims a free slot and makes it this thread's. Its ring is busy then.
fn claim(area: &'static Area) -> Option<*mut Thread> {
    // SAFETY: no arguments, cannot fail.
    let tid = unsafe { libc::gettid() };
    let Some(thread) = claim_slot(area, tid).and_then(|index| occupy(area, index)) else {
        area.control().events_without_slot.fetch_add(1, Relaxed);
        return None;
    };
    // SAFETY: the slot's state is this thread's since it owns the slot.
    let state = unsafe { thread.as_mut() }?;
    state.ring.set_busy(true);
    begin_anew(state, tid);
    Some(thread)
}

/// Makes sure that a claimed slot has its memory; gives it up again where there is none, as under a limit of the address
/// space. Its next claim is tried only now and then.
fn occupy(area: &'static Area, index: u32) -> Option<*mut Thread> {
    let place = THREADS.get(index as usize)?;
    let known = place.load(Acquire);
    let or_new = || if known.is_null() { make(area, index) } else { Some(known) };
    if let Some(thread) = area.reach(index).then(or_new).flatten() {
        place.store(thread, Release);
        return Some(thread);
    }
    area.slot(index)?.owner.store(0, Release);
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
    (0..HEIRS_LOOKS.min(highest)).find_map(|_| {
        let index = CURSOR.fetch_add(1, Relaxed).checked_rem(highest)?;
        let owner = &area.slot(index)?.owner;
        let before = owner.load(Acquire);
        let is_free = before == 0 || has_ended(before);
        (is_free && owner.compare_exchange(before, tid, AcqRel, Relaxed).is_ok()).then_some(index)
    })
}

/// Whether there is no such thread in this process any more.
fn has_ended(tid: i32) -> bool {
    // SAFETY: no arguments, cannot fail.
    let process = unsafe { libc::getpid() };
    // SAFETY: signal 0 sends nothing.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, tid, 0) };
    // SAFETY: gives the address of this thread's errno, which is always valid.
    let error = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    sent != 0 && unsafe { error.read() } == libc::ESRCH
}

/// Memory for the state of a slot, made in place: a new thread's stack may be small.
fn make(area: &'static Area, index: u32) -> Option<*mut Thread> {
    let slot = area.slot(index)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<Thread>(), protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let thread: *mut Thread = memory.cast();
    // SAFETY: a field of fresh zeroed memory of the right size, page-aligned.
    let ring = unsafe { &raw mut (*thread).ring };
    // SAFETY: as above.
    unsafe { Ring::make(ring, area, slot, index) };
    // SAFETY: as above.
    let chain = unsafe { &raw mut (*thread).chain };
    // SAFETY: as above.
    unsafe { chain.write(Chain::new()) };
    if native::is_on() {
        // SAFETY: as above.
        let place = unsafe { &raw mut (*thread).native };
        // SAFETY: as above; null bytes are none.
        unsafe { place.write(make_native()) };
    }
    // SAFETY: as above.
    let stray = unsafe { &raw mut (*thread).stray };
    // SAFETY: as above.
    unsafe { stray.write(None) };
    // SAFETY: as above.
    let alloc_and_leave = unsafe { &raw mut (*thread).alloc_and_leave };
    // SAFETY: as above.
    unsafe { alloc_and_leave.write(ALLOC_FIRST) };
    Some(thread)
}

/// Memory for the native side of a slot.
fn make_native() -> Option<&'static mut Native> {
    let mut memory: Region<u8> = Region::new();
    if !memory.grow(size_of::<Native>()) {
        return None;
    }
    let place: *mut Native = memory.as_mut_slice().as_mut_ptr().cast();
    // SAFETY: fresh memory of the right size, page-aligned, that is never given back.
    unsafe { place.write(Native::new()) };
    // SAFETY: just written; the slot's state is its only owner.
    unsafe { place.as_mut() }
}
