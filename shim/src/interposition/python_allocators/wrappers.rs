//! The wrapper functions of a domain and the originals that they call.
//!
//! One set of functions for each domain and distinct set of originals, so that a function needs nothing but its own
//! number to know its domain and to find the one it wraps; the context it is given is the original's, and is passed on.
//! The guard is held over the real call, so what an allocator takes from malloc or mmap for a block is not recorded
//! beside the block.
//!
//! Invariant: the originals of a number never change once its functions are in use.

use std::hint::cold_path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, fence};

use memtrack_format::Allocator;

use crate::interposition::got::Original;
use crate::recording::thread::Recorder;
use crate::recording::thread::{self, FreeOutcome, PythonCall};

/// The functions of a `PyMemAllocatorEx`, as addresses: malloc, calloc, realloc, free.
pub(super) type DomainFunctions = [usize; 4];

pub(super) type Malloc = unsafe extern "C" fn(usize, usize) -> usize;
type Calloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Realloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
pub(super) type Free = unsafe extern "C" fn(usize, usize);

/// Sets of originals that can be told apart in each domain: what PYTHONMALLOC may set, the same with the debug hooks,
/// and what was there before, which is what a process meets in practice.
const SETS: usize = 4;
/// The domains, by their numbers in the interpreter: raw, mem, obj.
const DOMAINS: usize = 3;

/// What one set of wrappers stands for.
struct Originals {
    malloc: Original<Malloc>,
    calloc: Original<Calloc>,
    realloc: Original<Realloc>,
    free: Original<Free>,
}

impl Originals {
    const fn new() -> Self {
        Self { malloc: Original::new(), calloc: Original::new(), realloc: Original::new(), free: Original::new() }
    }

    const fn words(&self) -> [&AtomicUsize; 4] {
        [self.malloc.word(), self.calloc.word(), self.realloc.word(), self.free.word()]
    }

    fn are(&self, functions: &DomainFunctions) -> bool {
        self.words().iter().zip(functions).all(|(word, function)| word.load(Relaxed) == *function)
    }
}

static ORIGINALS: [[Originals; SETS]; DOMAINS] = [const { [const { Originals::new() }; SETS] }; DOMAINS];
/// Sets in use in each domain.
static USED: [AtomicUsize; DOMAINS] = [const { AtomicUsize::new(0) }; DOMAINS];

/// Our functions in place of these of a domain; `None` when there are too many kinds. One thread at a time.
pub(super) fn in_place_of(domain: usize, functions: &DomainFunctions) -> Option<DomainFunctions> {
    let (all, counter) = (ORIGINALS.get(domain)?, USED.get(domain)?);
    let used = counter.load(Acquire);
    let known = all.iter().take(used).position(|originals| originals.are(functions));
    let number = known.unwrap_or(used);
    if known.is_none() {
        let originals = all.get(number)?;
        for (word, function) in originals.words().into_iter().zip(functions) {
            word.store(*function, Relaxed);
        }
        counter.store(number.wrapping_add(1), Release);
        // A reader that finds a wrapper in the domain finds its originals.
        fence(Release);
    }
    sets().get(domain)?.get(number).copied()
}

/// The functions that a domain had whose malloc function is one of ours.
pub(super) fn originals_behind(domain: usize, malloc: usize) -> Option<DomainFunctions> {
    let number = sets().get(domain)?.iter().position(|set| set.first() == Some(&malloc))?;
    Some(ORIGINALS.get(domain)?.get(number)?.words().map(|word| word.load(Acquire)))
}

/// Whether a domain with this malloc function calls the wrappers first.
pub(super) fn is_ours(malloc: usize) -> bool {
    sets().iter().flatten().any(|set| set.first() == Some(&malloc))
}

fn sets() -> [[DomainFunctions; SETS]; DOMAINS] {
    [domain::<0>(), domain::<1>(), domain::<2>()]
}

fn domain<const DOMAIN: usize>() -> [DomainFunctions; SETS] {
    [set::<DOMAIN, 0>(), set::<DOMAIN, 1>(), set::<DOMAIN, 2>(), set::<DOMAIN, 3>()]
}

