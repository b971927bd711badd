//! Thread-local bytecode (TLBC): the copies of a code object's bytecode in free-threaded builds, from 3.14 on.
//!
//! They exist because there each thread executes, and specialises, a copy of its own, so that a frame's position says
//! nothing without the copy that it is in. A code object holds an array of copies, which any thread may replace by a
//! longer one when it adds its own. The interpreter frees the old array once every attached thread has gone on to its
//! next instruction. So one that is attached, and stands in a hook, may read what it finds; to one that is not, the
//! array can vanish at any moment.
//!
//! Invariant: a thread that is not attached reads arrays only in ways that may fail, and what is found counts only if
//! the frame's position is in it.

use super::frame::LiveCode;
use super::interpreter::Interpreter;
use super::layout::Layout;
use super::raw_memory;
use crate::platform::fallible_read;
use std::ops::Range;

/// The bytes of the copy of this number.
pub(super) fn find(layout: &Layout, python: &Interpreter, code: LiveCode, number: usize) -> Option<Range<usize>> {
    let array = code.object(layout.thread_local_bytecode?.array);
    let read = if python.is_any_attached() { attached } else { fallible_read::word };
    if array == 0 || number >= read(array)? {
        return None;
    }
    let place = array.wrapping_add(8).wrapping_add(number.wrapping_mul(8));
    let start = read(place).filter(|start| *start != 0)?;
    let units = code.object(layout.objects.length());
    Some(start..start.wrapping_add(units.wrapping_mul(2)))
}

/// Reads a word of an array.
fn attached(address: usize) -> Option<usize> {
    // SAFETY: a word of an array that is not freed before this thread executes Python's next instruction.
    Some(unsafe { raw_memory::word(address) })
}
