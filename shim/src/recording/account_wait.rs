//! Waits until the collector has read which pages of this process are resident, and its objects where they are
//! pictured: where its memory is about to go.
//!
//! A forked child that ends at once does not wait: little of the memory is its own, and where processors are busy, the wait
//! would take many times its life.
//!
//! Invariant: the wait is bounded, and ends where the collector is gone.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::futex;
use memtrack_transport::layout::{ControlPage, account_request, state};

use crate::events::ring::collector_gone;
use crate::platform::errno::Errno;
use crate::platform::{own_resources, recording_switch, seccomp, shared_area};

/// How long the process waits before it asks whether the collector still is there, and how often: five seconds.
const WAIT: Duration = Duration::from_millis(50);
const WAITS: u32 = 100;
/// How often where its objects are read as well: ten minutes.
const LONG_WAITS: u32 = 12_000;
/// How often in memory that it has made and the collector has not taken: one second.
const WAITS_UNMET: u32 = 20;

/// A forked child that is younger, and has touched fewer pages, does not wait.
const EARLY_NS: u64 = 30_000_000;
const FEW_PAGES: u64 = 1024;

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
    if request == account_request::AT_END {
        control.end_ns.store(monotonic_ns(), Release);
    }
    if ends_early(control, request) {
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
    for round in 1..=waits {
        if asked != account_request::DONE {
            futex::wait(word, asked, WAIT);
        }
        let is_recording = control.state.load(Acquire) == state::RECORDING;
        if word.load(Acquire) != asked
            || asked == account_request::DONE
            || !is_recording
            || (round >= WAITS_UNMET && control.adopted.load(Relaxed) == 0)
            || collector_gone(control.collector_pid.load(Relaxed), control.pid.load(Relaxed))
        {
            break;
        }
    }
    // For the next one.
    let _ = word.compare_exchange(account_request::DONE, account_request::NONE, AcqRel, Relaxed);
}

/// Whether this is a forked child that ends at once. Tells the collector, which may first look at it when it has ended.
fn ends_early(control: &ControlPage, request: u32) -> bool {
    let is_young = own_resources::forked_ns().is_some_and(|ns| monotonic_ns().wrapping_sub(ns) < EARLY_NS);
    // Otherwise its objects are to be read.
    if !is_young || control.pictured_at_end.load(Relaxed) != 0 {
        return false;
    }
    let Some(used) = own_resources::used().filter(|used| used.faults < FEW_PAGES) else { return false };
    if request == account_request::AT_END {
        control.end_cpu_ns.store(used.cpu_ns, Relaxed);
        control.end_peak.store(used.resident_peak, Relaxed);
        control.ends_early.store(1, Release);
    }
    true
}
