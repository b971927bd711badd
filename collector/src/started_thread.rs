//! Threads that are started when the function that starts them returns.
//!
//! Invariant: the thread has its alternative signal stack and its arena of malloc by then, so that a limit of address space
//! which is set later, or reached by then, does not end memtrack.

use std::io;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::bounded;

/// Starts a thread of this name.
///
/// # Errors
/// The thread cannot be created.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let (ready, started) = bounded(1);
    let thread = Builder::new().name(name.into()).spawn(move || {
        // The block is allocated in this thread's arena, which it creates.
        let _ = ready.send(Box::new(0_u64));
        work()
    })?;
    // It fails only if the thread has ended, which its owner finds out.
    let _ = started.recv();
    Ok(thread)
}
