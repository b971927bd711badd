//! A handle to a process, which its process id is not: that is another process's when this one was waited for.
//!
//! Invariant: what it says is of the process that it was made for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::system::pidfd_exit;
use crate::system::process_stat::ProcessStat;
use crate::system::procfs::{self, ResidentMemory, ThreadStatus, clock_ns, exists, last_name};

/// A handle to a process (a pidfd) that tells whether it has ended, even if its process id is reused.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: i32,
    /// `None` where the system has no pidfds (before Linux 5.3).
    pidfd: Option<OwnedFd>,
    /// It had ended before there was a handle; what has its process id now is another one.
    is_gone: bool,
}

/// The option of a socket that gives a pidfd of its other end: from Linux 6.5 on; from 6.16 on of one that has ended, too.
const SO_PEERPIDFD: libc::c_int = 77;
/// A process starts a tick of the system's clock before or after the time that it says of itself.
const START_SLACK_NS: u64 = 20_000_000;

impl ProcessHandle {
    /// A handle to a running process.
    pub(crate) fn of(pid: i32) -> Self {
        // SAFETY: takes numbers only.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        // SAFETY: a new descriptor that nobody else owns.
        let pidfd = i32::try_from(pidfd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Self { pid, pidfd, is_gone: false }
    }

    /// A handle to the process that has connected this socket, which may have ended since; it began at this time on the
    /// monotonic clock.
    pub(crate) fn of_peer(socket: &UnixStream, pid: i32, begun_ns: u64) -> Self {
        if let Some(pidfd) = peer_pidfd(socket) {
            return Self { pid, pidfd: Some(pidfd), is_gone: false };
        }
        let of_pid = Self::of(pid);
        let is_other = start_ns(pid).is_none_or(|started| started > begun_ns.saturating_add(START_SLACK_NS));
        if is_other { Self { pid, pidfd: None, is_gone: true } } else { of_pid }
    }

    /// Whether the process has ended; without a pidfd, whether it has ended and been waited for.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return self.is_gone || !exists(self.pid) };
        let mut watched = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry; does not wait.
        unsafe { libc::poll(&raw mut watched, 1, 0) > 0 }
    }
}

impl ProcessHandle {
    /// Sends SIGTERM; whether it was sent. Never to a later process with the same id, so that a system without pidfds sends none.
    pub(crate) fn terminate(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and the system makes up the information itself.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGTERM, no_info, 0) == 0 }
    }

    /// The last name of its first thread, if it has ended and is not yet reaped.
    pub(crate) fn name_at_end(&self) -> Option<String> {
        self.at_end(|| last_name(self.pid))
    }

    /// Its processor time in nanoseconds, until it is waited for.
    pub(crate) fn processor_ns(&self) -> Option<u64> {
        self.now_or_at_end(|| procfs::processor_ns(self.pid))
    }

    /// Resident bytes that are neither shared nor a file's, while it runs.
    pub(crate) fn private_bytes(&self) -> Option<u64> {
        let found = ResidentMemory::of(self.pid).private_bytes();
        found.filter(|_| !self.has_ended())
    }

    /// The state of one of its threads.
    pub(crate) fn thread(&self, tid: i32) -> ThreadStatus {
        self.now_or_at_end(|| Some(procfs::thread(self.pid, tid))).unwrap_or(ThreadStatus::Unknown)
    }

    /// What is read by process id, which is this process's until it was waited for.
    fn now_or_at_end<T>(&self, read: impl Fn() -> Option<T>) -> Option<T> {
        let found = read();
        if self.has_ended() { self.at_end(read) } else { found }
    }

    /// How it ended, as one who waits for it would have it: if it is not yet reaped, or from Linux 6.15 on.
    pub(crate) fn wait_status(&self) -> Option<i32> {
        let reaped = || self.pidfd.as_ref().and_then(|pidfd| pidfd_exit::wait_status(pidfd.as_fd()));
        reaped().or_else(|| self.at_end(|| status_of_zombie(self.pid))).or_else(reaped)
    }

    /// What is read by process id after the end, as long as the id is still this process's.
    fn at_end<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let pidfd = self.pidfd.as_ref().filter(|_| self.has_ended())?;
        let found = read()?;
        // Read after that: the process id was still this process's.
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
        (pid.parse() == Ok(self.pid)).then_some(found)
    }
}

