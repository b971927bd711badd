//! What became of recent addresses: in front of the live heap, for who replays nothing but flows.
//!
//! Most blocks get an address that was freed a moment ago, and end soon. To find an address in the tree of all live blocks takes
//! longer than everything else of such a block. So an address whose block has ended is noted in a table of one place for each hash;
//! the next block at this address is kept there, and in no tree.
//!
//! Invariant: a block is here or in the heap, and an address that is noted as free has a block in neither.

use crate::analysis::LiveBlock;

/// Number of places: a power of two.
const PLACES: usize = if cfg!(test) { 4 } else { 1 << 11 };
/// Events after which it is looked whether the table is worth it.
const SPAN: u64 = if cfg!(test) { 8 } else { 1 << 14 };
/// Of so many events one may be of an address of which nothing is noted: to look it up twice takes longer than the table spares.
const FEW: u64 = if cfg!(test) { 2 } else { 6 };
/// Spans for which the table is left out where it is not worth it.
const PASSED_OVER: u64 = if cfg!(test) { 1 } else { 31 };
/// In place of a group: the address is free.
const FREE: u32 = LiveBlock::NO_GROUP;
/// In place of a group: nothing is noted.
const NOTHING: u32 = FREE - 1;

/// An address, and its block.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct RecentBlock {
    address: u64,
    pub(super) size: u64,
    order: u64,
    pub(super) group: u32,
}

const _: () = assert!(size_of::<RecentBlock>() == 32, "a place lies in one cache line");

impl RecentBlock {
    const NOTHING: Self = Self { address: 0, size: 0, order: 0, group: NOTHING };

    /// A block that begins.
    #[inline(always)]
    pub(super) fn begin(&mut self, (size, order, group): (u64, u64, u32)) {
        (self.size, self.order, self.group) = (size, order, group);
    }

    /// It ends; returns what it was.
    #[inline(always)]
    pub(super) fn end(&mut self) -> LiveBlock {
        let block = self.block();
        self.group = FREE;
        block
    }

    pub(super) fn block(&self) -> LiveBlock {
        LiveBlock { size: self.size, order: self.order, time_ns: 0, group: self.group, nth: 0 }
    }

    /// Whether the block at this address is here.
    #[inline(always)]
    pub(super) fn is_live(&self, address: u64) -> bool {
        self.address == address && self.group < NOTHING
    }

    /// Whether it is known that there is no block at this address.
    #[inline(always)]
    pub(super) fn is_free(&self, address: u64) -> bool {
        self.address == address && self.group == FREE
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct RecentBlocks {
    /// Two, which have nothing, until the first events come: most replays are asked for more than flows.
    places: Box<[RecentBlock]>,
    /// What a hash is shifted by to be the number of a place.
    shift: u32,
    /// Something is noted here.
    is_used: bool,
    /// Events of this span that are still to come.
    left: u64,
    /// Those of them that were not found.
    missed: u64,
    /// The table is not used in this span.
    passes: bool,
}

impl Default for RecentBlocks {
    fn default() -> Self {
        let places = Box::new([RecentBlock::NOTHING; 2]);
        Self { places, shift: u64::BITS - 1, is_used: false, left: SPAN, missed: 0, passes: false }
    }
}

impl RecentBlocks {
    /// So many events come; whether they are to be looked up here. If not, nothing may be noted when they are replayed: see [`RecentBlocks::take`].
    #[inline]
    pub(super) fn pays(&mut self, events: u64) -> bool {
        if self.places.len() < PLACES {
            self.places = vec![RecentBlock::NOTHING; PLACES].into_boxed_slice();
            self.shift = u64::BITS - PLACES.ilog2();
        }
        if self.left < events {
            self.passes = !self.passes && self.missed * FEW > SPAN;
            (self.left, self.missed) = (if self.passes { PASSED_OVER * SPAN } else { SPAN }, 0);
        }
        self.left = self.left.saturating_sub(events);
        !self.passes
    }

    /// An address was not found.
    #[inline(always)]
    pub(super) fn miss(&mut self) {
        self.missed += 1;
    }

    /// The place of an address.
    #[inline(always)]
    pub(super) fn at(&mut self, address: u64) -> &mut RecentBlock {
        &mut self.places[place(address, self.shift)]
    }

    /// Whether something is noted of an address.
    #[inline(always)]
    pub(super) fn has(&self, address: u64) -> bool {
        self.places[place(address, self.shift)].address == address
    }

    /// There is no block at this address any more, neither here nor in the heap. Returns a block that has to give way, and is to be
    /// put into the heap.
    #[inline]
    pub(super) fn note_free(&mut self, address: u64) -> Option<(u64, LiveBlock)> {
        self.is_used = true;
        let recent = self.at(address);
        let other = (recent.group < NOTHING).then(|| (recent.address, recent.block()));
        (recent.address, recent.group) = (address, FREE);
        other
    }

    /// There is nothing to take, until [`RecentBlocks::go_on`] is called with what this returns: the next events are of addresses of
    /// which nothing is noted.
    pub(super) fn lay_aside(&mut self) -> bool {
        std::mem::take(&mut self.is_used)
    }

    pub(super) fn go_on(&mut self, is_used: bool) {
        self.is_used |= is_used;
    }

    /// Forgets an address; returns its block, which is to be put into the heap.
    pub(super) fn take_one(&mut self, address: u64) -> Option<LiveBlock> {
        let recent = self.at(address);
        if recent.address != address {
            return None;
        }
        let block = (recent.group < NOTHING).then(|| recent.block());
        *recent = RecentBlock::NOTHING;
        block
    }

    /// Forgets everything; returns all blocks, which are to be put into the heap.
    pub(super) fn take(&mut self) -> Vec<(u64, LiveBlock)> {
        if !std::mem::take(&mut self.is_used) {
            return Vec::new();
        }
        let live = self.places.iter().filter(|recent| recent.group < NOTHING);
        let blocks = live.map(|recent| (recent.address, recent.block())).collect();
        self.places.fill(RecentBlock::NOTHING);
        blocks
    }
}

/// The place of an address, by Fibonacci hashing.
#[inline(always)]
const fn place(address: u64, shift: u32) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (shift % u64::BITS)) as usize
}
