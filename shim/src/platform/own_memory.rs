//! Memory of memtrack's own for the state of threads, in a few ranges of addresses that the collector knows: what of them
//! is resident counts as memtrack's, not as the program's.
//!
//! One thread at a time makes a range, when none has room; others wait for it, some milliseconds. Who has waited in vain, or finds
//! that there can be no more ranges, gets a mapping of just what it needs, which the collector does not know. So ranges take at
//! most a quarter more addresses than are in use, and [`FIRST`]. A thread that does not come to its end there, as after a jump out of a
//! signal handler, keeps others from making one for [`LONGEST_MS`] only: two threads at once make two ranges.
//!
//! Who no longer needs what it holds gives its pages back; the addresses stay with whoever has them.
//!
//! Invariant: no address is handed out twice. Ranges have no huge pages, of which one would hold hundreds of pages that
//! were never touched.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Duration;

use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::futex;
use memtrack_transport::layout::{ControlPage, OWN_RANGES};

use crate::platform::errno::Errno;
use crate::platform::seccomp::{self, OwnCall};
use crate::platform::shared_area;

/// What memory is counted in.
pub(crate) const PAGE: usize = 4096;
/// Bytes of the first ranges, and of the largest.
const FIRST: usize = if cfg!(miri) { 1 << 16 } else { 1 << 20 };
const LARGEST: usize = 4 << 30;
/// A thread that finds no range with room looks for one for so long, in nanoseconds, and waits so long each time that another one makes it.
const PATIENCE_NS: u64 = 30_000_000;
const A_WAIT: Duration = Duration::from_millis(1);
/// After this time, in milliseconds, another thread may make a range.
const LONGEST_MS: i32 = 100;
/// Memory for pages that are used a few at a time: they count when they are.
const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | NO_RESERVE;
/// Miri knows no other flags.
const NO_RESERVE: libc::c_int = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

static RANGES: [MappedRange; OWN_RANGES] = [const { MappedRange::new() }; OWN_RANGES];
/// No range beyond so many was ever made; and all their bytes.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);
/// Bytes of ranges that were handed out.
static HANDED_OUT: AtomicUsize = AtomicUsize::new(0);
/// Since when a thread makes a range, by [`now_ms`] (a futex word); 0: none does.
static EXTENDING: AtomicU32 = AtomicU32::new(0);
/// The start of a range that a thread is about to make.
const MAKING: usize = 1;

/// A mapping, from whose start on memory is handed out.
struct MappedRange {
    /// 0: there is none; or [`MAKING`].
    start: AtomicUsize,
    length: AtomicUsize,
    used: AtomicUsize,
}

impl MappedRange {
    const fn new() -> Self {
        Self { start: AtomicUsize::new(0), length: AtomicUsize::new(0), used: AtomicUsize::new(0) }
    }

    /// So many bytes of it, if it has as many left.
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let start = Some(self.start.load(Acquire)).filter(|start| *start > MAKING)?;
        let length = self.length.load(Relaxed);
        let end = |used: usize| used.checked_add(bytes).filter(|end| *end <= length);
        let used = self.used.fetch_update(AcqRel, Relaxed, end).ok()?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(start.wrapping_add(used)))
    }
}

/// So many zeroed bytes, from the start of a page on.
pub(crate) fn map_zeroed(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.checked_next_multiple_of(PAGE)?;
    if let Some(found) = take(bytes) {
        return Some(found);
    }
    let begun = monotonic_ns();
    while monotonic_ns().saturating_sub(begun) < PATIENCE_NS && add_range(bytes) {
        if let Some(found) = take(bytes) {
            return Some(found);
        }
    }
    take(bytes).or_else(|| map_apart(bytes))
}

fn take(bytes: usize) -> Option<NonNull<u8>> {
    let found = ranges().rev().find_map(|range| range.take(bytes))?;
    HANDED_OUT.fetch_add(bytes, Relaxed);
    shared_area::area().into_iter().for_each(|area| note_handed_out(area.control()));
    Some(found)
}

