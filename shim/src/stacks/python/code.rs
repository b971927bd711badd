//! The code objects that a slot has described, and their ids.
//!
//! It exists so that a frame is written as two small numbers. Invariant: an address is in the table only while the code
//! object that got the id lives; a death known to this slot removes it before the next look-up.

use super::frame::LiveCode;
use super::freed_code_objects;
use super::interpreter::Interpreter;
use super::layout::Layout;
use super::strings::{self, LONGEST};
use crate::events::stack_model::{CodeObject, StackWriter, new_id};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use memtrack_format::lines::LineTableFormat;

/// What stands for an executable that is no code object.
const UNKNOWN: CodeObject<'static> = CodeObject {
    name: b"<unknown>",
    qualname: b"",
    filename: b"<unknown>",
    first_line: 0,
    line_table_format: LineTableFormat::Locations,
    line_table: b"",
};

/// An entry of the table; free where the address is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeEntry {
    address: usize,
    pub(super) id: u32,
    /// The code unit from which on a traceback shows its frames; 0 where frames do not say whether they are complete.
    pub(super) first_traceable: u32,
}

// SAFETY: integers only.
unsafe impl Zeroable for CodeEntry {}

/// Code address to id, by linear probing over a power of two of entries.
#[derive(Debug)]
pub(super) struct CodeIds {
    entries: MappedVec<CodeEntry>,
    used: usize,
    /// Three buffers for strings that are not ASCII.
    text: MappedVec<u8>,
    /// The id given to what is no code object, 0 before the first.
    unknown: u32,
    /// Ids were given to what is not in the table: its death says nothing about them.
    has_unlisted: bool,
    /// The deaths up to this number are removed.
    seen: u64,
}

impl CodeIds {
    pub(super) const fn new() -> Self {
        Self { entries: MappedVec::new(), used: 0, text: MappedVec::new(), unknown: 0, has_unlisted: false, seen: 0 }
    }

    /// Whether every death is known.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        freed_code_objects::count() == self.seen
    }

    /// Whether something may have died that has an id, although no death of a known code object says so.
    pub(super) const fn has_unlisted(&self) -> bool {
        self.has_unlisted
    }

    /// Forgets everything: the next use of any code object describes it again.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.used = 0;
        self.unknown = 0;
        self.has_unlisted = false;
    }

    /// Removes what has died since the last call and gives each removed id. False when all had to go.
    pub(super) fn catch_up(&mut self, mut removed: impl FnMut(u32)) -> bool {
        let now = freed_code_objects::count();
        let whole = self.used == 0
            || freed_code_objects::between(self.seen, now, |address| {
                if let Some(id) = self.remove(address) {
                    removed(id);
                }
            });
        self.seen = now;
        if !whole {
            self.clear();
        }
        whole
    }

    /// The id of a frame's executable, described to `writer` if this slot has not yet done so.
    #[inline]
    pub(super) fn id(
        &mut self,
        layout: &Layout,
        python: &Interpreter,
        executable: usize,
        writer: &mut impl StackWriter,
    ) -> u32 {
        match self.find(executable) {
            Some(entry) => entry.id,
            None => self.describe(layout, python, executable, writer),
        }
    }

    #[cold]
    fn describe(
        &mut self,
        layout: &Layout,
        python: &Interpreter,
        executable: usize,
        writer: &mut impl StackWriter,
    ) -> u32 {
        python.watch_deaths();
        let Some(code) = LiveCode::checked(layout, executable, python.code_type) else { return self.unknown(writer) };
        let id = new_id();
        self.text.grow(3 * LONGEST);
        write(layout, code, self.text.as_mut_slice(), |object| writer.define_code(id, object));
        let first_traceable =
            layout.incomplete_frame.map_or(0, |fields| code.int(fields.first_traceable).cast_unsigned());
        self.insert(CodeEntry { address: code.address(), id, first_traceable });
        id
    }

    fn unknown(&mut self, writer: &mut impl StackWriter) -> u32 {
        self.has_unlisted = true;
        if self.unknown == 0 {
            self.unknown = new_id();
            writer.define_code(self.unknown, &UNKNOWN);
        }
        self.unknown
    }

    /// The entry where `address` would be if nothing stood before it.
    const fn home(&self, address: usize) -> usize {
        let mixed = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & self.mask()
    }

    const fn mask(&self) -> usize {
        self.entries.capacity().wrapping_sub(1)
    }

    const fn after(&self, position: usize) -> usize {
        position.wrapping_add(1) & self.mask()
    }

    #[inline]
    fn position(&self, address: usize) -> Option<usize> {
        let mut position = self.home(address);
        loop {
            let entry = self.entries.get(position);
            if entry.address == address && address != 0 {
                return Some(position);
            }
            // The table is never full, so there always is a free entry; an empty region answers with one too.
            if entry.address == 0 {
                return None;
            }
            position = self.after(position);
        }
    }

    /// What is kept of a code object that is described.
    #[inline]
    pub(super) fn find(&self, address: usize) -> Option<CodeEntry> {
        self.position(address).map(|position| self.entries.get(position))
    }

    fn insert(&mut self, entry: CodeEntry) {
        if (self.used.wrapping_add(1)).saturating_mul(4) > self.entries.capacity().saturating_mul(3) && !self.widen() {
            // Without memory the code object is described again at its next use.
            self.has_unlisted = true;
            return;
        }
        self.place(entry);
        self.used = self.used.wrapping_add(1);
    }

    fn place(&mut self, entry: CodeEntry) {
        let mut position = self.home(entry.address);
        while self.entries.get(position).address != 0 {
            position = self.after(position);
        }
        self.entries.set(position, entry);
    }

    /// Doubles the table.
    #[cold]
    fn widen(&mut self) -> bool {
        let old = self.entries.capacity();
        let mut wider = MappedVec::new();
        if !wider.grow(old.saturating_mul(2).max(256)) {
            return false;
        }
        std::mem::swap(&mut self.entries, &mut wider);
        for entry in wider.as_slice().iter().filter(|entry| entry.address != 0) {
            self.place(*entry);
        }
        wider.release();
        true
    }

    /// Takes an address out and closes the gap, so that probing needs no tombstones.
    fn remove(&mut self, address: usize) -> Option<u32> {
        let mut gap = self.position(address)?;
        let id = self.entries.get(gap).id;
        let mut position = self.after(gap);
        loop {
            let entry = self.entries.get(position);
            if entry.address == 0 {
                break;
            }
            let distance = position.wrapping_sub(self.home(entry.address)) & self.mask();
            if distance >= position.wrapping_sub(gap) & self.mask() {
                self.entries.set(gap, entry);
                gap = position;
            }
            position = self.after(position);
        }
        self.entries.set(gap, CodeEntry::default());
        self.used = self.used.wrapping_sub(1);
        Some(id)
    }
}

