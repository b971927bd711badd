//! Recording of a process that is already running: the library's exports, which memtrack calls from outside.
//!
//! They are called on one of the program's threads, which holds neither the loader's nor malloc's locks. Other threads
//! run on, may hold them, and meet the hooks as soon as there are some. Invariant: a call that does not begin recording
//! leaves the process as it was.

#![expect(clippy::disallowed_types, reason = "memtrack calls these outside of hooks")]

use std::ffi::c_int;
use std::hint::spin_loop;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use memtrack_transport::Area;
use memtrack_transport::attach::AttachStatus;
use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::futex;
use memtrack_transport::layout::ControlPage;

use super::exclusive_call::exclusively;
use super::recording_span::{self, Given, Start};
use super::{recorded_process, rest};
use crate::platform::errno::Errno;
use crate::platform::seccomp::OwnCall;
use crate::platform::{collector_socket, dladdr, process_start, recording_switch, seccomp, shared_area};
use crate::recording::thread;

/// How long a collector whose process cannot be seen may take to begin a round: ten times as long as it sleeps.
const LONGEST_ROUND_NS: u64 = 1_000_000_000;
/// The time between two looks at its rounds.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Begins recording into the memory behind a descriptor, which the caller closes, with so many slots. All settings are
/// in its control page. The result is an [`AttachStatus`].
#[unsafe(no_mangle)]
extern "C" fn memtrack_attach(memory: c_int, slots: u32) -> i32 {
    let _errno = Errno::keep();
    exclusively(|| attach(memory, slots).err().unwrap_or(AttachStatus::Done) as i32)
}

/// Before recording begins in a process that has filters of system calls already: those of [`OwnCall`] that they do not allow,
/// as bits. More than those are not made from now on.
///
/// [`OwnCall`]: crate::platform::seccomp::OwnCall
#[unsafe(no_mangle)]
extern "C" fn memtrack_restrict(calls: u32) -> i32 {
    seccomp::restrict(calls);
    0
}

/// Ends recording. The library stays loaded, and passes on what the program calls by pointers that it has kept. The
/// result is an [`AttachStatus`].
#[unsafe(no_mangle)]
extern "C" fn memtrack_detach() -> i32 {
    let _errno = Errno::keep();
    exclusively(|| detach() as i32)
}

/// The same where no collector answers any more; else recording goes on.
#[unsafe(no_mangle)]
extern "C" fn memtrack_detach_abandoned() -> i32 {
    let _errno = Errno::keep();
    exclusively(|| if is_recorded() { AttachStatus::AlreadyRecorded } else { detach() } as i32)
}

/// Ends the recording that rests, and none that has begun since. The result is an [`AttachStatus`].
#[unsafe(no_mangle)]
extern "C" fn memtrack_end_resting() -> i32 {
    let _errno = Errno::keep();
    exclusively(|| rest::resting_area().map_or(AttachStatus::NotRecorded, recording_span::end) as i32)
}

/// Whether a collector takes what this process records. Where its socket cannot be seen from here, its process is looked at, which may be
/// stopped or held up by its disk; where that cannot be seen either, as from another container, it is gone if it drains no more.
fn is_recorded() -> bool {
    let Some(area) = shared_area::area().filter(|_| recorded_process::is_this() && recording_switch::is_on()) else {
        return false;
    };
    collector_socket::answers().unwrap_or_else(|| {
        let control = area.control();
        let (pid, started) = (control.collector_pid.load(Relaxed), control.collector_started.load(Relaxed));
        process_start::is_there(pid, started) || drains(control)
    })
}

/// Whether the collector begins a round within the time that one takes.
fn drains(control: &ControlPage) -> bool {
    let begun = monotonic_ns();
    let before = control.rounds.0.load(Relaxed);
    let may_wait = seccomp::may(OwnCall::Futex);
    loop {
        if control.rounds.0.load(Relaxed) != before {
            return true;
        }
        if monotonic_ns().saturating_sub(begun) > LONGEST_ROUND_NS {
            return false;
        }
        if may_wait {
            // See `finalize_barrier` for why it is no `nanosleep`.
            futex::wait(&AtomicU32::new(0), 0, BETWEEN_LOOKS);
        } else {
            spin_loop();
        }
    }
}

