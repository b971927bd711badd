//! The predictor of the record codec: encoder and decoder predict the next record's fields from the segment's earlier
//! records, and a field that equals its prediction takes no bytes.
//!
//!  - A freed block is usually a recently allocated one. Its age (the number of allocations since its own) is a small number
//!    that recurs. The encoder finds it by address ([`AgeByAddress`]), the decoder finds the block by age ([`BlockByAge`]).
//!  - An allocator reuses the block of a size class that was freed last: [`DeltaState::freed`] keeps the last 8 freed
//!    addresses of each size class. A block at another address is usually close to the last one of its class:
//!    [`DeltaState::last_of`].
//!  - A call site allocates the same sizes in the same order: [`DeltaState::sizes`], by the newest frame and the size before.
//!    Of five programs this foretells 47 to 82 % of the sizes, and the newest frame alone 5 to 36 %.
//!  - A call site calls the same function, whose first allocation is at the same instruction: [`DeltaState::callees`].
//!
//! Invariant: encoder and decoder make the same calls in the same order, and the state depends on nothing else, so their
//! predictions are equal.

use std::hint::cold_path;

use super::RawFrame;
use crate::varint::unzigzag;

/// Ages that can be encoded; also the number of slots of the encoder's address table.
pub(super) const RECENT: usize = 512;
/// Upper bound of size class numbers; not every number below it is a class.
const BINS: usize = LARGE as usize + 64;
/// The class of large blocks, beside the binary logarithm of their size.
const LARGE: u32 = 128;
/// The largest block of the size classes of small ones.
pub(super) const SMALL: u64 = 1032;
/// Length of the arrays that are indexed by size class: 256, so that a byte needs no bounds check.
pub(super) const BIN_ROOM: usize = 256;
/// Freed addresses that are kept for each size class.
const BIN_DEPTH: usize = 8;
/// Call sites that are distinguished, by a hash of the newest frame.
const SITES: usize = 64;
/// Sizes that are kept, by a hash of call site and last size.
const SIZES: usize = 512;

/// The newest frame, as a place that allocates and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallSite {
    pub(crate) frame: RawFrame,
    /// What it adds to the place in `sizes`.
    hash: u32,
    /// Its place in `callees`.
    place: u32,
}

impl CallSite {
    /// Of no frame.
    const NONE: Self = Self { frame: RawFrame::NONE, hash: 0, place: 0 };

    /// Of a stack with this newest frame.
    #[inline]
    #[must_use]
    pub const fn of(frame: RawFrame) -> Self {
        let hash = frame.code.wrapping_mul(0x9e37).wrapping_add(frame.instruction.wrapping_mul(0x2c9));
        Self { frame, hash: hash.wrapping_mul(0x9e37_79b1), place: (hash >> 3) % SITES as u32 }
    }

    #[inline]
    const fn place(&self) -> usize {
        self.place as usize % SITES
    }
}

/// The state of the predictor, which is reset at the start of each segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeltaState {
    /// Address of the last free that was written out.
    pub(crate) last_freed: u64,
    /// Address of the last mapping record.
    pub(crate) last_mapped: u64,
    /// Time of the last timed record, in ticks.
    pub(crate) last_time: u64,
    /// Ticket of the current run.
    pub(crate) ticket: u64,
    /// The time in the last Clock record, in microseconds.
    pub(crate) last_clock_us: u64,
    /// Code id of the last push.
    pub(crate) last_code: u32,
    /// The newest frame.
    pub(crate) top: CallSite,
    /// What the last size adds to the place in `sizes`.
    size_hash: u32,
    last_of: [u64; BIN_ROOM],
    /// [`BIN_DEPTH`] of each class.
    freed: [u64; BIN_ROOM * BIN_DEPTH],
    freed_next: [u32; BIN_ROOM],
    sizes: [u64; SIZES],
    callees: [RawFrame; SITES],
}

/// Sets all values to 0. Parts in which all are stay untouched: of a thread that records little, most pages have no memory.
fn clear<T: Copy + Default + PartialEq>(values: &mut [T]) {
    const PART: usize = 64;
    for part in values.chunks_mut(PART) {
        if part.iter().fold(false, |any, value| any | (*value != T::default())) {
            part.fill(T::default());
        }
    }
}

