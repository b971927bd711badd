//! Refuses processes for which no descriptors are left.
//!
//! Invariant: a process that brings its memory finds there that it is not recorded; any other, by the end of the connection.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use memtrack_transport::Area;
use memtrack_transport::handshake::Hello;

/// Time limit for the Hello of a process that has connected.
pub(super) const HELLO_LIMIT: Duration = Duration::from_millis(500);

/// Whether no descriptor is left.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Refuses the process that has connected.
pub(crate) fn refuse(socket: &UnixStream) {
    let is_waiting = socket.set_read_timeout(Some(HELLO_LIMIT)).is_ok();
    if let (true, Ok((Hello { fork: Some(fork), .. }, Some(memory)))) = (is_waiting, Hello::receive(socket)) {
        Area::refuse(memory.as_fd(), fork.slots);
    }
}
