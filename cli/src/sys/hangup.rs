//! Waits for terminal input, and detects that the terminal was closed.
//!
//! It exists because crossterm busy-loops on a closed terminal. Invariant: input is read only when it is available.

use std::time::Duration;

/// State of the terminal input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalInput {
    /// There may be input.
    Some,
    /// No input within the time, or a signal arrived.
    None,
    /// The terminal was closed.
    Gone,
}

/// Waits for standard input, at most this long.
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
