//! What both ends of a segment predict of the next record, so that what is as expected costs no bytes.
//!
//!  - A block that is freed is usually one of the last allocated, and programs repeat themselves: its age, counted in
//!    allocations since, is a small number that recurs. [`Finder`] and [`Ring`] know the ages, one on each side.
//!  - An allocator hands out the block of a size that was freed last: [`Model::freed`] keeps the last 8 freed addresses
//!    of each size class, newest first. A block it does not predict lies near the last of its class: [`Model::last_of`].
//!  - A place in the program allocates the same size again: [`Model::sizes`], by the newest frame.
//!  - A call site calls the same function, whose first allocation is at the same instruction: [`Model::callees`].
//!
//! Invariant: encoder and decoder make the same calls in the same order, and the model depends on nothing else; so the
//! decoder always predicts what the encoder did.

use std::hint::{cold_path, select_unpredictable};

use crate::record::Frame;

/// Ages that can be told; also the slots that the encoder looks addresses up in.
const RECENT: usize = 512;
/// Size classes of freed blocks.
const BINS: usize = 136;
/// Freed addresses that are remembered for each size class.
const BIN_DEPTH: usize = 8;
/// Places in the program that are told apart.
const SITES: usize = 64;

/// The state that begins anew with each segment.
#[derive(Debug)]
pub(crate) struct Model {
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
    last_of: [u64; BINS],
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
            last_freed: 0,
            last_mapped: 0,
            last_time: 0,
            ticket: 0,
            last_code: 0,
            top: Frame::NONE,
            site: 0,
            last_of: [0; BINS],
            freed: [[0; BIN_DEPTH]; BINS],
            freed_next: [0; BINS],
            sizes: [0; SITES],
            callees: [Frame::NONE; SITES],
        }
    }

    /// Back to the start of a segment, in place: the state is larger than a small thread's stack would like to see twice.
    pub(crate) fn reset(&mut self, ticket: u64, time: u64) {
        (self.last_freed, self.last_mapped) = (0, 0);
        (self.ticket, self.last_time) = (ticket, time);
        (self.last_code, self.top, self.site) = (0, Frame::NONE, 0);
        self.last_of.fill(0);
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

    /// Whether the newest frame allocated this size last; it has now.
    #[inline]
    pub(crate) fn size_here(&mut self, size: u64) -> bool {
        self.sizes.get_mut(self.site % SITES).is_some_and(|last| std::mem::replace(last, size) == size)
    }

    /// The size that is expected here.
    #[inline]
    #[must_use]
    pub(crate) fn expected_size(&self) -> u64 {
        self.sizes.get(self.site % SITES).copied().unwrap_or(0)
    }

    /// The address that an allocation of this class is expected to get; 0 for none. Forgets it.
    #[inline]
    pub(crate) fn take_expected_address(&mut self, bin: usize) -> u64 {
        let (Some(stack), Some(next)) = (self.freed.get_mut(bin), self.freed_next.get_mut(bin)) else {
            cold_path();
            return 0;
        };
        let Some(address) = stack.get_mut(usize::from(next.wrapping_sub(1)) % BIN_DEPTH) else { return 0 };
        let expected = std::mem::take(address);
        *next = next.wrapping_sub(u8::from(expected != 0));
        expected
    }

    /// The last address of this class; 0 for none.
    #[inline]
    #[must_use]
    pub(crate) fn last_of(&self, bin: usize) -> u64 {
        self.last_of.get(bin).copied().unwrap_or(0)
    }

    /// The last address of this class, which is `address` from now on.
    #[inline]
    pub(crate) fn replace_last(&mut self, bin: usize, address: u64) -> u64 {
        self.last_of.get_mut(bin).map_or(0, |last| std::mem::replace(last, address))
    }

    /// A block of this class was freed.
    #[inline]
    pub(crate) fn freed(&mut self, bin: usize, address: u64) {
        if let (Some(stack), Some(next)) = (self.freed.get_mut(bin), self.freed_next.get_mut(bin)) {
            if let Some(place) = stack.get_mut(usize::from(*next) % BIN_DEPTH) {
                *place = address;
            }
            *next = next.wrapping_add(1);
        }
    }

    /// The frame that a call from the newest frame is expected to enter.
    #[inline]
    #[must_use]
    pub(crate) fn expected_callee(&self) -> Frame {
        self.callees.get(self.site % SITES).copied().unwrap_or(Frame::NONE)
    }

    /// The newest frame called this one, which is the newest now.
    #[inline]
    pub(crate) fn pushed(&mut self, frame: Frame) {
        if let Some(callee) = self.callees.get_mut(self.site % SITES) {
            *callee = frame;
        }
        self.last_code = frame.code;
        self.set_top(frame);
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

/// The size class of a block, without a branch: a branch that is taken costs the shim more than both ways. glibc's chunk sizes where it keeps free lists for each of them, powers of two above.
#[inline]
pub(crate) fn bin(size: u64) -> usize {
    let small = (size as usize).wrapping_add(23) >> 4;
    let large = 67 + (63 - (size | 1).leading_zeros() as usize);
    select_unpredictable(size <= 1032, small, large)
}

/// The encoder's side of ages: from an address to the age of its block.
#[derive(Debug)]
pub(crate) struct Finder {
    /// Allocations so far.
    count: u32,
    addresses: [u64; RECENT],
    /// The number of the allocation, and its class.
    births: [(u32, u8); RECENT],
}

impl Finder {
    /// Nothing was allocated yet.
    pub(crate) const fn new() -> Self {
        Self { count: 0, addresses: [0; RECENT], births: [(0, 0); RECENT] }
    }

    /// Back to that.
    pub(crate) fn reset(&mut self) {
        self.count = 0;
        self.addresses.fill(0);
    }

    /// A block was allocated.
    #[inline]
    pub(crate) fn allocated(&mut self, address: u64, bin: usize) {
        let slot = slot(address);
        if let (Some(place), Some(birth)) = (self.addresses.get_mut(slot), self.births.get_mut(slot)) {
            *place = address;
            *birth = (self.count, bin as u8);
        }
        self.count = self.count.wrapping_add(1);
    }

    /// The age and the class of a block, if it is young enough; it is free then.
    #[inline]
    pub(crate) fn take(&mut self, address: u64) -> Option<(u32, usize)> {
        let slot = slot(address);
        let place = self.addresses.get_mut(slot)?;
        let (birth, bin) = *self.births.get(slot)?;
        let age = self.count.wrapping_sub(birth).wrapping_sub(1);
        if *place != address || age as usize >= RECENT {
            cold_path();
            return None;
        }
        *place = 0;
        Some((age, usize::from(bin)))
    }
}

/// The decoder's side of ages: from an age to the block.
#[derive(Debug)]
pub(crate) struct Ring {
    count: usize,
    blocks: [(u64, u8); RECENT],
}

impl Ring {
    /// Nothing was allocated yet.
    pub(crate) const fn new() -> Self {
        Self { count: 0, blocks: [(0, 0); RECENT] }
    }

    /// A block was allocated.
    #[inline]
    pub(crate) fn allocated(&mut self, address: u64, bin: usize) {
        if let Some(block) = self.blocks.get_mut(self.count % RECENT) {
            *block = (address, bin as u8);
        }
        self.count = self.count.wrapping_add(1);
    }

    /// Address and class of the block of this age; `None`: there is none.
    #[inline]
    pub(crate) fn at(&self, age: usize) -> Option<(u64, usize)> {
        if age >= RECENT || age >= self.count {
            return None;
        }
        self.blocks.get((self.count - 1 - age) % RECENT).map(|&(address, bin)| (address, usize::from(bin)))
    }
}

/// The slot of an address: the high bits of a product, which spreads addresses at any distance.
#[inline]
fn slot(address: u64) -> usize {
    ((address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RECENT.ilog2())) as usize
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
