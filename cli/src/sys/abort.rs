//! If memtrack aborts or crashes, it still exits with the program's status.
//!
//! Rust aborts when an allocation fails, as under `ulimit -v`, where a stack that cannot grow is a SIGSEGV; the program would then lose the process that forwards its
//! signals and reports its exit status. While the program runs, memtrack replaces itself by a new image that only waits
//! for it (`memtrack await-program`); after the program's end it exits with the stored status. Invariant: the handler
//! makes system calls only, on memory that was prepared before.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed};

use super::process::{Child, shell_status_of_signal};

/// Address space that the image needs, with room to spare.
const IMAGE_BYTES: libc::rlim_t = 128 << 20;

/// The program while it runs; 0 before its start and after its end.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// The exit status of the program after its end.
static STATUS: AtomicI32 = AtomicI32::new(0);
/// The null-terminated arguments of the image that waits for the program. They are kept for good.
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(ptr::null_mut());

/// From now on an abort of memtrack ends the recording, and memtrack waits for the program. Rust has printed the reason
/// before it aborts.
pub(crate) fn await_after_abort(program: &Child, quiet: bool) {
    let quiet = quiet.then_some("--quiet".to_owned());
    let words = ["memtrack".to_owned(), "await-program".to_owned(), program.pid().to_string()].into_iter().chain(quiet);
    // None has a NUL byte.
    let words = words.filter_map(|word| CString::new(word).ok()).map(|word| word.into_raw().cast_const());
    let arguments: Vec<*const c_char> = words.chain([ptr::null()]).collect();
    ARGUMENTS.store(Box::leak(arguments.into_boxed_slice()).as_mut_ptr(), Relaxed);
    PROGRAM.store(program.pid(), Relaxed);
    handle_abort();
}

/// From now on an abort of memtrack exits with this status.
pub(crate) fn end_with(status: u8) {
    STATUS.store(status.into(), Relaxed);
    PROGRAM.store(0, Relaxed);
    handle_abort();
}

/// From now on an abort is explained and exits with this status, where no program is waited for.
pub(crate) fn explain_abort(status: u8) {
    STATUS.store(status.into(), Relaxed);
    handle(on_unexplained_abort, &[libc::SIGABRT]);
}

/// Rust has said how many bytes could not be allocated, and ends nothing else by an abort.
extern "C" fn on_unexplained_abort(_signal: libc::c_int) {
    let text = b"error: there is not enough memory for this command; allow it more (ulimit -v, the memory limit of its container), or \
        run it on a machine that has more\n";
    // SAFETY: reads a constant.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(STATUS.load(Relaxed)) };
}

fn handle_abort() {
    handle(on_abort, &[libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS]);
}

fn handle(handler: extern "C" fn(libc::c_int), signals: &[libc::c_int]) {
    // SAFETY: all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // On the stack for signals, which each of Rust's threads has: its own may be at its end.
    action.sa_flags = libc::SA_ONSTACK;
    for signal in signals {
        // SAFETY: the handler does nothing that a handler may not do.
        unsafe { libc::sigaction(*signal, &raw const action, ptr::null_mut()) };
    }
}

extern "C" fn on_abort(signal: libc::c_int) {
    if signal != libc::SIGABRT {
        let text = b"memtrack: crashed; the program is waited for, and its exit status is passed on\n";
        // SAFETY: reads a constant.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
    let program = PROGRAM.load(Relaxed);
    let status = if program == 0 { STATUS.load(Relaxed) } else { await_in_new_image(program) };
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(status) };
}

/// Executes the image that waits for the program; waits here if that fails.
fn await_in_new_image(program: libc::pid_t) -> i32 {
    // SAFETY: all zeroes is a valid set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a live local.
    unsafe { libc::sigfillset(&raw mut all) };
    // The new image unblocks signals once it forwards them.
    // SAFETY: reads a live local.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()) };
    // SAFETY: reads a pointer; this process does not change its environment.
    let environment = unsafe { libc::environ };
    // Where the address space is limited to less than an image takes, the kernel would kill this process on its way.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a live local.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    if is_known && limit.rlim_cur >= IMAGE_BYTES {
        // SAFETY: both arrays end with a null pointer, and nothing frees what they point to.
        unsafe { libc::execve(c"/proc/self/exe".as_ptr(), ARGUMENTS.load(Relaxed), environment.cast()) };
    }
    let mut status = 0;
    // SAFETY: writes to a live local.
    while unsafe { libc::waitpid(program, &raw mut status, 0) } < 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return 0;
        }
    }
    if libc::WIFSIGNALED(status) { shell_status_of_signal(libc::WTERMSIG(status)) } else { libc::WEXITSTATUS(status) }
}
