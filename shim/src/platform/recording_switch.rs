//! The switch that turns recording on and off; in a forked child it is off.
//!
//! It lies on a page of its own that the kernel wipes in the child of a fork (MADV_WIPEONFORK), so a child stops
//! recording before any handler could run, whatever the parent's threads were doing. Where the kernel cannot do that, a
//! handler in the child does.
//!
//! Invariant: while it is off, no hook touches the shared memory.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

#[repr(C, align(4096))]
struct SwitchPage {
    on: AtomicU32,
    /// While it is [`UNGUARDED`]: what frees look at first; else null. A word that says both, since a signal handler may fork between two
    /// looks at the page, whose child finds it wiped at the second.
    counters: AtomicPtr<u8>,
    rest: [u8; 4080],
}

/// Nothing is recorded.
const OFF: u32 = 0;
/// Hooks record.
const ON: u32 = 1;
/// Hooks record, and first reinstall the wrappers of Python's allocators if needed.
const WATCHING: u32 = 4;
/// Hooks record what is sampled.
const SAMPLING: u32 = RECORDS | SAMPLES;
/// The same; and the real free calls no hook, so that one which is not recorded needs no guard.
const UNGUARDED: u32 = SAMPLING | 8;
/// The bit that [`ON`], [`SAMPLING`] and [`UNGUARDED`] have, and no other.
const RECORDS: u32 = 1;
/// The bit that [`SAMPLING`] and [`UNGUARDED`] have, and no other.
const SAMPLES: u32 = 2;

const _: () = assert!(ON & RECORDS != 0 && (OFF | WATCHING) & (RECORDS | SAMPLES) == 0 && ON & SAMPLES == 0);

static PAGE: SwitchPage =
    SwitchPage { on: AtomicU32::new(OFF), counters: AtomicPtr::new(std::ptr::null_mut()), rest: [0; 4080] };

/// What the switch is when it is on: [`ON`], [`SAMPLING`] or [`UNGUARDED`].
static WHEN_ON: AtomicU32 = AtomicU32::new(ON);
/// What its page's counters are then.
static COUNTERS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Whether a handler turns the switch off in children.
static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
/// A thread that waited for room found recording off.
static HAS_ENDED_STREAMS: AtomicBool = AtomicBool::new(false);

/// Whether hooks record.
pub(crate) fn is_on() -> bool {
    PAGE.on.load(Acquire) != OFF
}

/// Whether hooks record, everything or samples, without further checks.
#[inline(always)]
pub(crate) fn records_without_checks() -> bool {
    PAGE.on.load(Acquire) & RECORDS != 0
}

/// Whether hooks record everything without further checks.
#[inline(always)]
pub(crate) fn is_on_without_checks() -> bool {
    PAGE.on.load(Acquire) == ON
}

/// Whether hooks record what is sampled, without further checks.
#[inline(always)]
pub(crate) fn is_sampling() -> bool {
    PAGE.on.load(Acquire) & SAMPLES != 0
}

/// What frees look at first, where only samples are recorded and the real free calls no hook.
#[inline(always)]
pub(crate) fn unguarded_counters() -> Option<*mut u8> {
    Some(PAGE.counters.load(Acquire)).filter(|counters| !counters.is_null())
}

/// What is recorded from the next [`on`] on: samples or everything.
pub(crate) fn set_sampling(sampling: bool) {
    WHEN_ON.store(if sampling { SAMPLING } else { ON }, Relaxed);
}

/// Where samples are recorded, from the next [`on`] on: the real free calls no hook. These are what frees look at
/// first.
pub(crate) fn set_unguarded(counters: *mut u8) {
    COUNTERS.store(counters, Relaxed);
    // Fails where everything is recorded.
    let _ = WHEN_ON.compare_exchange(SAMPLING, UNGUARDED, Relaxed, Relaxed);
}

/// Whether hooks have to check the wrappers of Python's allocators first.
pub(crate) fn has_pending_checks() -> bool {
    PAGE.on.load(Acquire) == WATCHING
}

/// Makes sure that a forked child finds the switch off; to be called before [`on`]. `false`: it cannot be made sure.
pub(crate) fn protect_children() -> bool {
    let page = (&raw const PAGE).cast_mut().cast();
    // SAFETY: the page is ours, zero-initialised and so in anonymous memory; its content in a child is what the advice
    // is about.
    let advised = unsafe { libc::madvise(page, size_of::<SwitchPage>(), libc::MADV_WIPEONFORK) } == 0;
    if advised || HAS_HANDLER.load(Relaxed) {
        return true;
    }
    // SAFETY: the handler only stores to a static.
    let has_handler = unsafe { libc::pthread_atfork(None, None, Some(off_in_child)) } == 0;
    HAS_HANDLER.store(has_handler, Relaxed);
    has_handler
}

/// A child's copy of the page is like any other again; after [`off`].
pub(crate) fn forget_children() {
    let page = (&raw const PAGE).cast_mut().cast();
    // SAFETY: as in `protect_children`. Failure changes nothing: the switch is off.
    unsafe { libc::madvise(page, size_of::<SwitchPage>(), libc::MADV_KEEPONFORK) };
}

/// A thread that waited for room has found recording off: what it records from now on, nobody reads.
pub(crate) fn note_ended_stream() {
    HAS_ENDED_STREAMS.store(true, Release);
}

/// Whether the records of a thread have ended before the recording.
pub(crate) fn has_ended_streams() -> bool {
    HAS_ENDED_STREAMS.load(Acquire)
}

/// A recording begins, with new streams of all threads.
pub(crate) fn forget_ended_streams() {
    HAS_ENDED_STREAMS.store(false, Release);
}

/// Recording begins.
pub(crate) fn on() {
    PAGE.counters.store(std::ptr::null_mut(), Relaxed);
    PAGE.on.store(WHEN_ON.load(Relaxed), Release);
    note_counters();
}

/// The switch was set to what it is when it is on.
fn note_counters() {
    if WHEN_ON.load(Relaxed) == UNGUARDED {
        PAGE.counters.store(COUNTERS.load(Relaxed), SeqCst);
        // Another thread may have set the switch to something else meanwhile.
        if PAGE.on.load(SeqCst) != UNGUARDED {
            PAGE.counters.store(std::ptr::null_mut(), Relaxed);
        }
    }
}

/// Hooks that record have something else to do first from now on.
pub(crate) fn watch() {
    PAGE.counters.store(std::ptr::null_mut(), Relaxed);
    // Fails when recording is off, which it then stays.
    let _ = PAGE.on.compare_exchange(WHEN_ON.load(Relaxed), WATCHING, AcqRel, Relaxed);
}

/// They do not any more.
pub(crate) fn stop_watching() {
    // As above.
    if PAGE.on.compare_exchange(WATCHING, WHEN_ON.load(Relaxed), AcqRel, Relaxed).is_ok() {
        note_counters();
    }
}

/// Recording ends.
pub(crate) fn off() {
    PAGE.counters.store(std::ptr::null_mut(), Relaxed);
    PAGE.on.store(OFF, Relaxed);
}

extern "C" fn off_in_child() {
    off();
}
