//! The stack tops that a segment has defined, for the decoder.
//!
//! Invariant: at most [`STACK_TOPS`] of at most [`MAX_TOP`] frames each, whatever the bytes are.

use super::{MAX_TOP, RawFrame, STACK_TOPS};

/// Stack tops by number.
#[derive(Debug)]
pub(super) struct StackTops {
    list: Vec<NumberedTop>,
}

/// The newest frames of a stack, oldest first.
#[derive(Clone, Copy, Debug)]
struct NumberedTop {
    frames: [RawFrame; MAX_TOP],
    /// 0: not defined.
    length: usize,
}

impl StackTops {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new() }
    }

    /// A segment begins: none is defined.
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// Gives these frames a number; `None`: it is too large, or they are too many or none.
    pub(super) fn define(&mut self, number: u32, frames: &[RawFrame]) -> Option<()> {
        let number = usize::try_from(number).ok().filter(|number| *number < STACK_TOPS && !frames.is_empty())?;
        let mut top = NumberedTop { frames: [RawFrame::NONE; MAX_TOP], length: frames.len() };
        top.frames.get_mut(..frames.len())?.copy_from_slice(frames);
        if self.list.len() <= number {
            self.list.resize(number + 1, NumberedTop { length: 0, ..top });
        }
        *self.list.get_mut(number)? = top;
        Some(())
    }

    /// The frames with this number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&[RawFrame]> {
        let top = self.list.get(usize::try_from(number).ok()?)?;
        top.frames.get(..top.length).filter(|frames| !frames.is_empty())
    }
}
