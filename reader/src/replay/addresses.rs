//! A map from addresses to numbers, as a radix tree.
//!
//! Neighbours in memory are allocated, live and are freed together. So this is a tree over the bits of an address and
//! no hash table, which would scatter neighbours: what is near a recent address is in the processor's cache. Only the
//! regions at the top are hashed; there are few. A node is one cache line with the 16 parts of its range; at the lowest
//! level these are the numbers. Addresses that differ in their last four bits, which few allocators return, have trees
//! of their own. Each level has a list of its own: the upper ones, which every look-up goes through, are small, and
//! would be scattered over the cache and over pages between the nodes of the lowest.
//!
//! Removing an address leaves its nodes, since the next block mostly gets the same addresses; checking for empty nodes
//! would cost more than everything else. A sweep removes empty nodes before there are twice as many nodes as the last
//! sweep left.
//!
//! Invariant: node 0 of each level is empty and never changes, so it is the result of looking up a missing node.

use std::hash::{BuildHasher, RandomState};

/// Regions at first: a power of two.
const FIRST_REGIONS: usize = 1 << 6;
/// Number of nodes below which no sweep is done.
const FIRST_SWEEP: usize = 1 << 12;
/// Bits of an address for one level of the tree.
const LEVEL: u32 = 4;
/// The lowest address bit of each level, from the top.
const LEVELS: [u32; 3] = [12, 8, 4];
/// The lowest address bit of the region number.
const REGION: u32 = 16;
/// The factor of Fibonacci hashing, which spreads evenly spaced numbers.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct LookupLine([u32; 1 << LEVEL]);

impl LookupLine {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|&part| part == 0)
    }
}

/// The nodes of a level.
#[derive(Clone, Debug)]
struct LevelNodes {
    nodes: Vec<LookupLine>,
    vacant: Vec<u32>,
}

impl Default for LevelNodes {
    fn default() -> Self {
        Self { nodes: vec![LookupLine::default()], vacant: Vec::new() }
    }
}

impl LevelNodes {
    /// What stands in a part of a node.
    #[inline]
    fn get(&self, node: u32, part: usize) -> u32 {
        self.nodes[node as usize].0[part]
    }

    #[inline]
    fn part_mut(&mut self, node: u32, part: usize) -> &mut u32 {
        &mut self.nodes[node as usize].0[part]
    }

    fn add(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(LookupLine::default());
            // Never cut off: 2^32 nodes would take a quarter of a terabyte of memory first.
            (self.nodes.len() - 1) as u32
        })
    }

    /// Nodes in use, with the empty one.
    fn used(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// The parts of a node that are not empty, with their indices.
    fn parts(&self, node: u32) -> impl Iterator<Item = (u64, u32)> {
        (0..).zip(self.nodes[node as usize].0).filter(|(_, next)| *next != 0)
    }
}

/// A region and its node.
#[derive(Clone, Copy, Debug, Default)]
struct AddressRegion {
    key: u64,
    /// 0: no region.
    node: u32,
}

/// The lowest-level node of an address, if known.
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
    /// From the top.
    levels: [LevelNodes; LEVELS.len()],
    /// Nodes in use at which the next sweep is due.
    sweep_at: usize,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            regions: vec![AddressRegion::default(); FIRST_REGIONS],
            used: 0,
            key: RandomState::new().hash_one(GOLDEN),
            levels: Default::default(),
            sweep_at: FIRST_SWEEP,
        }
    }
}

