//! Registers this process for [barriers](memtrack_transport::barrier), and does not let the program wait for it.
//!
//! Where a process has several threads, the kernel registers it when every processor has passed a quiescent state, which takes
//! 5 to 20 ms and has no limit. So a thread of its own does it there. Until it is done, whoever needs a barrier raises the
//! slow one, which needs no registration.
//!
//! Invariant: that thread is unknown to the C library: it has no thread-local memory of its own, allocates nothing, makes one
//! system call, runs no handler of the program, and has ended when [`wait`] returns `true`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::time::Duration;

use memtrack_transport::layout::registration;
use memtrack_transport::{barrier, futex};

use super::signal_mask::with_signals_blocked;
use super::thread_count::threads;

/// Bytes of the thread's stack.
const STACK: usize = 16 << 10;
/// How long is waited for the thread at a time, and how often; a signal ends a wait.
const LIMIT: Duration = Duration::from_millis(100);
const WAITS: u32 = 10;

/// The process that is registered, or being so; a forked child has its parent's.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// What came of it.
static RESULT: AtomicU32 = AtomicU32::new(registration::UNDER_WAY);
/// Not 0 while the thread runs: the kernel sets and clears it (a futex word).
static THREAD: AtomicU32 = AtomicU32::new(0);
static THREAD_STACK: ThreadStack = ThreadStack(UnsafeCell::new([0; STACK]));

#[repr(align(16))]
struct ThreadStack(UnsafeCell<[u8; STACK]>);

// SAFETY: only the one thread that runs on it touches it.
unsafe impl Sync for ThreadStack {}

/// Registers this process, and sets the word as soon as the result is known, possibly after this returns. By one thread at a time,
/// always with the same word.
pub(crate) fn register(word: &'static AtomicU32) {
    // SAFETY: no arguments, cannot fail.
    let process = unsafe { libc::getpid() };
    if PROCESS.swap(process, AcqRel) == process {
        if wait() {
            // A thread that ended without a result was not allowed to ask.
            note(word, RESULT.load(Acquire) == registration::DONE);
        }
        return;
    }
    THREAD.store(0, Release);
    RESULT.store(registration::UNDER_WAY, Release);
    if threads().is_some_and(|threads| threads > 1) && start(word) {
        return;
    }
    note(word, barrier::register());
}

fn note(word: &AtomicU32, is_registered: bool) {
    let result = if is_registered { registration::DONE } else { registration::REFUSED };
    RESULT.store(result, Release);
    word.store(result, Release);
}

/// Waits until a registration that is under way is done, and its thread has ended; `false`: it takes very long.
pub(crate) fn wait() -> bool {
    for _ in 0..WAITS {
        match THREAD.load(Acquire) {
            0 => return true,
            running => futex::wait(&THREAD, running, LIMIT),
        }
    }
    THREAD.load(Acquire) == 0
}

/// Whether a barrier reaches this process's threads without delay. Shared memory that has been left does not know.
pub(crate) fn is_done() -> bool {
    RESULT.load(Acquire) == registration::DONE
}

/// Starts the thread; `false`: there is none.
fn start(word: &'static AtomicU32) -> bool {
    // The flags of the C library's threads, which filters of system calls know.
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    #[cfg(target_arch = "x86_64")]
    let flags = flags | libc::CLONE_SETTLS;
    // On x86_64 the address that this thread has for its thread-local memory.
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::pthread_self() } as *mut c_void;
    let argument = ptr::from_ref(word).cast_mut().cast::<c_void>();
    let stack = THREAD_STACK.0.get().cast::<c_void>().wrapping_byte_add(STACK);
    let thread = THREAD.as_ptr();
    THREAD.store(1, Release);
    // SAFETY: no thread runs on the stack, the word lives as long as the process, and the thread needs nothing of the C library.
    let started =
        with_signals_blocked(|| unsafe { libc::clone(registering, stack, flags, argument, thread, own, thread) });
    if started < 0 {
        THREAD.store(0, Release);
    }
    started >= 0
}

/// The thread. It has the thread-local memory of the one that started it, so it must not set errno.
extern "C" fn registering(word: *mut c_void) -> c_int {
    let result = system_call(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
    // SAFETY: the word that `start` was given.
    note(unsafe { &*word.cast::<AtomicU32>() }, result == 0);
    // Returning would end the process before glibc 2.26.
    loop {
        system_call(libc::SYS_exit, 0);
    }
}

/// A system call with one argument that has a value, and two zeroes; returns 0 or more, or an error number below 0.
fn system_call(number: c_long, argument: c_int) -> i64 {
    let result: i64;
    // SAFETY: the call has no effect on memory; the registers that the kernel changes are named.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") argument, in("rsi") 0, in("rdx") 0,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") i64::from(argument) => result, in("x1") 0, in("x2") 0, options(nostack));
    }
    result
}
