//! The threads that decode and look up side by side.
//!
//! The pool's own way to start panics where the system refuses a thread, as under a limit of processes. So they are created here,
//! before the pool is.
//!
//! Invariant: there are as many threads as the system gives; without any, the caller's is the only one.

use std::num::NonZero;
use std::sync::Once;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use rayon::{ThreadBuilder, ThreadPoolBuilder};

/// Starts the threads, once in a process. Precedes each use of them.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let wanted = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut threads: Vec<_> = (0..wanted).map_while(|_| create_thread()).collect();
        let pool = match threads.len() {
            0 => ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global(),
            count => {
                let hand_over = |work: ThreadBuilder| match threads.pop() {
                    Some(thread) => thread.send(work).map_err(|_| std::io::ErrorKind::BrokenPipe.into()),
                    None => Err(std::io::ErrorKind::WouldBlock.into()),
                };
                ThreadPoolBuilder::new().num_threads(count).spawn_handler(hand_over).build_global()
            }
        };
        // It fails if the pool was started before, and then there is one.
        drop(pool);
    });
}

/// A thread that waits for its work; `None`: the system refuses it.
fn create_thread() -> Option<Sender<ThreadBuilder>> {
    let (send, work) = channel::<ThreadBuilder>();
    Builder::new().name("memtrack-decode".into()).spawn(move || work.recv().map(ThreadBuilder::run)).ok()?;
    Some(send)
}