/// So many zeroed bytes at the start of a page, in a mapping of their own, which the collector does not know.
pub(crate) fn map_apart(bytes: usize) -> Option<NonNull<u8>> {
    if !seccomp::may(OwnCall::Map) {
        return None;
    }
    let _errno = Errno::keep();
    // SAFETY: a new private mapping touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, FLAGS, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// Gives pages back that were handed out: they are zeroes again. `false`: that is not possible, and nothing has changed.
///
/// # Safety
/// Nobody else uses these pages, and to their owner zeroes are as good as what they hold.
pub(crate) unsafe fn give_back(start: NonNull<u8>, bytes: usize) -> bool {
    // Miri does not know the call.
    if cfg!(miri) || !seccomp::may(OwnCall::Advise) {
        return false;
    }
    let _errno = Errno::keep();
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

/// Gives back the whole pages of a part of such memory.
///
/// # Safety
/// As of [`give_back`].
pub(crate) unsafe fn give_back_within(start: NonNull<u8>, bytes: usize) {
    let skipped = start.addr().get().wrapping_neg() % PAGE;
    let whole = bytes.saturating_sub(skipped) / PAGE * PAGE;
    if whole != 0 {
        // SAFETY: within the part.
        let first = unsafe { start.add(skipped) };
        // SAFETY: the caller's promise.
        unsafe { give_back(first, whole) };
    }
}

/// In a forked child: a thread of the parent may have been making a range.
pub(crate) fn nobody_extends() {
    EXTENDING.store(0, Relaxed);
}

/// How much of it is in memory, whoever needed it. Makes system calls only; a filter may forbid them.
pub(crate) fn resident() -> u64 {
    const PAGES: usize = 1024;
    let mut is_resident = [0_u8; PAGES];
    let mut pages = 0_u64;
    for range in ranges() {
        let (start, used) = (range.start.load(Acquire), range.used.load(Relaxed));
        for at in (0..used).step_by(PAGES * PAGE).filter(|_| start > MAKING) {
            let bytes = (used - at).min(PAGES * PAGE);
            let place = std::ptr::with_exposed_provenance_mut(start.wrapping_add(at));
            // SAFETY: asks about pages, and writes a byte for each of them to a live local, which has as many.
            if unsafe { libc::mincore(place, bytes, is_resident.as_mut_ptr()) } == 0 {
                let asked = is_resident.iter().take(bytes / PAGE);
                pages = pages.wrapping_add(asked.map(|byte| u64::from(byte & 1)).sum());
            }
        }
    }
    pages.wrapping_mul(PAGE as u64)
}

/// Whether there is any.
pub(crate) fn is_used() -> bool {
    HANDED_OUT.load(Relaxed) != 0
}

/// Tells the collector of all ranges: the shared memory is new, and no thread records.
pub(crate) fn tell_all(control: &ControlPage) {
    for (range, told) in ranges().zip(&control.own_ranges) {
        let start = range.start.load(Acquire);
        if start > MAKING {
            told.tell(start as u64, range.length.load(Relaxed) as u64);
        }
    }
    note_handed_out(control);
}

fn note_handed_out(control: &ControlPage) {
    control.own_bytes.store(HANDED_OUT.load(Relaxed) as u64, Relaxed);
}

fn ranges() -> impl DoubleEndedIterator<Item = &'static MappedRange> {
    RANGES.get(..COUNT.load(Acquire)).unwrap_or_default().iter()
}

/// Makes sure that a range has room for so many bytes, or had it a moment ago. `false`: there can be none.
#[cold]
fn add_range(bytes: usize) -> bool {
    let _errno = Errno::keep();
    let begun = now_ms();
    if let Err(since) = claim(begun) {
        let may_wait = seccomp::may(OwnCall::Futex);
        if may_wait && since != 0 {
            futex::wait(&EXTENDING, since, A_WAIT);
        }
        return may_wait;
    }
    let has_room = |range: &MappedRange| range.length.load(Relaxed).saturating_sub(range.used.load(Relaxed)) >= bytes;
    let is_there = ranges().any(has_room) || make(bytes);
    // Unless another one was too impatient.
    if EXTENDING.compare_exchange(begun, 0, Release, Relaxed).is_ok() && seccomp::may(OwnCall::Futex) {
        futex::wake(&EXTENDING);
    }
    is_there
}

/// Makes this thread the one that makes a range, from `now` on; else gives since when another one does.
fn claim(now: u32) -> Result<(), u32> {
    let since = EXTENDING.load(Relaxed);
    let may = since == 0 || now.wrapping_sub(since).cast_signed() > LONGEST_MS;
    if may { EXTENDING.compare_exchange(since, now, Acquire, Relaxed).map(drop) } else { Err(since) }
}

/// The time in milliseconds, and not 0.
fn now_ms() -> u32 {
    (monotonic_ns() / 1_000_000) as u32 | 1
}

/// Makes a range that is a quarter of all others together, or what is needed if that is more.
fn make(bytes: usize) -> bool {
    let all = ALL.load(Relaxed);
    let length = (all / 4).next_multiple_of(PAGE).clamp(FIRST, LARGEST).max(bytes);
    let is_free = |range: &MappedRange| range.start.compare_exchange(0, MAKING, Relaxed, Relaxed).is_ok();
    if RANGES.iter().all(|range| range.start.load(Relaxed) != 0) {
        return false;
    }
    let Some(start) = map_apart(length) else { return false };
    if !cfg!(miri) && seccomp::may(OwnCall::Advise) {
        // SAFETY: the new mapping. Where there are no huge pages, this fails, and none are needed.
        unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
    }
    // Another thread took the last one meanwhile: these addresses stay unused.
    let Some((number, range)) = RANGES.iter().enumerate().find(|(_, range)| is_free(range)) else { return false };
    range.length.store(length, Relaxed);
    range.start.store(start.as_ptr().expose_provenance(), Release);
    ALL.fetch_add(length, Relaxed);
    if let Some(told) = shared_area::area().and_then(|area| area.control().own_ranges.get(number)) {
        told.tell(start.as_ptr().addr() as u64, length as u64);
    }
    COUNT.fetch_max(number.wrapping_add(1), Release);
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{ALL, EXTENDING, FIRST, HANDED_OUT, LONGEST_MS, PAGE, give_back, map_zeroed, now_ms, ranges};
    use std::sync::atomic::Ordering::{Acquire, Relaxed};
    use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

    /// The ranges are those of all tests of this module.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn memory_is_handed_out_once_and_is_zeroes_again_after_it_was_given_back() {
        let _alone = alone();
        let sizes = [1, PAGE, 3 * PAGE + 1, FIRST, 5 * FIRST, PAGE];
        let mut taken = sizes.map(|bytes| (map_zeroed(bytes).unwrap(), bytes.next_multiple_of(PAGE)));
        for (start, bytes) in &taken {
            // SAFETY: memory that was just handed out.
            let memory = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *bytes) };
            assert!(start.as_ptr().addr().is_multiple_of(PAGE) && memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
        }
        taken.sort_unstable();
        assert!(
            taken.array_windows().all(|[(start, bytes), (next, _)]| start.addr().get() + bytes <= next.addr().get())
        );
        for (start, bytes) in taken {
            // SAFETY: nobody uses it any more.
            let is_given_back = unsafe { give_back(start, bytes) };
            // SAFETY: it is still mapped.
            assert_eq!(is_given_back, !cfg!(miri) && unsafe { start.read() } == 0);
        }
    }

    #[test]
    fn threads_that_begin_together_add_no_more_than_they_need() {
        const THREADS: usize = if cfg!(miri) { 4 } else { 200 };
        const EACH: usize = 4;
        const BYTES: usize = FIRST / 2;
        let _alone = alone();
        let begin = Barrier::new(THREADS);
        let mut starts: Vec<usize> = std::thread::scope(|scope| {
            let take = || {
                begin.wait();
                (0..EACH).map(|_| map_zeroed(BYTES).unwrap().addr().get()).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        starts.sort_unstable();
        assert!(starts.array_windows().all(|[start, next]| start + BYTES <= *next));
        let (all, used, ranges) = (ALL.load(Relaxed), HANDED_OUT.load(Relaxed), ranges().count());
        // The ends of ranges are unused.
        assert!(all <= used + used / 4 + (ranges + 1) * FIRST, "{all} bytes for {used}, in {ranges} ranges");
    }

    #[test]
    fn while_one_thread_adds_a_range_no_other_does_unless_it_takes_too_long() {
        let _alone = alone();
        map_zeroed(PAGE).unwrap();
        // The threads of other modules' tests may add some, too.
        let later = now_ms().wrapping_add(1 << 20);
        while EXTENDING.compare_exchange(0, later, Acquire, Relaxed).is_err() {
            std::thread::yield_now();
        }
        let (before, all) = (ranges().count(), ALL.load(Relaxed));
        // More than any range has left.
        let large = 2 * all;
        map_zeroed(large).unwrap();
        assert_eq!((ranges().count(), ALL.load(Relaxed)), (before, all));
        EXTENDING.store(now_ms().wrapping_sub(LONGEST_MS.cast_unsigned() + 2), Relaxed);
        map_zeroed(large).unwrap();
        assert!(ranges().count() > before && ALL.load(Relaxed) >= all + large);
    }
}
