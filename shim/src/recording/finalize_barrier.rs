//! Waits, when an interpreter finalizes, until no other thread reads its frames.
//!
//! Hooks read stacks without holding the GIL, while the finalizing thread frees the states and stacks of all other
//! threads without synchronization. Each hook checks whether finalization has begun before it reads, but it may be
//! interrupted between the two. States and stacks are released by free and munmap, which are hooked. So the finalizing
//! thread waits, at its first event, for every hook that may have checked too early.
//!
//! Invariant: after [`wait`], unless its time was up, no other thread reads frames of the interpreter that ends.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use memtrack_transport::layout::{SlotHeader, account_request};
use memtrack_transport::segment_chain::is_in_hook;
use memtrack_transport::{Area, barrier, futex};

use super::account_wait::wait_for_account;
use crate::platform::barrier_registration;
use crate::platform::errno::Errno;
use crate::platform::seccomp;
use crate::platform::shared_area;
use crate::stacks::python;

/// Looks at one thread that is in a hook, and what is slept between two of them: a second in all. A hook
/// takes less than a microsecond, but its thread may have to wait for a processor; and one that the program has stopped
/// must not stop the program's end.
const LOOKS: u32 = 10_000;
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);

/// Whether the finalizing thread has waited.
static WAITED: AtomicBool = AtomicBool::new(false);

/// Waits if the calling thread, whose slot this is and which is in a hook, finalizes the interpreter and has not waited.
/// Only slots below `highest_slot` may belong to a thread.
pub(crate) fn wait(own: &SlotHeader, highest_slot: u32) {
    if WAITED.load(Relaxed) || !python::finalizes_here() {
        return;
    }
    WAITED.store(true, Relaxed);
    // What a filter of system calls allows is not known.
    if let Some(area) = shared_area::area().filter(|_| !seccomp::has_seccomp_filter()) {
        let _errno = Errno::keep();
        // A thread that is not seen in a hook after this sees in its next one that finalization has begun.
        barrier::raise(barrier_registration::is_done());
        wait_for_others(area, highest_slot, own, LOOKS);
    }
    // What the program holds now is what counts as leaked.
    wait_for_account(account_request::AT_FINALIZATION);
}

/// Whether an interpreter has begun to finalize in this process.
pub(crate) fn has_finalized() -> bool {
    WAITED.load(Relaxed)
}

/// Waits until no thread of the first `count` slots is inside a hook. Recording is off: a thread that is not seen in a
/// hook after the barrier does not begin a record. `false`: one still is after ten seconds, as when it was stopped.
pub(crate) fn wait_until_outside(area: &Area, count: u32) -> bool {
    barrier::raise(barrier_registration::is_done());
    let slots = || (0..count).filter_map(|index| area.slot(index));
    (0..10 * LOOKS).any(|look| {
        if look > 0 {
            nap();
        }
        !slots().any(is_in_hook)
    })
}

/// Not by `nanosleep`: at its begin the kernel forgets how long another timed system call had still to wait, in which memtrack
/// may have interrupted this thread. That call would fail with EINTR.
fn nap() {
    futex::wait(&AtomicU32::new(0), 0, BETWEEN_LOOKS);
}

/// Waits until each other thread of the first `count` slots has been seen outside of hooks, for so many looks in all.
fn wait_for_others(area: &Area, count: u32, own: &SlotHeader, mut looks: u32) {
    let slots = (0..count).filter_map(|index| area.slot(index));
    for slot in slots.filter(|slot| !std::ptr::eq(*slot, own)) {
        while is_in_hook(slot) && looks > 0 {
            looks = looks.wrapping_sub(1);
            nap();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{Area, wait_for_others};
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::{Relaxed, Release};

    #[test]
    fn whoever_is_in_a_hook_is_waited_for_but_not_for_ever() {
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let own = area.slot(0).unwrap();
        let other = area.slot(5).unwrap();
        own.busy.store(1, Relaxed);
        other.busy.store(1, Relaxed);
        let is_through = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                wait_for_others(&area, 6, own, u32::MAX);
                is_through.load(Relaxed)
            });
            is_through.store(true, Relaxed);
            other.busy.store(0, Release);
            assert!(waiting.join().is_ok_and(|through| through));
        });
        wait_for_others(&area, 5, own, u32::MAX);
        other.busy.store(1, Relaxed);
        wait_for_others(&area, 6, own, 3);
    }
}
