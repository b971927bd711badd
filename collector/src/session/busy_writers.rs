//! Finds the threads that are inside a hook: they may still append to a run after a later ticket was taken, and an online
//! replay must wait for them.
//!
//! A hook sets `busy`, then reads the ticket word. It has no fence between them, which would cost every event; so the
//! collector raises a barrier in all threads of the target before it reads `busy`.
//!
//! Invariant: after that barrier, a thread that is seen not busy reads the current ticket word before it records.

use memtrack_transport::Area;
use memtrack_transport::segment_chain::is_in_hook;

/// Streams of the first `count` slots whose threads are inside a hook, ascending.
pub(crate) fn busy_streams(area: &Area, count: u32, base: u32) -> Vec<u32> {
    let busy = |&slot: &u32| area.slot(slot).is_some_and(is_in_hook);
    (0..count).filter(busy).map(|slot| base + slot).collect()
}
