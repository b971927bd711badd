//! What a thread does when no segment is free, or too many wait for the collector: it waits for the collector, for a bounded time.
//!
//! Invariant: waits are bounded even if the collector is gone; the thread that stops recording stores the reason. Where a
//! filter forbids to wait, no system call is made: the thread spins, and the collector looks by itself.

use std::hint::spin_loop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::futex;
use memtrack_transport::layout::{state, stop_reason};

use super::Ring;
use crate::platform::collector_socket;
use crate::platform::errno::Errno;
use crate::platform::own_ids;
use crate::platform::recording_switch;
use crate::platform::seccomp::{self, OwnCall};

/// How long a thread waits for the collector before it asks whether there still is one.
const WAIT: Duration = Duration::from_millis(50);
/// How often it asks, before recording is switched off for good: a minute.
const WAITS: u32 = 1200;
/// How often it waits in memory that it has made and the collector has not taken: ten seconds.
const WAITS_UNMET: u32 = 200;
/// How often where it spins, and may not be able to ask: ten seconds.
const SPINS: u32 = 200;
/// Looks at a word between two looks at the clock.
const LOOKS: u32 = 1024;

impl Ring {
    /// Takes a segment as soon as the collector has freed one. `None`: recording has ended.
    #[cold]
    pub(super) fn wait_for_segment(&self) -> Option<u32> {
        let _errno = Errno::keep();
        let control = self.home.area.control();
        let begun = monotonic_ns();
        let mut got = None;
        for round in 0..WAITS {
            // Another thread may install a filter that is this one's, too.
            let may_wait = seccomp::may(OwnCall::Futex);
            if !may_wait && round >= SPINS {
                break;
            }
            self.wake_collector();
            self.home.slot.waiting.store(1, SeqCst);
            // Once more, for the collector looks for `waiting` after it has given a segment back.
            let taken = self.home.slot.taken.load(SeqCst);
            got = self.take_segment();
            if got.is_none() {
                if may_wait {
                    futex::wait(&self.home.slot.taken, taken, WAIT);
                } else {
                    spin(&self.home.slot.taken, taken);
                }
                got = self.take_segment();
            }
            if got.is_some() {
                break;
            }
            if control.state.load(Relaxed) == state::CLOSED || !recording_switch::is_on() {
                recording_switch::off();
                break;
            }
            if round >= WAITS_UNMET && control.adopted.load(Relaxed) == 0 {
                break;
            }
            if collector_gone(control.collector_pid.load(Relaxed), control.pid.load(Relaxed)) {
                self.stop(stop_reason::COLLECTOR_GONE);
                break;
            }
        }
        self.home.slot.waiting.store(0, Relaxed);
        control.waits.fetch_add(1, Relaxed);
        control.wait_ns.fetch_add(monotonic_ns().wrapping_sub(begun), Relaxed);
        if got.is_none() {
            if recording_switch::is_on() {
                self.stop(stop_reason::COLLECTOR_STUCK);
            }
            recording_switch::note_ended_stream();
        }
        got
    }

    fn stop(&self, reason: u32) {
        recording_switch::off();
        self.home.area.control().stop_reason.store(reason, Relaxed);
        self.home.area.control().state.store(state::STOPPED, Release);
    }
}

/// Waits as a futex does, without a system call: while `word` holds `expected`, at most as long as [`WAIT`].
fn spin(word: &AtomicU32, expected: u32) {
    let begun = monotonic_ns();
    while monotonic_ns().wrapping_sub(begun) < WAIT.as_nanos() as u64 {
        for _ in 0..LOOKS {
            if word.load(Acquire) != expected {
                return;
            }
            spin_loop();
        }
    }
}

/// Whether the process that drains has ended, or drains no more: one that ran out of memory remains only to wait for its
/// child. A zombie has ended: so a child looks at its own parent, which is another then; others ask for whoever listens.
pub(crate) fn collector_gone(collector: i32, target: i32) -> bool {
    if !seccomp::may(OwnCall::ProcessId) || !seccomp::may(OwnCall::CollectorLife) {
        return false; // it cannot be asked
    }
    if own_ids::process_id() != target {
        return false; // a vfork child, for a moment: not the one to decide
    }
    // SAFETY: no arguments, cannot fail.
    let parent = unsafe { libc::getppid() };
    if collector_socket::is_known() {
        return !collector_socket::is_listening();
    }
    parent != collector && has_ended(collector)
}

/// Whether a process, if it can be seen from here, is not there any more.
fn has_ended(process: i32) -> bool {
    // SAFETY: signal 0 sends nothing.
    process > 0 && unsafe { libc::kill(process, 0) } != 0 && Errno::keep().value() == libc::ESRCH
}
