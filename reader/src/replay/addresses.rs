//! A map from addresses to numbers, as a tree.
//!
//! Neighbours in memory are allocated, live and are freed together. So this is a tree over the bits of an address and
//! no hash table, which would scatter neighbours: what is near a recent address is in the processor's cache. Only the
//! regions at the top are hashed; there are few. A region has a node with a part for each range of 256 bytes, and such a
//! range a node of one cache line with the 16 numbers of its addresses. Addresses that differ in their last four bits,
//! which few allocators return, have trees of their own. Each level has a list of its own: the upper one, which every
//! look-up goes through, is small, and would be scattered over the cache and over pages between the nodes of the lower.
//!
//! Removing an address leaves its nodes, since the next block mostly gets the same addresses; checking for empty nodes
//! would cost more than everything else. A sweep removes empty nodes before there are twice as many nodes as the last
//! sweep left.
//!
//! Invariant: node 0 of each level is empty and never changes, so it is the result of looking up a missing node.

use std::hash::{BuildHasher, RandomState};
use std::iter;

use super::roomy;
use crate::prefetch::prefetch;

/// Regions at first: a power of two.
const FIRST_REGIONS: usize = 1 << 6;
/// Number of nodes below which no sweep is done.
const FIRST_SWEEP: usize = 1 << 12;
/// The lowest address bit of a number's part in its node; what is below it belongs to the region.
const NUMBER: u32 = 4;
/// The lowest address bit of a lower node's part in that of its region.
const RANGE: u32 = 8;
/// The lowest address bit of a region.
const REGION: u32 = 18;
/// The factor of Fibonacci hashing, which spreads evenly spaced numbers.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The numbers of a range of addresses: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct RangeNode([u32; 1 << (RANGE - NUMBER)]);

/// The nodes of a region's ranges.
#[derive(Clone, Copy, Debug)]
struct RegionNode([u32; 1 << (REGION - RANGE)]);

impl Default for RangeNode {
    fn default() -> Self {
        Self([0; 1 << (RANGE - NUMBER)])
    }
}

impl Default for RegionNode {
    fn default() -> Self {
        Self([0; 1 << (REGION - RANGE)])
    }
}

/// The nodes of a level.
#[derive(Clone, Debug)]
struct LevelNodes<N> {
    nodes: Vec<N>,
    vacant: Vec<u32>,
}

impl<N: Clone + Default> Default for LevelNodes<N> {
    fn default() -> Self {
        Self { nodes: vec![N::default()], vacant: Vec::new() }
    }
}

impl<N: Clone + Default> LevelNodes<N> {
    fn add(&mut self) -> u32 {
        // Never cut off: 2^32 nodes would take a quarter of a terabyte of memory first.
        self.vacant.pop().unwrap_or_else(|| roomy::add(&mut self.nodes, N::default()) as u32)
    }

    /// Nodes in use, with the empty one.
    fn used(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }
}

/// The parts of a node that are not empty, with their indices.
fn parts(parts: &[u32]) -> impl Iterator<Item = (u64, u32)> + '_ {
    (0..).zip(parts.iter().copied()).filter(|(_, next)| *next != 0)
}

/// A region and its node.
#[derive(Clone, Copy, Debug, Default)]
struct AddressRegion {
    key: u64,
    /// 0: no region.
    node: u32,
}

/// The lower node of an address, if known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bottom(u32);

impl Bottom {
    pub(super) const UNKNOWN: Self = Self(0);
}

/// A map from addresses to numbers other than 0.
#[derive(Debug)]
pub(super) struct Addresses {
    /// A hash table with open addressing and linear probing, without tombstones; its size is a power of two.
    regions: Vec<AddressRegion>,
    used: usize,
    /// A random seed, so that no capture can be crafted whose regions all collide.
    key: u64,
    upper: LevelNodes<RegionNode>,
    lower: LevelNodes<RangeNode>,
    /// Nodes in use at which the next sweep is due.
    sweep_at: usize,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            regions: vec![AddressRegion::default(); FIRST_REGIONS],
            used: 0,
            key: RandomState::new().hash_one(GOLDEN),
            upper: LevelNodes::default(),
            lower: LevelNodes::default(),
            sweep_at: FIRST_SWEEP,
        }
    }
}

