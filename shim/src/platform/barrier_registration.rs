//! Registers this process for [barriers](memtrack_transport::barrier), and does not let the program wait for it.
//!
//! Where a process has several threads, the kernel registers it when every processor has passed a quiescent state, which takes
//! 5 to 20 ms and has no limit. So a thread of its own does it there. Until it is done, whoever needs a barrier raises the
//! slow one, which needs no registration.
//!
//! Invariant: that thread is unknown to the C library: it has no thread-local memory of its own, allocates nothing, makes one
//! system call, runs no handler of the program, and has ended when [`wait`] returns.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::time::Duration;

use memtrack_transport::{barrier, futex};

use super::signal_mask::with_signals_blocked;
use super::thread_count::threads;

/// Bytes of the thread's stack.
const STACK: usize = 16 << 10;
/// How long is waited for the thread.
const LIMIT: Duration = Duration::from_secs(1);

/// The process that is registered, or being so; a forked child has its parent's.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// Not 0 while the thread runs: the kernel clears it (a futex word).
static THREAD: AtomicU32 = AtomicU32::new(0);
static THREAD_STACK: ThreadStack = ThreadStack(UnsafeCell::new([0; STACK]));

#[repr(align(16))]
struct ThreadStack(UnsafeCell<[u8; STACK]>);

// SAFETY: only the one thread that runs on it touches it.
unsafe impl Sync for ThreadStack {}

/// Registers this process, and sets `is_registered` to 1 as soon as it is, possibly after this returns. By one thread at a time,
/// always with the same word.
pub(crate) fn register(is_registered: &'static AtomicU32) {
    // SAFETY: no arguments, cannot fail.
    let process = unsafe { libc::getpid() };
    if PROCESS.swap(process, AcqRel) == process {
        if !wait() {
            return;
        }
    } else {
        THREAD.store(0, Release);
        if threads().is_none_or(|threads| threads > 1) && start(is_registered) {
            return;
        }
        barrier::register();
    }
    is_registered.store(1, Release);
}

/// Waits until a registration that is under way is done, and its thread has ended; `false`: it takes very long.
pub(crate) fn wait() -> bool {
    let mut looks = 0;
    loop {
        let running = THREAD.load(Acquire);
        if running == 0 || looks > 10 {
            return running == 0;
        }
        looks += 1;
        futex::wait(&THREAD, running, LIMIT / 10);
    }
}

/// Starts the thread; `false`: there is none.
fn start(is_registered: &'static AtomicU32) -> bool {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    THREAD.store(1, Release);
    let word = ptr::from_ref(is_registered).cast_mut().cast::<c_void>();
    let stack = THREAD_STACK.0.get().cast::<c_void>().wrapping_byte_add(STACK);
    let (none, thread) = (ptr::null_mut::<c_void>(), THREAD.as_ptr());
    // SAFETY: no thread runs on the stack, the word lives as long as the process, and the thread needs nothing of the C library.
    let started = with_signals_blocked(|| unsafe { libc::clone(registering, stack, flags, word, none, none, thread) });
    if started < 0 {
        THREAD.store(0, Release);
    }
    started >= 0
}

/// The thread. It has the thread-local memory of the one that started it, so it must not set errno.
extern "C" fn registering(is_registered: *mut c_void) -> c_int {
    system_call(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
    // SAFETY: the word that `start` was given.
    unsafe { &*is_registered.cast::<AtomicU32>() }.store(1, Release);
    // Returning would end the process before glibc 2.26.
    loop {
        system_call(libc::SYS_exit, 0);
    }
}

/// A system call with one argument that has a value, and two zeroes. Whether it succeeds is of no interest: without it, barriers
/// are raised in all processes.
fn system_call(number: libc::c_long, argument: c_int) {
    // SAFETY: the call has no effect on memory; the registers that the kernel changes are named.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => _,
            in("rdi") argument, in("rsi") 0, in("rdx") 0,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") i64::from(argument) => _, in("x1") 0, in("x2") 0, options(nostack));
    }
}
