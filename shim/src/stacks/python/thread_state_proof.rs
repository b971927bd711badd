//! Proves which interpreter a thread runs in 3.8 and 3.9, where a thread state does not identify the running thread.
//!
//! It exists because there the current state is that of whoever holds the GIL, and even a state that a thread has proven
//! to be its own may be run by another one later. Three proofs:
//!
//! **Alone.** While the process has a single thread, that thread runs what is current. The C library says so (2.32 on).
//!
//! **The last holder.** The GIL knows the state with which it was last taken, or given up. The first state of a thread
//! is used to take the GIL by that thread alone. So while the GIL is locked and its last holder is the thread's first
//! state, nobody has taken it since: the thread holds it, and what is current is what it runs. (Whoever takes it writes
//! down its own state before it makes one current.)
//!
//! **The root.** Those proofs end when the interpreter lends the GIL to others in the middle of a program. Before, the
//! thread leaves something of its own, if sentinels are allowed: in the oldest frame of the state it runs it writes a
//! number of its own, in place of 1, into the byte that says that the frame executes; the interpreter asks only whether
//! that is 0. While the number is there that evaluation has not ended, so it stands on this thread's stack, and what is
//! current above it is what this thread runs. No other thread writes the same number.
//!
//! Invariant: a state is confirmed only by one of these proofs; without numbers left, or in doubt, it is not.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use libloading::os::unix::Library;

use super::frame::{OwnThreadState, PythonFrame};
use super::frame_sentinels;
use super::layout::{V39, Version};
use super::raw_memory::{byte, set_byte};
use crate::platform::fallible_read;

/// The first number of a thread; 1 and 2 are what any executing frame may hold.
const FIRST: usize = 3;
/// Links followed to the root; a longer chain has no proof.
const LONGEST_WALK: usize = 100_000;

/// The byte that says that a frame executes, in both versions.
const EXECUTING: usize = 116;

/// The number of the next thread that needs one.
static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

/// The GIL's words: the state that last took it, or gave it up, and whether it is locked, an int.
#[derive(Debug)]
pub(super) struct Gil {
    words: &'static [AtomicUsize; 2],
    /// The C library's word on whether there is a single thread.
    alone: Option<&'static AtomicU8>,
    /// `PyFrame_Type`.
    frame_type: usize,
}

impl Gil {
    /// # Safety
    /// `runtime` must be the address of `_PyRuntime` of 3.`minor`.
    pub(super) unsafe fn of(minor: u8, runtime: usize, frame_type: usize) -> Option<Self> {
        let last_holder = match minor {
            8 => 1160,
            9 => 360,
            _ => return None,
        };
        // SAFETY: two words of the runtime, which lives as long as the process.
        let words = unsafe { &*(runtime.wrapping_add(last_holder) as *const [AtomicUsize; 2]) };
        Some(Self { words, alone: alone(), frame_type })
    }

    /// Whether what is current must be what the thread runs whose first state this is.
    fn proves(&self, first: usize) -> bool {
        self.is_held_with(first) || self.alone.is_some_and(|alone| alone.load(Relaxed) != 0)
    }

    /// Whether the GIL has been held since it was taken with this state.
    fn is_held_with(&self, first: usize) -> bool {
        let [last_holder, locked] = self.words;
        first != 0 && last_holder.load(Relaxed) == first && locked.load(Relaxed) as u32 == 1
    }
}

/// The flag of C libraries that have one. Call it outside of hooks.
fn alone() -> Option<&'static AtomicU8> {
    let global = Library::this();
    // SAFETY: the documented type, a char that only the library writes, and which lives as long as the process.
    let flag = unsafe { global.get::<*const AtomicU8>(c"__libc_single_threaded") }.ok().map(|symbol| *symbol);
    // Closing has no use: the program itself stays.
    std::mem::forget(global);
    // SAFETY: the documented type, a char that only the library writes, and which lives as long as the process.
    flag.and_then(|flag| unsafe { flag.as_ref() })
}

/// What a thread has left in the state that it was last proven to run.
#[derive(Debug)]
pub(super) struct ThreadStateProof {
    state: usize,
    root: usize,
    /// The thread's number; 0 before it needs one.
    number: u8,
}

impl ThreadStateProof {
    pub(super) const fn new() -> Self {
        Self { state: 0, root: 0, number: 0 }
    }

    /// The thread is another one now, or is known to run nothing.
    pub(super) const fn forget(&mut self) {
        self.state = 0;
    }

    /// Whether the calling thread runs the `current` state, which is not its `first` one.
    pub(super) fn proves(&mut self, gil: &Gil, first: usize, current: usize) -> bool {
        let is_held = self.state == current && self.is_at_root(gil.frame_type);
        if is_held || !gil.proves(first) {
            return is_held;
        }
        self.take(current);
        true
    }

    /// Whether the number is still in a frame at the root's address.
    fn is_at_root(&self, frame_type: usize) -> bool {
        const KIND: usize = V39::L.objects.kind();
        let mut frame = [0; EXECUTING + 1];
        if !fallible_read::fill(self.root, &mut frame) {
            return false;
        }
        let kind = frame.get(KIND..KIND + size_of::<usize>());
        kind == Some(&frame_type.to_ne_bytes()) && frame.last() == Some(&self.number)
    }

