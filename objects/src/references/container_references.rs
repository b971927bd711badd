//! What containers of the interpreter and of its modules hold: dictionaries, lists, sets, deques, and what iterators of one `tee`
//! share.
//!
//! Invariant: as many items are read as the container says, or fewer.

use std::ops::Range;

use crate::object::contents::DEQUE_ITEMS;
use crate::object::dictionary::Dictionary;
use crate::object::types::ObjectType;
use crate::references::{ItemPart, ReferencePlace, ReferenceReader};

/// Blocks of a deque that are followed at most.
const MOST_BLOCKS: u64 = 1 << 24;
/// Where the values of [`crate::object::types::ObjectKind::TeeData`] begin.
const TEE_VALUES: u64 = 40;

impl ReferenceReader<'_> {
    /// The iterator, what comes behind it, and the values so far: the words of later ones are never set.
    pub(super) fn tee_data(&self, of: &ObjectType, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let fields = self.layout.fields(address);
        let Some(count) = self.memory.u32(fields.wrapping_add(24)) else { return false };
        let most = self.fixed(of).saturating_sub(TEE_VALUES) / 8;
        let mut index = 0;
        self.field_words(of, address, 16, 24, each)
            & self.field_words(of, address, 32, TEE_VALUES, each)
            & self.memory.words(fields.wrapping_add(TEE_VALUES), u64::from(count).min(most), |word| {
                each(ReferencePlace::Item(index), word);
                index += 1;
            })
    }

    pub(super) fn dictionary(
        &self,
        address: u64,
        part: &mut ItemPart,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let Some(read) = Dictionary::read(self.memory, self.layout, address) else { return false };
        let Some(some) = part.of(read.keys.entries) else { return false };
        read.each_of(self.memory, some, |key, value| {
            if value != 0 {
                each(ReferencePlace::Value(key), value);
                each(ReferencePlace::Key, key);
            }
        })
    }

    pub(super) fn list(&self, address: u64, part: &mut ItemPart, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (Some(count), Some(items)) = (word(16), word(24)) else { return false };
        self.entry_words(items, (count, 1), part, ReferencePlace::Item, each)
    }

    pub(super) fn set(&self, address: u64, part: &mut ItemPart, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (Some(mask), Some(table)) = (word(32), word(40)) else { return false };
        let Some(Range { start, end }) = mask.checked_add(1).and_then(|size| part.of(size)) else { return false };
        let mut index = 0_u64;
        self.memory.words(table.wrapping_add(start * 16), (end - start) * 2, |word| {
            if index.is_multiple_of(2) {
                each(ReferencePlace::Member, word);
            }
            index += 1;
        })
    }

    pub(super) fn deque(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let (Some(count), Some(mut block), Some(left)) = (word(16), word(24), word(40)) else { return false };
        let (mut done, mut place) = (0, left % DEQUE_ITEMS);
        for _ in 0..MOST_BLOCKS {
            let some = (DEQUE_ITEMS - place).min(count.saturating_sub(done));
            if some == 0 {
                return true;
            }
            let is_read = self.memory.words(block.wrapping_add(8 + place * 8), some, |word| {
                each(ReferencePlace::Item(done), word);
                done += 1;
            });
            let Some(next) = self.memory.u64(block.wrapping_add(8 + DEQUE_ITEMS * 8)) else { return false };
            if !is_read {
                return false;
            }
            (block, place) = (next, 0);
        }
        false
    }
}
