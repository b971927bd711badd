//! The end of a process by a signal that it sends itself: servers do so when they have shut down, so that whoever waits for them
//! learns of the signal that they got.
//!
//! Invariant: the signal is sent as it would have been, whatever is found out about it; everything here may be done in a
//! handler of a signal.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::exit::before_end;
use crate::interposition::got::Original;
use crate::platform::errno::Errno;
use crate::platform::{own_ids, seccomp};

type Raise = unsafe extern "C" fn(c_int) -> c_int;
type Kill = unsafe extern "C" fn(libc::pid_t, c_int) -> c_int;
type Abort = unsafe extern "C" fn() -> !;

pub(super) static RAISE: Original<Raise> = Original::new();
pub(super) static KILL: Original<Kill> = Original::new();
pub(super) static ABORT: Original<Abort> = Original::new();

pub(super) unsafe extern "C" fn raise(signal: c_int) -> c_int {
    before_signal(signal);
    // SAFETY: the caller's argument, for the function it meant.
    unsafe { RAISE.get()(signal) }
}

pub(super) unsafe extern "C" fn kill(process: libc::pid_t, signal: c_int) -> c_int {
    if !seccomp::has_seccomp_filter() && process == own_ids::process_id() {
        before_signal(signal);
    }
    // SAFETY: the caller's arguments, for the function it meant.
    unsafe { KILL.get()(process, signal) }
}

/// The C library raises the signal from within, where no hook sees it.
pub(super) unsafe extern "C" fn abort() -> ! {
    // What a filter of system calls allows is not known.
    if !seccomp::has_seccomp_filter() {
        before_abort();
    }
    // SAFETY: it takes no arguments, and does not return.
    unsafe { ABORT.get()() }
}

fn before_abort() {
    let _errno = Errno::keep();
    // A handler runs first and may jump elsewhere; if it raises the signal anew, that is seen. A signal that is blocked or ignored
    // ends the process all the same.
    if is_default(libc::SIGABRT) || is_ignored(libc::SIGABRT) {
        before_end();
    }
}

fn before_signal(signal: c_int) {
    // What a filter of system calls allows is not known.
    if seccomp::has_seccomp_filter() {
        return;
    }
    let _errno = Errno::keep();
    if ends_by_default(signal) && is_default(signal) && !is_blocked(signal) {
        before_end();
    }
}

/// Whether a process ends by this signal if it has no handler for it. The first process of a name space does not.
fn ends_by_default(signal: c_int) -> bool {
    let goes_on = [
        0,
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    // SAFETY: no preconditions.
    !goes_on.contains(&signal) && unsafe { libc::getpid() } != 1
}

fn is_default(signal: c_int) -> bool {
    handler(signal) == Some(libc::SIG_DFL)
}

fn is_ignored(signal: c_int) -> bool {
    handler(signal) == Some(libc::SIG_IGN)
}

fn handler(signal: c_int) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set, and there is room for what is told.
    let told = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it was filled in if the call succeeded.
    (told == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}

/// Whether the calling thread does not take the signal now.
fn is_blocked(signal: c_int) -> bool {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: nothing is set, and there is room for what is told.
    let told = unsafe { libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) };
    // SAFETY: it was filled in if the call succeeded.
    told != 0 || unsafe { libc::sigismember(blocked.as_ptr(), signal) } != 0
}

#[cfg(test)]
mod tests {
    use super::{ends_by_default, is_blocked, is_default, is_ignored};

    #[test]
    fn only_what_ends_the_process_is_its_end() {
        assert!(
            [libc::SIGTERM, libc::SIGINT, libc::SIGABRT, libc::SIGKILL].iter().all(|signal| ends_by_default(*signal))
        );
        assert!([0, libc::SIGCHLD, libc::SIGSTOP, libc::SIGWINCH].iter().all(|signal| !ends_by_default(*signal)));
        // Rust's runtime ignores it; signals without a number are no end.
        assert!(!is_default(libc::SIGPIPE) && is_default(libc::SIGUSR2) && !is_default(1000));
        assert!(is_ignored(libc::SIGPIPE) && !is_ignored(libc::SIGUSR2) && !is_ignored(1000));
        assert!(!is_blocked(libc::SIGUSR2));
    }
}