impl Addresses {
    /// Sweeps, if due. Earlier results of [`Addresses::bottoms`] become invalid.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.used_nodes() >= self.sweep_at {
            self.sweep();
        }
    }

    fn used_nodes(&self) -> usize {
        self.levels.iter().map(LevelNodes::used).sum()
    }

    /// The lowest-level nodes of several addresses, found level by level, so that the cache misses of a level overlap.
    #[inline]
    pub(super) fn bottoms(&self, addresses: &[u64], bottoms: &mut [Bottom]) {
        let [top, middle, _] = &self.levels;
        for (node, &address) in bottoms.iter_mut().zip(addresses) {
            node.0 = self.regions[self.find(region(address))].node;
        }
        for (level, bits) in [(top, LEVELS[0]), (middle, LEVELS[1])] {
            for (node, &address) in bottoms.iter_mut().zip(addresses) {
                node.0 = level.get(node.0, part(address, bits));
            }
        }
    }

    /// The number of an address; 0 if it has none, or if its node is not known.
    #[inline]
    pub(super) fn get(&self, address: u64, bottom: Bottom) -> u32 {
        self.levels[2].get(bottom.0, part(address, LEVELS[2]))
    }

    /// A reference to the number of an address, whose nodes are added if missing.
    #[inline]
    pub(super) fn number(&mut self, address: u64, bottom: Bottom) -> &mut u32 {
        let bottom = match self.known(address, bottom) {
            0 => self.make_bottom(address),
            bottom => bottom,
        };
        self.levels[2].part_mut(bottom, part(address, LEVELS[2]))
    }

    /// Removes the number of an address; returns it, or 0.
    #[inline]
    pub(super) fn remove(&mut self, address: u64, bottom: Bottom) -> u32 {
        let bottom = self.known(address, bottom);
        std::mem::take(self.levels[2].part_mut(bottom, part(address, LEVELS[2])))
    }

    /// All numbers, unordered.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries().map(|(_, number)| number)
    }

    /// All addresses with their numbers, unordered.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let [top, middle, bottom] = &self.levels;
        let regions = self.regions.iter().filter(|region| region.node != 0);
        regions.flat_map(move |region| {
            let start = region.key >> LEVEL << REGION | region.key & ((1 << LEVEL) - 1);
            top.parts(region.node).flat_map(move |(first, node)| {
                let middles =
                    middle.parts(node).map(move |(part, node)| (first << LEVELS[0] | part << LEVELS[1], node));
                middles.flat_map(move |(upper, node)| {
                    bottom.parts(node).map(move |(part, number)| (start | upper | part << LEVELS[2], number))
                })
            })
        })
    }

    /// The lowest-level node of this address; it may have been added since it was looked up.
    #[inline]
    fn known(&self, address: u64, bottom: Bottom) -> u32 {
        if bottom.0 != 0 {
            return bottom.0;
        }
        let [mut found] = [Bottom::UNKNOWN];
        self.bottoms(&[address], std::slice::from_mut(&mut found));
        found.0
    }

    /// The same; missing nodes are added.
    #[cold]
    fn make_bottom(&mut self, address: u64) -> u32 {
        let top = self.region_node(region(address));
        let middle = self.child(0, top, address);
        self.child(1, middle, address)
    }

    /// The child of a node of this level on the way to an address.
    fn child(&mut self, level: usize, parent: u32, address: u64) -> u32 {
        let part = part(address, LEVELS[level]);
        match self.levels[level].get(parent, part) {
            0 => {
                let node = self.levels[level + 1].add();
                *self.levels[level].part_mut(parent, part) = node;
                node
            }
            node => node,
        }
    }

    /// Removes all empty nodes and regions.
    #[cold]
    fn sweep(&mut self) {
        for at in 0..self.regions.len() {
            let node = self.regions[at].node;
            if node != 0 && empties(&mut self.levels, node) {
                self.regions[at].node = 0;
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
        let node = self.levels[0].add();
        self.regions[at] = AddressRegion { key, node };
        self.used += 1;
        if self.used > self.regions.len() / 2 {
            self.resize_regions(self.regions.len() * 2);
        }
        node
    }

    /// The slot of a region, or the vacant slot for it.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let mut at = self.home(key);
        while self.regions[at].node != 0 && self.regions[at].key != key {
            at = (at + 1) & (self.regions.len() - 1);
        }
        at
    }

    /// The slot where the search for a region begins.
    #[inline]
    fn home(&self, key: u64) -> usize {
        ((key ^ self.key).wrapping_mul(GOLDEN) >> 32) as usize & (self.regions.len() - 1)
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

/// Removes the empty nodes below a node of the first of these levels; returns whether the node itself is empty, and was
/// removed.
fn empties(levels: &mut [LevelNodes], node: u32) -> bool {
    let Some((level, below)) = levels.split_first_mut() else { return false };
    if !below.is_empty() {
        for part in 0..1 << LEVEL {
            let child = level.get(node, part);
            if child != 0 && empties(below, child) {
                *level.part_mut(node, part) = 0;
            }
        }
    }
    let empty = level.nodes[node as usize].is_empty();
    if empty {
        level.vacant.push(node);
    }
    empty
}

/// The region number of an address: its bits above the tree levels, and its last four.
#[inline]
fn region(address: u64) -> u64 {
    address >> REGION << LEVEL | address & ((1 << LEVEL) - 1)
}

/// The index of an address in a node of this level.
#[inline]
fn part(address: u64, level: u32) -> usize {
    (address >> level) as usize & ((1 << LEVEL) - 1)
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
            let (mut all, mut expected): (Vec<_>, Vec<_>) = (addresses.numbers().collect(), map.values().copied().collect());
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
            assert!(addresses.levels.iter().map(|level| level.nodes.len()).sum::<usize>() < 2 * FIRST_SWEEP);
        }
        assert_eq!(addresses.numbers().count(), 0);
        addresses.sweep();
        assert_eq!((addresses.used, addresses.used_nodes()), (0, addresses.levels.len()));
        assert_eq!((addresses.regions.len(), addresses.sweep_at), (FIRST_REGIONS, FIRST_SWEEP));
    }
}
