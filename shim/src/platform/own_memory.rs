//! Memory of memtrack's own for the state of threads, in a few ranges of addresses that the collector knows: what of them
//! is resident counts as memtrack's, not as the program's.
//!
//! One thread at a time makes a range, when none has room; others wait for it, at most a second. Who has waited in vain, or finds
//! that there can be no more ranges, gets a mapping of just what it needs, which the collector does not know. So ranges take at
//! most a quarter more addresses than are in use, and [`FIRST`].
//!
//! Who no longer needs what it holds gives its pages back; the addresses stay with whoever has them.
//!
//! Invariant: no address is handed out twice. Ranges have no huge pages, of which one would hold hundreds of pages that
//! were never touched.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Duration;

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
/// A thread that finds no range with room asks so often for one, and waits so long each time that another one makes it: a second,
/// for where many more threads than processors begin together.
const ATTEMPTS: u32 = 100;
const PATIENCE: Duration = Duration::from_millis(10);
/// Memory for pages that are used a few at a time: they count when they are.
const FLAGS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | NO_RESERVE;
/// Miri knows no other flags.
const NO_RESERVE: libc::c_int = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

static RANGES: [Range; OWN_RANGES] = [const { Range::new() }; OWN_RANGES];
/// Ranges that there are, and all their bytes; whoever has set `EXTENDING` changes them.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ALL: AtomicUsize = AtomicUsize::new(0);
/// Bytes of ranges that were handed out.
static HANDED_OUT: AtomicUsize = AtomicUsize::new(0);
/// Whether a thread makes a range (a futex word): one of [`extending`].
static EXTENDING: AtomicU32 = AtomicU32::new(extending::NONE);

mod extending {
    pub(super) const NONE: u32 = 0;
    pub(super) const ONE: u32 = 1;
    /// One does, and was waited for in vain: it may have ended in the middle of it. No other waits.
    pub(super) const STUCK: u32 = 2;
}

/// A mapping, from whose start on memory is handed out.
struct Range {
    /// 0: there is none.
    start: AtomicUsize,
    length: AtomicUsize,
    used: AtomicUsize,
}

impl Range {
    const fn new() -> Self {
        Self { start: AtomicUsize::new(0), length: AtomicUsize::new(0), used: AtomicUsize::new(0) }
    }

    /// So many bytes of it, if it has as many left.
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let start = self.start.load(Acquire);
        let length = self.length.load(Relaxed);
        let end = |used: usize| used.checked_add(bytes).filter(|end| *end <= length);
        let used = self.used.fetch_update(AcqRel, Relaxed, end).ok()?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(start.wrapping_add(used)))
    }
}

/// So many zeroed bytes, from the start of a page on.
pub(crate) fn map_zeroed(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.checked_next_multiple_of(PAGE)?;
    for _ in 0..ATTEMPTS {
        if let Some(found) = take(bytes) {
            return Some(found);
        }
        if !add_range(bytes) {
            return map_apart(bytes);
        }
    }
    let _ = EXTENDING.compare_exchange(extending::ONE, extending::STUCK, Relaxed, Relaxed);
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

/// Takes all back that was handed out, and gives the pages to the system, in a forked child.
///
/// # Safety
/// There is one thread, and nobody uses any of it any more.
pub(crate) unsafe fn take_all_back() {
    for range in ranges() {
        let (start, used) = (range.start.load(Relaxed), range.used.load(Relaxed));
        let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(start)) else { continue };
        // SAFETY: the caller's promise.
        if unsafe { give_back(start, used) } {
            range.used.store(0, Relaxed);
            HANDED_OUT.fetch_sub(used, Relaxed);
        }
    }
    // A thread of the parent may have been making a range.
    EXTENDING.store(extending::NONE, Relaxed);
}

/// Whether there is any.
pub(crate) fn is_used() -> bool {
    HANDED_OUT.load(Relaxed) != 0
}

/// Tells the collector of all ranges: the shared memory is new, and no thread records.
pub(crate) fn tell_all(control: &ControlPage) {
    EXTENDING.store(extending::NONE, Relaxed);
    for (range, told) in ranges().zip(&control.own_ranges) {
        told.tell(range.start.load(Acquire) as u64, range.length.load(Relaxed) as u64);
    }
    note_handed_out(control);
}

fn note_handed_out(control: &ControlPage) {
    control.own_bytes.store(HANDED_OUT.load(Relaxed) as u64, Relaxed);
}

fn ranges() -> impl DoubleEndedIterator<Item = &'static Range> {
    RANGES.get(..COUNT.load(Acquire)).unwrap_or_default().iter()
}

/// Makes sure that a range has room for so many bytes, or had it a moment ago. `false`: there can be none.
#[cold]
fn add_range(bytes: usize) -> bool {
    let _errno = Errno::keep();
    if let Err(other) = EXTENDING.compare_exchange(extending::NONE, extending::ONE, Acquire, Relaxed) {
        let may_wait = other == extending::ONE && seccomp::may(OwnCall::Futex);
        if may_wait {
            futex::wait(&EXTENDING, extending::ONE, PATIENCE);
        }
        return may_wait;
    }
    let is_there = ranges().any(|range| range.length.load(Relaxed) - range.used.load(Relaxed) >= bytes) || make(bytes);
    EXTENDING.store(extending::NONE, Release);
    if seccomp::may(OwnCall::Futex) {
        futex::wake(&EXTENDING);
    }
    is_there
}

/// Makes a range that is a quarter of all others together, or what is needed if that is more. Whoever calls this has set
/// `EXTENDING`.
fn make(bytes: usize) -> bool {
    let (number, all) = (COUNT.load(Relaxed), ALL.load(Relaxed));
    let Some(range) = RANGES.get(number) else { return false };
    let length = (all / 4).next_multiple_of(PAGE).clamp(FIRST, LARGEST).max(bytes);
    let Some(start) = map_apart(length) else { return false };
    if !cfg!(miri) && seccomp::may(OwnCall::Advise) {
        // SAFETY: the new mapping. Where there are no huge pages, this fails, and none are needed.
        unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
    }
    range.length.store(length, Relaxed);
    range.start.store(start.as_ptr().expose_provenance(), Release);
    ALL.store(all.saturating_add(length), Relaxed);
    if let Some(told) = shared_area::area().and_then(|area| area.control().own_ranges.get(number)) {
        told.tell(start.as_ptr().addr() as u64, length as u64);
    }
    COUNT.store(number.wrapping_add(1), Release);
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{ALL, EXTENDING, FIRST, HANDED_OUT, PAGE, extending, give_back, map_zeroed, ranges};
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
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
    fn while_one_thread_adds_a_range_no_other_does() {
        let _alone = alone();
        map_zeroed(PAGE).unwrap();
        // The threads of other modules' tests may add some, too.
        while EXTENDING.compare_exchange(extending::NONE, extending::ONE, Acquire, Relaxed).is_err() {
            std::thread::yield_now();
        }
        let (before, all) = (ranges().count(), ALL.load(Relaxed));
        // More than any range has left.
        let large = 2 * all;
        // The second one does not wait any more.
        for _ in 0..2 {
            map_zeroed(large).unwrap();
            assert_eq!((ranges().count(), ALL.load(Relaxed)), (before, all));
            assert_eq!(EXTENDING.load(Relaxed), extending::STUCK);
        }
        EXTENDING.store(extending::NONE, Release);
        map_zeroed(large).unwrap();
        assert!(ranges().count() > before && ALL.load(Relaxed) >= all + large);
    }
}