impl DeltaState {
    /// The state at the start of a segment.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self {
            last_freed: 0,
            last_mapped: 0,
            last_time: 0,
            ticket: 0,
            last_clock_us: 0,
            last_code: 0,
            top: CallSite::NONE,
            size_hash: 0,
            last_of: [0; BIN_ROOM],
            freed: [0; BIN_ROOM * BIN_DEPTH],
            freed_next: [0; BIN_ROOM],
            sizes: [0; SIZES],
            callees: [RawFrame::NONE; SITES],
        }
    }

    /// Resets to the start of a segment, in place: a temporary copy of the state would be too large for a small stack.
    pub(crate) fn reset(&mut self, ticket: u64, time: u64) {
        (self.last_freed, self.last_mapped) = (0, 0);
        (self.ticket, self.last_time, self.last_clock_us) = (ticket, time, 0);
        (self.last_code, self.top, self.size_hash) = (0, CallSite::NONE, 0);
        self.last_of[..BINS].fill(0);
        clear(&mut self.freed[..BINS * BIN_DEPTH]);
        self.freed_next[..BINS].fill(0);
        clear(&mut self.sizes);
        self.callees.fill(RawFrame::NONE);
    }

    /// Sets the newest frame.
    #[inline]
    pub(crate) const fn set_top(&mut self, frame: RawFrame) {
        self.top = CallSite::of(frame);
    }

    /// The place of the predicted size, by call site and last size.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn size_place(&self) -> usize {
        (self.top.hash.wrapping_add(self.size_hash) >> (u32::BITS - SIZES.ilog2())) as usize
    }

    /// The same in segments of version 3 or earlier: by call site alone.
    #[must_use]
    pub(crate) const fn size_place_by_site(&self) -> usize {
        self.top.place()
    }

    /// Whether the size that was predicted at this place is this one; stores the size.
    #[inline]
    pub(crate) fn size_at(&mut self, place: usize, size: u64) -> bool {
        self.size_hash = (size as u32).wrapping_mul(0x85eb_ca6b);
        std::mem::replace(&mut self.sizes[place % SIZES], size) == size
    }

    /// The size that is predicted at this place.
    #[inline]
    #[must_use]
    pub(crate) const fn expected_size(&self, place: usize) -> u64 {
        self.sizes[place % SIZES]
    }

    /// Takes the predicted address of an allocation of this class out; 0 for none.
    #[inline]
    pub(crate) fn take_expected_address(&mut self, bin: usize) -> u64 {
        let next = &mut self.freed_next[bin % BIN_ROOM];
        let expected = std::mem::take(&mut self.freed[place(bin, next.wrapping_sub(1))]);
        *next = next.wrapping_sub(u32::from(expected != 0));
        expected
    }

    /// The last address of this class; 0 for none.
    #[inline]
    #[must_use]
    pub(crate) fn last_of(&self, bin: usize) -> u64 {
        self.last_of[bin % BIN_ROOM]
    }

    /// The last address of this class, which is `address` from now on.
    #[inline]
    pub(crate) fn replace_last(&mut self, bin: usize, address: u64) -> u64 {
        std::mem::replace(&mut self.last_of[bin % BIN_ROOM], address)
    }

    /// Notes that a block of this class was freed.
    #[inline]
    pub(crate) fn freed(&mut self, bin: usize, address: u64) {
        let next = &mut self.freed_next[bin % BIN_ROOM];
        self.freed[place(bin, *next)] = address;
        *next = next.wrapping_add(1);
    }

    /// The predicted frame of a call from the newest frame.
    #[inline]
    #[must_use]
    pub(crate) fn expected_callee(&self) -> RawFrame {
        self.callees[self.top.place()]
    }

    /// Notes a call from the newest frame to this one, which becomes the newest.
    #[inline]
    pub(crate) fn pushed(&mut self, frame: RawFrame) {
        self.callees[self.top.place()] = frame;
        self.last_code = frame.code;
        self.set_top(frame);
    }
}

impl Default for DeltaState {
    fn default() -> Self {
        Self::new()
    }
}

