//! What a picture has of the pointers of C code to the first objects of paths.
//!
//! Invariant: pointers to an object are in the order in which they were stored, the best one first.

use memtrack_format::objects::{HolderKind, PicturedPointer, PointerModule, PointerSearch};

use crate::holders::paths::followed;
use crate::picture::ObjectPicture;

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
