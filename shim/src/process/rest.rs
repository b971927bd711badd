//! A recording that rests: everything that was changed in the process stays in its place but for the wrappers of Python's
//! allocators, and nothing is recorded. To begin and end a recording takes a hundred times as long as to rest and go on.
//!
//! To others the process is not recorded meanwhile: it forks and executes as if it were not, and a recording that begins ends the
//! one that rests. Invariant: a recording goes on only if the process is as a recording that began then would make it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use memtrack_transport::Area;
use memtrack_transport::attach::AttachStatus;
use memtrack_transport::clock::{ClockPairing, StampingClock, monotonic_ns};
use memtrack_transport::layout::{state, ticket};

use super::exclusive_call::exclusively;
use super::{fork, recorded_process};
use crate::interposition::{got, python_allocators};
use crate::platform::errno::Errno;
use crate::platform::{recording_switch, shared_area};
use crate::recording::thread::{self, most_bytes, recorded_sums};

/// A recording rests in this process, or in the one from which it was forked.
static RESTS: AtomicBool = AtomicBool::new(false);
/// Its children are recorded.
static FOLLOWED: AtomicBool = AtomicBool::new(false);
/// What [`memtrack_most_bytes`] tells.
static MOST_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
/// How often [`memtrack_note_run`] was called since the recording went on, and when, in ticks of the stamping clock.
static NOTED: AtomicUsize = AtomicUsize::new(0);
static MOMENTS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

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

/// Notes that a run of a test begins or ends; the result is the time, of CLOCK_MONOTONIC in nanoseconds. It allocates nothing.
#[unsafe(no_mangle)]
extern "C" fn memtrack_note_run() -> u64 {
    if let Some(area) = shared_area::area() {
        let moment = MOMENTS.get(NOTED.fetch_add(1, Relaxed));
        moment.into_iter().for_each(|moment| moment.store(clock_of(area).now(), Relaxed));
    }
    monotonic_ns()
}

/// Writes 12 numbers: of what was recorded between the last two calls of [`memtrack_rest`] in this recording, before, in and after the
/// only run that was noted, the number of allocations, their bytes, the most of these at once, and those that are left. Then three of the
/// moment of this rest: its ticket, and its time on the stamping clock and on CLOCK_MONOTONIC. The result is 1; or 0 where these sums are
/// not known here, so that the recorder is to be asked.
///
/// # Safety
/// There is room for 15 numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn memtrack_rest_sums(numbers: *mut u64) -> i32 {
    let _errno = Errno::keep();
    exclusively(|| {
        let Some(all) = rest_sums() else { return 0 };
        // SAFETY: the caller's promise.
        unsafe { numbers.cast::<[u64; 15]>().write_unaligned(all) };
        1
    })
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
    NOTED.store(0, Relaxed);
    if FOLLOWED.load(Relaxed) {
        fork::follow();
    }
    recording_switch::on();
    Ok(())
}

fn rest_sums() -> Option<[u64; 15]> {
    let area = resting_area()?;
    let moments = MOMENTS.each_ref().map(|moment| moment.load(Relaxed));
    if NOTED.load(Relaxed) != moments.len() {
        return None;
    }
    // SAFETY: the recording rests, and exclusive calls are made one at a time.
    let [before, run, after] = unsafe { recorded_sums::between_rests(&moments) }?;
    let [[a, b, c, d], [e, f, g, h], [i, j, k, l]] =
        [before, run, after].map(|sum| [sum.count, sum.bytes, sum.peak_bytes, sum.kept_bytes]);
    let moment = take_ticket(area);
    // Read together: everything in the file of the next test is timed by it.
    let ClockPairing { ticks, monotonic_ns, .. } = ClockPairing::measure(clock_of(area));
    Some([a, b, c, d, e, f, g, h, i, j, k, l, moment, ticks, monotonic_ns])
}

/// Takes a ticket in the collector's name, as that does at a rest that it is told of: it divides what was recorded before it from what
/// comes later.
fn take_ticket(area: &Area) -> u64 {
    let word = &area.control().ticket.0;
    let taken = word.fetch_update(SeqCst, SeqCst, |seen| Some(ticket::next(seen, ticket::COLLECTOR)));
    let (Ok(seen) | Err(seen)) = taken;
    ticket::sequence(ticket::next(seen, ticket::COLLECTOR))
}

fn clock_of(area: &Area) -> StampingClock {
    StampingClock::from_number(area.control().clock.load(Relaxed))
}