fn set<const DOMAIN: usize, const NUMBER: usize>() -> DomainFunctions {
    let malloc: Malloc = malloc::<DOMAIN, NUMBER>;
    let calloc: Calloc = calloc::<DOMAIN, NUMBER>;
    let realloc: Realloc = realloc::<DOMAIN, NUMBER>;
    let free: Free = free::<DOMAIN, NUMBER>;
    [malloc as usize, calloc as usize, realloc as usize, free as usize]
}

#[inline(always)]
const fn originals<const DOMAIN: usize, const NUMBER: usize>() -> &'static Originals {
    const { assert!(DOMAIN < DOMAINS && NUMBER < SETS) };
    #[expect(clippy::indexing_slicing, reason = "checked above, when it is compiled")]
    &ORIGINALS[DOMAIN][NUMBER]
}

/// The allocator of a domain that does what `function` of the obj domain does.
#[inline(always)]
const fn allocator<const DOMAIN: usize>(function: Allocator) -> Allocator {
    match (DOMAIN, function) {
        (0, Allocator::PymallocCalloc) => Allocator::PymallocCallocRaw,
        (0, Allocator::PymallocRealloc) => Allocator::PymallocReallocRaw,
        (0, _) => Allocator::PymallocMallocRaw,
        (1, Allocator::PymallocCalloc) => Allocator::PymallocCallocMem,
        (1, Allocator::PymallocRealloc) => Allocator::PymallocReallocMem,
        (1, _) => Allocator::PymallocMallocMem,
        (_, function) => function,
    }
}

unsafe extern "C" fn malloc<const DOMAIN: usize, const NUMBER: usize>(context: usize, size: usize) -> usize {
    let real = originals::<DOMAIN, NUMBER>().malloc.get();
    let Some(recorder) = thread::enter() else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, size) };
    };
    // SAFETY: the interpreter's arguments, for the function it meant.
    let block = unsafe { real(context, size) };
    if block == 0 {
        cold_path();
        return recorder.failed(allocator::<DOMAIN>(Allocator::PymallocMalloc), size);
    }
    recorder.alloc(allocator::<DOMAIN>(Allocator::PymallocMalloc), block, size)
}

unsafe extern "C" fn calloc<const DOMAIN: usize, const NUMBER: usize>(
    context: usize,
    count: usize,
    size: usize,
) -> usize {
    let real = originals::<DOMAIN, NUMBER>().calloc.get();
    let Some(recorder) = thread::enter() else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, count, size) };
    };
    // SAFETY: the interpreter's arguments, for the function it meant.
    let block = unsafe { real(context, count, size) };
    if block == 0 {
        cold_path();
        return recorder.failed(allocator::<DOMAIN>(Allocator::PymallocCalloc), count.wrapping_mul(size));
    }
    recorder.alloc(allocator::<DOMAIN>(Allocator::PymallocCalloc), block, count.wrapping_mul(size))
}

/// Unlike the C library's, a new size of 0 does not free: null always means that the old block is still there.
unsafe extern "C" fn realloc<const DOMAIN: usize, const NUMBER: usize>(
    context: usize,
    old: usize,
    size: usize,
) -> usize {
    let real = originals::<DOMAIN, NUMBER>().realloc.get();
    let Some(mut recorder) = thread::enter() else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, old, size) };
    };
    if old != 0 {
        recorder.free_here(old);
        recorder.frees_python(old, PythonCall::Moves);
    }
    // SAFETY: the interpreter's arguments, for the function it meant.
    let block = unsafe { real(context, old, size) };
    recorder.freed_python();
    if block != 0 {
        return recorder.alloc(allocator::<DOMAIN>(Allocator::PymallocRealloc), block, size);
    }
    cold_path();
    if old != 0 {
        recorder.free_undo();
    }
    recorder.failed(allocator::<DOMAIN>(Allocator::PymallocRealloc), size)
}

unsafe extern "C" fn free<const DOMAIN: usize, const NUMBER: usize>(context: usize, block: usize) {
    let recorder = match thread::free_fast(block) {
        FreeOutcome::Recorded(recorder) => recorder,
        FreeOutcome::Pending(recorder) => {
            // SAFETY: the interpreter's arguments, for the function it meant.
            return unsafe { free_pending::<DOMAIN, NUMBER>(context, block, recorder) };
        }
        // SAFETY: the interpreter's arguments, for the function it meant.
        FreeOutcome::NotOn => return unsafe { free_not_on::<DOMAIN, NUMBER>(context, block) },
        // SAFETY: the interpreter's arguments, for the function it meant.
        FreeOutcome::Nested | FreeOutcome::NotHandled => return unsafe { free_slow::<DOMAIN, NUMBER>(context, block) },
    };
    recorder.frees_python(block, PythonCall::Frees);
    // SAFETY: the interpreter's arguments, for the function it meant.
    unsafe { originals::<DOMAIN, NUMBER>().free.get()(context, block) };
    recorder.freed_python();
}

