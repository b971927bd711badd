//! Patches the slots of one object, and puts them back: which ones, and how they are written.
//!
//! Other threads call through the slots meanwhile, so each is written as one word. Invariant: a slot is written only if
//! what it calls now, or will once it is bound, is exactly the hook's original; what it held is kept; and a page that
//! the loader protected is protected again afterwards.

use std::sync::atomic::{AtomicUsize, Ordering};

use plt_rs::DynamicLibrary;
use plt_rs::elf64::DynRela;

use super::dlopen_scopes::Scope;
use super::dynamic::Dynamic;
use super::hook::Hook;
use super::hook_lookup::HookTable;
use super::originals;
use super::protection::Protection;
use super::slot::{PatchOutcome, PatchedSlot, SavedSlot};
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
    /// What an earlier scan has left in the object.
    earlier: Option<&'a PatchOutcome>,
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
        earlier: Option<&'a PatchOutcome>,
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
            earlier,
            outcome: PatchOutcome::default(),
        }
    }

    /// Looks at every relocation.
    pub(super) fn run(mut self) -> PatchOutcome {
        self.for_each_slot(Self::visit);
        self.outcome
    }

    /// Puts every slot that holds a hook back to what it was.
    pub(super) fn restore(mut self) {
        self.for_each_slot(|patcher, relocation, hook| {
            let Some((address, slot)) = patcher.slot(relocation) else { return };
            let current = slot.load(Ordering::Acquire);
            // Without a saved value the loader has bound it to the hook, since that is where the name led.
            let before = patcher.saved(address).unwrap_or_else(|| hook.original());
            if hook.is_target(current) && before != 0 && patcher.protection.make_writable(address) {
                // Fails when the program has changed it just now, which is then left.
                let _ = slot.compare_exchange(current, before, Ordering::AcqRel, Ordering::Relaxed);
            }
        });
    }

    fn for_each_slot(&mut self, mut visit: impl FnMut(&mut Self, &DynRela, &'static Hook)) {
        let library = self.library;
        let data = library.addend_relocs().map_or(&[][..], |table| table.entries());
        // Two thirds of a large library's.
        let data = data.get(self.dynamic.relative_count()..).unwrap_or(data);
        let calls = library.plt_rela().map_or(&[][..], |table| table.entries());
        for relocation in data.iter().chain(calls) {
            if let Some(hook) = self.hook_for(relocation) {
                visit(self, relocation, hook);
            }
        }
    }

    fn saved(&self, address: usize) -> Option<usize> {
        self.earlier?.before(address)
    }

    fn hook_for(&self, relocation: &DynRela) -> Option<&'static Hook> {
        let (kind, symbol) = (relocation.symbol_type(), relocation.symbol_index());
        if symbol == 0 || !matches!(kind, WORD | DATA | CALL) || (kind == WORD && relocation.r_addend != 0) {
            return None;
        }
        self.hooks.find_start(self.dynamic.name_start(symbol, self.hooks.seen())?)
    }

    /// The slot of a relocation, and its address.
    fn slot(&self, relocation: &DynRela) -> Option<(usize, &'a AtomicUsize)> {
        let address = self.object.base.wrapping_add(relocation.r_offset as usize);
        // SAFETY: an aligned word in a writable segment of a loaded object; others read and write it as one word.
        self.object.has_writable_word(address).then(|| (address, unsafe { &*(address as *const AtomicUsize) }))
    }

    fn visit(&mut self, relocation: &DynRela, hook: &'static Hook) {
        let Some((address, slot)) = self.slot(relocation) else { return };
        let mut before = slot.load(Ordering::Acquire);
        let target = hook.slot_target();
        if hook.is_target(before) {
            // Bound to the hook by the loader, or patched by an earlier scan.
            if before != target && self.protection.make_writable(address) {
                // Fails when the program has changed it just now, which is then left.
                let _ = slot.compare_exchange(before, target, Ordering::AcqRel, Ordering::Relaxed);
            }
            before = self.saved(address).unwrap_or_else(|| hook.original());
        } else {
            if !self.calls_original(relocation, hook, before) || !self.protection.make_writable(address) {
                return;
            }
            // Another thread may bind it just now: then it holds what it was bound to.
            before = slot.swap(target, Ordering::AcqRel);
        }
        self.outcome.saved.push(SavedSlot { address, before, hook });
        self.outcome.slot = Some(PatchedSlot { address, value: target });
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
