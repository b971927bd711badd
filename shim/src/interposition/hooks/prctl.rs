//! prctl, pthread_setname_np and syscall: names of threads, and filters of system calls; `syscall` may fork, too.
//!
//! libseccomp and others install filters by `syscall`, for which the C library has no function. Invariant: what is recorded is
//! what the system has accepted; a call that failed leaves no record.

use std::ffi::{c_char, c_int, c_long, c_ulong};
use std::sync::atomic::Ordering::Relaxed;

use memtrack_transport::layout::stop_reason;

use crate::interposition::got::Original;
use crate::interposition::hooks::forks;
use crate::interposition::hooks::trampoline::jump_for_numbers;
use crate::platform::seccomp::FilterInstallation;
use crate::platform::{barrier_registration, own_ids, shared_area};
use crate::recording::thread;

/// Longest name of a thread that the kernel keeps, without the zero.
const NAME_LENGTH: usize = 15;

type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
type SetName = unsafe extern "C" fn(libc::pthread_t, *const c_char) -> c_int;

pub(crate) static PRCTL: Original<Prctl> = Original::new();
pub(crate) static SYSCALL: Original<Syscall> = Original::new();
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
    let call = || unsafe { real(option, second, third, fourth, fifth) };
    let result = match option {
        // SAFETY: these are the arguments of the call.
        libc::PR_SET_SECCOMP => unsafe { install(is_strict(second), third, |result| result < 0, call) },
        _ => call(),
    };
    if option == libc::PR_SET_NAME && result == 0 {
        record_name(own_ids::thread_id(), second as *const c_char);
    }
    result
}

/// Programs wait and wake by it, so that other calls take no more than a look at their number; and no frame of it is on the stack
/// of a thread that waits, which could not be left alone by `memtrack detach`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    jump_for_numbers!(
        [libc::SYS_seccomp, libc::SYS_prctl, forks::CALLS[0], forks::CALLS[1], forks::CALLS[2]],
        syscall_special,
        SYSCALL
    )
}

/// As [`syscall`], of a call that may restrict the program's system calls, or fork. Takes as many words as any system call has, as the
/// variadic function does.
#[cold]
#[inline(never)]
unsafe extern "C" fn syscall_special(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    /// Operations of `seccomp`.
    const SET_MODE_STRICT: usize = 0;
    const SET_MODE_FILTER: usize = 1;
    let real = SYSCALL.get();
    // SAFETY: the caller's arguments, for the function it meant.
    let call = || unsafe { real(number, first, second, third, fourth, fifth, sixth) };
    match (number, first) {
        (libc::SYS_seccomp, SET_MODE_STRICT | SET_MODE_FILTER) => {
            // With the flag to restrict all threads a number above 0 is that of one which could not be: nothing is installed.
            let restricts_all = second as c_ulong & libc::SECCOMP_FILTER_FLAG_TSYNC != 0;
            let is_failure = |result| result < 0 || restricts_all && result != 0;
            // SAFETY: these are the arguments of the call.
            unsafe { install(first == SET_MODE_STRICT, third, is_failure, call) }
        }
        (libc::SYS_prctl, option) if option as c_int == libc::PR_SET_SECCOMP => {
            // SAFETY: these are the arguments of the call.
            unsafe { install(is_strict(second), third, |result| result < 0, call) }
        }
        _ if forks::forks(number, first, second) => forks::parting(call, |result| result == 0),
        _ => call(),
    }
}

pub(crate) unsafe extern "C" fn pthread_setname(thread: libc::pthread_t, name: *const c_char) -> c_int {
    let real = PTHREAD_SETNAME.get();
    // SAFETY: the caller's arguments, for the function it meant.
    let result = unsafe { real(thread, name) };
    if result == 0
        && let Some(id) = own_ids::id_of(thread)
    {
        record_name(id, name);
    }
    result
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

/// Whether a mode of prctl's is the strict one, and not a filter.
const fn is_strict(mode: usize) -> bool {
    mode as u32 == libc::SECCOMP_MODE_STRICT
}

/// Makes a call that restricts the program's system calls: to the strict mode, or by a filter.
///
/// # Safety
/// `program` is the address of the filter's program that the call passes to the system, if it is about one.
unsafe fn install<T: Copy>(
    is_strict: bool,
    program: usize,
    is_failure: impl FnOnce(T) -> bool,
    call: impl FnOnce() -> T,
) -> T {
    // The child of a vfork restricts itself, and not the process whose memory it has.
    if shared_area::area().is_some_and(|area| own_ids::process_id() != area.control().pid.load(Relaxed)) {
        return call();
    }
    // The first hook of a thread asks the system for more than later ones do. And a thread of memtrack's own may not have ended
    // yet, for which the filter holds as well.
    drop(thread::enter());
    barrier_registration::wait();
    let installation = FilterInstallation::begin();
    let suspended = if is_strict { Some(thread::suspend()) } else { None };
    let result = call();
    let is_installed = !is_failure(result);
    match suspended {
        Some(word) if !is_installed => thread::resume(word),
        Some(_) => {
            installation.installed_for_one_thread();
            if let Some(area) = shared_area::area() {
                area.control().stop_reason.store(stop_reason::STRICT_SECCOMP, Relaxed);
            }
        }
        // SAFETY: the system has just accepted the program, so it can be read.
        None if is_installed => unsafe { installation.installed(program as *const libc::sock_fprog) },
        None => {}
    }
    result
}
