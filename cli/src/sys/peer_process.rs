//! The process at the other end of a socket: what it sends, and whether it has ended.
//!
//! Invariant: a process that has got the same number later is not taken for it, where the system has descriptors of
//! processes (Linux 5.3).

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How often to look whether the process is there, where the system does not tell, in milliseconds.
const LOOK: i32 = 200;

/// Standard input, if it is a socket.
pub(crate) fn standard_input_socket() -> io::Result<UnixStream> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = UnixStream::from(input);
    socket.peer_addr()?;
    Ok(socket)
}

/// A process that made a pair of sockets and kept one of them.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    pid: i32,
    descriptor: Option<OwnedFd>,
}

impl PeerProcess {
    /// The process that made the socket.
    ///
    /// # Errors
    /// It is not visible from here.
    pub(crate) fn of(socket: &UnixStream) -> io::Result<Self> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let into = (&raw mut credentials).cast();
        // SAFETY: the buffer is a local of the length that is given.
        let got =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len) };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        if credentials.pid <= 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        // SAFETY: takes numbers only.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, credentials.pid, 0) };
        let opened = i32::try_from(opened).ok().filter(|descriptor| *descriptor >= 0);
        // SAFETY: a descriptor that was just made and belongs to nobody else.
        let descriptor = opened.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
        Ok(Self { pid: credentials.pid, descriptor })
    }

    /// Its number, as seen from here.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether there is nothing to read for so long, while the process lives.
    pub(crate) fn is_silent_for(&self, time: Duration, socket: &UnixStream, has_some: bool) -> bool {
        let process = self.descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut both = [socket.as_raw_fd(), process].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let longest = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: two records, which are ours.
        !has_some && unsafe { libc::poll(both.as_mut_ptr(), 2, longest) } == 0
    }

    /// Waits until there is something to read; `false`: the process has ended, and there is nothing. `has_some`: it is
    /// there already.
    pub(crate) fn wait_for_input(&self, socket: &UnixStream, has_some: bool) -> bool {
        if has_some {
            return true;
        }
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative number is passed over.
        let process = self.descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        loop {
            let mut both = [poll(socket.as_raw_fd()), poll(process)];
            let longest = if process < 0 { LOOK } else { -1 };
            // SAFETY: two records, which are ours.
            unsafe { libc::poll(both.as_mut_ptr(), 2, longest) };
            if both[0].revents != 0 {
                return true;
            }
            // SAFETY: signal 0 is sent to nobody.
            let has_ended = both[1].revents != 0 || (process < 0 && unsafe { libc::kill(self.pid, 0) } != 0);
            if has_ended {
                return false;
            }
        }
    }
}
