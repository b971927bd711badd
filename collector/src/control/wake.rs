//! Wakes the control thread from its poll.
//!
//! Invariant: a wake-up before the poll ends the next one, and any number of them fill one byte's room at the most.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Wakes the control thread; clones wake the same.
#[derive(Clone, Debug)]
pub(super) struct ControlWaker(Arc<WakerShared>);

#[derive(Debug)]
struct WakerShared {
    socket: UnixStream,
    /// A byte is on its way.
    rung: AtomicBool,
    /// The thread is to end.
    stopped: AtomicBool,
}

/// The control thread's end.
#[derive(Debug)]
pub(super) struct WakeReceiver {
    socket: UnixStream,
    waker: ControlWaker,
}

/// Both ends.
pub(super) fn pair() -> io::Result<(ControlWaker, WakeReceiver)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    let shared = WakerShared { socket: ours, rung: AtomicBool::new(false), stopped: AtomicBool::new(false) };
    let waker = ControlWaker(Arc::new(shared));
    Ok((waker.clone(), WakeReceiver { socket: theirs, waker }))
}

impl ControlWaker {
    /// Ends the poll.
    pub(super) fn wake(&self) {
        if !self.0.rung.swap(true, SeqCst) {
            // If it is full, a byte is there already.
            let _ = (&self.0.socket).write(&[0]);
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.0.stopped.store(true, SeqCst);
        self.wake();
    }
}

impl WakeReceiver {
    /// The descriptor that is readable after a wake-up.
    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Takes the wake-up; `false`: the thread is to end.
    pub(super) fn take(&mut self) -> bool {
        let _ = self.socket.read(&mut [0; 16]);
        // After the read, so that no byte of a later wake-up is taken; what was to be seen by an earlier one is seen now.
        self.waker.0.rung.store(false, SeqCst);
        !self.waker.0.stopped.load(SeqCst)
    }
}
