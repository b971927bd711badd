//! Greenlets: what C++ code has for each, and the frames of one that waits, which no thread has.
//!
//! Offsets are those of greenlet 2 and 3. Invariant: only what names the greenlet that asks for it is taken for its state.

use std::ops::Range;

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;

/// In a greenlet: its state. In that: the greenlet.
const STATE: u64 = 32;
const OWNER: u64 = 8;
/// The end of the stack of a thread's own greenlet.
const OF_THREAD: u64 = u64::MAX;
/// Frames of a greenlet that are followed at most.
pub(crate) const MOST_FRAMES: usize = 1 << 12;
/// How references in the state are called: by offsets behind those of all fields.
const FIRST_OF_STATE: u64 = 1 << 20;

/// What a greenlet has besides its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GreenletState {
    address: u64,
    /// Where its stack begins in it.
    stack: u64,
    /// Bytes of it, which end with the thread's own greenlet, what it is to run, and its parent.
    size: u64,
}

impl GreenletState {
    /// That of the greenlet at this address.
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, greenlet: u64) -> Option<Self> {
        let address = memory.u64(layout.fields(greenlet).checked_add(STATE)?)?;
        if memory.u64(address.checked_add(OWNER)?)? != greenlet {
            return None;
        }
        // What is handled of an exception is fewer words from 3.11 on.
        let stack = if layout.has_light_frames() { 56 } else { 72 };
        Some(Self { address, stack, size: size(layout) })
    }

    /// Whether it has begun and has not ended; its frames are there then, unless it runs.
    pub(crate) fn is_active(&self, memory: &ObjectMemory<'_>) -> bool {
        let begin = memory.u64(self.address.wrapping_add(self.stack));
        begin.is_some_and(|begin| begin != 0)
    }

    /// Whether it is a thread's own.
    pub(crate) fn is_of_thread(&self, memory: &ObjectMemory<'_>) -> bool {
        memory.u64(self.address.wrapping_add(self.stack + 8)) == Some(OF_THREAD)
    }

    /// The words that may refer to objects, and how the first of them is called as a field.
    pub(crate) fn words(&self) -> (Range<u64>, u64) {
        let first = self.stack + 40;
        (self.address.wrapping_add(first)..self.address.wrapping_add(self.size), FIRST_OF_STATE + first)
    }

    /// The address of its innermost frame, an object; 0 while it runs.
    pub(crate) fn frame(&self, memory: &ObjectMemory<'_>) -> Option<u64> {
        memory.u64(self.address.wrapping_add(self.stack + 48))
    }
}

/// The name of a field that is a reference in a greenlet's state.
pub(crate) fn name_of_field(layout: &ObjectLayout, offset: u64) -> Option<&'static str> {
    let offset = offset.checked_sub(FIRST_OF_STATE)?;
    let context = if layout.has_light_frames() { 96 } else { 112 };
    Some(match offset {
        _ if offset == context => "gr_context",
        _ if offset == context + 8 => "gr_frame",
        _ if offset + 24 == size(layout) => "<main greenlet>",
        _ if offset + 16 == size(layout) => "run",
        _ if offset + 8 == size(layout) => "parent",
        _ => "<state>",
    })
}

fn size(layout: &ObjectLayout) -> u64 {
    match layout.minor {
        ..10 => 160,
        10 => 176,
        11..=13 => 192,
        14.. if layout.is_free_threaded() => 240,
        14.. => 208,
    }
}
