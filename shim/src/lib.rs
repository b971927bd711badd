//! The library that is injected into a tracked process.
//!
//! Loaded by `LD_PRELOAD`, it runs once before any other constructor: takes memtrack's variables out of the environment, fetches the
//! shared memory from the collector, finds the interpreter, points the program's calls of allocation functions at its
//! [`hooks`] and switches recording on. From then on it runs inside those calls only: no thread, no descriptor, no work
//! at exit.
//!
//! Invariant: whatever goes wrong, the program runs as it would without memtrack.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod confined;
mod defined;
mod environment;
mod errno;
mod events;
mod family;
mod first;
mod floor;
mod got;
mod grace;
mod heritage;
mod hooks;
mod loadable;
mod native;
mod order;
mod pace;
mod python;
mod readable;
mod recorder;
mod ring;
mod stack;
mod stray;
mod switch;
mod thread;
mod tls;

use std::ffi::{OsStr, c_char, c_int};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::handshake::{Hello, receive_memory};
use memtrack_transport::layout::{SLOT_COUNTS, state};
use memtrack_transport::{Area, barrier};

use heritage::Environment;

/// What the shim allocates at start-up and in a dlopen comes from mappings of its own, not from the measured heap.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// How long the collector may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, Environment) = construct;

/// The loader calls this before the constructors of all other libraries; of the C library's, too. Only with glibc before
/// 2.34 and programs that load libpthread, it is called after those of the libraries that the program is linked with.
extern "C" fn construct(count: c_int, arguments: *const *const c_char, environment: Environment) {
    if !first::goes_first(environment, begin) {
        begin(count, arguments, environment);
    }
}

extern "C" fn begin(_count: c_int, arguments: *const *const c_char, environment: Environment) {
    let _errno = errno::Errno::keep();
    environment::note_name(arguments);
    let taken = environment::take(environment);
    let Some(socket) = taken.socket else { return };
    let begun = monotonic_ns();
    // SAFETY: this library's own instance, before any other thread of it exists.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    let Some(area) = connect(Path::new(OsStr::from_bytes(socket))) else { return };
    let area = thread::set_area(area);
    if area.control().native.load(Relaxed) != 0 {
        native::start();
    }
    if area.control().frame_marks.load(Relaxed) != 0 {
        python::allow_marks();
    }
    #[cfg(feature = "verify-marks")]
    taken.counts.into_iter().for_each(python::start_verifying);
    python::start();
    introduce(area, taken.python_malloc);
    if !switch::protect_children() {
        return;
    }
    barrier::register();
    if let Some(library) = taken.library {
        heritage::keep(library, socket);
        if area.control().follow.load(Relaxed) != 0 {
            family::follow();
        }
    }
    hooks::install();
    area.control().start_ns.store(monotonic_ns().wrapping_sub(begun), Relaxed);
    // Not over a CLOSED: the collector may have given up meanwhile.
    if area.control().state.compare_exchange(state::READY, state::RECORDING, Release, Relaxed).is_ok() {
        switch::on();
        if python::allocators_are_traced() {
            switch::watch();
        }
    }
}

/// Fetches the shared memory. A collector whose memory cannot be mapped here offers less when asked again.
fn connect(socket: &Path) -> Option<Area> {
    SLOT_COUNTS.iter().find_map(|_| {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        // SAFETY: no arguments, cannot fail.
        let pid = unsafe { libc::getpid() };
        // SAFETY: as above.
        let ppid = unsafe { libc::getppid() };
        Hello { pid, ppid, fork: None }.send(&stream).ok()?;
        let (memory, slots) = receive_memory(&stream).ok()?;
        Area::open(memory.as_fd(), slots).ok()
    })
}

/// Tells the collector who this is.
fn introduce(area: &Area, python_malloc: Option<&[u8]>) {
    let control = area.control();
    // SAFETY: no arguments, cannot fail.
    control.pid.store(unsafe { libc::getpid() }, Relaxed);
    store_text(&control.python_allocator, python_malloc.filter(|name| !name.is_empty()).unwrap_or(b"pymalloc"));
    tell_python();
}

/// Tells the collector about the interpreter; again whenever one was found after a dlopen.
pub(crate) fn tell_python() {
    let Some(area) = thread::area() else { return };
    let control = area.control();
    let note = python::reason().unwrap_or("").as_bytes();
    store_text(&control.python_note, note);
    control.python_note_len.store(note.len().min(size_of_val(&control.python_note)) as u32, Relaxed);
    control.python_version.store(python::version_hex(), Release);
}

fn store_text(words: &[AtomicU64], text: &[u8]) {
    for (at, word) in words.iter().enumerate() {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(text.iter().skip(at.wrapping_mul(8))) {
            *to = *from;
        }
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}
