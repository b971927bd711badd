//! The system calls in which threads wait, and what a stop does to each: the kernel begins most of them again, resumes some
//! with the time that remains, and ends a few with `EINTR`, for a tracer as for `SIGSTOP`.
//!
//! What a thread does is looked up without stopping it, so that a stop ends no call where another thread can be used.
//! Invariant: nothing of the process is changed here.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// System calls that wait and that the kernel restarts by itself: read, poll, select, pause, nanosleep, accept, recvfrom,
/// recvmsg, wait4, rt_sigsuspend, restart_syscall, clock_nanosleep, waitid, pselect6, ppoll, accept4.
const WAITING: [i64; 16] = [
    READ,
    POLL,
    23,
    34,
    NANOSLEEP,
    ACCEPT,
    RECVFROM,
    RECVMSG,
    61,
    130,
    RESTART,
    CLOCK_NANOSLEEP,
    247,
    270,
    271,
    ACCEPT4,
];
/// Those that end with EINTR when the thread is stopped: semop, rt_sigtimedwait, io_getevents, semtimedop, epoll_wait,
/// epoll_pwait, epoll_pwait2.
const WAITING_ONCE: [i64; 7] = [65, 128, 208, 220, 232, 281, 441];
/// Those that end with EINTR if their descriptor is a socket with a time limit.
const ON_SOCKETS: [i64; 5] = [READ, ACCEPT, RECVFROM, RECVMSG, ACCEPT4];
const READ: i64 = 0;
const POLL: i64 = 7;
const NANOSLEEP: i64 = 35;
const ACCEPT: i64 = 43;
const RECVFROM: i64 = 45;
const RECVMSG: i64 = 47;
const FUTEX: i64 = 202;
const RESTART: i64 = 219;
const CLOCK_NANOSLEEP: i64 = 230;
const ACCEPT4: i64 = 288;

/// What a thread does, as far as can be seen without stopping it; the first is the best to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ThreadRank {
    /// It waits in a system call that the kernel begins again.
    Waits,
    Runs,
    /// It waits in one that the kernel resumes with the remaining time, which it keeps beside the thread: it is lost where the
    /// thread sleeps for something else meanwhile.
    WaitsTimed,
    /// It waits in one that an interruption may end.
    WaitsOnce,
    Unknown,
}

impl ThreadRank {
    /// What the thread does now.
    pub(crate) fn of(pid: i32, tid: i32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        match rank_of(&text) {
            (Self::Waits, Some(descriptor)) if has_time_limit(pid, descriptor) => Self::WaitsOnce,
            (rank, _) => rank,
        }
    }

    /// Whether a stop may end the system call in which it waits.
    pub(crate) fn may_lose_its_call(self) -> bool {
        self >= Self::WaitsOnce
    }
}

/// Whether the number is that of a system call that waits for something of the outside, and not for another thread.
pub(crate) fn is_waiting(call: i64) -> bool {
    WAITING.contains(&call) || WAITING_ONCE.contains(&call)
}

/// The rank, and the descriptor on which it depends.
fn rank_of(text: &str) -> (ThreadRank, Option<i32>) {
    let mut words = text.split_ascii_whitespace();
    let call = match words.next() {
        Some("running") => return (ThreadRank::Runs, None),
        Some(number) => number.parse().unwrap_or(-1),
        None => -1,
    };
    let mut arguments = [0_u64; 6];
    for (argument, word) in arguments.iter_mut().zip(words) {
        *argument = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    }
    let descriptor = ON_SOCKETS.contains(&call).then_some((arguments[0] as u32).cast_signed());
    let rank = match call {
        call if is_resumed(call, arguments) => ThreadRank::WaitsTimed,
        FUTEX => ThreadRank::Waits,
        call if WAITING.contains(&call) => ThreadRank::Waits,
        call if WAITING_ONCE.contains(&call) => ThreadRank::WaitsOnce,
        _ => ThreadRank::Unknown,
    };
    (rank, descriptor)
}

/// Whether the kernel keeps the time that remains of this call when it is interrupted.
fn is_resumed(call: i64, arguments: [u64; 6]) -> bool {
    /// Commands that wait without priorities: FUTEX_WAIT, FUTEX_WAIT_BITSET.
    const WAITS: [u64; 2] = [0, 9];
    const COMMAND: u64 = 0x7f;
    const ABSOLUTE: u64 = 1;
    match call {
        NANOSLEEP | RESTART => true,
        CLOCK_NANOSLEEP => arguments[1] & ABSOLUTE == 0,
        POLL => (arguments[2] as u32).cast_signed() >= 0,
        FUTEX => WAITS.contains(&(arguments[1] & COMMAND)) && arguments[3] != 0,
        _ => false,
    }
}

/// Whether the process's descriptor is a socket that waits for a limited time; `false`, too, where that cannot be found out.
fn has_time_limit(pid: i32, descriptor: i32) -> bool {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap_or_default();
    if !link.to_string_lossy().starts_with("socket:") {
        return false;
    }
    let Some(process) = descriptor_of(libc::SYS_pidfd_open, [pid, 0, 0]) else { return false };
    let Some(socket) = descriptor_of(libc::SYS_pidfd_getfd, [process.as_raw_fd(), descriptor, 0]) else { return false };
    let mut limit = MaybeUninit::<libc::timeval>::zeroed();
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: writes at most the length of the live local.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            limit.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    // SAFETY: it was zeroed, which is a valid value.
    let limit = unsafe { limit.assume_init() };
    got == 0 && (limit.tv_sec, limit.tv_usec) != (0, 0)
}

