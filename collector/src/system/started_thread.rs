//! Threads that have begun when a recording begins.
//!
//! Several are created, and then waited for: side by side they take little longer than one. Invariant: a thread that was
//! waited for has its alternative signal stack and its arena of malloc, so that a limit of address space which is set later,
//! or reached by then, does not end memtrack.

use std::io;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

/// A thread that may not have begun yet.
#[derive(Debug)]
#[must_use = "the recording begins when the thread has begun"]
pub(crate) struct BeginningThread(Receiver<Box<u64>>);

impl BeginningThread {
    /// One that has.
    pub(crate) fn begun() -> Self {
        Self(bounded(1).1)
    }

    /// Waits until it has begun.
    pub(crate) fn wait(self) {
        // It fails only if the thread has ended, which its owner finds out.
        let _ = self.0.recv();
    }
}

/// A thread that has begun, and waits for what it is to do; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingThread {
    thread: JoinHandle<()>,
    work: Sender<ThreadWork>,
}

type ThreadWork = Box<dyn FnOnce() + Send>;

impl WaitingThread {
    /// Creates it, and waits until it has begun.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(crate) fn create(name: &str) -> io::Result<Self> {
        let (work, given) = bounded::<ThreadWork>(1);
        let (thread, begins) = create(name, move || given.into_iter().for_each(|work| work()))?;
        begins.wait();
        Ok(Self { thread, work })
    }

    /// Lets it do this, and then end.
    pub(crate) fn execute(self, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // It takes what it is given: it has begun, and nothing ends it before.
        let _ = self.work.send(Box::new(work));
        self.thread
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
