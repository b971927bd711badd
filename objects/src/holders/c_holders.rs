//! What is told of the C code that holds the first objects of paths, by object.
//!
//! Who knows modules, symbols and stacks makes the texts. Invariant: number 0 is nothing.

use memtrack_format::objects::{HolderKind, PicturedPointer, PointerModule, PointerSearch};
use rustc_hash::FxHashMap;

use crate::holders::paths::followed;
use crate::picture::ObjectPicture;

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

impl ObjectPicture {
    /// The first objects of the paths to these, as far as C code holds them, ascending.
    pub fn held_by_c(&self, objects: &[u32]) -> Vec<u32> {
        let roots = self.roots_by_object();
        let is_ring = |first: u32| self.stored.holders.get(first as usize).is_none_or(|of| of.kind == HolderKind::Ring);
        let (mut seen, mut firsts) = (vec![false; self.count()], Vec::new());
        for object in followed(objects) {
            let mut at = *object;
            while let Some(seen) = seen.get_mut(at as usize).filter(|seen| !**seen) {
                *seen = true;
                match self.holder_of(at) {
                    Some(holder) => at = holder.parent,
                    None if !roots.contains_key(&at) && !is_ring(at) => firsts.push(at),
                    None => {}
                }
            }
        }
        firsts.sort_unstable();
        firsts
    }

    /// How much memory was searched for pointers to what C code holds.
    pub fn pointer_search(&self) -> PointerSearch {
        self.stored.pointers.search
    }

    /// The pointers that were found to an object, the best one first.
    pub fn pointers_to(&self, object: u32) -> &[PicturedPointer] {
        let all = self.stored.pointers.all.as_slice();
        let from = all.partition_point(|pointer| pointer.object < object);
        let to = all.partition_point(|pointer| pointer.object <= object);
        all.get(from..to).unwrap_or_default()
    }

    /// The loaded objects in whose data pointers lie.
    pub fn pointer_modules(&self) -> &[PointerModule] {
        &self.stored.pointers.modules
    }

    /// A text of the picture.
    pub fn text_of(&self, row: u32) -> &str {
        self.stored.texts.get(row as usize).map_or("", String::as_str)
    }
}