    /// Writes the number into the oldest frame of a state that this thread runs, if it has one that executes.
    fn take(&mut self, state: usize) {
        self.forget();
        if !frame_sentinels::are_allowed() || (self.number == 0 && !self.assign_number()) {
            return;
        }
        let Some(root) = root(state) else { return };
        let executing = root.wrapping_add(EXECUTING);
        // SAFETY: a field of a frame of a state that this thread runs.
        if unsafe { byte(executing) } != 0 {
            // SAFETY: a field of a frame of a state that this thread runs; to the interpreter the new value means the
            // same.
            unsafe { set_byte(executing, self.number) };
            (self.state, self.root) = (state, root);
        }
    }

    fn assign_number(&mut self) -> bool {
        let next = NEXT.fetch_update(Relaxed, Relaxed, |next| (next <= u8::MAX.into()).then(|| next.wrapping_add(1)));
        self.number = next.unwrap_or(0) as u8;
        self.number != 0
    }
}

/// The oldest frame of a state that this thread runs.
fn root(state: usize) -> Option<usize> {
    // SAFETY: the caller has proven that this thread runs the state; frames lie alike in both versions.
    let mut address = unsafe { OwnThreadState::<V39>::new(state) }.newest();
    for _ in 0..LONGEST_WALK {
        // SAFETY: reached from this thread's newest frame by links that were just read.
        match unsafe { PythonFrame::<V39>::new(address) } {
            _ if address == 0 => return None,
            frame if frame.previous() == 0 => return Some(address),
            frame => address = frame.previous(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{EXECUTING, Gil, ThreadStateProof, alone};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const FIRST: usize = 77;
    const FRAME_TYPE: usize = 0x1000;

    /// A state and its chain of two frames, as far as they are read.
    struct FakeInterpreter {
        state: [usize; 8],
        newest: [usize; 16],
        root: [usize; 16],
    }

    impl FakeInterpreter {
        fn new() -> Box<Self> {
            let mut made = Box::new(Self { state: [0; 8], newest: [0; 16], root: [0; 16] });
            made.state[3] = made.newest.as_ptr() as usize;
            made.newest[3] = made.root.as_ptr() as usize;
            made.root[1] = FRAME_TYPE;
            made.execute(1);
            made
        }

        fn state(&self) -> usize {
            self.state.as_ptr() as usize
        }

        fn execute(&mut self, value: u8) {
            let byte = self.root.as_mut_ptr().cast::<u8>().wrapping_add(EXECUTING);
            // SAFETY: a byte of the array.
            unsafe { byte.write_volatile(value) };
        }
    }

    /// Of a process with several threads.
    fn gil() -> Gil {
        let words = Box::leak(Box::new([const { AtomicUsize::new(0) }; 2]));
        Gil { words, alone: None, frame_type: FRAME_TYPE }
    }

    #[test]
    fn a_test_has_a_thread_of_its_own() {
        assert!(alone().is_none_or(|alone| alone.load(Relaxed) == 0));
    }

    #[test]
    fn a_state_is_the_threads_while_its_root_executes() {
        let gil = gil();
        let held_by = |state| {
            gil.words[0].store(state, Relaxed);
            gil.words[1].store(1, Relaxed);
        };
        super::frame_sentinels::allow(true);
        let (mut mine, mut other) = (ThreadStateProof::new(), ThreadStateProof::new());
        let mut interpreter = FakeInterpreter::new();
        let state = interpreter.state();
        held_by(5);
        assert!(!mine.proves(&gil, FIRST, state), "the GIL was last taken by another");
        held_by(FIRST);
        assert!(mine.proves(&gil, FIRST, state));
        held_by(state);
        assert!(mine.proves(&gil, FIRST, state), "the root still executes");
        assert!(!other.proves(&gil, 78, state), "another thread");
        assert!(!mine.proves(&gil, FIRST, state + 8), "another state");
        for value in [0, 1, 2] {
            interpreter.execute(value);
            assert!(!mine.proves(&gil, FIRST, state), "the evaluation has ended");
        }
        // Another thread runs the same frame now.
        held_by(78);
        assert!(other.proves(&gil, 78, state));
        held_by(state);
        assert!(other.proves(&gil, 78, state) && !mine.proves(&gil, FIRST, state));
        // The same, in a thread that takes over what the other has left.
        other.forget();
        assert!(!other.proves(&gil, FIRST, state));
    }

    #[test]
    fn without_a_frame_only_the_last_holder_counts() {
        let gil = gil();
        let mut interpreter = FakeInterpreter::new();
        interpreter.state[3] = 0;
        let (state, mut proof) = (interpreter.state(), ThreadStateProof::new());
        gil.words[0].store(FIRST, Relaxed);
        assert!(!proof.proves(&gil, FIRST, state), "nobody holds the GIL");
        gil.words[1].store(1, Relaxed);
        assert!(proof.proves(&gil, FIRST, state) && !proof.proves(&gil, 0, state));
        gil.words[0].store(state, Relaxed);
        assert!(!proof.proves(&gil, FIRST, state));
    }
}
