//! What both ends of a segment predict of the next record, so that what is as expected costs no bytes.
//!
//!  - A block that is freed is usually one of the last allocated: [`Model::recent`] keeps the newest address of each of
//!    128 hash slots, and a free that finds itself there is one byte.
//!  - An allocator hands out the block of a size that was freed last: [`Model::freed`] keeps the last 8 freed addresses
//!    of each size class, newest first.
//!  - A place in the program allocates the same size again: [`Model::sizes`], by the newest frame.
//!  - A call site calls the same function, whose first allocation is at the same instruction: [`Model::callees`].
//!
//! Invariant: encoder and decoder make the same calls in the same order, and the model depends on nothing else; so the
//! decoder always predicts what the encoder did.

use crate::record::Frame;

/// Slots of recently allocated addresses; a free names one in seven bits.
const RECENT: usize = 128;
/// Size classes of freed blocks.
const BINS: usize = 136;
/// Freed addresses that are remembered for each size class.
const BIN_DEPTH: usize = 8;
/// Places in the program that are told apart.
const SITES: usize = 64;

/// The state that begins anew with each segment.
#[derive(Debug)]
pub(crate) struct Model {
    /// Address of the last allocation.
    pub(crate) last_allocated: u64,
    /// Address of the last free that was written out.
    pub(crate) last_freed: u64,
    /// Address of the last mapping record.
    pub(crate) last_mapped: u64,
    /// Time of the last timed record, in ticks.
    pub(crate) last_time: u64,
    /// Ticket of the current run.
    pub(crate) ticket: u64,
    /// Code id of the last push.
    pub(crate) last_code: u32,
    /// The newest frame.
    pub(crate) top: Frame,
    site: usize,
    recent: [u64; RECENT],
    recent_bin: [u8; RECENT],
    freed: [[u64; BIN_DEPTH]; BINS],
    freed_next: [u8; BINS],
    sizes: [u64; SITES],
    callees: [Frame; SITES],
}

impl Model {
    /// The state at the start of a segment.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self {
            last_allocated: 0,
            last_freed: 0,
            last_mapped: 0,
            last_time: 0,
            ticket: 0,
            last_code: 0,
            top: Frame::NONE,
            site: 0,
            recent: [0; RECENT],
            recent_bin: [0; RECENT],
            freed: [[0; BIN_DEPTH]; BINS],
            freed_next: [0; BINS],
            sizes: [0; SITES],
            callees: [Frame::NONE; SITES],
        }
    }

    /// Back to the start of a segment, in place: the state is larger than a small thread's stack would like to see twice.
    pub(crate) fn reset(&mut self, ticket: u64, time: u64) {
        (self.last_allocated, self.last_freed, self.last_mapped) = (0, 0, 0);
        (self.ticket, self.last_time) = (ticket, time);
        (self.last_code, self.top, self.site) = (0, Frame::NONE, 0);
        self.recent.fill(0);
        self.recent_bin.fill(0);
        self.freed.fill([0; BIN_DEPTH]);
        self.freed_next.fill(0);
        self.sizes.fill(0);
        self.callees.fill(Frame::NONE);
    }

    /// The newest frame is now this one.
    #[inline]
    pub(crate) fn set_top(&mut self, frame: Frame) {
        self.top = frame;
        self.site = frame.code.wrapping_mul(0x9e37).wrapping_add(frame.instruction.wrapping_mul(0x2c9)) as usize >> 3
            & (SITES - 1);
    }

    /// The size that the newest frame allocated last, kept up to date.
    #[inline]
    pub(crate) fn size_here(&mut self, size: u64) -> bool {
        match self.sizes.get_mut(self.site) {
            Some(last) if *last == size => true,
            Some(last) => {
                *last = size;
                false
            }
            None => false,
        }
    }

    /// The size that is expected here.
    #[inline]
    #[must_use]
    pub(crate) fn expected_size(&self) -> u64 {
        self.sizes.get(self.site).copied().unwrap_or(0)
    }

    /// The address that an allocation of this size is expected to get; 0 for none. Forgets it.
    #[inline]
    pub(crate) fn take_expected_address(&mut self, size: u64) -> u64 {
        let bin = bin(size);
        let (Some(stack), Some(next)) = (self.freed.get_mut(bin), self.freed_next.get_mut(bin)) else { return 0 };
        let top = next.wrapping_sub(1);
        let Some(address) = stack.get_mut(usize::from(top) % BIN_DEPTH) else { return 0 };
        let expected = std::mem::take(address);
        if expected != 0 {
            *next = top;
        }
        expected
    }

    /// An allocation was made.
    #[inline]
    pub(crate) fn allocated(&mut self, address: u64, size: u64) {
        self.last_allocated = address;
        let slot = slot(address);
        if let (Some(recent), Some(recent_bin)) = (self.recent.get_mut(slot), self.recent_bin.get_mut(slot)) {
            *recent = address;
            *recent_bin = bin(size) as u8;
        }
    }

    /// The slot that holds this address, if it was allocated lately; it is free then.
    #[inline]
    pub(crate) fn take_recent(&mut self, address: u64) -> Option<u8> {
        let slot = slot(address);
        let recent = self.recent.get_mut(slot)?;
        if *recent != address || address == 0 {
            return None;
        }
        *recent = 0;
        self.remember_freed(slot, address);
        Some(slot as u8)
    }

    /// The address in this slot, which is free then; 0 for none.
    #[inline]
    pub(crate) fn take_slot(&mut self, slot: u8) -> u64 {
        let slot = usize::from(slot);
        let Some(recent) = self.recent.get_mut(slot) else { return 0 };
        let address = std::mem::take(recent);
        self.remember_freed(slot, address);
        address
    }

    /// The frame that a call from the newest frame is expected to enter.
    #[inline]
    #[must_use]
    pub(crate) fn expected_callee(&self) -> Frame {
        self.callees.get(self.site).copied().unwrap_or(Frame::NONE)
    }

    /// The newest frame called this one, which is the newest now.
    #[inline]
    pub(crate) fn pushed(&mut self, frame: Frame) {
        if let Some(callee) = self.callees.get_mut(self.site) {
            *callee = frame;
        }
        self.last_code = frame.code;
        self.set_top(frame);
    }

    #[inline]
    fn remember_freed(&mut self, slot: usize, address: u64) {
        let bin = self.recent_bin.get(slot).copied().unwrap_or(0);
        let bin = usize::from(bin);
        if let (Some(stack), Some(next)) = (self.freed.get_mut(bin), self.freed_next.get_mut(bin)) {
            if let Some(place) = stack.get_mut(usize::from(*next) % BIN_DEPTH) {
                *place = address;
            }
            *next = next.wrapping_add(1);
        }
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

/// The size class of a block: glibc's chunk sizes where it keeps free lists for each of them, powers of two above.
#[inline]
fn bin(size: u64) -> usize {
    if size <= 1032 { (size as usize + 23) >> 4 } else { 67 + (63 - size.leading_zeros() as usize) }
}

/// The hash slot of an address.
#[inline]
fn slot(address: u64) -> usize {
    (address >> 4 ^ address >> 11) as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::{BINS, bin};

    #[test]
    fn every_size_has_a_bin() {
        for size in [0, 1, 24, 25, 1032, 1033, 1 << 20, u64::MAX] {
            assert!(bin(size) < BINS, "{size}");
        }
    }
}
