//! Which signals arrived before the program's end: those that the terminal sent were the program's, too.
//!
//! Invariant: a signal is counted in its handler, before anything acts on it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Whether the program has ended and was reaped; memtrack runs one.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// How many signals of each number arrived before that, and have not been acted on. What the terminal sent then was the
/// program's too, however late memtrack comes to it.
static EARLY: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];

/// The program has ended: what the terminal sends from now on is meant for memtrack.
pub(super) fn program_has_ended() {
    HAS_ENDED.store(true, Relaxed);
}

/// A signal arrives. Runs in the signal's handler.
pub(super) fn note_arrival(signal: i32) {
    if let Some(early) = usize::try_from(signal).ok().and_then(|signal| EARLY.get(signal))
        && !HAS_ENDED.load(Relaxed)
    {
        early.fetch_add(1, Relaxed);
    }
}

/// Whether the next signal of this number to be acted on arrived before the program's end.
pub(super) fn arrived_early(signal: i32) -> bool {
    let early = usize::try_from(signal).ok().and_then(|signal| EARLY.get(signal));
    early.is_some_and(|early| early.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok())
}
