//! Where a block stands, by its address.
//!
//! Neighbours in memory are made together, live together and are freed together. So this is a tree over the bits of an
//! address, not a table by a hash that tears neighbours apart: what is near an address that was just looked up is in the
//! processor's cache. Only the regions at the top are hashed, which are few. A node is one line of the cache, and holds
//! what is in 16 parts of its range; at the bottom those are places. Addresses that differ in their last four bits, which
//! few allocators give out, are in trees of their own.
//!
//! Invariant: node 0 is empty and stays so, which makes it the answer of every look-up of what is not there; any other
//! node is empty only while it is vacant.

use std::hash::{BuildHasher, RandomState};

/// Regions at first: a power of two.
const FIRST_REGIONS: usize = 1 << 6;
/// Bits of an address that one level of the tree tells apart.
const LEVEL: u32 = 4;
/// The lowest bit of an address that each level looks at, from the top.
const LEVELS: [u32; 3] = [12, 8, 4];
/// The lowest bit of an address that tells regions apart.
const REGION: u32 = 16;
/// An odd number without pattern, the golden ratio's digits: it spreads what lies at even distances evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A line of the cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Node([u32; 1 << LEVEL]);

impl Node {
    #[inline]
    fn is_empty(&self) -> bool {
        // Without a branch, and without the call that a comparison would be.
        self.0.iter().fold(0, |all, part| all | part) == 0
    }
}

/// A region and its node.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    key: u64,
    /// 0: no region.
    node: u32,
}

/// A number other than 0 for each of some addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Open addressing, linear probing, and no tombstones. As many as a power of two.
    regions: Vec<Region>,
    used: usize,
    /// Of this process's own, so that no capture can be made whose regions all have one home.
    key: u64,
    nodes: Vec<Node>,
    vacant: Vec<u32>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            regions: vec![Region::default(); FIRST_REGIONS],
            used: 0,
            key: RandomState::new().hash_one(GOLDEN),
            nodes: vec![Node::default()],
            vacant: Vec::new(),
        }
    }
}

impl Addresses {
    /// The number of an address; 0 for none.
    #[inline]
    pub(super) fn get(&self, address: u64) -> u32 {
        let region = self.regions[self.find(region(address))].node;
        LEVELS.iter().fold(region, |node, level| self.nodes[node as usize].0[part(address, *level)])
    }

    /// The numbers of some addresses. Level by level, so that the processor waits for all of a level at once.
    #[inline]
    pub(super) fn get_together<const N: usize>(&self, addresses: impl Iterator<Item = u64>, numbers: &mut [u32; N]) {
        let mut known = [0; N];
        for ((known, number), address) in known.iter_mut().zip(&mut *numbers).zip(addresses) {
            (*known, *number) = (address, self.regions[self.find(region(address))].node);
        }
        for level in LEVELS {
            for (number, address) in numbers.iter_mut().zip(known) {
                *number = self.nodes[*number as usize].0[part(address, level)];
            }
        }
    }