fn detach() -> AttachStatus {
    match shared_area::area().filter(|_| recorded_process::is_this()) {
        Some(area) => recording_span::end(area),
        None => {
            // A child that was forked while its parent was recorded, and is not recorded itself.
            if recorded_process::is_forked() {
                recording_span::uninstall_inherited();
            }
            AttachStatus::NotRecorded
        }
    }
}

fn attach(memory: c_int, slots: u32) -> Result<(), AttachStatus> {
    let begun = monotonic_ns();
    recording_span::prepare_memory();
    end_what_has_stopped()?;
    if recorded_process::is_forked() {
        recording_span::uninstall_inherited();
    }
    if memory < 0 {
        return Err(AttachStatus::NotMapped);
    }
    // SAFETY: the caller's descriptor, which stays open during the call.
    let memory = unsafe { BorrowedFd::borrow_raw(memory) };
    let area = map(memory, slots)?;
    let (socket, library, python_malloc) = (area.control().socket(), area.control().library(), python_malloc());
    let [socket, library] =
        [&socket[..], &library].map(|path| path.split(|byte| *byte == 0).next().unwrap_or_default());
    collector_socket::set_path(socket);
    // The collector's is there now; what this was loaded from may be gone.
    let library = if library.is_empty() { own_path() } else { Some(library) };
    let given = Given { socket, library, python_malloc: python_malloc.as_deref() };
    let begin = recording_span::begin(area, &given, Start::Late, begun);
    if begin.is_err() {
        recording_span::end(area);
    }
    begin
}

/// A recording that has ended by itself, as without its collector, has left its hooks in place.
fn end_what_has_stopped() -> Result<(), AttachStatus> {
    let Some(area) = shared_area::area().filter(|_| recorded_process::is_this()) else { return Ok(()) };
    if recording_switch::is_on() {
        return Err(AttachStatus::AlreadyRecorded);
    }
    match recording_span::end(area) {
        AttachStatus::Done => Ok(()),
        other => Err(other),
    }
}

/// Maps the memory: in the place of what an earlier recording has left, to which the state of threads refers.
fn map(memory: BorrowedFd<'_>, slots: u32) -> Result<&'static Area, AttachStatus> {
    let Some(area) = shared_area::area() else {
        let opened = Area::open(memory, slots).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => AttachStatus::OtherLayout,
            _ => AttachStatus::NotMapped,
        })?;
        return Ok(shared_area::set_area(opened));
    };
    if area.slot_count() != slots {
        return Err(AttachStatus::OtherSlotCount);
    }
    // In a forked child the memory is the parent's.
    if !recorded_process::is_forked() && !thread::wait_until_outside(area) {
        return Err(AttachStatus::ThreadInHook);
    }
    // SAFETY: recording is off in this process, and no thread is inside a hook.
    if unsafe { area.replace(memory) } { Ok(area) } else { Err(AttachStatus::NotMapped) }
}

/// The longest environment that is read.
const MOST_ENVIRONMENT: u64 = 16 << 20;

/// This library's path, if it is one by which other programs can load it.
fn own_path() -> Option<&'static [u8]> {
    dladdr::own_path().filter(|path| path.starts_with(b"/") && !path.starts_with(b"/proc/"))
}

/// `PYTHONMALLOC`, as the program was started with. Not from `environ`, which other threads may be changing.
fn python_malloc() -> Option<Vec<u8>> {
    let mut environment = Vec::new();
    // As little as possible is asked of the system: it may be forbidden.
    let file = std::fs::File::open("/proc/self/environ").ok()?;
    file.take(MOST_ENVIRONMENT).read_to_end(&mut environment).ok()?;
    let value = |entry: &[u8]| entry.strip_prefix(b"PYTHONMALLOC=").map(<[u8]>::to_vec);
    environment.split(|byte| *byte == 0).find_map(value)
}
