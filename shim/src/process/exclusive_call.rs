//! The calls by which recording begins, rests and ends: made from outside of hooks, one at a time.
//!
//! Invariant: what such a call allocates and looks up is not recorded.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Release};

use memtrack_transport::attach::AttachStatus;

use crate::recording::thread;

/// One call at a time, from outside of hooks. What a forked child has inherited is the call of a thread that is not there.
pub(super) fn exclusively(call: impl FnOnce() -> i32) -> i32 {
    /// The process in which a call is under way.
    static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    if thread::is_inside() || UNDER_WAY.swap(process, AcqRel) == process {
        return AttachStatus::Busy as i32;
    }
    // What is allocated and looked up here is not the program's.
    let word = thread::suspend();
    let status = call();
    thread::resume(word);
    UNDER_WAY.store(0, Release);
    status
}
