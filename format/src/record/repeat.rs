//! Passes over records that repeat what was just decoded, without decoding them.
//!
//! A loop writes the same bytes for each of its rounds. What they mean is the same, too, if the state that they are decoded by
//! is: then one round tells all that follow.
//!
//! Invariant: after [`Decoder::repeat`] the decoder is as it would be after decoding the records.

use super::RawFrame;
use super::decode::Decoder;
use super::delta_state::{DeltaState, RECENT};
use super::group_model::FreedImage;

/// All that records are decoded by that are [repeatable](crate::record_columns::repeatable_blocks).
#[derive(Debug, PartialEq, Eq)]
pub struct DecoderImage {
    state: Box<DeltaState>,
    freed: Option<FreedImage>,
    young: Vec<(u64, usize)>,
    stack: Vec<RawFrame>,
    unchanged_frames: usize,
    timed: bool,
}

impl Decoder {
    /// What the next records are decoded by, if they name none but so many of the youngest blocks.
    #[must_use]
    pub fn image(&self, blocks: usize) -> DecoderImage {
        let block = |age| match &self.group {
            Some(group) => group.block(age).map(|block| (block, 0)),
            None => self.recent.at(age),
        };
        DecoderImage {
            state: Box::new(self.state.clone()),
            freed: self.group.as_ref().map(|group| group.freed_image()),
            young: (0..blocks).map_while(block).collect(),
            stack: self.stack.clone(),
            unchanged_frames: self.unchanged_frames,
            timed: self.timed,
        }
    }

    /// Allocations so far.
    #[must_use]
    pub fn allocations(&self) -> usize {
        self.group.as_ref().map_or(self.recent.count(), |group| group.count())
    }

    /// The records of the last so many allocations come so many times more: they are repeatable, and the image before and
    /// behind them is the same. `None`: they are too many.
    #[must_use]
    pub fn repeat(&mut self, allocations: usize, times: usize) -> Option<()> {
        match &mut self.group {
            Some(group) => group.repeat(allocations, times),
            None if allocations <= RECENT => self.recent.repeat(allocations, times),
            None => return None,
        }
        Some(())
    }
}
