//! Executes pieces of work in several threads.
//!
//! Invariant: every piece is executed, also where the system refuses another thread.

use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// A piece of work.
pub(crate) type SideWork<'w> = Box<dyn FnOnce() + Send + 'w>;

/// Executes all of these, in at most so many threads, of which the caller's is one.
pub(crate) fn execute<W: FnOnce() + Send>(work: Vec<W>, threads: usize) {
    let others = threads.min(work.len()).saturating_sub(1);
    let rest = Mutex::new(work.into_iter());
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
    let execute_rest = || {
        while let Some(work) = next() {
            work();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..others {
            if Builder::new().spawn_scoped(scope, execute_rest).is_err() {
                break;
            }
        }
        execute_rest();
    });
}

#[cfg(test)]
mod tests {
    use super::execute;

    #[test]
    fn each_is_executed_once_whatever_the_number_of_threads() {
        for threads in [0, 1, 2, 9] {
            let mut counts = [0; 5];
            execute(counts.iter_mut().map(|count| move || *count += 1).collect(), threads);
            assert_eq!(counts, [1; 5], "{threads} threads");
        }
    }
}
