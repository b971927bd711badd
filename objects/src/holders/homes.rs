//! In which module each type was defined, by its name: of several holders that are as near, the one in that module has the name
//! that a developer expects.
//!
//! Invariant: no more modules are read than a program imports.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::{Dictionary, text_of};

/// Modules that are read at most.
const MOST_MODULES: u64 = 1 << 16;

/// The addresses of a program's modules, by the names that they are imported by.
#[derive(Debug, Default)]
pub(crate) struct Modules(FxHashMap<String, u64>);

impl Modules {
    /// Reads them from the dictionary at this address.
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, table: u64) -> Self {
        let mut modules = FxHashMap::default();
        if let Some(dictionary) = Dictionary::read(memory, layout, table) {
            let some = 0..dictionary.keys.entries.min(MOST_MODULES);
            dictionary.each_of(memory, some, |key, value| {
                if let Some(Entry::Vacant(place)) = text_of(memory, layout, key).map(|name| modules.entry(name)) {
                    place.insert(value);
                }
            });
        }
        Self(modules)
    }

    /// The one that the program was started with.
    pub(crate) fn main(&self) -> Option<u64> {
        self.0.get("__main__").copied()
    }

    /// All of them.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.0.values().copied()
    }

    /// The address of the module in which the type with this name was defined: `logging.handlers` of
    /// `logging.handlers.QueueHandler`.
    pub(crate) fn of_type(&self, name: &str) -> Option<u64> {
        name.match_indices('.').rev().find_map(|(at, _)| self.0.get(&name[..at])).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Modules;

    #[test]
    fn the_module_of_a_type_is_the_longest_that_its_name_begins_with() {
        let names = [("logging", 1), ("logging.handlers", 2), ("app", 3)];
        let modules = Modules(names.into_iter().map(|(name, at)| (name.to_owned(), at)).collect());
        let found = ["logging.handlers.QueueHandler", "logging.Logger", "app.Outer.Inner", "builtins.dict", "logging"];
        assert_eq!(found.map(|name| modules.of_type(name)), [Some(2), Some(1), Some(3), None, None]);
    }
}
