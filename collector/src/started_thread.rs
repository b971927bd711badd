//! Threads that have begun when a recording begins.
//!
//! Several are created, and then waited for: side by side they take little longer than one. Invariant: a thread that was
//! waited for has its alternative signal stack and its arena of malloc, so that a limit of address space which is set later,
//! or reached by then, does not end memtrack.

use std::io;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, bounded};

/// A thread that may not have begun yet.
#[derive(Debug)]
#[must_use = "the recording begins when the thread has begun"]
pub(crate) struct BeginningThread(Receiver<Box<u64>>);

impl BeginningThread {
    /// Waits until it has begun.
    pub(crate) fn wait(self) {
        // It fails only if the thread has ended, which its owner finds out.
        let _ = self.0.recv();
    }
}

/// Creates a thread of this name.
///
/// # Errors
/// The thread cannot be created.
pub(crate) fn create<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<(JoinHandle<T>, BeginningThread)> {
    let (ready, begun) = bounded(1);
    let thread = Builder::new().name(name.into()).spawn(move || {
        // The block is allocated in this thread's arena, which it creates.
        let _ = ready.send(Box::new(0_u64));
        work()
    })?;
    Ok((thread, BeginningThread(begun)))
}
