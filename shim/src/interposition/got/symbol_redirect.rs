//! Makes the names of hooked functions lead to the hooks: in the symbol tables of the objects that define them.
//!
//! Why, when slots are patched: an object that is loaded later is bound, and its constructors run, before dlopen
//! returns and its slots can be found. What they allocate would not be seen, and what threads of theirs do. So the
//! entry that defines a name, in the table of the object that defines the hook's original, is given the hook's address:
//! every later lookup of the name by the loader, for a relocation, a first call or dlsym, gives the hook. Slots are
//! patched for what was bound before, for libraries that come in the same dlopen as those that use them, and where the
//! table cannot be written.
//!
//! Why not define the names here, as a preloaded library can: whatever looks a name up in the global scope would find
//! the hook first, whether the process has that function or not (weak references to `operator new`) and whether it is
//! the one that the caller would have got (RTLD_DEEPBIND, a library in a scope of its own, a second C++ runtime); the
//! loader's own memory would count as the program's; and calls would come before anything is known.
//!
//! Invariant: an entry is changed only if what it gave was exactly the hook's original.

#![expect(clippy::disallowed_types, reason = "runs at start-up and in a dlopen only, outside of hooks")]

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{Elf64_Sym, PF_R, PF_W, PF_X, PROT_EXEC, PROT_READ, PROT_WRITE, PT_LOAD};

use super::hook::Hook;
use super::hook_lookup::hooks;
use super::originals;
use super::protection::Protection;
use super::slot::ChangedWord;
use crate::platform::loaded_object::{LoadedObject, Range, holds};
use crate::platform::symbol_tables::for_each_definition;

/// Symbol types without anything special about them: not known, and a function.
const PLAIN: [u8; 2] = [0, 2];

/// Changes the entries of all originals that are known, unless that was tried before.
pub(super) fn redirect(objects: &[LoadedObject<'_>], page_size: usize, changed: &mut Vec<ChangedWord>) {
    let wanted: Vec<&'static Hook> =
        hooks().iter().filter(|hook| hook.name_leads.is_untried() && originals::known_original(hook) != 0).collect();
    // After the first time there are some only when a library has come that others have functions of.
    if wanted.is_empty() {
        return;
    }
    wanted.iter().for_each(|hook| hook.name_leads.set(false));
    for object in objects {
        let range = object.range();
        let defined: Vec<SymbolEntry> = wanted
            .iter()
            .filter(|hook| range.contains(&hook.original()))
            .flat_map(|hook| entries(object, hook))
            .collect();
        for segment in object.headers.iter().filter(|header| header.p_type == PT_LOAD) {
            let range = object.range_of(segment);
            let within: Vec<&SymbolEntry> = defined.iter().filter(|entry| holds(&range, entry.value, 8)).collect();
            write(object, &within, usual(segment.p_flags), page_size, changed);
        }
    }
}

/// The value of a symbol that defines a hook's original.
#[derive(Debug)]
struct SymbolEntry {
    /// Where it stands.
    value: usize,
    hook: &'static Hook,
}

/// The symbols by which `object` defines the original: of each version of the name that is the same function.
fn entries(object: &LoadedObject<'_>, hook: &'static Hook) -> Vec<SymbolEntry> {
    let mut entries = Vec::new();
    for_each_definition(object.base, object.headers, hook.name, |symbol| {
        // SAFETY: an entry of the object's symbol table, which was read just now.
        let Elf64_Sym { st_info, st_value, .. } = unsafe { symbol.read_unaligned() };
        let value = symbol as usize + std::mem::offset_of!(Elf64_Sym, st_value);
        let is_original = object.base.wrapping_add(st_value as usize) == hook.original();
        if is_original && PLAIN.contains(&(st_info & 0xf)) && value.is_multiple_of(align_of::<u64>()) {
            entries.push(SymbolEntry { value, hook });
        }
    });
    entries
}

/// Writes entries that lie in one segment.
fn write(
    object: &LoadedObject<'_>,
    entries: &[&SymbolEntry],
    usual: i32,
    page_size: usize,
    changed: &mut Vec<ChangedWord>,
) {
    let places = || entries.iter().map(|entry| entry.value);
    let (Some(first), Some(last)) = (places().min(), places().max()) else { return };
    let down = |address: usize| address & !page_size.wrapping_sub(1);
    let pages: Range = down(first)..down(last).saturating_add(page_size);
    let mut protection = Protection::new(pages.clone(), usual);
    for entry in entries.iter().filter(|entry| protection.make_writable(entry.value)) {
        // SAFETY: an aligned word in a loaded segment that was made writable; others read it as one word.
        let value = unsafe { &*(entry.value as *const AtomicUsize) };
        // What a name leads to is the sum of this and the base, which may wrap around.
        let after = entry.hook.target().wrapping_sub(object.base);
        let before = value.swap(after, Ordering::AcqRel);
        changed.push(ChangedWord { address: entry.value, before, after, pages: pages.clone(), usual });
        entry.hook.name_leads.set(true);
    }
}

/// What a segment's pages allow.
fn usual(flags: u32) -> i32 {
    let right = |flag: u32, right: i32| if flags & flag != 0 { right } else { 0 };
    right(PF_R, PROT_READ) | right(PF_W, PROT_WRITE) | right(PF_X, PROT_EXEC)
}
