//! The answer to a request of the process that a recorder serves, which waits for it.
//!
//! Invariant: an answer is one line, in one piece.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use serde_json::Value;

/// The answer to a request.
pub(super) struct Answer<'a> {
    pub(super) socket: &'a Arc<UnixStream>,
    /// It was sent, or is sent by another thread.
    pub(super) is_sent: bool,
}

impl<'a> Answer<'a> {
    /// Through this socket.
    pub(super) fn to(socket: &'a Arc<UnixStream>) -> Self {
        Self { socket, is_sent: false }
    }

    /// Sends it in one piece, so that the process needs one system call for it. A process that has ended reads none, and sends no
    /// further request.
    pub(super) fn send(&mut self, answer: &Value) {
        let _ = (&**self.socket).write_all(format!("{answer}\n").as_bytes());
        self.is_sent = true;
    }
}
