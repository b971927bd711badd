//! Numbers distinct values in the order of first occurrence, for the tables of most formats.
//!
//! Invariant: equal values have the same number, and numbers are dense from 0.

use std::collections::HashMap;
use std::hash::Hash;

/// A growing table of distinct values.
#[derive(Debug)]
pub(super) struct Numbering<K> {
    order: Vec<K>,
    numbers: HashMap<K, usize>,
}

impl<K: Clone + Eq + Hash> Numbering<K> {
    /// An empty table.
    pub(super) fn new() -> Self {
        Self { order: Vec::new(), numbers: HashMap::new() }
    }

    /// The number of this value; a new value gets the next one.
    pub(super) fn number(&mut self, key: K) -> usize {
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.order.push(key.clone());
            self.order.len() - 1
        })
    }

    /// The number of this value, if it has one.
    pub(super) fn known(&self, key: &K) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// The values by number.
    pub(super) fn order(&self) -> &[K] {
        &self.order
    }
}

#[cfg(test)]
mod tests {
    use super::Numbering;

    #[test]
    fn equal_things_have_one_number() {
        let mut table = Numbering::new();
        assert_eq!(["b", "a", "b"].map(|key| table.number(key)), [0, 1, 0]);
        assert_eq!(table.order(), ["b", "a"]);
    }
}