impl Addresses {
    /// Sweeps, if due; whether it did, and earlier results of [`Addresses::bottoms`] are invalid.
    #[inline]
    pub(super) fn tidy(&mut self) -> bool {
        let due = self.used_nodes() >= self.sweep_at;
        if due {
            self.sweep();
        }
        due
    }

    #[inline]
    fn used_nodes(&self) -> usize {
        self.upper.used() + self.lower.used()
    }

    /// The lower nodes of several addresses, found level by level, so that the cache misses of a level overlap. The nodes are
    /// loaded into the cache while the program goes on.
    #[inline]
    pub(super) fn bottoms(&self, addresses: &[u64], bottoms: &mut [Bottom]) {
        for (node, &address) in bottoms.iter_mut().zip(addresses) {
            node.0 = self.regions[self.find(region(address))].node;
        }
        let nodes = self.upper.nodes.as_slice();
        for (node, &address) in bottoms.iter_mut().zip(addresses) {
            node.0 = nodes[node.0 as usize].0[range(address)];
        }
        for (node, _) in bottoms.iter().zip(addresses) {
            prefetch(&self.lower.nodes, node.0 as usize);
        }
    }

    /// The lower node of an address, which is loaded into the cache while the program goes on.
    #[inline(always)]
    pub(super) fn bottom(&self, address: u64) -> Bottom {
        let bottom = self.known(address, Bottom::UNKNOWN);
        prefetch(&self.lower.nodes, bottom as usize);
        Bottom(bottom)
    }

    /// The number of an address; 0 if it has none, or if its node is not known.
    #[inline(always)]
    pub(super) fn get(&self, address: u64, bottom: Bottom) -> u32 {
        self.lower.nodes[bottom.0 as usize].0[number(address)]
    }

    /// A reference to the number of an address, whose nodes are added if missing.
    #[inline(always)]
    pub(super) fn number(&mut self, address: u64, bottom: Bottom) -> &mut u32 {
        let bottom = match self.known(address, bottom) {
            0 => self.make_bottom(address),
            bottom => bottom,
        };
        &mut self.lower.nodes[bottom as usize].0[number(address)]
    }

    /// Removes the number of an address; returns it, or 0.
    #[inline(always)]
    pub(super) fn remove(&mut self, address: u64, bottom: Bottom) -> u32 {
        let bottom = self.known(address, bottom);
        std::mem::take(&mut self.lower.nodes[bottom as usize].0[number(address)])
    }

