//! How much all threads together can have allocated between two rests of a recording, without a look at what they have recorded.
//!
//! Invariant: what is told is never less than the bytes of all blocks and mappings that were recorded between them.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::StateAccess;
use super::slots::{self, THREADS};

/// With more slots than these nothing is told.
const FEW: usize = 8;

/// Slots that were claimed when it was asked last.
static CLAIMED: AtomicU32 = AtomicU32::new(0);
/// Of each what [`crate::events::ring::Ring::most_bytes`] told then.
static SEGMENTS: [AtomicU32; FEW] = [const { AtomicU32::new(0) }; FEW];
static BYTES: [AtomicU64; FEW] = [const { AtomicU64::new(0) }; FEW];

/// No less than the bytes of all blocks and mappings since this was asked last, in the same recording; `None`: that is not known, as
/// where a thread has begun a segment. Recording is off, no thread is inside a hook, and nobody else calls this.
pub(crate) fn since_last() -> Option<u64> {
    let claimed = slots::highest();
    let mut all = (CLAIMED.swap(claimed, Relaxed) == claimed && claimed as usize <= FEW).then_some(0_u64);
    for (slot, (segment, bytes)) in SEGMENTS.iter().zip(&BYTES).enumerate().take(claimed as usize) {
        let (number, most) = of_slot(slot);
        let (last_number, last) = (segment.swap(number, Relaxed), bytes.swap(most, Relaxed));
        let since = (number == last_number).then(|| most.checked_sub(last)).flatten();
        all = all.zip(since).map(|(all, since)| all.saturating_add(since));
    }
    all
}

fn of_slot(slot: usize) -> (u32, u64) {
    let place = THREADS.get(slot).map_or(std::ptr::null_mut(), |place| place.load(Acquire));
    // SAFETY: null, or a slot's thread, which is never freed.
    let Some(thread) = (unsafe { place.as_ref() }) else { return (0, 0) };
    // SAFETY: recording is off, and no thread is inside a hook, so none uses the state.
    unsafe { StateAccess::new(thread) }.state().ring.most_bytes()
}
