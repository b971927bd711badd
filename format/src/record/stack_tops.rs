//! The stack tops that a segment has defined, for the decoder.
//!
//! Invariant: at most [`STACK_TOPS`] of at most [`MAX_TOP`] frames each, whatever the bytes are.

use super::delta_state::CallSite;
use super::{MAX_TOP, RawFrame, STACK_TOPS};

/// Stack tops by number.
#[derive(Debug)]
pub(super) struct StackTops {
    list: Vec<NumberedTop>,
    /// Definitions so far, also those of earlier segments.
    definitions: u64,
}

/// The newest frames of a stack, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberedTop {
    /// Behind the last one: no frames.
    pub(super) frames: [RawFrame; MAX_TOP],
    /// 0: not defined.
    pub(super) length: usize,
    /// The newest frame.
    pub(super) newest: CallSite,
    /// The number of its definition.
    definition: u64,
}

/// A stack top that stands where a record has put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedTop {
    /// Less than [`STACK_TOPS`].
    pub number: u32,
    /// The number of its definition, which no other one of the decoder has.
    pub definition: u64,
    /// Frames below it.
    pub below: usize,
}

impl NumberedTop {
    const UNDEFINED: Self =
        Self { frames: [RawFrame::NONE; MAX_TOP], length: 0, newest: CallSite::of(RawFrame::NONE), definition: 0 };

    /// What it is where it stands.
    #[inline]
    pub(super) const fn placed(&self, number: u32, below: usize) -> PlacedTop {
        PlacedTop { number, definition: self.definition, below }
    }
}

impl StackTops {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), definitions: 0 }
    }

    /// A segment begins: none is defined.
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// Gives these frames a number; `None`: it is too large, or they are too many or none.
    pub(super) fn define(&mut self, number: u32, frames: &[RawFrame]) -> Option<()> {
        let number = usize::try_from(number).ok().filter(|number| *number < STACK_TOPS && !frames.is_empty())?;
        let newest = CallSite::of(*frames.last()?);
        let mut top =
            NumberedTop { length: frames.len(), newest, definition: self.definitions, ..NumberedTop::UNDEFINED };
        top.frames.get_mut(..frames.len())?.copy_from_slice(frames);
        self.definitions += 1;
        if self.list.len() <= number {
            self.list.resize(number + 1, NumberedTop::UNDEFINED);
        }
        *self.list.get_mut(number)? = top;
        Some(())
    }

    /// The top with this number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&NumberedTop> {
        self.list.get(usize::try_from(number).ok()?).filter(|top| top.length > 0)
    }
}
