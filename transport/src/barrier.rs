//! A memory barrier in all threads of a process at once (`membarrier`), raised from any process.
//!
//! It removes the fence from hooks: a hook sets `busy` and then reads shared words; a thread that changes those words
//! and must know that hooks see the change raises the barrier. Invariant: after [`raise`], a thread of a registered
//! process that is seen not busy reads current values in its next hook.

/// Lets [`raise`] reach this process without delay; returns whether the system does that.
pub fn register() -> bool {
    call(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0
}

/// Makes every thread of all registered processes pass a memory barrier; where the system is too old for that, or the process
/// that is meant [is not registered](crate::layout::ControlPage::registration) yet, every thread of all processes, which takes
/// milliseconds.
pub fn raise(is_registered: bool) {
    let quick = || call(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
    if is_registered && quick() {
        return;
    }
    if call(libc::MEMBARRIER_CMD_GLOBAL) != 0 {
        quick();
    }
}

fn call(command: libc::c_int) -> libc::c_long {
    // SAFETY: the call has no effect but the barrier.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}
