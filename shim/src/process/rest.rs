//! A recording that rests: everything that was changed in the process stays in its place but for the wrappers of Python's
//! allocators, and nothing is recorded. To begin and end a recording takes a hundred times as long as to rest and go on.
//!
//! To others the process is not recorded meanwhile: it forks and executes as if it were not, and a recording that begins ends the
//! one that rests. Invariant: a recording goes on only if the process is as a recording that began then would make it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use memtrack_transport::Area;
use memtrack_transport::attach::AttachStatus;
use memtrack_transport::layout::state;

use super::exclusive_call::exclusively;
use super::{fork, recorded_process};
use crate::interposition::{got, python_allocators};
use crate::platform::errno::Errno;
use crate::platform::{recording_switch, shared_area};
use crate::recording::thread::{self, most_bytes};

/// A recording rests in this process, or in the one from which it was forked.
static RESTS: AtomicBool = AtomicBool::new(false);
/// Its children are recorded.
static FOLLOWED: AtomicBool = AtomicBool::new(false);
/// What [`memtrack_most_bytes`] tells.
static MOST_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);

/// No recording rests any more: it has ended.
pub(super) fn forget() {
    RESTS.store(false, Relaxed);
}

/// Lets the recording of this process rest: when this returns, no thread records. The result is the number of children that it has
/// announced so far, or an [`AttachStatus`] below 0: then it does not rest, and is to be ended.
#[unsafe(no_mangle)]
extern "C" fn memtrack_rest() -> i32 {
    let _errno = Errno::keep();
    exclusively(|| rest().unwrap_or_else(|status| status as i32))
}

/// Lets the recording that rests go on. The result is an [`AttachStatus`]; where it cannot go on, it rests, and is to be ended.
#[unsafe(no_mangle)]
extern "C" fn memtrack_go_on() -> i32 {
    let _errno = Errno::keep();
    exclusively(|| go_on().err().unwrap_or(AttachStatus::Done) as i32)
}

/// No less than the bytes of everything that was recorded between the last two calls of [`memtrack_rest`] in this recording, so that
/// what was held of it at once is no more; the largest number where that is not known.
#[unsafe(no_mangle)]
extern "C" fn memtrack_most_bytes() -> u64 {
    MOST_BYTES.load(Relaxed)
}

/// The memory of the recording that rests in this process.
pub(super) fn resting_area() -> Option<&'static Area> {
    let rests = RESTS.load(Acquire) && recorded_process::is_this() && !recording_switch::is_on();
    shared_area::area().filter(|_| rests)
}

fn rest() -> Result<i32, AttachStatus> {
    let area = shared_area::area().filter(|_| recorded_process::is_this() && recording_switch::is_on());
    let area = area.ok_or(AttachStatus::NotRecorded)?;
    recording_switch::off();
    FOLLOWED.store(fork::is_followed(), Relaxed);
    fork::unfollow();
    // One that waited for room in its ring has left the hook, and can record no more when the recording goes on.
    if !thread::wait_until_outside(area) || recording_switch::has_ended_streams() {
        return Err(AttachStatus::ThreadInHook);
    }
    MOST_BYTES.store(most_bytes::since_last().unwrap_or(u64::MAX), Relaxed);
    python_allocators::rest();
    RESTS.store(true, Release);
    Ok(i32::try_from(area.control().children.load(Acquire)).unwrap_or(i32::MAX))
}

fn go_on() -> Result<(), AttachStatus> {
    let area = resting_area().ok_or(AttachStatus::NotRecorded)?;
    if area.control().state.load(Relaxed) != state::RECORDING {
        return Err(AttachStatus::Closed);
    }
    // What went, came past the hooks or was replaced meanwhile, only a recording that begins finds.
    if got::is_there_news() || !python_allocators::go_on() {
        return Err(AttachStatus::NotRecorded);
    }
    forget();
    if FOLLOWED.load(Relaxed) {
        fork::follow();
    }
    recording_switch::on();
    Ok(())
}