    /// All addresses with their numbers, ascending.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let mut regions: Vec<AddressRegion> = self.regions.iter().filter(|region| region.node != 0).copied().collect();
        regions.sort_unstable_by_key(|region| region.key);
        let mut rest = regions.into_iter().peekable();
        let mut expected = 0;
        iter::from_fn(move || {
            let first = rest.next()?;
            let mut all = Vec::with_capacity(expected);
            self.add_entries(first, &mut all);
            // Addresses of one region that differ in their last four bits.
            while let Some(other) = rest.next_if(|other| other.key >> NUMBER == first.key >> NUMBER) {
                self.add_entries(other, &mut all);
                all.sort_unstable();
            }
            expected = all.len();
            Some(all)
        })
        .flatten()
    }

    /// Adds the addresses of a region. Plain loops, since most parts are empty, and an iterator's state is kept in memory.
    fn add_entries(&self, region: AddressRegion, all: &mut Vec<(u64, u32)>) {
        let start = region.key >> NUMBER << REGION | region.key & ((1 << NUMBER) - 1);
        for (range, node) in parts(&self.upper.nodes[region.node as usize].0) {
            let numbers = parts(&self.lower.nodes[node as usize].0);
            numbers.for_each(|(part, number)| all.push((start | range << RANGE | part << NUMBER, number)));
        }
    }

    /// The lower node of this address; it may have been added since it was looked up.
    #[inline(always)]
    fn known(&self, address: u64, bottom: Bottom) -> u32 {
        if bottom.0 != 0 {
            return bottom.0;
        }
        let region = self.regions[self.find(region(address))].node;
        self.upper.nodes[region as usize].0[range(address)]
    }

    /// The same; missing nodes are added.
    #[cold]
    fn make_bottom(&mut self, address: u64) -> u32 {
        let region = self.region_node(region(address));
        match self.upper.nodes[region as usize].0[range(address)] {
            0 => {
                let node = self.lower.add();
                self.upper.nodes[region as usize].0[range(address)] = node;
                node
            }
            node => node,
        }
    }

    /// Removes all empty nodes and regions.
    #[cold]
    fn sweep(&mut self) {
        for region in self.regions.iter_mut().filter(|region| region.node != 0) {
            let ranges = &mut self.upper.nodes[region.node as usize].0;
            for range in ranges.iter_mut().filter(|range| **range != 0) {
                if self.lower.nodes[*range as usize].0.iter().all(|&number| number == 0) {
                    self.lower.vacant.push(std::mem::take(range));
                }
            }
            if ranges.iter().all(|&range| range == 0) {
                self.upper.vacant.push(std::mem::take(&mut region.node));
                self.used -= 1;
            }
        }
        self.resize_regions((4 * self.used).next_power_of_two().max(FIRST_REGIONS));
        self.sweep_at = (2 * self.used_nodes()).max(FIRST_SWEEP);
    }

    /// The node of a region, which is added if missing.
    fn region_node(&mut self, key: u64) -> u32 {
        let at = self.find(key);
        match self.regions[at].node {
            0 => self.new_region(at, key),
            node => node,
        }
    }

    fn new_region(&mut self, at: usize, key: u64) -> u32 {
        let node = self.upper.add();
        self.regions[at] = AddressRegion { key, node };
        self.used += 1;
        if self.used > self.regions.len() / 2 {
            self.resize_regions(self.regions.len() * 2);
        }
        node
    }

    /// The slot of a region, or the vacant slot for it.
    #[inline(always)]
    fn find(&self, key: u64) -> usize {
        let regions = self.regions.as_slice();
        let last = regions.len() - 1;
        let mut at = self.home(key) & last;
        while regions[at].key != key && regions[at].node != 0 {
            at = (at + 1) & last;
        }
        at
    }

    /// The slot where the search for a region begins, but for the size of the table.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        ((key ^ self.key).wrapping_mul(GOLDEN) >> 32) as usize
    }

    /// Rehashes all regions into a table of this size.
    fn resize_regions(&mut self, len: usize) {
        let regions = vec![AddressRegion::default(); len];
        for region in std::mem::replace(&mut self.regions, regions).into_iter().filter(|region| region.node != 0) {
            let at = self.find(region.key);
            self.regions[at] = region;
        }
    }
}

/// The region number of an address: its bits above the region's ranges, and its last four.
#[inline]
fn region(address: u64) -> u64 {
    address >> REGION << NUMBER | address & ((1 << NUMBER) - 1)
}

/// The index of an address's range in its region.
#[inline]
fn range(address: u64) -> usize {
    (address >> RANGE) as usize & ((1 << (REGION - RANGE)) - 1)
}

