//! Counts signals that arrive before the program's end. The terminal sends its signals to the program as well, so
//! memtrack does not act on these.
//!
//! Invariant: a signal is counted in its handler, before anything acts on it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Whether the program (there is only one) has ended and was reaped.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Number of signals, by signal number, that arrived before the program's end and are not yet processed. memtrack may
/// process them after the end.
static EARLY: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];

/// Marks the program as ended: later signals of the terminal are for memtrack.
pub(super) fn program_has_ended() {
    HAS_ENDED.store(true, Relaxed);
}

/// Counts a signal. Called in signal handlers.
pub(super) fn note_arrival(signal: i32) {
    if let Some(early) = usize::try_from(signal).ok().and_then(|signal| EARLY.get(signal))
        && !HAS_ENDED.load(Relaxed)
    {
        early.fetch_add(1, Relaxed);
    }
}

/// Whether the next signal of this number to be processed arrived before the program's end.
pub(super) fn arrived_early(signal: i32) -> bool {
    let early = usize::try_from(signal).ok().and_then(|signal| EARLY.get(signal));
    early.is_some_and(|early| early.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok())
}
