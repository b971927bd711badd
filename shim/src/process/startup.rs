//! The library's constructor: recording of a program from its start.
//!
//! Invariant: whatever fails, the program runs as it would without memtrack. Where memtrack has put nothing into the
//! environment, nothing is done: the library was loaded to be attached later (see [`attach`](super::attach)).

use std::ffi::{c_char, c_int};
use std::io::ErrorKind;
use std::os::fd::AsFd;

use memtrack_transport::Area;
use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::handshake::{Hello, receive_memory};
use memtrack_transport::layout::SLOT_COUNTS;

use super::preinit;
use super::recording_span::{self, Given, Start};
use crate::platform::environment::{self, ExecEnvironment};
use crate::platform::errno::Errno;
use crate::platform::{collector_socket, shared_area};

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
    if !environment::has_memtrack_variables(environment) {
        return;
    }
    let variables = environment::take(environment);
    let Some(socket) = variables.socket.filter(|_| !variables.is_dormant) else { return };
    let begun = monotonic_ns();
    recording_span::prepare_memory();
    collector_socket::set_path(socket);
    let Some(area) = connect() else { return };
    let area = shared_area::set_area(area);
    #[cfg(feature = "verify-marks")]
    variables.counts.into_iter().for_each(crate::stacks::python::start_verifying);
    let given = Given { socket, library: variables.library, python_malloc: variables.python_malloc };
    // Without it the program runs on unrecorded.
    let _ = recording_span::begin(area, &given, Start::OfProgram, begun);
}

/// Fetches the shared memory. A collector whose memory cannot be mapped here offers less when asked again; one that does not answer,
/// as it was stopped, is not asked again.
fn connect() -> Option<Area> {
    for _ in SLOT_COUNTS {
        let stream = collector_socket::connect()?;
        // SAFETY: no arguments, cannot fail.
        let pid = unsafe { libc::getpid() };
        // SAFETY: no arguments, cannot fail.
        let ppid = unsafe { libc::getppid() };
        Hello { pid, ppid, fork: None }.send(&stream).ok()?;
        match receive_memory(&stream) {
            Ok((memory, slots)) => {
                if let Ok(area) = Area::open(memory.as_fd(), slots) {
                    return Some(area);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            Err(_) => {}
        }
    }
    None
}
