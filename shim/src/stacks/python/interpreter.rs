//! The interpreter of this process, once its structures are known.
//!
//! Hooks get it with one atomic load. Invariant: an interpreter is published once, fully initialized, after all checks.

#![expect(clippy::disallowed_types, reason = "an interpreter is published outside of hooks")]

use std::hint::cold_path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::current_state::CurrentThreadState;
use super::freed_code_objects;
use super::layout::{Build, Layout};
use super::thread_specific;
use super::thread_state_proof::ThreadStateProof;

/// The first version whose evaluation loop may be built of tail calls.
const FIRST_WITH_TAIL_CALLS: u8 = 14;

/// What hooks need of a known interpreter.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) layout: &'static Layout,
    pub(super) build: Build,
    pub(super) code_type: usize,
    pub(super) str_type: usize,
    /// Where the code of the function is that runs Python frames; empty when not known.
    pub(super) evaluation: std::ops::Range<usize>,
    pub(super) thread_state: thread_specific::SlotGetter,
    pub(super) current: CurrentThreadState,
}

impl Interpreter {
    /// The state that the calling thread runs, whether or not it holds the GIL; 0 when it has none, or when it is not
    /// certain.
    #[inline(always)]
    pub(super) fn own_thread_state(&self, proof: &mut ThreadStateProof) -> usize {
        self.current.state(thread_specific::read(self.thread_state), proof)
    }

    /// The same, where neither the interpreter nor anything else needs to be asked.
    #[inline(always)]
    pub(super) fn own_thread_state_at_once(&self) -> Option<usize> {
        if !self.current.is_sole() {
            cold_path();
            return None;
        }
        thread_specific::read_at_once()
    }

    /// Whether the calling thread holds the GIL, `state` being its own.
    pub(super) fn is_attached(&self, state: usize) -> bool {
        self.current.is_attached(state)
    }

    /// Whether any state is attached to the calling thread, in versions in which each thread has its own (3.12 on).
    pub(super) fn is_any_attached(&self) -> bool {
        self.current.current() != 0
    }

    /// Makes sure that deaths of code objects are seen.
    pub(super) fn watch_deaths(&self) {
        // SAFETY: the type was checked before this interpreter was published.
        unsafe { freed_code_objects::watch(self.code_type.wrapping_add(self.layout.objects.deallocator())) };
    }

    /// Takes what watches them out.
    pub(super) fn unwatch_deaths(&self) {
        // SAFETY: the type was checked before this interpreter was published.
        unsafe { freed_code_objects::unwatch(self.code_type.wrapping_add(self.layout.objects.deallocator())) };
    }
}

/// The published interpreter, null before.
static INTERPRETER: AtomicPtr<Interpreter> = AtomicPtr::new(null_mut());
/// Stands for the interpreter's pointer as long as there is none.
static NOT_FINALIZING: AtomicUsize = AtomicUsize::new(0);
static FINALIZING: AtomicPtr<AtomicUsize> = AtomicPtr::new((&raw const NOT_FINALIZING).cast_mut());

/// Publishes an interpreter, for good; `finalizing` is its runtime's pointer to the thread state that finalizes it.
pub(super) fn publish(interpreter: Interpreter, finalizing: *mut AtomicUsize) {
    FINALIZING.store(finalizing, Ordering::Relaxed);
    INTERPRETER.store(Box::into_raw(Box::new(interpreter)), Ordering::Release);
}

/// The interpreter, if there is one whose frames can be read.
#[inline(always)]
pub(super) fn interpreter() -> Option<&'static Interpreter> {
    // SAFETY: null, or an interpreter that is never freed.
    unsafe { INTERPRETER.load(Ordering::Acquire).as_ref() }
}

/// The interpreter's build, if there is an interpreter whose frames can be read.
#[inline(always)]
pub(crate) fn build() -> Option<Build> {
    Some(interpreter()?.build)
}

#[inline(always)]
fn finalizing_state() -> usize {
    // SAFETY: the static above, or a word of the interpreter's runtime; both live as long as the process.
    unsafe { &*FINALIZING.load(Ordering::Relaxed) }.load(Ordering::Relaxed)
}

/// Whether the interpreter has begun to finalize. False where there is none.
#[inline(always)]
pub(crate) fn finalizing() -> bool {
    finalizing_state() != 0
}

/// Whether it is the calling thread that finalizes the interpreter.
pub(crate) fn finalizes_here() -> bool {
    let finalizing = finalizing_state();
    finalizing != 0 && interpreter().is_some_and(|python| thread_specific::read(python.thread_state) == finalizing)
}

/// Whether the interpreter is being finalized by a thread whose state is not `state`.
#[inline(always)]
pub(super) fn finalized_by_other(state: usize) -> bool {
    let finalizing = finalizing_state();
    if finalizing == 0 {
        return false;
    }
    cold_path();
    finalizing != state
}

/// Where the code of the function is that runs Python frames; empty when not known.
pub(crate) fn evaluation_loop() -> std::ops::Range<usize> {
    interpreter().map_or(0..0, |python| python.evaluation.clone())
}

/// Whether the evaluation loop is a function for each instruction, each of which ends with a jump to the next, behind
/// one that only enters the first.
pub(crate) fn evaluates_by_tail_calls() -> bool {
    /// In bytes. The function that enters has less than a kilobyte of code, a loop of all instructions dozens of them.
    const SHORT: usize = 1 << 13;
    interpreter().is_some_and(|python| {
        python.layout.minor >= FIRST_WITH_TAIL_CALLS && (1..SHORT).contains(&python.evaluation.len())
    })
}
