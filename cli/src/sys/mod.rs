//! System calls that std does not provide in the needed form.
//!
//! std's `Command` clears the signal mask and resets SIGPIPE in the child, and the child runs the parent's signal
//! handlers until exec; but a recorded program must inherit exactly what memtrack inherited. Invariant: this is the
//! only module of this crate with unsafe code.

mod abort;
mod detach_signals;
mod early_signals;
#[cfg(not(feature = "external-shim"))]
mod file_checks;
pub(crate) mod hangup;
mod heap_blocks;
mod initial_state;
mod limits;
mod other_user;
mod peer_process;
mod process;
mod pseudo_terminal;
mod reserve;
mod signal_cleanup;
mod signal_probe;
mod signals;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) use abort::{await_after_abort, end_with, explain_abort};
pub(crate) use detach_signals::DetachSignals;
#[cfg(not(feature = "external-shim"))]
pub(crate) use file_checks::{check_executable_mapping, effective_user};
pub(crate) use heap_blocks::{HeapBlocks, file_of_malloc};
pub(crate) use limits::{ResourceLimits, VirtualSizes};
pub(crate) use other_user::{may_go_through, may_read, user_of};
pub(crate) use peer_process::{PeerProcess, standard_input_socket};
pub(crate) use process::{Child, Reaped, Spawn, shell_status};
pub(crate) use pseudo_terminal::{PseudoTerminal, send_signal};
pub(crate) use reserve::keep_reserve;
pub(crate) use signal_cleanup::EndSignals;
pub(crate) use signal_probe::stop as stop_signal_probe;
pub(crate) use signals::{ChildrenWait, Signals};

/// Sends SIGTERM to a process that this one has started and not waited for yet.
pub(crate) fn terminate(pid: i32) {
    kill(pid, libc::SIGTERM);
}

/// Gives an open file without a name this one.
///
/// # Errors
/// It exists already, or cannot be made.
pub(crate) fn link_to(file: &File, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both are strings that live during the call.
    let status =
        unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to a process that is known to exist, as [`Child`] guarantees by reaping under its lock.
fn kill(pid: i32, signal: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid, signal) };
}

/// Makes malloc serve large blocks by mmap: growing tables are then moved by mremap instead of being copied, and freed
/// ones are returned to the system. glibc would otherwise raise its threshold and fragment the heap with ever larger
/// blocks. Very large ones get large pages.
pub(crate) fn map_large_allocations() {
    const LARGE: i32 = 4 << 20;
    // SAFETY: sets a number of the allocator's own; where it is refused, that stays what it was.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    reserve::use_large_pages();
}

/// Unblocks all signals of this thread and of those that it starts.
pub(crate) fn unblock_signals() {
    // SAFETY: all zeroes is the empty set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: reads a live local.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

/// Gives other processes precedence over this thread and those that it starts.
pub(crate) fn yield_to_others() {
    set_niceness(19);
}

/// The same for what a person waits for: it goes on where processors are busy, with about a third of the time of another process.
pub(crate) fn yield_in_part() {
    set_niceness(5);
}

/// Leaves the processors to whoever wants them: this thread and those that it starts run when nothing else does.
pub(crate) fn run_when_idle() {
    // SAFETY: reads a live local; on failure the thread runs as before.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }) };
}

fn set_niceness(niceness: i32) {
    // SAFETY: takes and changes no memory; on failure the priority stays as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}

/// Raises the soft limit of file descriptors to the hard limit.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a live local of its type.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: reads a live local. Where it fails, the limit stays what it was.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Whether the stack limit of the main thread is below this size.
pub(crate) fn stack_is_smaller_than(bytes: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to a live local of its type.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    got == 0 && limit.rlim_cur < bytes as u64
}

/// Width of a terminal in columns.
pub(crate) fn terminal_width(terminal: impl AsRawFd) -> Option<usize> {
    let mut size = std::mem::MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the request writes to a live local of its type.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid value, and the request wrote nothing else.
    let columns = unsafe { size.assume_init() }.ws_col;
    (result == 0).then(|| usize::from(columns))
}
