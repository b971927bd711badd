//! Gives the memory of threads back when the recording ends.
//!
//! Invariant: the state of a thread is changed while the thread cannot be in a hook.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use memtrack_transport::Area;
use memtrack_transport::layout::SlotHeader;
use memtrack_transport::segment_chain;

use super::{StateAccess, slots};
use crate::platform::thread_status::is_in_system_call;
use crate::platform::{own_ids, seccomp};

/// Gives back the memory of each slot whose thread is known not to use it. Recording is off, and no thread was inside a hook
/// since; one that runs may have looked at the switch before, and be about to enter one, so it keeps what it has.
pub(crate) fn give_back_all(area: &Area) {
    // What a filter allows of this is not known.
    if !seccomp::has_seccomp_filter() {
        (0..slots::highest().min(area.slot_count())).for_each(|index| give_back(area, index));
    }
}

fn give_back(area: &Area, index: u32) {
    let (Some(place), Some(slot)) = (slots::THREADS.get(index as usize), area.slot(index)) else { return };
    // SAFETY: null, or a slot's thread, which is never freed.
    let Some(thread) = (unsafe { place.load(Acquire).as_ref() }) else { return };
    let (own, owner) = (own_ids::thread_id(), slot.owner.load(Acquire));
    let is_unused = owner == own || (owner != 0 && waits_outside(slot, owner));
    // No thread may take it meanwhile.
    let is_held = !is_unused
        && (owner == 0 || slots::has_ended(owner))
        && slot.owner.compare_exchange(owner, own, AcqRel, Relaxed).is_ok();
    if is_unused || is_held {
        // SAFETY: its thread is in no hook, and begins none: recording is off.
        unsafe { StateAccess::new(thread) }.begin_again();
    }
    if is_held {
        slot.owner.store(0, Release);
    }
}

/// Whether the thread of a slot is in no hook, and has not looked at the switch before recording was turned off: it is in a system
/// call, and that is none of a hook's, which it would be in still or have left.
fn waits_outside(slot: &SlotHeader, owner: i32) -> bool {
    is_in_system_call(owner) && !segment_chain::is_in_hook(slot)
}
