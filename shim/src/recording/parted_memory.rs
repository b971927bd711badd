//! Memory of its own for a forked child that is not recorded, in the place of what its parent shares with the collector.
//!
//! Recording is off in the child. But a signal handler may have forked that has interrupted a hook, or a thread that was about to
//! enter one: the hook goes on in the child. It would write to its parent's ring; and at its end it would say that the
//! parent's thread is in no hook, which the parent's next signal handler would believe.
//!
//! Only the children of a recorded process are parted: others are inside no hook, and may be restricted by filters of system calls
//! of which nobody knows. Invariant: what a child does after [`part`] is seen by nobody else, but for the programs that it announces.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use memtrack_transport::layout::ControlPage;

use crate::platform::errno::Errno;
use crate::platform::seccomp::{self, OwnCall};
use crate::platform::{recording_switch, shared_area};
use crate::recording::thread;

/// The system may count all memory that is mapped (`vm.overcommit_memory=2`).
static PROMISES: AtomicBool = AtomicBool::new(true);
/// The process that forked last was being recorded. Its threads all say the same.
static IS_OF_RECORDED: AtomicBool = AtomicBool::new(false);
/// The control page of the last recorded process before this one; null where this was recorded, or nothing is announced.
static PARENTS_CONTROL: AtomicPtr<ControlPage> = AtomicPtr::new(ptr::null_mut());

/// Before there are children: how the system counts memory. Runs outside of hooks.
pub(crate) fn prepare() {
    if !seccomp::has_seccomp_filter() {
        let mode = std::fs::read("/proc/sys/vm/overcommit_memory");
        PROMISES.store(!mode.is_ok_and(|mode| matches!(mode.first(), Some(b'0' | b'1'))), Relaxed);
    }
}

/// In the process that is about to fork.
pub(crate) fn before_fork() {
    IS_OF_RECORDED.store(recording_switch::is_on(), Relaxed);
    thread::before_fork();
}

/// Parts a forked child, which has this thread only, from its parent. Where a filter of system calls forbids that, nothing changes.
/// `announces`: it starts programs that are recorded.
pub(crate) fn part(announces: bool) {
    let is_of_recorded = IS_OF_RECORDED.load(Relaxed);
    let Some(area) = shared_area::area().filter(|area| is_of_recorded && area.is_of_collector()) else { return };
    let promises = PROMISES.load(Relaxed);
    let is_free = !seccomp::has_seccomp_filter();
    if !is_free && (promises || !seccomp::may(OwnCall::Part)) {
        return;
    }
    let _errno = Errno::keep();
    if announces && (is_free || seccomp::may(OwnCall::Extend)) {
        let control = area.control_apart().map_or(ptr::null_mut(), |control| ptr::from_ref(control).cast_mut());
        PARENTS_CONTROL.store(control, Release);
    }
    // SAFETY: the only thread is here; a hook that it has interrupted finds what it needs of new memory.
    if unsafe { area.part(promises) } {
        thread::stay_inside();
    }
}

/// Where this process announces what it starts: the control page of the recorded one, which may be the one that it was forked from.
pub(crate) fn announcing_control() -> Option<&'static ControlPage> {
    let area = shared_area::area()?;
    if area.is_of_collector() {
        return Some(area.control());
    }
    // SAFETY: null, or a mapping for good.
    unsafe { PARENTS_CONTROL.load(Acquire).as_ref() }
}
