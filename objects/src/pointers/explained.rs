//! Which of the pointers that were found are references of objects: these were counted, so something else holds the object.
//!
//! Invariant: a bounded part of a bounded number of objects is read for each pointer.

use memtrack_format::objects::StoredPicture;
use rustc_hash::FxHashMap;

use crate::memory::ObjectMemory;
use crate::pointers::targets::FoundPointer;

/// Objects that refer to one that are looked at.
const MOST_HOLDERS: usize = 16;
/// Bytes before an object, and words from there on, in which it has pointers to its own blocks.
const BEFORE: u64 = 32;
const WORDS: u64 = 36;

/// Leaves those of which no object is known that has them: in itself, or in a block that it points to.
pub(crate) fn retain_unexplained(found: &mut Vec<FoundPointer>, picture: &StoredPicture, memory: &ObjectMemory<'_>) {
    let holders = holders_of(found, picture);
    found.retain(|pointer| {
        let known = holders.get(&pointer.object).map_or(&[][..], Vec::as_slice);
        !known.iter().any(|holder| is_of(*holder, pointer, picture, memory))
    });
}

/// Objects that refer to those to which pointers were found.
fn holders_of(found: &[FoundPointer], picture: &StoredPicture) -> FxHashMap<u32, Vec<u32>> {
    let mut holders: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    let mut is_found = vec![false; picture.objects.len()];
    for pointer in found {
        is_found.get_mut(pointer.object as usize).into_iter().for_each(|is_found| *is_found = true);
    }
    for (bounds, object) in picture.first_reference.windows(2).zip(0..) {
        let held = picture.references.get(bounds[0] as usize..bounds[1] as usize).unwrap_or_default();
        for held in held.iter().filter(|held| is_found.get(**held as usize) == Some(&true)) {
            let of = holders.entry(*held).or_default();
            if of.len() < MOST_HOLDERS {
                of.push(object);
            }
        }
    }
    holders
}

/// Whether a pointer is a reference of this object.
fn is_of(holder: u32, pointer: &FoundPointer, picture: &StoredPicture, memory: &ObjectMemory<'_>) -> bool {
    let Some(object) = picture.objects.get(holder as usize) else { return false };
    let begin = object.address.saturating_sub(BEFORE);
    let end = object.address.saturating_add(object.own_bytes.max(WORDS * 8 - BEFORE));
    if (begin..end).contains(&pointer.address) {
        return true;
    }
    let Some(block) = pointer.within.block() else { return false };
    let mut is_own = false;
    memory.words(begin, WORDS, |word| is_own |= block.contains(&word));
    is_own
}
