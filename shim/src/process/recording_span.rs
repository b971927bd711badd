//! The steps by which recording begins and ends in this process, in the order in which they have to happen: at the
//! program's start, in one that is already running, and again after it had ended.
//!
//! Ending turns the switch off first. A thread that has looked at it before may still be at the first instructions of a
//! hook: so the addresses of the shared memory stay mapped, with memory of the process's own, and the state of threads
//! stays, to which their thread-local words point. Both are used again when recording begins anew.
//!
//! Invariant: whatever fails, the program runs as it would without memtrack.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};

use memtrack_transport::Area;
use memtrack_transport::attach::AttachStatus;
use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::layout::{state, stop_reason};

use super::{child_environment, fork, hook_table, recorded_process, rest};
use crate::interposition::got::{self, ObjectWatcher};
use crate::interposition::python_allocators;
use crate::platform::{allocator_statistics, arena, barrier_registration, own_memory, own_resources, recording_switch};
use crate::recording::{sampling, thread};
use crate::stacks::{native, python};

/// Slots and the interpreter are changed: by a recording of this process, or of the one from which it was forked.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// What this process was given besides the shared memory.
#[derive(Debug)]
pub(super) struct Given<'a> {
    /// Path of the collector's socket; empty where there is none for children to connect to.
    pub(super) socket: &'a [u8],
    /// Path of this library, if programs can be started with it.
    pub(super) library: Option<&'a [u8]>,
    /// `PYTHONMALLOC`.
    pub(super) python_malloc: Option<&'a [u8]>,
}

/// What recording begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A program that has not run yet.
    OfProgram,
    /// A running process, whose threads run on.
    Late,
}

/// Prepares the shim's own memory, once, before it is used.
pub(super) fn prepare_memory() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.swap(true, Relaxed) {
        // SAFETY: this library's own instance, before any other thread of it uses it.
        unsafe { dlmalloc::enable_alloc_after_fork() };
    }
}

/// Begins recording into the area, at the time `begun`.
pub(super) fn begin(area: &'static Area, given: &Given<'_>, start: Start, begun: u64) -> Result<(), AttachStatus> {
    let control = area.control();
    if control.state.load(Relaxed) != state::READY {
        return Err(AttachStatus::Closed);
    }
    arena::forget_shortage();
    if !recording_switch::protect_children() {
        return Err(AttachStatus::ChildrenUnprotected);
    }
    let peak = own_resources::peak_outside_recordings();
    if start == Start::Late && own_memory::is_used() {
        control.programs_peak.store(peak, Relaxed);
    }
    own_memory::tell_all(control);
    barrier_registration::register(&control.registration);
    sampling::begin(&control.sample_bytes, control.sample_varies.load(Relaxed) != 0);
    if control.native.load(Relaxed) != 0 {
        native::start();
    }
    allocator_statistics::start(&control.allocator);
    if start == Start::Late {
        control.began_late.store(1, Relaxed);
        thread::begin_anew_in_all(area, recorded_process::is_forked());
    }
    python::allow_sentinels(control.frame_marks.load(Relaxed) != 0);
    python::start(python_allocators::interpreter_found);
    if start == Start::Late {
        python_allocators::start();
    }
    announce_process(area, given.python_malloc);
    match given.library.filter(|_| !given.socket.is_empty()) {
        Some(library) => child_environment::keep(library, given.socket),
        // An earlier recording may have had them.
        None => child_environment::forget(),
    }
    fork::install_handlers();
    if control.follow.load(Relaxed) != 0 && !given.socket.is_empty() {
        fork::follow();
    }
    rest::forget();
    recording_switch::forget_ended_streams();
    recorded_process::note();
    IS_INSTALLED.store(true, Relaxed);
    let watcher = ObjectWatcher { added: native::object_added, removed: native::object_removed };
    match start {
        Start::OfProgram => got::install_at_start(&hook_table::HOOKS, sampling::is_on(), watcher),
        Start::Late => got::install_among_threads(&hook_table::HOOKS, sampling::is_on(), watcher),
    }
    if got::frees_call_no_hook() {
        sampling::frees_call_no_hook();
    }
    if arena::was_short() {
        return Err(AttachStatus::NoMemory);
    }
    control.start_ns.store(monotonic_ns().wrapping_sub(begun), Relaxed);
    // Not over a CLOSED: the collector may have given up meanwhile.
    if control.state.compare_exchange(state::READY, state::RECORDING, Release, Relaxed).is_err() {
        return Err(AttachStatus::Closed);
    }
    recording_switch::on();
    if python_allocators::are_traced() {
        recording_switch::watch();
    }
    Ok(())
}

/// Ends recording, and puts back everything that was changed in the process.
pub(super) fn end(area: &'static Area) -> AttachStatus {
    recording_switch::off();
    rest::forget();
    fork::unfollow();
    barrier_registration::wait();
    let are_outside = thread::wait_until_outside(area);
    if are_outside {
        let control = area.control();
        // Unless a thread has stopped it for a reason of its own, or the collector has ended it.
        if control.state.compare_exchange(state::RECORDING, state::STOPPED, Release, Relaxed).is_ok() {
            control.stop_reason.store(stop_reason::DETACHED, Relaxed);
        }
    }
    uninstall();
    recorded_process::forget();
    recording_switch::forget_children();
    if !are_outside {
        return AttachStatus::ThreadInHook;
    }
    thread::give_back_all(area);
    own_resources::recording_ends();
    // SAFETY: recording is off, and no thread is inside a hook; one that is about to enter finds memory to write to.
    let left = unsafe { area.leave() };
    if left { AttachStatus::Done } else { AttachStatus::NotMapped }
}

/// Puts back what a forked child, which does not record, has inherited of its parent's recording. The parent's shared memory
/// is not touched.
pub(super) fn uninstall_inherited() {
    if IS_INSTALLED.load(Relaxed) {
        fork::unfollow();
        uninstall();
    }
}

/// Puts the program's slots and the interpreter back. Recording is off in this process.
fn uninstall() {
    python_allocators::stop();
    python::stop();
    // Twice, for a thread may just have been binding a slot, with what it had found before.
    got::remove();
    got::remove();
    native::stop();
    IS_INSTALLED.store(false, Relaxed);
}

/// Tells the collector who this is.
fn announce_process(area: &Area, python_malloc: Option<&[u8]>) {
    let control = area.control();
    // SAFETY: no arguments, cannot fail.
    control.pid.store(unsafe { libc::getpid() }, Relaxed);
    python::store_text(&control.python_allocator, python_malloc.filter(|name| !name.is_empty()).unwrap_or(b"pymalloc"));
    python::tell_collector();
}
