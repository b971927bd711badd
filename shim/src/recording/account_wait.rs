//! Waits until the collector has read which pages of this process are resident, and its objects where they are
//! pictured: where its memory is about to go.
//!
//! Invariant: the wait is bounded, and ends where the collector is gone.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::Duration;

use memtrack_transport::futex;
use memtrack_transport::layout::{account_request, state};

use crate::events::ring::collector_gone;
use crate::platform::errno::Errno;
use crate::platform::{recording_switch, seccomp, shared_area};

/// How long the process waits before it asks whether the collector still is there, and how often: five seconds.
const WAIT: Duration = Duration::from_millis(50);
const WAITS: u32 = 100;
/// How often where its objects are read as well: ten minutes.
const LONG_WAITS: u32 = 12_000;

/// Asks for an account of resident memory, as one of [`account_request`], and waits until it was read. Only the recorded
/// process may call it, not the child of a vfork.
#[cold]
pub(crate) fn wait_for_account(request: u32) {
    // What a filter of system calls allows is not known.
    if !recording_switch::is_on() || seccomp::has_seccomp_filter() {
        return;
    }
    let Some(area) = shared_area::area() else { return };
    let _errno = Errno::keep();
    let control = area.control();
    if control.state.load(Acquire) != state::RECORDING {
        return;
    }
    let word = &control.account_request;
    // What another thread has asked for is of the same moment: both wait for its answer.
    let asked = match word.compare_exchange(account_request::NONE, request, AcqRel, Acquire) {
        Ok(_) => request,
        Err(other) => other,
    };
    if control.sleeping.0.swap(0, SeqCst) != 0 {
        futex::wake(&control.sleeping.0);
    }
    let waits = if control.pictured_at_end.load(Relaxed) == 0 { WAITS } else { LONG_WAITS };
    for _ in 0..waits {
        if asked != account_request::DONE {
            futex::wait(word, asked, WAIT);
        }
        let is_recording = control.state.load(Acquire) == state::RECORDING;
        if word.load(Acquire) != asked
            || asked == account_request::DONE
            || !is_recording
            || collector_gone(control.collector_pid.load(Relaxed), control.pid.load(Relaxed))
        {
            break;
        }
    }
    // For the next one.
    let _ = word.compare_exchange(account_request::DONE, account_request::NONE, AcqRel, Relaxed);
}