    /// Gives an address that has none a number other than 0.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, number: u32) {
        let mut node = self.region_node(region(address));
        for level in [LEVELS[0], LEVELS[1]] {
            let next = self.nodes[node as usize].0[part(address, level)];
            node = if next == 0 { self.new_child(node, part(address, level)) } else { next };
        }
        self.nodes[node as usize].0[part(address, LEVELS[2])] = number;
    }

    /// Takes the number of an address away; 0 if it has none.
    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> u32 {
        let at = self.find(region(address));
        let top = self.regions[at].node;
        let middle = self.nodes[top as usize].0[part(address, LEVELS[0])];
        let bottom = self.nodes[middle as usize].0[part(address, LEVELS[1])];
        let node = &mut self.nodes[bottom as usize];
        let number = node.0[part(address, LEVELS[2])];
        if number != 0 {
            node.0[part(address, LEVELS[2])] = 0;
            if node.is_empty() {
                self.fold(at, [top, middle, bottom], address);
            }
        }
        number
    }

    /// All numbers, in no order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let below = |node: u32| self.nodes[node as usize].0.iter().copied().filter(|&next| next != 0);
        let regions = self.regions.iter().map(|region| region.node).filter(|&node| node != 0);
        regions.flat_map(below).flat_map(below).flat_map(below)
    }

    /// The lowest of these nodes is empty; it goes, and what then is empty above it.
    fn fold(&mut self, region: usize, [top, middle, bottom]: [u32; 3], address: u64) {
        self.vacant.push(bottom);
        if self.empties(middle, part(address, LEVELS[1])) && self.empties(top, part(address, LEVELS[0])) {
            self.clear(region);
        }
    }

    /// Takes a part out of a node, which goes if it is empty then; whether it is.
    fn empties(&mut self, node: u32, part: usize) -> bool {
        let place = &mut self.nodes[node as usize];
        place.0[part] = 0;
        let empty = place.is_empty();
        if empty {
            self.vacant.push(node);
        }
        empty
    }

    #[inline]
    fn new_child(&mut self, parent: u32, part: usize) -> u32 {
        let node = self.new_node();
        self.nodes[parent as usize].0[part] = node;
        node
    }

    #[inline]
    fn new_node(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            // Never cut off: 2^32 nodes would take a quarter of a terabyte of memory first.
            (self.nodes.len() - 1) as u32
        })
    }

    /// The node of a region, made if there is none.
    #[inline]
    fn region_node(&mut self, key: u64) -> u32 {
        let at = self.find(key);
        match self.regions[at].node {
            0 => self.new_region(at, key),
            node => node,
        }
    }

    #[cold]
    fn new_region(&mut self, at: usize, key: u64) -> u32 {
        let node = self.new_node();
        self.regions[at] = Region { key, node };
        self.used += 1;
        if self.used > self.regions.len() / 2 {
            self.grow();
        }
        node
    }

    /// The slot of a region, or the vacant one that would be its.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let mut at = self.home(key);
        while self.regions[at].node != 0 && self.regions[at].key != key {
            at = self.after(at);
        }
        at
    }

    /// Where the search for a region begins.
    #[inline]
    fn home(&self, key: u64) -> usize {
        ((key ^ self.key).wrapping_mul(GOLDEN) >> 32) as usize & (self.regions.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.regions.len() - 1)
    }

    /// How far it is from one slot on to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.regions.len() - 1)
    }

    /// Makes a slot vacant. What stands behind it moves up, where that brings it no further than its home.
    #[cold]
    fn clear(&mut self, mut at: usize) {
        self.used -= 1;
        let mut next = self.after(at);
        while self.regions[next].node != 0 {
            let moving = self.regions[next];
            if self.distance(self.home(moving.key), next) >= self.distance(at, next) {
                self.regions[at] = moving;
                at = next;
            }
            next = self.after(next);
        }
        self.regions[at] = Region::default();
    }

    fn grow(&mut self) {
        let regions = vec![Region::default(); self.regions.len() * 2];
        for region in std::mem::replace(&mut self.regions, regions).into_iter().filter(|region| region.node != 0) {
            let at = self.find(region.key);
            self.regions[at] = region;
        }
    }
}

/// What an address is told apart by at the top: all but the bits that the levels look at.
#[inline]
fn region(address: u64) -> u64 {
    address >> REGION << LEVEL | address & ((1 << LEVEL) - 1)
}

/// Which part of a node of this level an address is in.
#[inline]
fn part(address: u64, level: u32) -> usize {
    (address >> level) as usize & ((1 << LEVEL) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};
    use rustc_hash::FxHashMap;

    use super::{Addresses, FIRST_REGIONS};

    /// Addresses that are near each other at every level, and some that are not.
    fn address(seed: u64) -> u64 {
        match seed % 4 {
            0 => seed >> 2 & 0xff,
            1 => seed & 0xfff0,
            2 => (seed & 0x3f) << 14 | seed >> 60,
            _ => u64::MAX - (seed & 0xf_0ff0),
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(seeds in prop::collection::vec(any::<u64>(), 1..600)) {
            let (mut addresses, mut map) = (Addresses::default(), FxHashMap::default());
            for (number, seed) in (1..).zip(seeds) {
                let address = address(seed);
                let known = map.get(&address).copied().unwrap_or(0);
                prop_assert_eq!(addresses.get(address), known);
                if known != 0 && seed >> 63 == 0 {
                    map.remove(&address);
                    prop_assert_eq!(addresses.remove(address), known);
                } else if known == 0 {
                    map.insert(address, number);
                    addresses.insert(address, number);
                }
            }
            let (mut all, mut expected): (Vec<_>, Vec<_>) = (addresses.numbers().collect(), map.values().copied().collect());
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn regions_are_found_while_they_come_and_go_and_their_nodes_are_used_again() {
        const REGIONS: u32 = 10 * FIRST_REGIONS as u32;
        let mut addresses = Addresses::default();
        let address = |number: u32| u64::from(number) << 20;
        let mut nodes = 0;
        for _ in 0..3 {
            (1..=REGIONS).for_each(|number| addresses.insert(address(number), number));
            nodes = addresses.nodes.len();
            for number in (1..=REGIONS).filter(|number| number % 3 != 0) {
                assert_eq!(addresses.remove(address(number)), number);
                assert_eq!(addresses.remove(address(number)), 0);
            }
            (1..=REGIONS).for_each(|number| {
                assert_eq!(addresses.get(address(number)), if number % 3 == 0 { number } else { 0 });
            });
            (1..=REGIONS).for_each(|number| _ = addresses.remove(address(number)));
            assert_eq!((addresses.used, addresses.vacant.len()), (0, nodes - 1));
        }
        assert_eq!(nodes, 1 + 3 * REGIONS as usize);
    }
}
