//! Patches the slots of one object, and puts them back: which ones, and how they are written.
//!
//! Other threads call through the slots meanwhile, so each is written as one word. Invariant: a slot is written only if
//! what it calls now, or will once it is bound, is exactly the hook's original; what it held is kept; and a page that
//! the loader protected is protected again afterwards.

use std::sync::atomic::{AtomicUsize, Ordering};

use plt_rs::elf64::DynRela;

use super::dynamic::Dynamic;
use super::hook::Hook;
use super::hooked_relocations::{CALL, HookedRelocation, Relocations};
use super::originals::{self, RoundOriginals};
use super::protection::Protection;
use super::slot::{PatchOutcome, PatchedSlot, SavedSlot};
use crate::platform::loaded_object::{LoadedObject, Range};

/// One object while its slots are looked at.
pub(super) struct Patcher<'a> {
    object: &'a LoadedObject<'a>,
    dynamic: &'a Dynamic,
    relocations: Relocations<'a>,
    hooked: &'a [HookedRelocation],
    originals: &'a RoundOriginals<'a>,
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
        dynamic: &'a Dynamic,
        relocations: Relocations<'a>,
        hooked: &'a [HookedRelocation],
        originals: &'a RoundOriginals<'a>,
        page_size: usize,
        earlier: Option<&'a PatchOutcome>,
    ) -> Self {
        let protection = Protection::new(object.relro_pages(page_size), libc::PROT_READ);
        Self {
            object,
            dynamic,
            relocations,
            hooked,
            originals,
            range: object.range(),
            protection,
            earlier,
            outcome: PatchOutcome::default(),
        }
    }

    /// Looks at every relocation that names a hooked function.
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
        let relocations = self.relocations;
        for HookedRelocation { index, hook } in self.hooked {
            if let Some(relocation) = relocations.get(*index) {
                visit(self, relocation, hook);
            }
        }
    }

    fn saved(&self, address: usize) -> Option<usize> {
        self.earlier?.before(address)
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
        let original = self.originals.of(hook);
        if original != 0 && current == original {
            return true;
        }
        let bound_to_own = self.dynamic.own_definition(relocation.symbol_index()) == Some(current);
        if relocation.symbol_type() != CALL || !self.range.contains(&current) || bound_to_own {
            return false;
        }
        let verdict = if original == 0 { None } else { self.originals.leads_to(hook, original) };
        self.outcome.undecided |= verdict.is_none() && !originals::is_settled(hook);
        verdict.unwrap_or(false)
    }
}
