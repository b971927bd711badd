//! The dictionary of interned strings, in which the interpreter has each once: it is no object of the program, and keeps none
//! of them alive.
//!
//! Invariant: only a dictionary whose values all are its keys, and none of them another object than a text, is taken for it.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::Dictionary;

/// The fewest strings that an interpreter has interned.
const LEAST: usize = 64;

/// The strings in this dictionary, if it is that of interned ones. Python does not count references to them from there, unless
/// they are immortal. `is_text`: whether the known object at an address is a string; `None`: none is known there.
pub(crate) fn interned_texts(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    dictionary: u64,
    is_text: impl Fn(u64) -> Option<bool>,
) -> Option<Vec<u64>> {
    let read = Dictionary::read(memory, layout, dictionary).filter(|read| read.used as usize >= LEAST)?;
    let (mut texts, mut is_one) = (Vec::new(), true);
    let is_whole = read.each(memory, |key, value| {
        if value != 0 && is_one {
            let is_text = is_text(key);
            is_one = key == value && is_text != Some(false);
            texts.extend(is_text.map(|_| key));
        }
    });
    (is_one && is_whole && texts.len() >= LEAST).then_some(texts)
}
