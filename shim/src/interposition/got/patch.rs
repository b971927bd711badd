//! Patches the slots of one object: which ones, and how they are written.
//!
//! Invariant: a slot is written only if what it calls now, or will once it is bound, is exactly the hook's original;
//! and a page that the loader protected is protected again afterwards.

use std::sync::atomic::{AtomicUsize, Ordering};

use plt_rs::DynamicLibrary;
use plt_rs::elf64::DynRela;

use super::dlopen_scopes::Scope;
use super::dynamic::Dynamic;
use super::hook::Hook;
use super::hook_lookup::HookTable;
use super::originals;
use super::protection::Protection;
use super::slot::{PatchOutcome, PatchedSlot};
use crate::platform::loaded_object::{LoadedObject, Range};

/// Relocation types that hold the address of a symbol: a plain word, a data import, a call import.
const WORD: u32 = if cfg!(target_arch = "aarch64") { 257 } else { 1 };
const DATA: u32 = if cfg!(target_arch = "aarch64") { 1025 } else { 6 };
const CALL: u32 = if cfg!(target_arch = "aarch64") { 1026 } else { 7 };

/// One object while its slots are looked at.
pub(super) struct Patcher<'a> {
    object: &'a LoadedObject<'a>,
    library: &'a DynamicLibrary<'a>,
    dynamic: &'a Dynamic,
    hooks: &'static HookTable,
    scopes: &'a [Scope],
    range: Range,
    protection: Protection,
    outcome: PatchOutcome,
}

impl<'a> Patcher<'a> {
    /// A patcher for one object, of which `dynamic` was checked.
    pub(super) fn new(
        object: &'a LoadedObject<'a>,
        library: &'a DynamicLibrary<'a>,
        dynamic: &'a Dynamic,
        hooks: &'static HookTable,
        scopes: &'a [Scope],
        page_size: usize,
    ) -> Self {
        let protection = Protection::new(object.relro_pages(page_size), libc::PROT_READ);
        Self {
            object,
            library,
            dynamic,
            hooks,
            scopes,
            range: object.range(),
            protection,
            outcome: PatchOutcome::default(),
        }
    }

    /// Looks at every relocation.
    pub(super) fn run(mut self) -> PatchOutcome {
        let library = self.library;
        let data = library.addend_relocs().map_or(&[][..], |table| table.entries());
        // Two thirds of a large library's.
        let data = data.get(self.dynamic.relative_count()..).unwrap_or(data);
        let calls = library.plt_rela().map_or(&[][..], |table| table.entries());
        for relocation in data.iter().chain(calls) {
            if let Some(hook) = self.hook_for(relocation) {
                self.visit(relocation, hook);
            }
        }
        self.outcome
    }

    fn hook_for(&self, relocation: &DynRela) -> Option<&'static Hook> {
        let (kind, symbol) = (relocation.symbol_type(), relocation.symbol_index());
        if symbol == 0 || !matches!(kind, WORD | DATA | CALL) || (kind == WORD && relocation.r_addend != 0) {
            return None;
        }
        self.hooks.find_start(self.dynamic.name_start(symbol, self.hooks.seen())?)
    }

    fn visit(&mut self, relocation: &DynRela, hook: &'static Hook) {
        let address = self.object.base.wrapping_add(relocation.r_offset as usize);
        if !self.object.has_writable_word(address) {
            return;
        }
        // SAFETY: an aligned word in a writable segment of a loaded object; others read and write it as one word.
        let slot = unsafe { &*(address as *const AtomicUsize) };
        let current = slot.load(Ordering::Acquire);
        if current != hook.target() {
            if !self.calls_original(relocation, hook, current) || !self.protection.make_writable(address) {
                return;
            }
            slot.store(hook.target(), Ordering::Release);
        }
        self.outcome.count = self.outcome.count.saturating_add(1);
        self.outcome.slot = Some(PatchedSlot { address, value: hook.target() });
    }

    /// Whether the slot leads to the hook's original, at once or when it is bound at the first call.
    fn calls_original(&mut self, relocation: &DynRela, hook: &'static Hook, current: usize) -> bool {
        let original = originals::original(hook, self.scopes);
        if original != 0 && current == original {
            return true;
        }
        let bound_to_own = self.dynamic.own_definition(relocation.symbol_index()) == Some(current);
        if relocation.symbol_type() != CALL || !self.range.contains(&current) || bound_to_own {
            return false;
        }
        let verdict = if original == 0 { None } else { originals::leads_to(hook, original, self.scopes) };
        self.outcome.undecided |= verdict.is_none() && !originals::is_settled(hook);
        verdict.unwrap_or(false)
    }
}
