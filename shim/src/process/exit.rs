//! The end of the process: its memory stays until the collector has read which pages of it are resident.
//!
//! `exit` calls this library's destructor after all others; `_exit` and `quick_exit` are hooks, and so are the functions by which a process
//! sends itself a signal (see [`super::own_signal`]). Invariant: nothing is asked of the collector by
//! a process that is not recorded, as the child of a vfork is, or whose threads may not live longer.

use std::ffi::c_int;

use memtrack_transport::layout::account_request;

use super::recorded_process;
use crate::interposition::got::Original;
use crate::platform::{barrier_registration, recording_switch, seccomp, thread_count};
use crate::recording::account_wait::wait_for_account;
use crate::recording::finalize_barrier;

#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".fini_array"))]
static DESTRUCTOR: extern "C" fn() = before_end;

/// Waits until the collector has seen the process's last state, if it is recorded.
pub(super) extern "C" fn before_end() {
    // What a filter of system calls allows is not known; there is no wait then, in any case.
    if recording_switch::is_on()
        && !seccomp::has_seccomp_filter()
        && recorded_process::is_this()
        && !has_stray_threads()
    {
        wait_for_account(account_request::AT_END);
    }
}

/// Whether threads of an interpreter that has ended may still run (daemon threads): CPython 3.10 and earlier read states that it
/// has freed, and the longer the process lives, the likelier they crash.
fn has_stray_threads() -> bool {
    let has_several = || {
        // One of them may be memtrack's own, for a moment.
        barrier_registration::wait();
        thread_count::threads().is_none_or(|threads| threads > 1)
    };
    finalize_barrier::has_finalized() && has_several()
}

type Exit = unsafe extern "C" fn(c_int) -> !;

macro_rules! exits {
    ($($name:ident = $original:ident;)*) => {$(
        pub(super) static $original: Original<Exit> = Original::new();

        pub(super) unsafe extern "C" fn $name(status: c_int) -> ! {
            before_end();
            // SAFETY: the caller's argument, for the function it meant.
            unsafe { $original.get()(status) }
        }
    )*};
}

exits! {
    exit_at_once = EXIT_AT_ONCE;
    exit_at_once_c99 = EXIT_AT_ONCE_C99;
    quick_exit = QUICK_EXIT;
}
