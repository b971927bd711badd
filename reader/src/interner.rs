//! An interner: values with dense numbers, each value stored once.
//!
//! Invariant: equal interned values have one number; numbers are in the order of first interning.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;

use crate::error::Error;

/// Values and their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Interner<T> {
    items: Vec<T>,
    /// By the hash of the item that has the number.
    ids: HashTable<u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { items: Vec::new(), ids: HashTable::new() }
    }
}

fn hash<T: Hash + ?Sized>(item: &T) -> u64 {
    FxBuildHasher.hash_one(item)
}

impl<T: Eq + Hash> Interner<T> {
    /// One value, whose number is 0.
    pub(crate) fn starting_with(first: T) -> Self {
        let mut ids = HashTable::new();
        ids.insert_unique(hash(&first), 0, |_| hash(&first));
        Self { items: vec![first], ids }
    }

    /// The value with this number.
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)
    }

    /// The number of a value that is there.
    pub(crate) fn id<Q: Eq + Hash + ?Sized>(&self, item: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
    {
        let is_same = |&id: &u32| self.get(id).is_some_and(|known| known.borrow() == item);
        self.ids.find(hash(item), is_same).copied()
    }

    /// The number of a value, which it gets if it has none.
    pub(crate) fn intern(&mut self, item: T, what: &'static str) -> Result<u32, Error> {
        let items = &self.items;
        let is_same = |&id: &u32| items.get(id as usize) == Some(&item);
        match self.ids.entry(hash(&item), is_same, |&id| items.get(id as usize).map_or(0, hash)) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                let id = next_id(items.len(), what)?;
                new.insert(id);
                self.items.push(item);
                Ok(id)
            }
        }
    }

    /// All values, in the order of their numbers.
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// Changes all values, in place. Those that are looked up must not become the same by it.
    pub(crate) fn change_all(&mut self, change: impl FnMut(&mut T), is_looked_up: impl Fn(u32) -> bool) {
        self.items.iter_mut().for_each(change);
        self.ids.clear();
        for (id, item) in (0..).zip(&self.items).filter(|(id, _)| is_looked_up(*id)) {
            self.ids.insert_unique(hash(item), id, |&id| self.items.get(id as usize).map_or(0, hash));
        }
    }

    /// Adds a value without looking for an equal one.
    pub(crate) fn push(&mut self, item: T, what: &'static str) -> Result<u32, Error> {
        let id = next_id(self.items.len(), what)?;
        self.items.push(item);
        Ok(id)
    }
}

/// The number of the item after `len` items.
pub(crate) fn next_id(len: usize, what: &'static str) -> Result<u32, Error> {
    // u32::MAX stays free, as a mark for "none".
    let id = u32::try_from(len).ok().filter(|&id| id < u32::MAX);
    id.ok_or(Error::TooMany { what, limit: u64::from(u32::MAX) })
}
