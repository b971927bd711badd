//! Functions of the obj domain that do what the domain's own do, and notice when the interpreter begins to finalize: where
//! the blocks of Python's allocators are not recorded, but its objects are to be read at that moment (`--objects-at end`).
//!
//! Without them the first event after that moment may be one of its end, when the modules are empty. Invariant: they record
//! nothing but the moment, and the originals of a number never change once its functions are in use.

use std::hint::cold_path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, fence};

use super::wrappers::{DomainFunctions, Free, Malloc};
use crate::interposition::got::Original;
use crate::recording::{finalize_barrier, thread};
use crate::stacks::python;

/// Sets of originals that can be told apart, as for the wrappers.
const SETS: usize = 4;

/// What one set of watchers stands for; the other two functions stay as they are.
struct Watched {
    malloc: Original<Malloc>,
    free: Original<Free>,
    calloc: AtomicUsize,
    realloc: AtomicUsize,
}

impl Watched {
    const fn new() -> Self {
        let (calloc, realloc) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { malloc: Original::new(), free: Original::new(), calloc, realloc }
    }

    const fn words(&self) -> [&AtomicUsize; 4] {
        [self.malloc.word(), &self.calloc, &self.realloc, self.free.word()]
    }

    fn functions(&self) -> DomainFunctions {
        self.words().map(|word| word.load(Acquire))
    }
}

static WATCHED: [Watched; SETS] = [const { Watched::new() }; SETS];
/// Sets in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Our functions in place of these of the obj domain; `None` when there are too many kinds. One thread at a time.
pub(super) fn in_place_of(functions: &DomainFunctions) -> Option<DomainFunctions> {
    let used = USED.load(Acquire);
    let known = WATCHED.iter().take(used).position(|watched| watched.functions() == *functions);
    let number = known.unwrap_or(used);
    if known.is_none() {
        let watched = WATCHED.get(number)?;
        for (word, function) in watched.words().into_iter().zip(functions) {
            word.store(*function, Relaxed);
        }
        USED.store(number.wrapping_add(1), Release);
        // A reader that finds a watcher in the domain finds its originals.
        fence(Release);
    }
    let [_, calloc, realloc, _] = *functions;
    let (malloc, free) = sets().get(number).copied()?;
    Some([malloc, calloc, realloc, free])
}

/// The functions that the domain had whose malloc function is one of ours.
pub(super) fn originals_behind(malloc: usize) -> Option<DomainFunctions> {
    let number = sets().iter().position(|(ours, _)| *ours == malloc)?;
    WATCHED.get(number).map(Watched::functions)
}

/// Whether a domain with this malloc function calls the watchers first.
pub(super) fn is_ours(malloc: usize) -> bool {
    sets().iter().any(|(ours, _)| *ours == malloc)
}

fn sets() -> [(usize, usize); SETS] {
    [set::<0>(), set::<1>(), set::<2>(), set::<3>()]
}

fn set<const NUMBER: usize>() -> (usize, usize) {
    let (malloc, free): (Malloc, Free) = (malloc::<NUMBER>, free::<NUMBER>);
    (malloc as usize, free as usize)
}

#[inline(always)]
const fn watched<const NUMBER: usize>() -> &'static Watched {
    const { assert!(NUMBER < SETS) };
    #[expect(clippy::indexing_slicing, reason = "checked above, when it is compiled")]
    &WATCHED[NUMBER]
}

/// Notes that finalization has begun, once.
#[inline(always)]
fn look() {
    if python::finalizing() && !finalize_barrier::has_finalized() {
        cold_path();
        note();
    }
}

#[cold]
#[inline(never)]
fn note() {
    if let Some(recorder) = thread::enter() {
        recorder.begins_to_finalize();
    }
}

unsafe extern "C" fn malloc<const NUMBER: usize>(context: usize, size: usize) -> usize {
    look();
    // SAFETY: the interpreter's arguments, for the function it meant.
    unsafe { watched::<NUMBER>().malloc.get()(context, size) }
}

unsafe extern "C" fn free<const NUMBER: usize>(context: usize, block: usize) {
    look();
    // SAFETY: the interpreter's arguments, for the function it meant.
    unsafe { watched::<NUMBER>().free.get()(context, block) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{in_place_of, is_ours, originals_behind};

    unsafe extern "C" fn block(context: usize, size: usize) -> usize {
        context + size
    }

    #[test]
    fn what_is_watched_is_still_called() {
        let functions = [block as *const () as usize, 2, 3, 4];
        let ours = in_place_of(&functions).unwrap();
        assert_eq!(in_place_of(&functions), Some(ours));
        assert!(is_ours(ours[0]) && !is_ours(functions[0]) && ours[1..3] == [2, 3]);
        assert_eq!(originals_behind(ours[0]), Some(functions));
        // SAFETY: an address of a function of this type.
        let malloc: unsafe extern "C" fn(usize, usize) -> usize = unsafe { std::mem::transmute(ours[0]) };
        // SAFETY: it adds two numbers.
        assert_eq!(unsafe { malloc(40, 2) }, 42);
    }
}
