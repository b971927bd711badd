//! How much all threads together can have allocated between two rests of a recording, without a look at what they have recorded; and
//! which of them has recorded, where only one has.
//!
//! Invariant: what is told is never less than the bytes of all blocks and mappings that were recorded between them.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use super::StateAccess;
use super::slots::{self, THREADS};
use crate::events::ring::Ring;

/// With more slots than these nothing is told.
const FEW: usize = 8;

/// Slots that were claimed when it was asked last.
static CLAIMED: AtomicU32 = AtomicU32::new(0);
/// Of each what [`crate::events::ring::Ring::most_bytes`] told then.
static SEGMENTS: [AtomicU32; FEW] = [const { AtomicU32::new(0) }; FEW];
static BYTES: [AtomicU64; FEW] = [const { AtomicU64::new(0) }; FEW];
/// Of each where its records ended.
static ENDS: [AtomicUsize; FEW] = [const { AtomicUsize::new(0) }; FEW];
/// The slot that alone has records since the time before, [`NO_SLOT`] or [`SEVERAL_SLOTS`].
static ALONE: AtomicUsize = AtomicUsize::new(SEVERAL_SLOTS);
/// Where its records ended then.
static FROM: AtomicUsize = AtomicUsize::new(0);

const NO_SLOT: usize = FEW;
const SEVERAL_SLOTS: usize = FEW + 1;

/// What all threads have recorded between the last two rests.
pub(crate) enum Recorded {
    Nothing,
    /// Records of one thread, which follow each other in one segment.
    InOneSegment {
        slot: usize,
        from: usize,
    },
    /// What this does not know.
    Other,
}

/// No less than the bytes of all blocks and mappings since this was asked last, in the same recording; `None`: that is not known, as
/// where a thread has begun a segment. Recording is off, no thread is inside a hook, and nobody else calls this.
pub(crate) fn since_last() -> Option<u64> {
    let claimed = slots::highest();
    let mut all = (CLAIMED.swap(claimed, Relaxed) == claimed && claimed as usize <= FEW).then_some(0_u64);
    let mut alone = NO_SLOT;
    for (slot, (segment, bytes)) in SEGMENTS.iter().zip(&BYTES).enumerate().take(claimed as usize) {
        let (number, most, end) =
            of_ring(slot, |ring| (ring.segment_number(), ring.most_bytes(), ring.position())).unwrap_or_default();
        let (last_number, last) = (segment.swap(number, Relaxed), bytes.swap(most, Relaxed));
        let last_end = ENDS.get(slot).map_or(0, |known| known.swap(end, Relaxed));
        if (number, end) != (last_number, last_end) {
            alone = if alone == NO_SLOT { slot } else { SEVERAL_SLOTS };
            FROM.store(last_end, Relaxed);
        }
        let since = (number == last_number).then(|| most.checked_sub(last)).flatten();
        all = all.zip(since).map(|(all, since)| all.saturating_add(since));
    }
    ALONE.store(if all.is_some() { alone } else { SEVERAL_SLOTS }, Relaxed);
    all
}

/// What was recorded between the last two calls of [`since_last`], under the same conditions.
pub(crate) fn recorded() -> Recorded {
    match ALONE.load(Relaxed) {
        NO_SLOT => Recorded::Nothing,
        SEVERAL_SLOTS => Recorded::Other,
        slot => Recorded::InOneSegment { slot, from: FROM.load(Relaxed) },
    }
}

/// What this tells of the ring of a slot that was claimed. Recording is off, no thread is inside a hook, and nobody else calls this.
pub(super) fn of_ring<T>(slot: usize, tell: impl FnOnce(&Ring) -> T) -> Option<T> {
    let place = THREADS.get(slot)?.load(Acquire);
    // SAFETY: null, or a slot's thread, which is never freed.
    let thread = unsafe { place.as_ref() }?;
    // SAFETY: recording is off, and no thread is inside a hook, so none uses the state.
    Some(tell(&unsafe { StateAccess::new(thread) }.state().ring))
}
