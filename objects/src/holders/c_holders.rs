//! What is told of the C code that holds the first objects of paths, by object.
//!
//! Who knows modules, symbols and stacks makes the texts. Invariant: number 0 is nothing.

use rustc_hash::FxHashMap;

/// Texts for objects.
#[derive(Clone, Debug, Default)]
pub struct CHolders {
    of_objects: FxHashMap<u32, u32>,
    numbers: FxHashMap<String, u32>,
    texts: Vec<String>,
}

impl CHolders {
    /// Adds what is told of an object.
    pub fn add(&mut self, object: u32, text: String) {
        let Self { numbers, texts, .. } = self;
        let number = *numbers.entry(text).or_insert_with_key(|text| {
            texts.push(text.clone());
            texts.len() as u32
        });
        self.of_objects.insert(object, number);
    }

    /// The number of what is told of an object.
    pub(crate) fn number(&self, object: u32) -> u32 {
        self.of_objects.get(&object).copied().unwrap_or(0)
    }

    pub(crate) fn text(&self, number: u32) -> Option<&str> {
        self.texts.get(number.checked_sub(1)? as usize).map(String::as_str)
    }
}
