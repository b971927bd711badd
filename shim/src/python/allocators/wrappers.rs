//! The functions that stand in a domain's place, and what they stand for.
//!
//! One set of functions for each distinct set of originals, so that a function needs nothing but its own number to find
//! the one it wraps; the context it is given is the original's, and is passed on. The guard is held over the real call:
//! what an allocator takes from malloc or mmap for a block is not recorded beside the block.
//!
//! Invariant: the originals of a number never change once its functions are in use.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, fence};

use memtrack_format::Allocator;

use crate::got::Original;
use crate::thread;

/// The functions of a `PyMemAllocatorEx`, as addresses: malloc, calloc, realloc, free.
pub(super) type Functions = [usize; 4];

type Malloc = unsafe extern "C" fn(usize, usize) -> usize;
type Calloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Realloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Free = unsafe extern "C" fn(usize, usize);

/// Sets of originals that can be told apart. The C library's, pymalloc's, both with the debug hooks, both with
/// tracemalloc's: what a process meets in practice.
const SETS: usize = 8;

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

    fn are(&self, functions: &Functions) -> bool {
        self.words().iter().zip(functions).all(|(word, function)| word.load(Relaxed) == *function)
    }
}

static ORIGINALS: [Originals; SETS] = [const { Originals::new() }; SETS];
/// Sets in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Our functions in place of these; `None` when there are too many kinds. One thread at a time.
pub(super) fn in_place_of(functions: &Functions) -> Option<Functions> {
    let used = USED.load(Acquire);
    let known = ORIGINALS.iter().take(used).position(|originals| originals.are(functions));
    let number = known.unwrap_or(used);
    if known.is_none() {
        let originals = ORIGINALS.get(number)?;
        for (word, function) in originals.words().into_iter().zip(functions) {
            word.store(*function, Relaxed);
        }
        USED.store(number.wrapping_add(1), Release);
        // Whoever reads a function of ours out of the domain finds its originals.
        fence(Release);
    }
    sets().get(number).copied()
}

/// Whether a domain with this malloc function calls ours first.
pub(super) fn is_ours(malloc: usize) -> bool {
    sets().iter().any(|set| set.first() == Some(&malloc))
}

fn sets() -> [Functions; SETS] {
    [set::<0>(), set::<1>(), set::<2>(), set::<3>(), set::<4>(), set::<5>(), set::<6>(), set::<7>()]
}

fn set<const NUMBER: usize>() -> Functions {
    let malloc: Malloc = malloc::<NUMBER>;
    let calloc: Calloc = calloc::<NUMBER>;
    let realloc: Realloc = realloc::<NUMBER>;
    let free: Free = free::<NUMBER>;
    [malloc as usize, calloc as usize, realloc as usize, free as usize]
}

#[inline(always)]
const fn originals<const NUMBER: usize>() -> &'static Originals {
    const { assert!(NUMBER < SETS) };
    #[expect(clippy::indexing_slicing, reason = "checked above, when it is compiled")]
    &ORIGINALS[NUMBER]
}

unsafe extern "C" fn malloc<const NUMBER: usize>(context: usize, size: usize) -> usize {
    let real = originals::<NUMBER>().malloc.get();
    let Some(mut recorder) = thread::enter() else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, size) };
    };
    // SAFETY: as above.
    let block = unsafe { real(context, size) };
    if block != 0 {
        recorder.alloc(Allocator::PymallocMalloc, block, size);
    }
    block
}

unsafe extern "C" fn calloc<const NUMBER: usize>(context: usize, count: usize, size: usize) -> usize {
    let real = originals::<NUMBER>().calloc.get();
    let Some(mut recorder) = thread::enter() else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, count, size) };
    };
    // SAFETY: as above.
    let block = unsafe { real(context, count, size) };
    if block != 0 {
        recorder.alloc(Allocator::PymallocCalloc, block, count.wrapping_mul(size));
    }
    block
}

/// Unlike the C library's, a new size of 0 does not free: null always means that the old block is still there.
unsafe extern "C" fn realloc<const NUMBER: usize>(context: usize, old: usize, size: usize) -> usize {
    let real = originals::<NUMBER>().realloc.get();
    let Some(mut recorder) = thread::enter() else {
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, old, size) };
    };
    if old != 0 {
        recorder.free_python(old, true);
    }
    // SAFETY: as above.
    let block = unsafe { real(context, old, size) };
    recorder.freed_python();
    if block != 0 {
        recorder.alloc(Allocator::PymallocRealloc, block, size);
    } else if old != 0 {
        recorder.free_undo();
    }
    block
}

unsafe extern "C" fn free<const NUMBER: usize>(context: usize, block: usize) {
    let real = originals::<NUMBER>().free.get();
    let recorder = if block == 0 { None } else { thread::enter() };
    let Some(mut recorder) = recorder else {
        let _beneath = thread::free_beneath(block);
        // SAFETY: the interpreter's arguments, for the function it meant.
        return unsafe { real(context, block) };
    };
    recorder.free_python(block, false);
    // SAFETY: as above.
    unsafe { real(context, block) };
    recorder.freed_python();
}

#[cfg(test)]
mod tests {
    use super::{SETS, in_place_of, is_ours};

    /// One test for all, since the table is one for the process.
    #[test]
    fn equal_originals_share_their_wrappers_and_the_table_ends() {
        let functions = |kind: usize| [kind, kind + 1, kind + 2, kind + 3];
        let sets: Vec<_> = (1..=SETS).filter_map(|kind| in_place_of(&functions(kind))).collect();
        assert_eq!(sets.len(), SETS);
        assert_eq!(in_place_of(&functions(3)).as_ref(), sets.get(2));
        assert!(sets.iter().all(|[malloc, ..]| is_ours(*malloc)) && !is_ours(1));
        assert_eq!(sets.iter().collect::<std::collections::HashSet<_>>().len(), SETS);
        assert_eq!(in_place_of(&functions(SETS + 1)), None);
    }
}
