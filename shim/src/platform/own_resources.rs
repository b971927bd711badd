//! What this process has used so far, as the system says it, and since when.
//!
//! Invariant: only system calls are made, so a forked child may use all of this.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_transport::handshake::THREAD_NAME;

/// When this process began, if it is a recorded fork child; 0: it is none.
static FORKED_NS: AtomicU64 = AtomicU64::new(0);

/// The high-water mark of resident memory when a recording ended last, in bytes, and the highest that no recording has raised.
static MARK_AT_END: AtomicU64 = AtomicU64::new(0);
static PROGRAMS_MARK: AtomicU64 = AtomicU64::new(0);

/// Notes the high-water mark as that of a recording, in which memtrack's own memory may be.
pub(crate) fn recording_ends() {
    MARK_AT_END.store(mark(), Relaxed);
}

/// The most resident memory that this process had while it was not recorded, up to now.
pub(crate) fn peak_outside_recordings() -> u64 {
    let mark = mark();
    if mark > MARK_AT_END.load(Relaxed) {
        PROGRAMS_MARK.fetch_max(mark, Relaxed);
    }
    PROGRAMS_MARK.load(Relaxed)
}

fn mark() -> u64 {
    used().map_or(0, |used| used.resident_peak)
}

/// Notes that this process is a fork child, is recorded, and began at this time.
pub(crate) fn note_fork(begun_ns: u64) {
    FORKED_NS.store(begun_ns, Relaxed);
}

/// When this recorded process was forked; `None`: it was started in another way.
pub(crate) fn forked_ns() -> Option<u64> {
    Some(FORKED_NS.load(Relaxed)).filter(|ns| *ns > 0)
}

/// What a process has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Processor time in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// The most resident memory, in bytes.
    pub(crate) resident_peak: u64,
    /// Pages that it was the first to touch, and pages of its parent's that it has copied.
    pub(crate) faults: u64,
}

/// What this process has used; `None`: unknown.
pub(crate) fn used() -> Option<Used> {
    // SAFETY: all zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a live local.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return None;
    }
    let ns = |time: libc::timeval| time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_usec.cast_unsigned() * 1000;
    Some(Used {
        cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
        resident_peak: usage.ru_maxrss.cast_unsigned() * 1024,
        faults: usage.ru_minflt.cast_unsigned().saturating_add(usage.ru_majflt.cast_unsigned()),
    })
}

/// Resident memory of this process in bytes; 0: unknown.
pub(crate) fn resident() -> u64 {
    // SAFETY: a text; takes numbers besides.
    let file = unsafe { libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return 0;
    }
    let mut text = [0_u8; 128];
    // SAFETY: writes to a live local of the length that is given.
    let length = unsafe { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: closes what was opened above.
    unsafe { libc::close(file) };
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let text = text.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default();
    second_number(text).saturating_mul(page.cast_unsigned())
}

/// The second of numbers between single spaces; 0: there is none.
fn second_number(text: &[u8]) -> u64 {
    let digits = text.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    digits
        .iter()
        .fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0'))))
}

/// The name of the calling thread, NUL-padded.
pub(crate) fn thread_name() -> [u8; THREAD_NAME] {
    let mut name = [0_u8; THREAD_NAME];
    // SAFETY: writes at most as many bytes to a live local.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

#[cfg(test)]
mod tests {
    use super::{resident, second_number, thread_name, used};

    #[test]
    fn the_system_says_it_of_this_process() {
        assert_eq!((second_number(b"12 345 6"), second_number(b"12"), second_number(b"")), (345, 0, 0));
        assert!(used().is_some_and(|used| used.resident_peak > 100_000 && used.faults > 10) && resident() > 100_000);
        let own = std::fs::read("/proc/thread-self/comm").unwrap_or_default();
        assert_eq!(thread_name().split(|byte| *byte == 0).next(), own.strip_suffix(b"\n"));
    }
}
