//! Memory of its own for a forked child that is not recorded, in the place of what its parent shares with the collector.
//!
//! Recording is off in the child. But a signal handler may have forked that has interrupted a hook, or a thread that was about to
//! enter one: the hook goes on in the child. It would write to its parent's ring; and at its end it would say that the
//! parent's thread is in no hook, which the parent's next signal handler would believe.
//!
//! Invariant: what a child does after [`part`] is seen by nobody else.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::platform::errno::Errno;
use crate::platform::seccomp::{self, OwnCall};
use crate::platform::shared_area;
use crate::recording::thread;

/// The system may count all memory that is mapped (`vm.overcommit_memory=2`).
static PROMISES: AtomicBool = AtomicBool::new(true);

/// Before there are children: how the system counts memory. Runs outside of hooks.
pub(crate) fn prepare() {
    if !seccomp::has_seccomp_filter() {
        let mode = std::fs::read("/proc/sys/vm/overcommit_memory");
        PROMISES.store(!mode.is_ok_and(|mode| matches!(mode.first(), Some(b'0' | b'1'))), Relaxed);
    }
}

/// Parts a forked child, which has this thread only, from its parent. Where a filter of system calls forbids that, nothing changes.
pub(crate) fn part() {
    let Some(area) = shared_area::area().filter(|area| area.is_of_collector()) else { return };
    let _errno = Errno::keep();
    let is_parted = if !seccomp::has_seccomp_filter() {
        // SAFETY: the only thread is here; a hook that it has interrupted finds what it needs of new memory.
        unsafe { area.part(PROMISES.load(Relaxed)) }
    } else if seccomp::may(OwnCall::Part) {
        // SAFETY: as above.
        unsafe { area.leave() }
    } else {
        false
    };
    if is_parted {
        thread::stay_inside();
    }
}
