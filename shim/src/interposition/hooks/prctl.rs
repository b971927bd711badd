//! prctl and pthread_setname_np: names of threads, and filters of system calls.
//!
//! Invariant: what is recorded is what the system has accepted; a call that failed leaves no record.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering::Relaxed;

use memtrack_transport::layout::stop_reason;

use crate::interposition::got::Original;
use crate::platform::{seccomp, shared_area};
use crate::recording::thread;

/// Longest name of a thread that the kernel keeps, without the zero.
const NAME_LENGTH: usize = 15;

type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type SetName = unsafe extern "C" fn(libc::pthread_t, *const c_char) -> c_int;

pub(crate) static PRCTL: Original<Prctl> = Original::new();
pub(crate) static PTHREAD_SETNAME: Original<SetName> = Original::new();

/// Takes four more words, as every variant of the variadic function does; those not given are passed on unread.
pub(crate) unsafe extern "C" fn prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    let real = PRCTL.get();
    // SAFETY: the caller's arguments, for the function it meant.
    let result = watch_seccomp(option, second, || unsafe { real(option, second, third, fourth, fifth) });
    if option == libc::PR_SET_NAME && result == 0 {
        // SAFETY: no preconditions.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        record_name(thread as i32, second as *const c_char);
    }
    result
}

pub(crate) unsafe extern "C" fn pthread_setname(thread: libc::pthread_t, name: *const c_char) -> c_int {
    let real = PTHREAD_SETNAME.get();
    // SAFETY: the caller's arguments, for the function it meant.
    let result = unsafe { real(thread, name) };
    if result == 0
        && let Some(id) = system_id(thread)
    {
        record_name(id, name);
    }
    result
}

/// The system's number of a thread, out of the number of its processor clock (`!tid << 3 | 6`), which is public.
fn system_id(thread: libc::pthread_t) -> Option<i32> {
    let mut clock = 0;
    // SAFETY: a thread that could just be named, and a place to store its clock.
    let error = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) };
    (error == 0 && clock & 7 == 6).then_some(!(clock >> 3))
}

fn record_name(thread: i32, name: *const c_char) {
    let Some(mut recorder) = thread::enter() else {
        return;
    };
    // SAFETY: the call that was given this name succeeded, so it is readable and ends in zero or is long enough.
    let length = unsafe { libc::strnlen(name, NAME_LENGTH) };
    // SAFETY: that many bytes have just been read.
    recorder.thread_name(thread, unsafe { std::slice::from_raw_parts(name.cast(), length) });
}

/// Makes a call of prctl, whose first arguments these are.
fn watch_seccomp(option: c_int, mode: usize, call: impl FnOnce() -> c_int) -> c_int {
    match (option, mode as u32) {
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => with_strict_seccomp_handling(call),
        (libc::PR_SET_SECCOMP, _) => {
            let result = call();
            if result == 0 {
                seccomp::note_seccomp_filter();
            }
            result
        }
        _ => call(),
    }
}

fn with_strict_seccomp_handling(call: impl FnOnce() -> c_int) -> c_int {
    let suspended = thread::suspend();
    let result = call();
    if result != 0 {
        thread::resume(suspended);
    } else if let Some(area) = shared_area::area() {
        area.control().stop_reason.store(stop_reason::STRICT_SECCOMP, Relaxed);
        seccomp::note_seccomp_filter();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_system_number_is_read_from_its_clock() {
        // SAFETY: no preconditions.
        let handle = unsafe { libc::pthread_self() };
        // SAFETY: no preconditions.
        let expected = unsafe { libc::gettid() };
        assert_eq!(system_id(handle), Some(expected));
    }
}
