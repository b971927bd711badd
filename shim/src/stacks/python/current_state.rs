//! Determines the active thread state of a thread in a process with several interpreters.
//!
//! Up to 3.11 the slot in which a thread keeps its state goes on holding the first one while the thread runs another
//! interpreter. The "current" state is that of whichever thread holds the GIL, and names the thread that made it, not
//! the one that runs it.
//!
//! Invariant: with several interpreters a state is given only when it is proven that the calling thread runs it: its
//! own state while that is current, the current one whose evaluation loop stands on this thread's stack (3.10 and
//! 3.11), or by a `thread_state_proof` (3.8 and 3.9). Otherwise there is none: a missing frame is better than a wrong
//! one.
//!
//! Where it is not its own, each event reads memory of the state or of its oldest frame by a system call, since another thread may run the
//! state, and free it meanwhile. Nothing that a thread can look at without that tells otherwise: `PyThreadState_Swap` leaves the thread's
//! slot as it is (in builds for debugging, too: these compare only); the GIL's last holder and number of switches stay the same
//! when one thread releases it and another takes it with the same state; and words that the evaluation loop has left on this thread's
//! stack stay there when it has returned.

use std::ffi::c_void;
use std::hint::cold_path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::thread_state_proof::{Gil, ThreadStateProof};
use crate::platform::fallible_read;

pub(super) type Getter = unsafe extern "C" fn() -> *mut c_void;

/// Later versions change a thread's slot when the thread changes the interpreter.
const LAST_WITH_FIRST_STATE: u8 = 11;

/// What is known of the interpreters in this process.
#[derive(Debug)]
pub(super) struct CurrentThreadState {
    /// The newest of the interpreters and the main one: the same where there is only one.
    interpreters: &'static [AtomicUsize; 2],
    getter: Option<Getter>,
    /// In a thread state: the address of the innermost evaluation loop's record, which stands in its C frame.
    evaluation: Option<usize>,
    /// Where nothing of that kind leads to the thread's stack.
    gil: Option<Gil>,
}

static ALONE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

impl CurrentThreadState {
    /// # Safety
    /// `runtime` must be the address of `_PyRuntime` of that version, `frame_type` of its `PyFrame_Type`, and `getter`
    /// its `_PyThreadState_UncheckedGet` or `PyThreadState_GetUnchecked`.
    pub(super) unsafe fn new(minor: u8, runtime: usize, frame_type: usize, getter: Option<Getter>) -> Self {
        // Behind the head of the list of interpreters there is the main one.
        let head = if minor == LAST_WITH_FIRST_STATE { 40 } else { 32 };
        let interpreters = if minor <= LAST_WITH_FIRST_STATE {
            // SAFETY: two words of the runtime, which lives as long as the process.
            unsafe { &*(runtime.wrapping_add(head) as *const [AtomicUsize; 2]) }
        } else {
            &ALONE
        };
        let evaluation = match minor {
            10 => Some(48),
            11 => Some(56),
            _ => None,
        };
        // SAFETY: the caller's promise.
        let gil = unsafe { Gil::of(minor, runtime, frame_type) };
        Self { interpreters, getter, evaluation, gil }
    }

    /// The state that the calling thread runs, `first` being what its slot holds.
    #[inline(always)]
    pub(super) fn state(&self, first: usize, proof: &mut ThreadStateProof) -> usize {
        if self.is_sole() {
            return first;
        }
        cold_path();
        self.proven(first, proof)
    }

    /// Whether there is one interpreter, or each thread's slot says which it runs.
    #[inline(always)]
    pub(super) fn is_sole(&self) -> bool {
        let [newest, main] = self.interpreters;
        newest.load(Relaxed) == main.load(Relaxed)
    }

    /// Whether the calling thread holds the GIL, `state` being its own.
    pub(super) fn is_attached(&self, state: usize) -> bool {
        state != 0 && self.current() == state
    }

    #[cold]
    #[inline(never)]
    fn proven(&self, first: usize, proof: &mut ThreadStateProof) -> usize {
        let current = self.current();
        let is_proven = current == first
            || (current != 0
                && match &self.gil {
                    Some(gil) => proof.proves(gil, first, current),
                    None => self.evaluates_here(current),
                });
        if is_proven { current } else { 0 }
    }

    /// The state that is attached: to the calling thread, or up to 3.11 to whichever thread holds the GIL.
    pub(super) fn current(&self) -> usize {
        // SAFETY: the function may be called at any time from any thread: it reads one word.
        self.getter.map_or(0, |getter| unsafe { getter() } as usize)
    }

    /// Whether the state's evaluation loop is one of this thread's. The state may be another's, which is freeing it.
    fn evaluates_here(&self, state: usize) -> bool {
        let record = self.evaluation.and_then(|offset| fallible_read::word(state.wrapping_add(offset)));
        record.is_some_and(is_on_own_stack)
    }
}

/// Whether an address is in a C frame that called this one, which must therefore have one of its own.
#[inline(never)]
fn is_on_own_stack(address: usize) -> bool {
    let here = 0_u8;
    let newest = &raw const here as usize;
    // SAFETY: no preconditions.
    let descriptor = unsafe { libc::pthread_self() } as usize;
    // The C library keeps a thread's descriptor above its stack, in one mapping. The first thread's stack comes from
    // the system, which writes the random bytes for the program above it.
    // SAFETY: no preconditions.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    let oldest = if descriptor > newest { descriptor } else { random };
    newest < address && address < oldest
}

#[cfg(test)]
mod tests {
    use super::{CurrentThreadState, ThreadStateProof, is_on_own_stack};
    use std::ffi::c_void;

    #[test]
    fn the_own_stack_is_told_from_that_of_others() {
        let mine = 0_u8;
        let mine = &raw const mine as usize;
        assert!(is_on_own_stack(mine));
        assert!(!is_on_own_stack(&raw const super::ALONE as usize));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let own = 0_u8;
                assert!(is_on_own_stack(&raw const own as usize));
                assert!(!is_on_own_stack(mine));
            });
        });
    }

    static mut STATE: [usize; 8] = [0; 8];

    unsafe extern "C" fn state() -> *mut c_void {
        (&raw mut STATE).cast()
    }

    #[test]
    fn with_several_interpreters_only_what_is_proven_counts() {
        let mut runtime = [0_usize; 64];
        runtime[5..7].copy_from_slice(&[1, 2]);
        // SAFETY: the words that are read of a runtime.
        let current = |minor| unsafe { CurrentThreadState::new(minor, runtime.as_ptr() as usize, 0, Some(state)) };
        let proof = &mut ThreadStateProof::new();
        let address = &raw const STATE as usize;
        assert_eq!(current(12).state(77, proof), 77);
        assert_eq!(current(11).state(address, proof), address);
        assert_eq!(current(11).state(77, proof), 0);
        let evaluation = 0_u8;
        // SAFETY: no other thread uses the array.
        unsafe { STATE[7] = &raw const evaluation as usize };
        assert_eq!(current(11).state(77, proof), address);
        assert_eq!(current(9).state(77, proof), 0);
    }
}
