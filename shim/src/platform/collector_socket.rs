//! The collector's socket: where it is, whether the collector still listens there, and connections to it.
//!
//! Invariant: the path is set when recording begins; only system calls are made, so a forked child may use all of this.

#![expect(clippy::disallowed_types, reason = "the path is set at start-up")]

use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::time::Duration;

use memtrack_transport::clock::monotonic_ns;

use super::seccomp;

/// How long the collector may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long somebody who was found listening is taken for one who listens, in nanoseconds.
const FOUND_FOR_NS: u64 = 500_000_000;

/// When somebody was found, of CLOCK_MONOTONIC.
static FOUND_NS: AtomicU64 = AtomicU64::new(0);

/// The path; null before [`set_path`].
static PATH: AtomicPtr<&'static [u8]> = AtomicPtr::new(ptr::null_mut());

/// Sets the path of the socket. It is kept for good, since other threads may be reading it.
pub(crate) fn set_path(new: &[u8]) {
    if path() != Some(new) {
        let new: &'static [u8] = Box::leak(new.to_vec().into_boxed_slice());
        PATH.store(Box::into_raw(Box::new(new)), Release);
        FOUND_NS.store(0, Relaxed);
    }
}

fn path() -> Option<&'static [u8]> {
    // SAFETY: null, or set once to memory that is never freed.
    unsafe { PATH.load(Acquire).as_ref() }.copied()
}

/// Whether a path is known.
pub(crate) fn is_known() -> bool {
    path().is_some_and(|path| !path.is_empty())
}

/// A new connection to the collector. Waits until there is room in its line, for a bounded time.
pub(crate) fn connect() -> Option<UnixStream> {
    // SAFETY: takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: a new descriptor that nobody else owns.
    let stream = (socket >= 0).then(|| unsafe { UnixStream::from_raw_fd(socket) })?;
    stream.set_write_timeout(Some(ANSWER)).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    connect_to(socket, path()?).then_some(stream)
}

/// Whether a process listens at the collector's socket, or did within half a second. Does not wait. Where it cannot be told, as in another root
/// directory or where system calls are forbidden, somebody does: recording then ends only when nobody has taken records
/// for long.
pub(crate) fn is_listening() -> bool {
    // All threads together ask so often only: a question takes a place in the line where forked children wait.
    let now = monotonic_ns();
    if now.saturating_sub(FOUND_NS.load(Relaxed)) < FOUND_FOR_NS {
        return true;
    }
    let found = !matches!(try_connect(), Some(libc::ECONNREFUSED));
    if found {
        FOUND_NS.store(now, Relaxed);
    }
    found
}

/// Whether a process certainly listens there, or certainly none. `None`: the socket cannot be seen from here, as one in another user's
/// directory or of another container. Does not wait.
pub(crate) fn answers() -> Option<bool> {
    match try_connect()? {
        0 | libc::EAGAIN => Some(true),
        libc::ECONNREFUSED => Some(false),
        _ => None,
    }
}

/// The error number of a connection, 0 for none; `None` where system calls are forbidden.
fn try_connect() -> Option<libc::c_int> {
    if seccomp::has_seccomp_filter() {
        return None;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    let connected = connect_to(socket, path().unwrap_or_default());
    let error = if connected { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) };
    // SAFETY: closes what was opened above, or nothing.
    unsafe { libc::close(socket) };
    Some(error)
}

fn connect_to(socket: libc::c_int, path: &[u8]) -> bool {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    address.sun_path.iter_mut().zip(path).for_each(|(to, from)| *to = *from as libc::c_char);
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: a live address of the length that is given.
    unsafe { libc::connect(socket, (&raw const address).cast(), length) == 0 }
}