/// What a system call with three numbers opens.
fn descriptor_of(call: libc::c_long, [a, b, c]: [i32; 3]) -> Option<OwnedFd> {
    // SAFETY: takes numbers only.
    let opened = unsafe { libc::syscall(call, a, b, c) };
    let opened = i32::try_from(opened).ok().filter(|opened| *opened >= 0)?;
    // SAFETY: it was just opened, and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// The registers with which the stopped thread goes on as if it had not been stopped. The kernel ends a few system calls
/// with EINTR at a stop; those without a time limit are begun again, unless a signal is handled first.
pub(crate) fn resumable(registers: &libc::user_regs_struct) -> libc::user_regs_struct {
    const RESTART_IF_NO_HANDLER: i64 = -514;
    let interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    let unlimited = match registers.orig_rax {
        // epoll_wait, epoll_pwait: the fourth argument is a time in milliseconds.
        232 | 281 => (registers.r10 as u32).cast_signed() < 0,
        // rt_sigtimedwait: the third is a pointer to one.
        128 => registers.rdx == 0,
        // epoll_pwait2, semtimedop: the fourth.
        441 | 220 => registers.r10 == 0,
        // io_getevents: the fifth.
        208 => registers.r8 == 0,
        // semop
        65 => true,
        _ => false,
    };
    let rax = if interrupted && unlimited { RESTART_IF_NO_HANDLER.cast_unsigned() } else { registers.rax };
    libc::user_regs_struct { rax, ..*registers }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::ThreadRank::{self, Runs, Unknown, Waits, WaitsOnce, WaitsTimed};
    use super::{has_time_limit, rank_of, resumable};

    #[test]
    fn threads_that_lose_nothing_come_first() {
        let ranks =
            ["0 0x3 0x7f 0x1 0x0", "202 0x1", "running\n", "232 0x4", "1 0x1", "", "-1 0x7ff 0x55"].map(rank_of);
        assert_eq!(ranks.map(|(rank, _)| rank), [Waits, Waits, Runs, WaitsOnce, Unknown, Unknown, Unknown]);
        assert!(Waits < Runs && Runs < WaitsTimed && WaitsTimed < WaitsOnce);
        assert_eq!(ranks.map(|(_, descriptor)| descriptor), [Some(3), None, None, None, None, None, None]);
    }

    #[test]
    fn calls_whose_remaining_time_the_kernel_keeps_are_told_apart() {
        let timed = ["35 0x7f 0x0", "219 0x7f", "230 0x1 0x0 0x7f", "7 0x7f 0x1 0x7d0", "202 0x7f 0x189 0x0 0x7f"];
        assert_eq!(timed.map(|text| rank_of(text).0), [WaitsTimed; 5]);
        // Until a time, without a limit, and a wake.
        let others = ["230 0x1 0x1 0x7f", "7 0x7f 0x1 0xffffffff", "202 0x7f 0x80 0x0 0x0", "202 0x7f 0x81 0x1 0x7f"];
        assert_eq!(others.map(|text| rank_of(text).0), [Waits; 4]);
    }

    #[test]
    fn sockets_with_a_time_limit_are_known() {
        let (one, other) = UnixStream::pair().unwrap();
        one.set_read_timeout(Some(Duration::from_secs(3600))).unwrap();
        let pid = std::process::id().cast_signed();
        let found = [&one, &other].map(|socket| has_time_limit(pid, socket.as_raw_fd()));
        assert_eq!(found, [true, false]);
        assert!(!has_time_limit(pid, i32::MAX));
    }

    #[test]
    fn a_thread_that_reads_a_socket_loses_its_call_only_under_a_limit() {
        for (limit, expected) in [(None, Waits), (Some(Duration::from_secs(3600)), WaitsOnce)] {
            let (mut reader, writer) = UnixStream::pair().unwrap();
            reader.set_read_timeout(limit).unwrap();
            let (tell, told) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                // SAFETY: no arguments, cannot fail.
                tell.send(unsafe { libc::gettid() }).unwrap();
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
            });
            let (pid, tid) = (std::process::id().cast_signed(), told.recv().unwrap());
            // Until it waits.
            while ThreadRank::of(pid, tid) != expected {
                std::thread::yield_now();
            }
            drop(std::io::Write::write_all(&mut &writer, &[1]));
            thread.join().unwrap();
        }
    }

    #[test]
    fn waits_without_a_limit_are_begun_again() {
        // SAFETY: plain numbers, for which zeroes are valid.
        let empty: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let after = |orig_rax: u64, rax: i64, r10: u64| {
            resumable(&libc::user_regs_struct { orig_rax, rax: rax.cast_unsigned(), r10, ..empty }).rax.cast_signed()
        };
        assert_eq!(after(232, -4, u64::from(u32::MAX)), -514);
        assert_eq!(after(232, -4, 1000), -4);
        assert_eq!(after(232, 3, u64::from(u32::MAX)), 3);
        assert_eq!(after(35, -516, 0), -516);
        assert_eq!(after(u64::MAX, -4, 0), -4);
    }
}
