//! The sizes of a few blocks by their addresses, without memory of its own beyond a fixed table.
//!
//! Invariant: what is not found was never put in since the table was cleared, or was taken out again.

/// Places, a power of two.
const PLACES: usize = 4096;
/// The most that are used, so that a search is short.
const MOST: usize = PLACES / 2;

/// Blocks with their sizes.
pub(super) struct LiveSizes {
    places: [SizePlace; PLACES],
    /// A place of an earlier one is empty, so that clearing is cheap.
    generation: u64,
    used: usize,
}

/// A block that is there, or was: then its address is 0, and another may come to its place.
#[derive(Clone, Copy)]
struct SizePlace {
    address: u64,
    size: u64,
    generation: u64,
}

impl LiveSizes {
    pub(super) const fn new() -> Self {
        Self { places: [SizePlace { address: 0, size: 0, generation: 0 }; PLACES], generation: 0, used: 0 }
    }

    /// Takes everything out.
    pub(super) const fn clear(&mut self) {
        (self.generation, self.used) = (self.generation.wrapping_add(1), 0);
    }

    /// Puts in a block that is not there; `None`: there is no room.
    pub(super) fn insert(&mut self, address: u64, size: u64) -> Option<()> {
        if self.used >= MOST {
            return None;
        }
        let generation = self.generation;
        let place = self.find(|place| place.generation != generation || place.address == 0, address)?;
        let is_new = place.generation != generation;
        *place = SizePlace { address, size, generation };
        self.used = self.used.wrapping_add(usize::from(is_new));
        Some(())
    }

    /// Takes out a block; its size, if it was there.
    pub(super) fn remove(&mut self, address: u64) -> Option<u64> {
        let generation = self.generation;
        let is_end = |place: &SizePlace| place.generation != generation || place.address == address;
        let place = self.find(is_end, address).filter(|place| place.generation == generation)?;
        place.address = 0;
        Some(place.size)
    }

    /// The first such place from that of the address on.
    fn find(&mut self, is_it: impl Fn(&SizePlace) -> bool, address: u64) -> Option<&mut SizePlace> {
        let hash = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2());
        let first = hash as usize;
        let at = (0..PLACES).map(|step| first.wrapping_add(step) % PLACES);
        let found = at.into_iter().find(|at| self.places.get(*at).is_some_and(&is_it))?;
        self.places.get_mut(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{LiveSizes, MOST};

    #[test]
    fn it_is_a_map_of_few_blocks() {
        let (mut sizes, mut model) = (LiveSizes::new(), HashMap::new());
        let mut random = 1_u64;
        for round in 0..20 {
            sizes.clear();
            model.clear();
            for step in 0..2 * MOST as u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let address = 0x1000 + (random >> 40) % 300 * 16;
                assert_eq!(sizes.remove(address), model.remove(&address), "round {round}, step {step}");
                if random >> 63 == 0 {
                    assert_eq!(sizes.insert(address, step), Some(()));
                    model.insert(address, step);
                }
            }
        }
    }

    #[test]
    fn it_says_when_it_is_full() {
        let mut sizes = LiveSizes::new();
        sizes.clear();
        let put_in = (1..).take_while(|number| sizes.insert(number * 16, 1).is_some()).count();
        assert_eq!(put_in, MOST);
        sizes.clear();
        assert!(sizes.remove(16).is_none() && sizes.insert(16, 2).is_some());
        assert_eq!(sizes.remove(16), Some(2));
    }
}