/// Reads a code object and gives it away; what is not as expected becomes `<unknown>`.
fn write(layout: &Layout, code: LiveCode, buffer: &mut [u8], give: impl FnOnce(&CodeObject<'_>)) {
    let (first, rest) = buffer.split_at_mut_checked(LONGEST).unwrap_or_default();
    let (second, rest) = rest.split_at_mut_checked(LONGEST).unwrap_or_default();
    // SAFETY: a field of a live code object, which holds a reference to it.
    let name = unsafe { strings::utf8(layout, code.object(layout.name), first) };
    // SAFETY: a field of a live code object, which holds a reference to it.
    let filename = unsafe { strings::utf8(layout, code.object(layout.filename), second) };
    // SAFETY: a field of a live code object, which holds a reference to it.
    let qualname = layout.qualname.and_then(|offset| unsafe { strings::utf8(layout, code.object(offset), rest) });
    // SAFETY: a field of a live code object, which holds a reference to it.
    let line_table = unsafe { strings::data(layout, code.object(layout.line_table)) };
    give(&CodeObject {
        name: name.unwrap_or(UNKNOWN.name),
        qualname: qualname.unwrap_or_default(),
        filename: filename.unwrap_or(UNKNOWN.filename),
        first_line: code.int(layout.first_line),
        line_table_format: layout.line_table_format,
        line_table: line_table.unwrap_or_default(),
    });
}

#[cfg(test)]
mod tests {
    use super::{CodeEntry, CodeIds};
    use std::collections::HashMap;

    #[test]
    fn the_table_agrees_with_a_map_through_growth_and_removals() {
        let (mut codes, mut map) = (CodeIds::new(), HashMap::new());
        let mut state = 1_u64;
        for id in 1..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let address = (state >> 33) as usize % 3000 * 16 + 0x5000;
            if state >> 63 == 0 && !map.contains_key(&address) {
                codes.insert(CodeEntry { address, id, first_traceable: 0 });
                map.insert(address, id);
            } else {
                assert_eq!(codes.remove(address), map.remove(&address));
            }
            assert_eq!(codes.find(address).map(|entry| entry.id), map.get(&address).copied());
        }
        assert_eq!(codes.used, map.len());
        assert!(
            (0x5000..0x5000 + 3000 * 16)
                .step_by(16)
                .all(|address| codes.find(address).map(|entry| entry.id) == map.get(&address).copied())
        );
        codes.clear();
        assert!(codes.find(0x5000).is_none());
    }
}
