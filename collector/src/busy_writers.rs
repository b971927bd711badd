//! Which threads may still append to a run that is over: what an online replay must wait for.
//!
//! A hook sets `busy`, then reads the ticket word. Without a fence of its own (that would cost every event) the two may be
//! seen in the other order, so a barrier is raised from here, in all threads of the target.
//!
//! Invariant: after that barrier a thread that is seen not busy reads the ticket word anew before it records.

use std::sync::atomic::Ordering::Acquire;

use memtrack_transport::Area;

/// Streams of the first `count` slots whose threads are inside a hook, ascending.
pub(crate) fn busy_streams(area: &Area, count: u32, base: u32) -> Vec<u32> {
    let busy = |&slot: &u32| area.slot(slot).is_some_and(|slot| slot.busy.load(Acquire) != 0);
    (0..count).filter(busy).map(|slot| base + slot).collect()
}
