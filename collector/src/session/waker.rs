//! Wakes the draining thread from either of its two futex waits.
//!
//! While events flow it sleeps for short times on a word of this process; while the target is idle it sleeps on the
//! `sleeping` word of the shared memory, where the target can wake it, too.
//!
//! Invariant: [`Waker::wake`] ends every wait that began before it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtrack_transport::{Area, futex};

/// Wakes the draining thread.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    rung: AtomicU32,
    area: Mutex<Option<Arc<Area>>>,
}

impl Waker {
    /// Sets the shared memory on whose `sleeping` word the thread may wait from now on.
    pub(crate) fn watch(&self, area: Arc<Area>) {
        *self.area.lock().unwrap_or_else(PoisonError::into_inner) = Some(area);
    }

    /// Wakes the thread, or makes its next sleep end at once.
    pub(crate) fn wake(&self) {
        self.rung.store(1, SeqCst);
        futex::wake(&self.rung);
        if let Some(area) = &*self.area.lock().unwrap_or_else(PoisonError::into_inner) {
            let sleeping = &area.control().sleeping.0;
            if sleeping.swap(0, SeqCst) != 0 {
                futex::wake(sleeping);
            }
        }
    }

    /// Sleeps until woken, for `limit` at the most.
    pub(crate) fn sleep(&self, limit: Duration) {
        if self.rung.load(SeqCst) == 0 {
            futex::wait(&self.rung, 0, limit);
        }
        self.rung.store(0, SeqCst);
    }
}