/// The process id of the other end, in this process's namespace.
pub(crate) fn peer(socket: &UnixStream) -> io::Result<i32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let into = (&raw mut credentials).cast();
    // SAFETY: the buffer is a local of the length that is given.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut len) };
    match got {
        0 if credentials.pid > 0 => Ok(credentials.pid),
        0 => Err(io::ErrorKind::NotFound.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn peer_pidfd(socket: &UnixStream) -> Option<OwnedFd> {
    let mut pidfd: i32 = -1;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let into = (&raw mut pidfd).cast();
    // SAFETY: the buffer is a local of the length that is given.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, into, &raw mut length) };
    // SAFETY: a new descriptor that nobody else owns.
    (got == 0 && pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// When a process started, on the monotonic clock; `None`: it was waited for, or cannot be seen.
fn start_ns(pid: i32) -> Option<u64> {
    const STARTED: usize = 22;
    let since_boot = ProcessStat::of(pid)?.nanoseconds(STARTED)?;
    // The system counts the time in which it was suspended.
    let suspended = clock_ns(libc::CLOCK_BOOTTIME)?.saturating_sub(clock_ns(libc::CLOCK_MONOTONIC)?);
    Some(since_boot.saturating_sub(suspended))
}

/// The last field of what the system says of a process; it is 0 where that may not be read.
fn status_of_zombie(pid: i32) -> Option<i32> {
    let stat = ProcessStat::of(pid).filter(ProcessStat::has_ended)?;
    stat.last()?.parse().ok().filter(|status| *status != 0)
}

#[cfg(test)]
mod tests {
    use super::ProcessHandle;
    use crate::system::procfs::{ThreadStatus, processor_ns};

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let handle = ProcessHandle::of(child.id().cast_signed());
        assert!(!handle.has_ended());
        drop(child.stdin.take());
        // It may not have run yet.
        assert!(processor_ns(handle.pid).is_some());
        // Without handles the system tells only after the wait.
        while handle.pidfd.is_some() && !handle.has_ended() {
            std::thread::yield_now();
        }
        assert!(processor_ns(handle.pid).is_some_and(|ns| ns > 0));
        assert_eq!(
            handle.pidfd.as_ref().and_then(|_| handle.name_at_end()),
            handle.pidfd.as_ref().map(|_| "cat".into())
        );
        child.wait().unwrap();
        assert!(handle.has_ended() && handle.name_at_end().is_none());
        assert_eq!(processor_ns(handle.pid), None);
    }

    #[test]
    fn a_process_that_connected_is_told_from_a_later_one_of_its_number() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let pid = std::process::id().cast_signed();
        let now = crate::system::procfs::clock_ns(libc::CLOCK_MONOTONIC).unwrap();
        assert!(super::start_ns(pid).is_some_and(|started| started <= now + super::START_SLACK_NS));
        assert!(!ProcessHandle::of_peer(&ours, pid, now).has_ended());
        assert_eq!(super::start_ns(i32::MAX), None);
        let gone = ProcessHandle { pid, pidfd: None, is_gone: true };
        assert!(gone.has_ended() && ProcessHandle::of(i32::MAX).has_ended());
        // Of this process, which has its number.
        assert_eq!((gone.processor_ns(), gone.thread(pid)), (None, ThreadStatus::Unknown));
        let living = ProcessHandle::of(pid);
        assert!(living.processor_ns() > Some(0) && living.thread(pid).name().is_some());
        drop(theirs);
    }
}
