//! Saves state that the Rust runtime changes before `main`, so that the program inherits the original: SIGPIPE becomes
//! ignored, and closed standard descriptors are opened to /dev/null.
//!
//! Invariant: written once, by a constructor that runs before the runtime; read only afterwards.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

static NOTED: AtomicU32 = AtomicU32::new(0);
static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());
static ARGUMENT_COUNT: AtomicU32 = AtomicU32::new(0);
const SIGPIPE_IGNORED: u32 = 1 << 3;

// SAFETY: the loader calls the functions of this section once, before main; this one makes two system calls.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE: extern "C" fn(c_int, *mut *mut c_char) = note;

/// Which of the descriptors 0, 1 and 2 were closed.
pub(super) fn closed_descriptors() -> impl Iterator<Item = i32> {
    let noted = NOTED.load(Relaxed);
    (0..3).filter(move |descriptor| noted & (1 << descriptor) != 0)
}

/// Whether SIGPIPE was ignored.
pub(super) fn sigpipe_was_ignored() -> bool {
    NOTED.load(Relaxed) & SIGPIPE_IGNORED != 0
}

/// Address and length of memtrack's arguments in memory, without the last `rest` of them, NUL bytes included.
pub(super) fn arguments_before(rest: usize) -> Option<(*mut u8, usize)> {
    let (count, all) = (ARGUMENT_COUNT.load(Relaxed) as usize, ARGUMENTS.load(Relaxed));
    let place = count.checked_sub(rest).filter(|place| (1..count).contains(place) && !all.is_null())?;
    // SAFETY: the first of the arguments, which are as many as the loader said.
    let start = unsafe { *all };
    // SAFETY: the place of one of the others.
    let end = unsafe { all.add(place) };
    // SAFETY: `end` is the place of an argument below `count`, which the loader has filled.
    let end = unsafe { *end };
    // The kernel stores the arguments contiguously.
    let len = end.addr().checked_sub(start.addr()).filter(|len| *len < 1 << 20)?;
    Some((start.cast(), len))
}

/// glibc passes argc and argv to constructors.
extern "C" fn note(count: c_int, arguments: *mut *mut c_char) {
    ARGUMENTS.store(arguments, Relaxed);
    ARGUMENT_COUNT.store(count.cast_unsigned(), Relaxed);
    let mut noted = 0;
    for descriptor in 0..3 {
        // SAFETY: only asks for the flags of a descriptor.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            noted |= 1 << descriptor;
        }
    }
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing, and writes to a live local.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
    if action.sa_sigaction == libc::SIG_IGN {
        noted |= SIGPIPE_IGNORED;
    }
    NOTED.store(noted, Relaxed);
}