/// The index of an address's number in its range.
#[inline]
fn number(address: u64) -> usize {
    (address >> NUMBER) as usize & ((1 << (RANGE - NUMBER)) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};
    use rustc_hash::FxHashMap;

    use super::{Addresses, Bottom, FIRST_REGIONS, FIRST_SWEEP};

    /// Addresses that are near each other at every level, and some that are not.
    fn address(seed: u64) -> u64 {
        match seed % 4 {
            0 => seed >> 2 & 0xff,
            1 => seed & 0xfff0,
            2 => (seed & 0x3f) << 14 | seed >> 60,
            _ => u64::MAX - (seed & 0xf_0ff0),
        }
    }

    fn found<const N: usize>(addresses: &Addresses, wanted: [u64; N]) -> [Bottom; N] {
        let mut bottoms = [Bottom::UNKNOWN; N];
        addresses.bottoms(&wanted, &mut bottoms);
        bottoms
    }

    fn get(addresses: &Addresses, address: u64) -> u32 {
        addresses.get(address, found(addresses, [address])[0])
    }

    fn insert(addresses: &mut Addresses, address: u64, number: u32) {
        addresses.tidy();
        let [bottom] = found(addresses, [address]);
        *addresses.number(address, bottom) = number;
    }

    fn remove(addresses: &mut Addresses, address: u64) -> u32 {
        addresses.remove(address, Bottom::UNKNOWN)
    }

    proptest! {
        #[test]
        fn it_is_a_map(seeds in prop::collection::vec(any::<u64>(), 1..600)) {
            let (mut addresses, mut map) = (Addresses::default(), FxHashMap::default());
            for (number, seed) in (1..).zip(seeds) {
                let address = address(seed);
                let known = map.get(&address).copied().unwrap_or(0);
                if seed % 64 == 5 {
                    addresses.sweep();
                }
                prop_assert_eq!(get(&addresses, address), known);
                if known != 0 && seed >> 63 == 0 {
                    map.remove(&address);
                    prop_assert_eq!(remove(&mut addresses, address), known);
                } else if known == 0 {
                    map.insert(address, number);
                    insert(&mut addresses, address, number);
                }
            }
            let (mut all, mut expected): (Vec<_>, Vec<_>) = (addresses.entries().map(|(_, number)| number).collect(), map.values().copied().collect());
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn what_is_found_together_is_found_though_others_come_between() {
        let mut addresses = Addresses::default();
        let [first, second, far] = [0x10, 0x20, 0x7000_0010];
        let [at_first, at_second, at_far] = found(&addresses, [first, second, far]);
        *addresses.number(first, at_first) = 1;
        *addresses.number(second, at_second) = 2;
        assert_eq!((addresses.remove(first, at_first), addresses.remove(first, at_first)), (1, 0));
        assert_eq!((addresses.remove(far, at_far), addresses.remove(second, at_second)), (0, 2));
    }

    #[test]
    fn what_is_empty_is_swept_while_regions_come_and_go() {
        const REGIONS: u32 = 10 * FIRST_REGIONS as u32;
        let mut addresses = Addresses::default();
        let address = |round: u32, number: u32| u64::from(round * REGIONS + number) << 20;
        for round in 0..50 {
            (1..=REGIONS).for_each(|number| insert(&mut addresses, address(round, number), number));
            for number in (1..=REGIONS).filter(|number| number % 3 != 0) {
                assert_eq!(remove(&mut addresses, address(round, number)), number);
                assert_eq!(remove(&mut addresses, address(round, number)), 0);
            }
            (1..=REGIONS).for_each(|number| {
                assert_eq!(get(&addresses, address(round, number)), if number % 3 == 0 { number } else { 0 });
            });
            (1..=REGIONS).for_each(|number| _ = remove(&mut addresses, address(round, number)));
            assert!(addresses.upper.nodes.len() + addresses.lower.nodes.len() < 2 * FIRST_SWEEP);
        }
        assert_eq!(addresses.entries().count(), 0);
        addresses.sweep();
        assert_eq!((addresses.used, addresses.used_nodes()), (0, 2));
        assert_eq!((addresses.regions.len(), addresses.sweep_at), (FIRST_REGIONS, FIRST_SWEEP));
    }
}
