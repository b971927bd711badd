//! The native frames above an evaluation loop, and a number by which they are found again.
//!
//! Invariant: the key is that of the frames.

use memtrack_format::record::RawFrame;

/// Most frames above the loop.
const MOST: usize = 14;

/// The frames above the loop, the newest first.
#[derive(Clone, Copy, Debug)]
pub(in crate::stacks::native) struct LoopPath {
    frames: [RawFrame; MOST],
    length: usize,
    key: u64,
}

impl Default for LoopPath {
    fn default() -> Self {
        Self::new()
    }
}

impl LoopPath {
    pub(super) const fn new() -> Self {
        Self { frames: [RawFrame::NONE; MOST], length: 0, key: 0 }
    }

    /// The newest first.
    #[inline(always)]
    pub(in crate::stacks::native) fn frames(&self) -> &[RawFrame] {
        self.frames.get(..self.length).unwrap_or_default()
    }

    #[inline(always)]
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// A number that other paths hardly have.
    pub(in crate::stacks::native) const fn key(&self) -> u64 {
        self.key
    }

    /// There are no frames.
    #[inline(always)]
    pub(super) const fn clear(&mut self) {
        (self.length, self.key) = (0, 0);
    }

    /// One more, which is older. `None`: they are too many.
    #[inline(always)]
    pub(super) fn add(&mut self, frame: RawFrame) -> Option<()> {
        *self.frames.get_mut(self.length)? = frame;
        self.length = self.length.wrapping_add(1);
        self.key = mix(self.key, frame);
        Some(())
    }
}

/// A number for what has the number `key`, and this frame.
#[inline(always)]
pub(in crate::stacks::native) const fn mix(key: u64, frame: RawFrame) -> u64 {
    let frame = (frame.code as u64) << 32 | frame.instruction as u64;
    (key.rotate_left(23) ^ frame).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
