//! The start of recording in this process, in the order in which it has to happen.
//!
//! Invariant: whatever fails, the program runs as it would without memtrack.

use std::ffi::{c_char, c_int};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, Release};

use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::handshake::{Hello, receive_memory};
use memtrack_transport::layout::{SLOT_COUNTS, state};
use memtrack_transport::{Area, barrier};

use super::{child_environment, fork, hook_table, preinit, recorded_process};
use crate::interposition::got::{self, ObjectWatcher};
use crate::interposition::python_allocators;
use crate::platform::environment::{self, ExecEnvironment};
use crate::platform::errno::Errno;
use crate::platform::{collector_socket, recording_switch, shared_area};
use crate::stacks::{native, python};

#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, ExecEnvironment) = construct;

/// The loader calls this before the constructors of all other libraries; of the C library's, too. Only with glibc before
/// 2.34 and programs that load libpthread, it is called after those of the libraries that the program is linked with.
extern "C" fn construct(count: c_int, arguments: *const *const c_char, environment: ExecEnvironment) {
    if !preinit::defer_until_preinit(environment, begin) {
        begin(count, arguments, environment);
    }
}

extern "C" fn begin(_count: c_int, arguments: *const *const c_char, environment: ExecEnvironment) {
    let _errno = Errno::keep();
    environment::note_name(arguments);
    let variables = environment::take(environment);
    let Some(socket) = variables.socket else { return };
    let begun = monotonic_ns();
    // SAFETY: this library's own instance, before any other thread of it exists.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    collector_socket::set_path(socket);
    let Some(area) = connect() else { return };
    let area = shared_area::set_area(area);
    if area.control().native.load(Relaxed) != 0 {
        native::start();
    }
    if area.control().frame_marks.load(Relaxed) != 0 {
        python::allow_sentinels();
    }
    #[cfg(feature = "verify-marks")]
    variables.counts.into_iter().for_each(python::start_verifying);
    python::start(python_allocators::interpreter_found);
    announce_process(area, variables.python_malloc);
    if !recording_switch::protect_children() {
        return;
    }
    barrier::register();
    if let Some(library) = variables.library {
        child_environment::keep(library, socket);
        if area.control().follow.load(Relaxed) != 0 {
            fork::follow();
        }
    }
    recorded_process::note();
    let watcher = ObjectWatcher { added: native::object_added, removed: native::object_removed };
    got::install(&hook_table::HOOKS, watcher);
    area.control().start_ns.store(monotonic_ns().wrapping_sub(begun), Relaxed);
    // Not over a CLOSED: the collector may have given up meanwhile.
    if area.control().state.compare_exchange(state::READY, state::RECORDING, Release, Relaxed).is_ok() {
        recording_switch::on();
        if python_allocators::are_traced() {
            recording_switch::watch();
        }
    }
}

/// Fetches the shared memory. A collector whose memory cannot be mapped here offers less when asked again.
fn connect() -> Option<Area> {
    SLOT_COUNTS.iter().find_map(|_| {
        let stream = collector_socket::connect()?;
        // SAFETY: no arguments, cannot fail.
        let pid = unsafe { libc::getpid() };
        // SAFETY: no arguments, cannot fail.
        let ppid = unsafe { libc::getppid() };
        Hello { pid, ppid, fork: None }.send(&stream).ok()?;
        let (memory, slots) = receive_memory(&stream).ok()?;
        Area::open(memory.as_fd(), slots).ok()
    })
}

/// Tells the collector who this is.
fn announce_process(area: &Area, python_malloc: Option<&[u8]>) {
    let control = area.control();
    // SAFETY: no arguments, cannot fail.
    control.pid.store(unsafe { libc::getpid() }, Relaxed);
    python::store_text(&control.python_allocator, python_malloc.filter(|name| !name.is_empty()).unwrap_or(b"pymalloc"));
    python::tell_collector();
}
