//! From a symbol's name to its hook, fast: a large program has 150 000 relocations, and every one is asked about.
//!
//! Invariant: [`find`] gives the row of the hook table with exactly that name, or nothing.

use super::hook::Hook;
use crate::interposition::hooks::{HOOKS, NAMES};

/// Slots of the index: a power of two, several times the number of hooks.
const INDEX_SIZE: usize = 1024;
/// An index slot without a hook.
const EMPTY: u8 = u8::MAX;
/// The longest hooked name, and the shortest.
const LENGTHS: (usize, usize) = lengths();
/// The bytes that hooked names begin with: few others do, and most of an interpreter's begin with `P`.
static FIRST: [bool; 256] = first_bytes();
/// Open addressing over the hash of the names; the values are rows of the hook table.
static INDEX: [u8; INDEX_SIZE] = index();

/// As many bytes as [`find_start`] wants to see: the longest name and its zero.
pub(super) const SEEN: usize = LENGTHS.1 + 1;

/// The hook for the name that stands at the start of these bytes and ends with a zero.
pub(super) fn find_start(bytes: &[u8]) -> Option<&'static Hook> {
    if !is_first(bytes) {
        return None;
    }
    find(bytes.get(..bytes.iter().take(SEEN).position(|byte| *byte == 0)?)?)
}

/// Whether a hooked name begins as this one.
fn is_first(name: &[u8]) -> bool {
    name.first().and_then(|byte| FIRST.get(usize::from(*byte))).copied().unwrap_or(false)
}

/// The hook for `name`, if it is a hooked one.
pub(super) fn find(name: &[u8]) -> Option<&'static Hook> {
    if name.len() < LENGTHS.0 || name.len() > LENGTHS.1 {
        return None;
    }
    let mut place = hash(name);
    loop {
        let row = *INDEX.get(place)?;
        if row == EMPTY {
            return None;
        }
        let hook = HOOKS.get(usize::from(row))?;
        if hook.name.to_bytes() == name {
            return Some(hook);
        }
        place = (place + 1) % INDEX_SIZE;
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
const fn lengths() -> (usize, usize) {
    let (mut least, mut most, mut row) = (usize::MAX, 0, 0);
    while row < NAMES.len() {
        let length = NAMES[row].len();
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
const fn first_bytes() -> [bool; 256] {
    let mut first = [false; 256];
    let mut row = 0;
    while row < NAMES.len() {
        first[NAMES[row].as_bytes()[0] as usize] = true;
        row += 1;
    }
    first
}

#[expect(clippy::indexing_slicing, reason = "constant evaluation")]
const fn index() -> [u8; INDEX_SIZE] {
    assert!(NAMES.len() < EMPTY as usize);
    let mut index = [EMPTY; INDEX_SIZE];
    let mut row = 0;
    while row < NAMES.len() {
        let mut place = hash(NAMES[row].as_bytes());
        while index[place] != EMPTY {
            place = (place + 1) % INDEX_SIZE;
        }
        index[place] = row as u8;
        row += 1;
    }
    index
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::*;

    #[test]
    fn every_hook_is_found_by_its_name_and_nothing_else_is() {
        for hook in &HOOKS {
            assert_eq!(find(hook.name.to_bytes()).map(|found| found.name), Some(hook.name));
        }
        for name in ["", "mallo", "malloc_", "xmalloc", "Malloc", "_Znw", "_ZdlPvmSt11align_val_tX"] {
            assert!(find(name.as_bytes()).is_none(), "{name}");
        }
        let longest = HOOKS.iter().map(|hook| hook.name.to_bytes()).max_by_key(|name| name.len()).unwrap();
        assert_eq!(longest.len() + 1, SEEN);
        let found = |bytes: &[u8]| find_start(bytes).map(|hook| hook.name.to_bytes());
        assert_eq!(found(&[longest, b"\0"].concat()), Some(longest));
        assert_eq!(found(&[longest, b"x"].concat()), None, "the beginning of a longer name");
        assert_eq!(found(b"free\0malloc\0"), Some(&b"free"[..]));
    }
}
