//! Threads that do one piece of work after the other: many forked children live for less time than a thread takes to start
//! where processors are busy.
//!
//! Invariant: a thread that waits for work has begun (see [`started_thread`]), and no more than [`MOST_WAITING`] of a pool wait.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::system::procfs;
use crate::system::started_thread::{self, BeginningThread};

/// Threads that are kept.
const MOST_WAITING: usize = 4;

type Work = Box<dyn FnOnce() + Send>;

/// Threads of one name.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    name: &'static str,
    waiting: Mutex<Vec<Sender<Work>>>,
}

/// Work that a thread of a pool does.
#[derive(Debug)]
pub(crate) struct RunningWork<T> {
    result: Receiver<T>,
    /// The clock of the thread's processor time, and what it was before the work.
    clock: Arc<OnceLock<(libc::clockid_t, u64)>>,
}

impl WorkerPool {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, waiting: Mutex::new(Vec::new()) }
    }

    /// Lets a thread do this. It is told, besides, when that has begun.
    ///
    /// # Errors
    /// No thread waits, and none can be created.
    pub(crate) fn execute<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<(RunningWork<T>, BeginningThread)> {
        let (tell, result) = bounded(1);
        let clock = Arc::<OnceLock<_>>::default();
        let own_clock = Arc::clone(&clock);
        let work: Work = Box::new(move || {
            // It is the first to set it.
            let _ = own_clock.set((procfs::thread_clock(), procfs::thread_processor_ns()));
            // Nobody may want the result.
            let _ = tell.send(work());
        });
        let begins = self.begin(work)?;
        Ok((RunningWork { result, clock }, begins))
    }

    fn begin(&'static self, mut work: Work) -> io::Result<BeginningThread> {
        while let Some(worker) = self.lock().pop() {
            match worker.send(work) {
                Ok(()) => return Ok(BeginningThread::begun()),
                Err(unsent) => work = unsent.into_inner(),
            }
        }
        Ok(started_thread::create(self.name, move || self.work_on(work))?.1)
    }

    fn work_on(&self, first: Work) {
        first();
        while let Some(work) = self.wait_for_work() {
            work();
        }
    }

    /// `None`: enough threads wait.
    fn wait_for_work(&self) -> Option<Work> {
        let (give, given) = bounded(1);
        {
            let mut waiting = self.lock();
            if waiting.len() >= MOST_WAITING {
                return None;
            }
            waiting.push(give);
        }
        given.recv().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Sender<Work>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RunningWork<T> {
    /// Waits for the result. `None`: the work has panicked.
    pub(crate) fn join(self) -> Option<T> {
        self.result.recv().ok()
    }

    /// Processor time of the work, in nanoseconds, which is not done yet.
    pub(crate) fn processor_ns(&self) -> Option<u64> {
        let Some((clock, before)) = self.clock.get() else { return Some(0) };
        Some(procfs::clock_ns(*clock)?.saturating_sub(*before))
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_WAITING, WorkerPool};

    #[test]
    fn a_thread_does_one_piece_of_work_after_the_other() {
        static POOL: WorkerPool = WorkerPool::new("memtrack-test");
        let this = || std::thread::current().id();
        let (first, begins) = POOL.execute(this).unwrap();
        begins.wait();
        let first = first.join().unwrap();
        while POOL.lock().is_empty() {
            std::thread::yield_now();
        }
        let (second, begins) = POOL.execute(this).unwrap();
        begins.wait();
        assert_eq!(second.join(), Some(first));
    }

    #[test]
    fn a_thread_that_panics_is_none_of_the_pool_any_more() {
        static POOL: WorkerPool = WorkerPool::new("memtrack-test");
        let (failed, _) = POOL.execute(|| panic!("this is expected")).unwrap();
        assert_eq!(failed.join(), None::<()>);
        assert_eq!(POOL.execute(|| 7).unwrap().0.join(), Some(7));
    }

    #[test]
    fn few_threads_wait() {
        static POOL: WorkerPool = WorkerPool::new("memtrack-test");
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let all: Vec<_> = (0..3 * MOST_WAITING)
            .map(|_| {
                let wait = wait.clone();
                POOL.execute(move || wait.recv().is_err()).unwrap().0
            })
            .collect();
        drop(go);
        assert!(all.into_iter().all(|work| work.join() == Some(true)));
        assert!(POOL.lock().len() <= MOST_WAITING);
    }
}
