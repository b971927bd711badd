//! Which system calls of memtrack's own the program's seccomp filters forbid: a forbidden one may end the program.
//!
//! A filter is read and executed when the program installs it, for each call that memtrack may make later. Those that
//! it does not plainly allow are not made any more: a thread that would wait for the collector spins, what is not known
//! without a call is not recorded. What takes many calls is not done at all under a filter: children are not connected
//! to the collector, and programs that replace this one are not given this library.
//!
//! Invariant: what the program still may do is recorded as before; while a filter is being installed, no call is made.

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// A filter was installed: it stays.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);
/// The set of [`OwnCall`]s that are not to be made, as bits.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);
/// Filters that are just being installed: of threads that run, it takes effect before it is known.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// What memtrack asks of the system in a program that records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum OwnCall {
    /// `futex`, which wakes the collector and waits for it.
    Futex,
    /// `gettid`, of a new thread.
    ThreadId,
    /// `getpid`.
    ProcessId,
    /// `getppid` and `kill` with signal 0, which tell whether the collector has gone.
    CollectorLife,
    /// `tgkill` with signal 0, which tells whether a thread has ended.
    ThreadLife,
    /// `rt_sigprocmask`, which changes nothing and tells whether memory can be read.
    Probe,
    /// `process_vm_readv`, of this process.
    Read,
    /// `mmap` of memory that is no file's, and `munmap`.
    Map,
    /// `mremap` of shared memory, `munmap` and `madvise`.
    Extend,
    /// `fcntl` with `F_GET_SEALS`, which tells files in memory from others.
    Seals,
}

/// The calls with their usual arguments.
const CALLS: [(OwnCall, libc::c_long, [u64; 6]); 15] = {
    const POINTER: u64 = 0x7fff_0000_1000;
    const MAP: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    const WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    [
        (OwnCall::Futex, libc::SYS_futex, [POINTER, libc::FUTEX_WAIT as u64, 1, POINTER, 0, 0]),
        (OwnCall::Futex, libc::SYS_futex, [POINTER, libc::FUTEX_WAKE as u64, i32::MAX as u64, 0, 0, 0]),
        (OwnCall::ThreadId, libc::SYS_gettid, [0; 6]),
        (OwnCall::ProcessId, libc::SYS_getpid, [0; 6]),
        (OwnCall::CollectorLife, libc::SYS_getppid, [0; 6]),
        (OwnCall::CollectorLife, libc::SYS_kill, [2, 0, 0, 0, 0, 0]),
        (OwnCall::ThreadLife, libc::SYS_tgkill, [2, 2, 0, 0, 0, 0]),
        (OwnCall::Probe, libc::SYS_rt_sigprocmask, [u64::MAX, POINTER, 0, 8, 0, 0]),
        (OwnCall::Read, libc::SYS_process_vm_readv, [2, POINTER, 1, POINTER, 1, 0]),
        (OwnCall::Map, libc::SYS_mmap, [0, 1 << 16, WRITE, MAP, u32::MAX as u64, 0]),
        (OwnCall::Map, libc::SYS_munmap, [POINTER, 1 << 16, 0, 0, 0, 0]),
        (OwnCall::Extend, libc::SYS_mremap, [POINTER, 0, 1 << 16, libc::MREMAP_MAYMOVE as u64, 0, 0]),
        (OwnCall::Extend, libc::SYS_munmap, [POINTER, 1 << 16, 0, 0, 0, 0]),
        (OwnCall::Extend, libc::SYS_madvise, [POINTER, 1 << 16, libc::MADV_DONTDUMP as u64, 0, 0, 0]),
        (OwnCall::Seals, libc::SYS_fcntl, [3, libc::F_GET_SEALS as u64, 0, 0, 0, 0]),
    ]
};

/// Whether the program has installed a filter, or is about to. A forked child inherits the answer with the filter.
pub(crate) fn has_seccomp_filter() -> bool {
    HAS_FILTER.load(Acquire) || UNDER_WAY.load(Acquire) != 0
}

/// Whether memtrack may make this call: no filter is known that forbids it.
pub(crate) fn may(call: OwnCall) -> bool {
    !has_seccomp_filter() || (UNDER_WAY.load(SeqCst) == 0 && FORBIDDEN.load(SeqCst) & bit(call) == 0)
}

const fn bit(call: OwnCall) -> u32 {
    1 << call as u32
}

/// A filter that the program is installing, or another restriction of that kind: until this is dropped no call is made.
pub(crate) struct FilterInstallation(());

impl FilterInstallation {
    /// To be called before the filter takes effect.
    pub(crate) fn begin() -> Self {
        UNDER_WAY.fetch_add(1, SeqCst);
        Self(())
    }

    /// It is in effect for the calling thread alone, which does not record any more: the others may do what they could.
    pub(crate) fn installed_for_one_thread(self) {
        HAS_FILTER.store(true, SeqCst);
    }

    /// It is in effect.
    ///
    /// # Safety
    /// The system has just accepted this program: it can be read, with as many instructions as it says.
    pub(crate) unsafe fn installed(self, program: *const libc::sock_fprog) {
        // SAFETY: the caller's promise.
        let program = unsafe { program.read_unaligned() };
        let filter: &[libc::sock_filter] = if program.filter.is_null() || !program.filter.is_aligned() {
            &[]
        } else {
            // SAFETY: the caller's promise; any bytes make instructions.
            unsafe { std::slice::from_raw_parts(program.filter, program.len.into()) }
        };
        FORBIDDEN.fetch_or(forbidden(filter), SeqCst);
        HAS_FILTER.store(true, SeqCst);
    }
}

impl Drop for FilterInstallation {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, SeqCst);
    }
}

/// The calls that this filter does not plainly allow, as bits.
fn forbidden(filter: &[libc::sock_filter]) -> u32 {
    let is_forbidden = |&&(_, number, arguments): &&(OwnCall, libc::c_long, [u64; 6])| {
        u32::try_from(number).map_or(true, |number| !memtrack_seccomp::permits(filter, number, &arguments))
    };
    CALLS.iter().filter(is_forbidden).fold(0, |bits, (call, ..)| bits | bit(*call))
}

#[cfg(test)]
mod tests {
    use super::{CALLS, OwnCall, bit, forbidden};

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    #[test]
    fn what_a_filter_does_not_allow_is_forbidden() {
        let allow = instruction(0x06, 0, 0, 0x7fff_0000);
        let all = CALLS.iter().fold(0, |bits, (call, ..)| bits | bit(*call));
        assert_eq!(forbidden(&[allow]), 0);
        // Nothing, and what is not understood.
        assert_eq!((forbidden(&[]), forbidden(&[instruction(0xffff, 0, 0, 0), allow])), (all, all));
        // All but waiting: wakes are allowed, and tell nobody.
        let number = instruction(0x20, 0, 0, 0);
        let futex = instruction(0x15, 0, 3, libc::SYS_futex as u32);
        let operation = instruction(0x20, 0, 0, 24);
        let waits = instruction(0x15, 0, 1, libc::FUTEX_WAIT as u32);
        // Fails with an error; the program does not end, and does not wait either.
        let fail = instruction(0x06, 0, 0, 0x0005_0001);
        assert_eq!(forbidden(&[number, futex, operation, waits, fail, allow]), bit(OwnCall::Futex));
    }
}
