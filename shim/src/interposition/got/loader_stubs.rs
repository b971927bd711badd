//! Keeps the dynamic loader's own allocations out of the recording.
//!
//! At program start the loader looks up the four functions that it allocates with, and calls them through its own
//! pointers from then on. In a program at a fixed address that takes the address of `free`, it finds the program's PLT
//! stub, whose slot leads to the hook; for `calloc`, whose address nobody takes, it finds the C library's. So frees of
//! thread tables were recorded that had never been allocated.
//!
//! Invariant: a word of the loader's is written only if it is a stub's address, and then it leads where the stub did
//! before.

#![expect(clippy::disallowed_types, reason = "runs at start-up and in a dlopen only, outside of hooks")]

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{PROT_READ, PT_GNU_RELRO};

use super::hook::Hook;
use super::hook_lookup::HookTable;
use super::originals;
use super::protection::Protection;
use super::slot::ChangedWord;
use crate::platform::loaded_object::{LoadedObject, Range, holds};

/// What the loader looks up.
const NAMES: [&[u8]; 4] = [b"malloc", b"calloc", b"realloc", b"free"];
const WORD: usize = size_of::<usize>();

/// Replaces addresses of the program's PLT stubs, where the loader has stored them, by those of the functions.
pub(super) fn bypass_plt_stubs(
    loader: &LoadedObject<'_>,
    program: &LoadedObject<'_>,
    table: &HookTable,
    page_size: usize,
    changed: &mut Vec<ChangedWord>,
) {
    // Only at a fixed address can a stub be what a function's address is.
    if program.base != 0 {
        return;
    }
    let hooks = NAMES.iter().filter_map(|name| table.find(name));
    let of_stub = |hook: &'static Hook| Some((originals::stub(hook)?, originals::original(hook, &[])));
    let stubs: Vec<(usize, usize)> = hooks.filter_map(of_stub).filter(|&(_, original)| original != 0).collect();
    // The pointers are constant from the program's beginning on.
    if let Some(constants) = loader.of_type(PT_GNU_RELRO).next().filter(|_| !stubs.is_empty()) {
        let pages = loader.relro_pages(page_size);
        let protection = Protection::new(pages.clone(), PROT_READ);
        for (address, before, after) in
            replace(&constants, protection, &stubs, |address| loader.has_writable_word(address))
        {
            changed.push(ChangedWord { address, before, after, pages: pages.clone(), usual: PROT_READ });
        }
    }
}

/// Writes the second address of each pair in place of the first; gives the words written, with both.
fn replace(
    words: &Range,
    mut protection: Protection,
    pairs: &[(usize, usize)],
    is_data: impl Fn(usize) -> bool,
) -> Vec<(usize, usize, usize)> {
    let mut written = Vec::new();
    let first = words.start.next_multiple_of(WORD);
    let addresses = (first..words.end).step_by(WORD);
    for address in addresses.filter(|&address| holds(words, address, WORD) && is_data(address)) {
        // SAFETY: an aligned word in a loaded segment of the loader's; others read it as one word.
        let word = unsafe { &*(address as *const AtomicUsize) };
        let value = word.load(Ordering::Relaxed);
        if let Some(&(_, original)) = pairs.iter().find(|&&(stub, _)| stub == value)
            && protection.make_writable(address)
        {
            word.store(original, Ordering::Release);
            written.push((address, value, original));
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::{AtomicUsize, Ordering, Protection, replace};

    #[test]
    fn only_stubs_are_replaced() {
        let words = [7, 8, 9, 8, 10].map(AtomicUsize::new);
        let now = || words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let start = words.as_ptr() as usize;
        let range = start..start + 4 * size_of::<usize>();
        replace(&range, Protection::new(0..0, libc::PROT_READ), &[(8, 80), (10, 100)], |_| true);
        assert_eq!(now(), [7, 80, 9, 80, 10]);
        replace(&range, Protection::new(0..0, libc::PROT_READ), &[(9, 90)], |address| address != start + 16);
        assert_eq!(now(), [7, 80, 9, 80, 10]);
    }
}
