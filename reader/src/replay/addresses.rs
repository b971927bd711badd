//! The hash of addresses in the map of live blocks.
//!
//! Objects that are made one after the other mostly lie side by side, and are freed so. The hash keeps that: what lies
//! within a kilobyte comes to lie within a few cache lines of the map, so that most look-ups find theirs in the cache,
//! where a hash that scatters would wait for memory each time.
//!
//! Invariant: the places of kilobytes, and the tags that tell apart what shares a place, are as good as random.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps by address.
pub(super) type ByAddress = BuildHasherDefault<AddressHasher>;

/// Hashes one address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressHasher(u64);

/// An odd number without pattern: the golden ratio's digits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// What lies in one place: so many bytes, as a power of two.
const REGION_BITS: u32 = 10;
/// Neighbours in a place, that is the bits of an address below the region's, without those that alignment leaves zero.
const PLACE_BITS: u32 = 5;

impl Hasher for AddressHasher {
    fn write_u64(&mut self, address: u64) {
        // The map takes a bucket from the low bits, and a tag from the seven highest.
        let region = (address >> REGION_BITS).wrapping_mul(GOLDEN);
        let place = (region >> 32) << PLACE_BITS | (address >> (REGION_BITS - PLACE_BITS)) & ((1 << PLACE_BITS) - 1);
        let tag = address.wrapping_mul(GOLDEN) & (0x7f << 57);
        self.0 = place | tag;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
