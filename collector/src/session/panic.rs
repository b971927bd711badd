//! What a bug of the collector does to the recorded process: nothing.
//!
//! Invariant: when a session is dropped before its end, as by a panic, no thread of the process waits for it any more.

use std::sync::atomic::Ordering::SeqCst;

use memtrack_transport::layout::state;

use super::Session;

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ended {
            self.area.control().state.store(state::CLOSED, SeqCst);
        }
    }
}
