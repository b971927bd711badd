//! Wakes the control thread from its poll.
//!
//! Invariant: a wake-up before the poll ends the next one, and any number of them fill one byte's room at the most.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

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
    /// How often it was asked whether all clients are told everything, and the last question with the answer yes.
    settling: AtomicU32,
    settled: AtomicU32,
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
    let shared = WakerShared {
        socket: ours,
        rung: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        settling: AtomicU32::new(0),
        settled: AtomicU32::new(0),
    };
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

    /// Asks the thread to say when its clients are told everything that waits now; returns the number of the question.
    pub(super) fn ask_to_settle(&self) -> u32 {
        let question = self.0.settling.fetch_add(1, SeqCst) + 1;
        self.wake();
        question
    }

    /// The newest question.
    pub(super) fn settling(&self) -> u32 {
        self.0.settling.load(SeqCst)
    }

    /// The answer to this question and earlier ones is yes.
    pub(super) fn settle(&self, question: u32) {
        self.0.settled.store(question, SeqCst);
    }

    /// Whether the answer has come.
    pub(super) fn has_settled(&self, question: u32) -> bool {
        self.0.settled.load(SeqCst) >= question
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
