//! Waits for input of the terminal, and sees that there is no terminal any more.
//!
//! It exists because the library that reads keys goes on reading a terminal that was closed, for ever and at full
//! speed. Invariant: input is read only when it is available.

use std::time::Duration;

/// What there is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalInput {
    /// Something, perhaps.
    Some,
    /// Nothing within the time, or a signal came.
    None,
    /// Never anything again: the terminal is gone.
    Gone,
}

/// Waits for input on the standard input, at most this long.
pub(crate) fn wait(longest: Duration) -> TerminalInput {
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one descriptor's record, which is ours.
    let ready = unsafe { libc::poll(&raw mut input, 1, milliseconds) };
    match ready {
        1 if input.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 => TerminalInput::Gone,
        1 => TerminalInput::Some,
        _ => TerminalInput::None,
    }
}