/// A free whose record is more than [`thread::free_fast`] writes, for example with a time. Out of line, so that the
/// common path saves fewer registers.
#[inline(never)]
unsafe fn free_pending<const DOMAIN: usize, const NUMBER: usize>(context: usize, block: usize, mut recorder: Recorder) {
    recorder.free_pending(block);
    recorder.frees_python(block, PythonCall::Frees);
    // SAFETY: the interpreter's arguments, for the function it meant.
    unsafe { originals::<DOMAIN, NUMBER>().free.get()(context, block) };
    recorder.freed_python();
}

/// The common path where samples are recorded.
#[inline(never)]
unsafe fn free_not_on<const DOMAIN: usize, const NUMBER: usize>(context: usize, block: usize) {
    let Some(recorder) = thread::enter_unsampled_free(block) else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { free_slow::<DOMAIN, NUMBER>(context, block) };
    };
    recorder.frees_python(block, PythonCall::Frees);
    // SAFETY: the interpreter's arguments, for the function it meant.
    unsafe { originals::<DOMAIN, NUMBER>().free.get()(context, block) };
    recorder.freed_python();
}

/// Any free.
#[cold]
#[inline(never)]
unsafe fn free_slow<const DOMAIN: usize, const NUMBER: usize>(context: usize, block: usize) {
    let recorder = if block == 0 { None } else { thread::enter() };
    if let Some(mut recorder) = recorder {
        recorder.free(block);
        recorder.frees_python(block, PythonCall::Frees);
        // SAFETY: the interpreter's arguments, for the function it meant.
        unsafe { originals::<DOMAIN, NUMBER>().free.get()(context, block) };
        return recorder.freed_python();
    }
    let _nested = thread::free_nested(block);
    // SAFETY: the interpreter's arguments, for the function it meant.
    unsafe { originals::<DOMAIN, NUMBER>().free.get()(context, block) };
}

#[cfg(test)]
mod tests {
    use super::{DOMAINS, SETS, allocator, in_place_of, is_ours, originals_behind};
    use memtrack_format::{Allocator, PythonDomain};

    /// One test for all, since the table is one for the process.
    #[test]
    fn equal_originals_of_a_domain_share_their_wrappers_and_the_table_ends() {
        let functions = |kind: usize| [kind, kind + 1, kind + 2, kind + 3];
        for domain in 0..DOMAINS {
            let sets: Vec<_> = (1..=SETS).filter_map(|kind| in_place_of(domain, &functions(kind))).collect();
            assert_eq!(sets.len(), SETS);
            assert_eq!(in_place_of(domain, &functions(3)).as_ref(), sets.get(2));
            assert!(sets.iter().all(|[malloc, ..]| is_ours(*malloc)) && !is_ours(1));
            for (kind, [malloc, ..]) in (1..).zip(&sets) {
                assert_eq!(originals_behind(domain, *malloc), Some(functions(kind)));
            }
            assert_eq!(originals_behind(domain, 1), None);
            assert_eq!(sets.iter().collect::<std::collections::HashSet<_>>().len(), SETS);
            assert_eq!(in_place_of(domain, &functions(SETS + 1)), None);
        }
        assert_eq!(in_place_of(DOMAINS, &functions(1)), None);
        assert_ne!(in_place_of(0, &functions(1)), in_place_of(2, &functions(1)));
    }

    #[test]
    fn each_domain_has_its_allocators() {
        let functions = [Allocator::PymallocMalloc, Allocator::PymallocCalloc, Allocator::PymallocRealloc];
        for function in functions {
            let found = [allocator::<0>(function), allocator::<1>(function), allocator::<2>(function)];
            assert_eq!(found.map(Allocator::function), [function; DOMAINS]);
            assert_eq!(found.map(Allocator::python_domain), PythonDomain::ALL.map(Some));
        }
    }
}
