//! What memtrack was started with and the Rust runtime changes before `main`: SIGPIPE is ignored, and closed standard
//! descriptors are opened to /dev/null. The program must get both as they were.
//!
//! Invariant: written once, by a constructor that runs before the runtime; read only afterwards.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static NOTED: AtomicU32 = AtomicU32::new(0);
const SIGPIPE_IGNORED: u32 = 1 << 3;

// SAFETY: the loader calls the functions of this section once, before main; this one makes two system calls.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE: extern "C" fn() = note;

/// Which of the descriptors 0, 1 and 2 were closed.
pub(super) fn closed_descriptors() -> impl Iterator<Item = i32> {
    let noted = NOTED.load(Relaxed);
    (0..3).filter(move |descriptor| noted & (1 << descriptor) != 0)
}

/// Whether SIGPIPE was ignored.
pub(super) fn sigpipe_was_ignored() -> bool {
    NOTED.load(Relaxed) & SIGPIPE_IGNORED != 0
}

extern "C" fn note() {
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
