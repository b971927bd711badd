//! What the position of a frame means: the instruction that it executes, and whether a traceback shows the frame.
//!
//! Invariant: as of the frames themselves, all that is read belongs to the calling thread's chain.

use super::frame::{LiveCode, PythonFrame};
use super::interpreter::Interpreter;
use super::layout::{OWNER_ENTRY, OWNER_GENERATOR, Version};
use super::raw_memory::half;
use super::thread_local_bytecode;

impl<V: Version> PythonFrame<V> {
    /// Where the bytecode begins that the frame's position is in, if it is in any, `executable` being the frame's; 0
    /// where that is not known.
    #[inline]
    pub(super) fn bytecode(&self, python: &Interpreter, executable: usize) -> usize {
        let Some(incomplete_frame) = V::L.incomplete_frame else { return 0 };
        let inline = executable.wrapping_add(incomplete_frame.bytecode);
        let Some(copies) = V::L.thread_local_bytecode else { return inline };
        // SAFETY: a field of the frame.
        let number = unsafe { half(self.address().wrapping_add(copies.number)) };
        if number == 0 { inline } else { self.copy(python, executable, number as usize) }
    }

    /// Where the copy of this number begins.
    #[inline(never)]
    fn copy(&self, python: &Interpreter, executable: usize, number: usize) -> usize {
        let code = LiveCode::checked(&V::L, executable, python.code_type);
        let found = code.and_then(|code| thread_local_bytecode::find(&V::L, python, code, number));
        found.filter(|copy| copy.contains(&self.position())).map_or(0, |copy| copy.start)
    }

    /// Bytes from the start of the bytecode to the frame's `position`, `executable` being the frame's.
    #[inline]
    pub(super) fn instruction(&self, python: &Interpreter, executable: usize, position: usize) -> u32 {
        V::L.instruction(position, self.bytecode(python, executable))
    }

    /// Whether a traceback would show the frame: not the interpreter's entry frames, nor what is not yet set up.
    #[inline]
    pub(super) fn is_shown(&self, python: &Interpreter) -> bool {
        self.position() >= self.shown_from(python)
    }

    /// Whether a traceback can show the frame.
    #[inline(always)]
    pub(super) fn is_showable(&self) -> bool {
        V::L.incomplete_frame.is_none() || self.owner() < OWNER_ENTRY
    }

    /// As [`PythonFrame::shown_from`], of a frame that a traceback can show and that executes the inline bytecode of
    /// the code object at `code`.
    #[inline(always)]
    pub(super) fn shown_from_code(&self, code: usize, first_traceable: u32) -> usize {
        let Some(incomplete_frame) = V::L.incomplete_frame else { return 0 };
        if self.owner() == OWNER_GENERATOR {
            return 0;
        }
        code.wrapping_add(incomplete_frame.bytecode).wrapping_add((first_traceable as usize).wrapping_mul(2))
    }

    /// The position from which on a traceback shows the frame, as long as it has its present [`setting`](Self::setting);
    /// no position of a frame is as high as that of one that is never shown.
    #[inline]
    pub(super) fn shown_from(&self, python: &Interpreter) -> usize {
        let Some(incomplete_frame) = V::L.incomplete_frame else { return 0 };
        let owner = self.owner();
        if owner == OWNER_GENERATOR || owner >= OWNER_ENTRY {
            return if owner == OWNER_GENERATOR { 0 } else { usize::MAX };
        }
        let Some(code) = LiveCode::checked(&V::L, self.executable(), python.code_type) else { return 0 };
        // SAFETY: a field of a code object, whose type was checked.
        let first = unsafe { half(code.address().wrapping_add(incomplete_frame.first_traceable)) };
        self.bytecode(python, code.address()).wrapping_add((first as usize).wrapping_mul(2))
    }
}
