//! Makes pointers to hooked functions lead to the hooks in variables that the program has a copy of (COPY relocations).
//!
//! Why: a program that uses a library's variable has it in its own memory, unless it was compiled otherwise. At start-up
//! the loader copies what the library's relocations have put there, and everything uses the copy from then on, the library
//! too: the slot that is patched in the library is read by nobody. `xmlFree` of libxml2 is such a variable.
//!
//! Invariant: a word is changed only before the program runs, if it holds a hook's original, and is the copy of a slot of a library
//! that was patched to lead to that hook. It is not put back: the program may have protected its memory since, and the hook passes
//! calls on where nothing is recorded.

#![expect(clippy::disallowed_types, reason = "runs at start-up only, outside of hooks")]

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use plt_rs::{DynamicLibrary, LoadedLibrary};

use super::dynamic::Dynamic;
use super::hook::Hook;
use super::hook_lookup::hooks;
use super::hooked_relocations::Relocations;
use super::originals;
use super::protection::Protection;
use super::seen_objects::SeenObject;
use crate::platform::loaded_object::{LoadedObject, Range};
use crate::platform::symbol_tables::for_each_definition;

const WORD: usize = size_of::<usize>();
/// Longest name of a variable that is looked for, in bytes.
const LONGEST_NAME: usize = 4096;
/// How much of a variable is looked at, in bytes: far more than a table of functions has.
const LARGEST: usize = 1 << 16;

/// The loaded objects in the loader's order, the program first, and what came of patching each.
pub(super) struct PatchedObjects<'a> {
    pub(super) objects: &'a [LoadedObject<'a>],
    pub(super) outcomes: &'a [SeenObject],
    pub(super) page_size: usize,
}

impl PatchedObjects<'_> {
    /// Changes the words of the program's copies, after everything was patched and before the program runs.
    pub(super) fn redirect_copies(&self, library: LoadedLibrary<'_>) -> Option<()> {
        let program = self.objects.first().filter(|program| program.base == library.addr())?;
        let dynamic = Dynamic::read(program)?;
        let library = DynamicLibrary::initialize(library).ok()?;
        let known = |hook: &'static Hook| Some((originals::known_original(hook), hook)).filter(|known| known.0 != 0);
        let known: Vec<(usize, &'static Hook)> = hooks().iter().filter_map(known).collect();
        let mut protection = Protection::new(program.relro_pages(self.page_size), libc::PROT_READ);
        for copy in Relocations::of(&library, &dynamic).copies() {
            let variable = program.base.wrapping_add(copy.r_offset as usize);
            let size = dynamic.size(copy.symbol_index()).unwrap_or(0).min(LARGEST);
            for (address, hook) in pointers(program, variable..variable.saturating_add(size), &known) {
                let name = dynamic.name_start(copy.symbol_index(), LONGEST_NAME);
                let Some(name) = name.and_then(|name| CStr::from_bytes_until_nul(name).ok()) else { break };
                if self.leads_to_hook_at_home(name, address.wrapping_sub(variable), hook) {
                    write(address, hook, &mut protection);
                }
            }
        }
        Some(())
    }

    /// Whether the library's own variable has a slot at this place that was patched to lead to the hook.
    fn leads_to_hook_at_home(&self, name: &CStr, offset: usize, hook: &'static Hook) -> bool {
        let mut libraries = self.objects.iter().zip(self.outcomes).skip(1);
        let found = libraries.find_map(|(object, seen)| {
            let mut slots = Vec::new();
            for_each_definition(object.base, object.headers, name, |symbol| {
                // SAFETY: an entry of the object's symbol table, which was read just now.
                let value = unsafe { symbol.read_unaligned() }.st_value;
                slots.push(object.base.wrapping_add(value as usize).wrapping_add(offset));
            });
            let is_patched = |slot: &usize| {
                seen.outcome.saved.iter().any(|saved| saved.address == *slot && std::ptr::eq(saved.hook, hook))
            };
            // The first that has the name is whose variable was copied.
            (!slots.is_empty()).then(|| slots.iter().any(is_patched))
        });
        found.unwrap_or(false)
    }
}

/// The words of a variable that hold the original of a hook.
fn pointers(
    program: &LoadedObject<'_>,
    variable: Range,
    known: &[(usize, &'static Hook)],
) -> Vec<(usize, &'static Hook)> {
    let addresses = (variable.start.next_multiple_of(WORD)..variable.end.saturating_sub(WORD - 1)).step_by(WORD);
    let hook_at = |address: usize| {
        if !program.has_writable_word(address) {
            return None;
        }
        // SAFETY: an aligned word in a writable segment of the program; others read and write it as one word.
        let value = unsafe { &*(address as *const AtomicUsize) }.load(Ordering::Acquire);
        Some((address, known.iter().find(|(original, _)| *original == value)?.1))
    };
    addresses.filter_map(hook_at).collect()
}

/// Makes the word at an address lead to the hook, if it leads to the original still.
fn write(address: usize, hook: &'static Hook, protection: &mut Protection) {
    // SAFETY: an aligned word in a writable segment of the program; others read and write it as one word.
    let word = unsafe { &*(address as *const AtomicUsize) };
    if protection.make_writable(address) {
        // Fails when another constructor has changed it, which is then left.
        let _ = word.compare_exchange(hook.original(), hook.slot_target(), Ordering::AcqRel, Ordering::Relaxed);
    }
}
