//! Starts the process that records this one, so that the program notices nothing of it.
//!
//! It must be no child of the program, whose `waitpid(-1)` and SIGCHLD would meet it. A process that is cloned without an
//! exit signal is invisible to both, but execve gives it one: so the one that this process clones clones another, which
//! executes the recorder, and ends. It is waited for by its number.
//!
//! Invariant: when the call returns, no process, descriptor or signal disposition of the program has changed, and signals
//! are blocked in the calling thread only while it lasts.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::platform::errno::Errno;
use crate::platform::signal_mask::with_signals_blocked;
use crate::recording::thread;

/// Bytes of stack for each of the two processes.
const STACK: usize = 64 << 10;
/// The last signal.
const SIGNALS: c_int = 64;

/// What both processes are given; they run in this process's memory, one after the other.
struct RecorderStart {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    /// The recorder's standard input.
    socket: c_int,
    inner_stack: *mut c_void,
    /// The error number of what failed.
    error: c_int,
}

/// Executes a program with this socket as its standard input, in a session of its own. Returns 0, or an error number.
///
/// # Safety
/// As for execve: a path, and two arrays of texts that end with a null.
#[unsafe(no_mangle)]
unsafe extern "C" fn memtrack_start_recorder(
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    socket: c_int,
) -> c_int {
    let _errno = Errno::keep();
    let word = thread::suspend();
    let error = start(program, arguments, environment, socket);
    thread::resume(word);
    error
}

fn start(
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    socket: c_int,
) -> c_int {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the system's choice.
    let stacks = unsafe { libc::mmap(ptr::null_mut(), 2 * STACK, protection, flags, -1, 0) };
    if stacks == libc::MAP_FAILED {
        return libc::ENOMEM;
    }
    let (outer, inner) = (stacks.wrapping_byte_add(STACK), stacks.wrapping_byte_add(2 * STACK));
    let mut given = RecorderStart { program, arguments, environment, socket, inner_stack: inner, error: 0 };
    // A handler of the program must not run in the other processes.
    with_signals_blocked(|| clone_and_wait(&mut given, outer));
    // SAFETY: mapped above; the processes that used it have ended or execute another program.
    unsafe { libc::munmap(stacks, 2 * STACK) };
    given.error
}

/// Clones the first process, which ends at once, and takes its status.
fn clone_and_wait(given: &mut RecorderStart, stack: *mut c_void) {
    // No exit signal: this process is not told of its end, and a wait for any child does not see it.
    // SAFETY: the function runs on a stack of its own while this thread waits, and touches what it is given only.
    let pid = unsafe { libc::clone(outer, stack, libc::CLONE_VM | libc::CLONE_VFORK, ptr::from_mut(given).cast()) };
    if pid < 0 {
        given.error = last_error();
        return;
    }
    loop {
        // SAFETY: no status is asked for.
        let waited = unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
        if waited >= 0 || last_error() != libc::EINTR {
            return;
        }
    }
}

/// The first process: clones the second, and ends.
extern "C" fn outer(given: *mut c_void) -> c_int {
    // SAFETY: the caller's, which waits.
    let given = unsafe { &mut *given.cast::<RecorderStart>() };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: as in `clone_and_wait`.
    let pid = unsafe { libc::clone(inner, given.inner_stack, flags, ptr::from_mut(given).cast()) };
    if pid < 0 {
        given.error = last_error();
    }
    0
}

/// The second process: executes the recorder.
extern "C" fn inner(given: *mut c_void) -> c_int {
    // SAFETY: the caller's, whose process waits.
    let given = unsafe { &mut *given.cast::<RecorderStart>() };
    // A session of its own, which signals from the terminal do not reach.
    // SAFETY: no arguments.
    unsafe { libc::setsid() };
    if !keep_only(given.socket) {
        given.error = last_error();
        return 127;
    }
    restore_signals();
    // SAFETY: the caller's promise.
    unsafe { libc::execve(given.program, given.arguments, given.environment) };
    given.error = last_error();
    127
}

/// Makes the socket, which is above them, the standard input, and /dev/null the outputs; all others are closed.
fn keep_only(socket: c_int) -> bool {
    // SAFETY: descriptors of this process, whose table is its own.
    if unsafe { libc::dup2(socket, 0) } != 0 {
        return false;
    }
    // SAFETY: as above.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) } == 0;
    if !closed {
        // Linux before 5.9.
        // SAFETY: takes a number only.
        let most = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(256, 65_536) as c_int;
        for descriptor in 1..most {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
    // SAFETY: a text; the lowest number that is free.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    // SAFETY: as above.
    null == 1 && unsafe { libc::dup2(null, 2) } == 2
}

/// Signals that the program ignores or blocks are the program's matter. By system calls: the C library keeps notes of its
/// own, which are the program's.
fn restore_signals() {
    const SET_BYTES: usize = 8;
    // The kernel's struct sigaction: the default disposition; and a set without signals.
    let (default, none) = ([0_u64; 8], 0_u64);
    for signal in 1..=SIGNALS {
        // SAFETY: reads a live local; some signals refuse it.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), 0, SET_BYTES) };
    }
    // SAFETY: reads a live local.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, SET_BYTES) };
}

fn last_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