/// The inverse of the encoder's `address_delta`.
#[inline]
pub(super) fn address(delta: u64, last: u64) -> u64 {
    let scaled = if delta & 1 == 0 { unzigzag(delta >> 1) << 4 } else { unzigzag(delta >> 1) };
    last.wrapping_add(scaled.cast_unsigned())
}

/// The size class of a block: glibc's chunk sizes up to 1032 bytes, where it has a free list for each, and powers of two
/// above. With a branch, since most blocks are small, and some processors take eight operations for a logarithm.
#[inline]
pub(crate) fn bin(size: u64) -> usize {
    if size <= SMALL {
        return ((size as usize).wrapping_add(23) >> 4) % BIN_ROOM;
    }
    cold_path();
    (LARGE | size.ilog2()) as usize % BIN_ROOM
}

/// Index into [`DeltaState::freed`] for the freed address of this number in a class.
#[inline]
const fn place(bin: usize, number: u32) -> usize {
    (bin % BIN_ROOM * BIN_DEPTH) | (number as usize % BIN_DEPTH)
}

/// The encoder's table of recent blocks: from an address to the age of the block.
#[derive(Debug)]
pub(crate) struct AgeByAddress {
    /// Allocations so far.
    count: u32,
    addresses: [u64; RECENT],
    /// The number of the allocation, and its class.
    births: [(u32, u32); RECENT],
}

impl AgeByAddress {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self { count: 0, addresses: [0; RECENT], births: [(0, 0); RECENT] }
    }

    /// Empties the table.
    pub(crate) fn reset(&mut self) {
        self.count = 0;
        clear(&mut self.addresses);
    }

    /// A block was allocated.
    #[inline]
    pub(crate) fn allocated(&mut self, address: u64, bin: usize) {
        let slot = slot(address);
        if let (Some(place), Some(birth)) = (self.addresses.get_mut(slot), self.births.get_mut(slot)) {
            self.count = self.count.wrapping_add(1);
            *place = address;
            *birth = (self.count, bin as u32);
        }
    }

    /// Allocations so far.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Takes a block out; its age and class, or `None` if it is not in the table or too old.
    #[inline]
    pub(crate) fn take(&mut self, address: u64) -> Option<(u32, usize)> {
        let slot = slot(address);
        let place = self.addresses.get_mut(slot)?;
        let (birth, bin) = *self.births.get(slot)?;
        let age = self.count.wrapping_sub(birth);
        if *place != address || age as usize >= RECENT {
            cold_path();
            return None;
        }
        *place = 0;
        Some((age, bin as usize))
    }
}

/// The decoder's table of recent blocks: from an age to the block.
#[derive(Debug)]
pub(crate) struct BlockByAge {
    count: usize,
    blocks: [(u64, u8); RECENT],
}

impl BlockByAge {
    /// An empty table.
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

    /// Allocations so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The last so many allocations come so many times more.
    pub(super) fn repeat(&mut self, last: usize, times: usize) {
        let pattern: Vec<_> = (0..last).rev().filter_map(|age| self.at(age)).collect();
        pattern.iter().cycle().take(pattern.len() * times).for_each(|&(address, bin)| self.allocated(address, bin));
    }

    /// Address and class of the block of this age, if there is one.
    #[inline]
    pub(crate) fn at(&self, age: usize) -> Option<(u64, usize)> {
        if age >= RECENT || age >= self.count {
            return None;
        }
        self.blocks.get((self.count - 1 - age) % RECENT).map(|&(address, bin)| (address, usize::from(bin)))
    }
}

/// The slot of an address: Fibonacci hashing (the high bits of a product). The factor is a sixteenth of the usual one,
/// since blocks are aligned to 16 bytes.
#[inline]
fn slot(address: u64) -> usize {
    (address.wrapping_mul(0x09e3_779b_97f4_a7c1) >> (64 - RECENT.ilog2())) as usize
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

    #[test]
    fn a_size_has_the_bin_that_captures_have() {
        let known = [
            (0, 1),
            (8, 1),
            (9, 2),
            (24, 2),
            (25, 3),
            (1032, 65),
            (1033, 138),
            (2047, 138),
            (2048, 139),
            (1 << 20, 148),
        ];
        assert_eq!(known.map(|(size, _)| (size, bin(size))), known);
    }
}
