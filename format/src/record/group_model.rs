//! The model of the heap by which addresses are written in a group of segments: see [`super::Record::GroupBegins`].
//!
//! The shim predicts addresses from few blocks of one segment, since the prediction costs the program time. The collector
//! has time: here all blocks of the group count, up to [`WINDOW`], so that a free of any of them is an age, and an address that
//! was freed is a number in the list of freed ones of its size class.
//!
//! Invariant: encoder and decoder make the same calls in the same order, and the state depends on nothing else.

use super::byte_writer::address_delta;
use super::delta_state::{BIN_ROOM, address};

/// Allocations after which a block can no longer be freed by its age.
pub(super) const WINDOW: usize = 1 << 17;
/// Freed addresses that are kept for each size class.
const DEPTH: usize = 16;

/// What its next addresses depend on, but for its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FreedImage {
    freed: Vec<FreedAddresses>,
    last_freed: u64,
}

/// The blocks of a group, and the freed addresses of each size class.
#[derive(Debug)]
pub(super) struct GroupModel {
    /// The allocations, a ring once it is full: 56 bits of the address, and the class below.
    blocks: Vec<u64>,
    count: usize,
    freed: Vec<FreedAddresses>,
    last_freed: u64,
}

/// The addresses of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FreedAddresses {
    /// The last freed first; 0: none.
    list: [u64; DEPTH],
    /// The last address that was allocated.
    last: u64,
}

impl Default for GroupModel {
    fn default() -> Self {
        let none = FreedAddresses { list: [0; DEPTH], last: 0 };
        Self { blocks: Vec::new(), count: 0, freed: vec![none; BIN_ROOM], last_freed: 0 }
    }
}

impl GroupModel {
    /// Allocations so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The number that stands for this address of an allocation; `None`: it is the expected one. The address is taken.
    #[inline]
    pub(super) fn encode(&mut self, bin: usize, wanted: u64) -> Option<u64> {
        let freed = &mut self.freed[bin % BIN_ROOM];
        let rank = freed.find(wanted);
        let number = match rank {
            Some(0) => None,
            Some(rank) => Some((rank as u64) << 1 | 1),
            None => Some(address_delta(wanted, freed.last) << 1),
        };
        rank.into_iter().for_each(|rank| freed.remove(rank));
        self.allocated(bin, wanted);
        number
    }

    /// The inverse of [`encode`](Self::encode); `None` where there is no such address.
    #[inline]
    pub(super) fn decode(&mut self, bin: usize, number: Option<u64>) -> Option<u64> {
        let freed = &mut self.freed[bin % BIN_ROOM];
        let found = match number {
            Some(number) if number & 1 == 0 => address(number >> 1, freed.last),
            _ => {
                let rank = usize::try_from(number.unwrap_or(0) >> 1).ok()?;
                let found = *freed.list.get(rank).filter(|found| **found != 0)?;
                freed.remove(rank);
                found
            }
        };
        self.allocated(bin, found);
        Some(found)
    }

    /// The address of the block of this age.
    #[inline]
    pub(super) fn address(&self, age: usize) -> Option<u64> {
        self.block(age).map(|block| block >> 8)
    }

    pub(super) fn freed_image(&self) -> FreedImage {
        FreedImage { freed: self.freed.clone(), last_freed: self.last_freed }
    }

    /// The last so many allocations come so many times more.
    pub(super) fn repeat(&mut self, last: usize, times: usize) {
        let pattern: Vec<_> = (0..last).rev().filter_map(|age| self.block(age)).collect();
        pattern.iter().cycle().take(pattern.len() * times).for_each(|&block| self.add(block));
    }

    /// The block of this age: its address, and its class below.
    #[inline]
    pub(super) fn block(&self, age: usize) -> Option<u64> {
        if age >= self.blocks.len() {
            return None;
        }
        self.blocks.get((self.count - 1 - age) % WINDOW).copied()
    }

    /// A block of this age is freed: its address.
    #[inline]
    pub(super) fn free(&mut self, age: usize) -> Option<u64> {
        let block = self.block(age)?;
        let address = block >> 8;
        self.freed[block as usize % BIN_ROOM].push(address);
        Some(address)
    }

    /// An address that is none of these blocks is freed: the number for it.
    pub(super) fn encode_other(&mut self, address: u64) -> u64 {
        address_delta(address, std::mem::replace(&mut self.last_freed, address))
    }

    /// The inverse of [`encode_other`](Self::encode_other).
    pub(super) fn decode_other(&mut self, number: u64) -> u64 {
        self.last_freed = address(number, self.last_freed);
        self.last_freed
    }

    #[inline]
    fn allocated(&mut self, bin: usize, address: u64) {
        self.add(address << 8 | (bin % BIN_ROOM) as u64);
        self.freed[bin % BIN_ROOM].last = address;
    }

    #[inline]
    fn add(&mut self, block: u64) {
        match self.blocks.get_mut(self.count % WINDOW) {
            Some(place) => *place = block,
            None => self.blocks.push(block),
        }
        self.count += 1;
    }
}

impl FreedAddresses {
    #[inline]
    fn push(&mut self, address: u64) {
        self.list.copy_within(..DEPTH - 1, 1);
        self.list[0] = address;
    }

    /// How many were freed after this address. Without an early end, which nothing predicts.
    #[inline]
    fn find(&self, wanted: u64) -> Option<usize> {
        let at = |mask: u32, (rank, &address): (usize, &u64)| mask | u32::from(address == wanted) << rank;
        let found = self.list.iter().enumerate().fold(0, at);
        (found != 0 && wanted != 0).then_some(found.trailing_zeros() as usize)
    }

    #[inline]
    fn remove(&mut self, rank: usize) {
        if rank == 0 {
            self.list.copy_within(1.., 0);
        } else {
            self.list.copy_within(rank + 1.., rank);
        }
        self.list[DEPTH - 1] = 0;
    }
}
