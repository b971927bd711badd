//! The system calls that memtrack's library makes in a program that records, and which of them a filter forbids.
//!
//! The library asks about a filter that the program installs, and whoever begins to record a program that has filters already
//! tells it about those. Invariant: a call that is not plainly allowed is forbidden.

use crate::permits;

/// What memtrack asks of the system in a program that records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OwnCall {
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
    /// `mremap` of shared memory, `munmap` and `madvise`; `mmap` of memory without access, which tells whether there is room.
    Extend,
    /// `madvise` of memory that is no file's.
    Advise,
    /// `fcntl` with `F_GET_SEALS`, which tells files in memory from others.
    Seals,
    /// `mmap` of memory that is no file's in a given place, in a forked child.
    Part,
}

impl OwnCall {
    /// Its place in a set of calls.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The calls with their usual arguments.
const CALLS: [(OwnCall, libc::c_long, [u64; 6]); 20] = {
    const POINTER: u64 = 0x7fff_0000_1000;
    const MAP: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    const MAP_OVER: u64 = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED) as u64;
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
        (OwnCall::Extend, libc::SYS_mmap, [0, 1 << 16, libc::PROT_NONE as u64, MAP, u32::MAX as u64, 0]),
        (OwnCall::Extend, libc::SYS_munmap, [POINTER, 1 << 16, 0, 0, 0, 0]),
        (OwnCall::Extend, libc::SYS_madvise, [POINTER, 1 << 16, libc::MADV_DONTDUMP as u64, 0, 0, 0]),
        (OwnCall::Advise, libc::SYS_madvise, [POINTER, 1 << 16, libc::MADV_DONTNEED as u64, 0, 0, 0]),
        (OwnCall::Advise, libc::SYS_madvise, [POINTER, 1 << 16, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]),
        (OwnCall::Seals, libc::SYS_fcntl, [3, libc::F_GET_SEALS as u64, 0, 0, 0, 0]),
        (OwnCall::Part, libc::SYS_mmap, [POINTER, 1 << 16, WRITE, MAP_OVER, u32::MAX as u64, 0]),
        (OwnCall::Part, libc::SYS_madvise, [POINTER, 1 << 16, libc::MADV_DONTDUMP as u64, 0, 0, 0]),
    ]
};

/// The calls that this filter does not plainly allow, as bits.
#[must_use]
pub fn forbidden(filter: &[libc::sock_filter]) -> u32 {
    let is_forbidden = |&&(_, number, arguments): &&(OwnCall, libc::c_long, [u64; 6])| {
        u32::try_from(number).map_or(true, |number| !permits(filter, number, &arguments))
    };
    CALLS.iter().filter(is_forbidden).fold(0, |bits, (call, ..)| bits | call.bit())
}

#[cfg(test)]
mod tests {
    use super::{CALLS, OwnCall, forbidden};

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    #[test]
    fn what_a_filter_does_not_allow_is_forbidden() {
        let allow = instruction(0x06, 0, 0, 0x7fff_0000);
        let all = CALLS.iter().fold(0, |bits, (call, ..)| bits | call.bit());
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
        assert_eq!(forbidden(&[number, futex, operation, waits, fail, allow]), OwnCall::Futex.bit());
    }
}
