//! The table of hooks, with an index from a symbol's name to its hook: a large program has 150 000 relocations to look
//! up.
//!
//! Invariant: [`HookTable::find`] gives the row with exactly that name, or nothing.

use std::sync::atomic::{AtomicPtr, Ordering};

use super::hook::Hook;

/// Slots of the index: a power of two, several times the number of hooks.
const INDEX_SIZE: usize = 1024;
/// An index slot without a hook.
const EMPTY: u8 = u8::MAX;

/// Rows of hooks, and an index of their names that is made when the table is compiled.
#[derive(Debug)]
pub(crate) struct HookTable {
    rows: &'static [Hook],
    /// The shortest hooked name, and the longest.
    lengths: (usize, usize),
    /// The bytes that hooked names begin with: few others do, and most of an interpreter's begin with `P`.
    first: [bool; 256],
    /// Open addressing over the hash of the names; the values are rows.
    index: [u8; INDEX_SIZE],
}

static TABLE: AtomicPtr<HookTable> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the table, for good.
pub(super) fn set(table: &'static HookTable) {
    TABLE.store(std::ptr::from_ref(table).cast_mut(), Ordering::Release);
}

/// The table; `None` before hooks are installed.
pub(super) fn table() -> Option<&'static HookTable> {
    // SAFETY: null, or a table that was given for good.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Every hook; none before they are installed.
pub(super) fn hooks() -> &'static [Hook] {
    table().map_or(&[], |table| table.rows)
}

impl HookTable {
    /// The table of these rows, whose names are `names`, in the same order.
    pub(crate) const fn new(rows: &'static [Hook], names: &[&str]) -> Self {
        assert!(rows.len() == names.len());
        Self { rows, lengths: lengths(names), first: first_bytes(names), index: index(names) }
    }

    /// All hooks.
    pub(crate) const fn rows(&self) -> &'static [Hook] {
        self.rows
    }

    /// As many bytes as [`HookTable::find_start`] wants to see: the longest name and its zero.
    pub(crate) const fn seen(&self) -> usize {
        self.lengths.1 + 1
    }

    /// The hook for the name that stands at the start of these bytes and ends with a zero.
    pub(crate) fn find_start(&self, bytes: &[u8]) -> Option<&'static Hook> {
        if !self.is_first(bytes) {
            return None;
        }
        self.find(bytes.get(..bytes.iter().take(self.seen()).position(|byte| *byte == 0)?)?)
    }

    /// Whether a hooked name begins as this one.
    fn is_first(&self, name: &[u8]) -> bool {
        name.first().and_then(|byte| self.first.get(usize::from(*byte))).copied().unwrap_or(false)
    }

    /// The hook for `name`, if it is a hooked one.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&'static Hook> {
        if name.len() < self.lengths.0 || name.len() > self.lengths.1 {
            return None;
        }
        let mut place = hash(name);
        loop {
            let row = *self.index.get(place)?;
            if row == EMPTY {
                return None;
            }
            let hook = self.rows.get(usize::from(row))?;
            if hook.name.to_bytes() == name {
                return Some(hook);
            }
            place = (place + 1) % INDEX_SIZE;
        }
    }
}

// The functions below are evaluated by the compiler or walk a slice to its end: an index out of range is a build
// error or impossible, and constant functions have no other way to get at an element.

/// FNV-1a, folded to the size of the index.
#[expect(clippy::indexing_slicing, reason = "constant evaluation")]
const fn hash(name: &[u8]) -> usize {
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ name[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    ((hash ^ (hash >> 15)) as usize) % INDEX_SIZE
}

#[expect(clippy::indexing_slicing, reason = "constant evaluation")]
const fn lengths(names: &[&str]) -> (usize, usize) {
    let (mut least, mut most, mut row) = (usize::MAX, 0, 0);
    while row < names.len() {
        let length = names[row].len();
        if length < least {
            least = length;
        }
        if length > most {
            most = length;
        }
        row += 1;
    }
    (least, most)
}

#[expect(clippy::indexing_slicing, reason = "constant evaluation")]
const fn first_bytes(names: &[&str]) -> [bool; 256] {
    let mut first = [false; 256];
    let mut row = 0;
    while row < names.len() {
        first[names[row].as_bytes()[0] as usize] = true;
        row += 1;
    }
    first
}

#[expect(clippy::indexing_slicing, reason = "constant evaluation")]
const fn index(names: &[&str]) -> [u8; INDEX_SIZE] {
    assert!(names.len() < EMPTY as usize);
    let mut index = [EMPTY; INDEX_SIZE];
    let mut row = 0;
    while row < names.len() {
        let mut place = hash(names[row].as_bytes());
        while index[place] != EMPTY {
            place = (place + 1) % INDEX_SIZE;
        }
        index[place] = row as u8;
        row += 1;
    }
    index
}
