//! Which relocations of an object name hooked functions, found once for as long as the object is loaded.
//!
//! Why: to look at all names takes 10 ms of a program with 200 objects, and a program that records itself begins and ends
//! again and again. Invariant: what is kept is of objects that have been loaded ever since: once anything was unloaded, all
//! is forgotten, since another object may have come to the same address.

#![expect(clippy::disallowed_types, reason = "runs at start-up and in a dlopen only, outside of hooks")]

use plt_rs::DynamicLibrary;
use plt_rs::elf64::DynRela;

use super::dynamic::Dynamic;
use super::hook::Hook;
use super::hook_lookup::HookTable;
use crate::platform::loaded_object::LoadedObject;

/// Relocation types that hold the address of a symbol: a plain word, a data import, a call import.
const WORD: u32 = if cfg!(target_arch = "aarch64") { 257 } else { 1 };
const DATA: u32 = if cfg!(target_arch = "aarch64") { 1025 } else { 6 };
pub(super) const CALL: u32 = if cfg!(target_arch = "aarch64") { 1026 } else { 7 };

/// The relocations of one object that may name a symbol: of data, and of calls.
#[derive(Clone, Copy)]
pub(super) struct Relocations<'a> {
    data: &'a [DynRela],
    calls: &'a [DynRela],
}

impl<'a> Relocations<'a> {
    /// Those of an object, of which `dynamic` was checked.
    pub(super) fn of(library: &'a DynamicLibrary<'a>, dynamic: &Dynamic) -> Self {
        let data = library.addend_relocs().map_or(&[][..], |table| table.entries());
        // Two thirds of a large library's.
        let data = data.get(dynamic.relative_count()..).unwrap_or(data);
        Self { data, calls: library.plt_rela().map_or(&[][..], |table| table.entries()) }
    }

    /// One of them.
    pub(super) fn get(&self, index: usize) -> Option<&'a DynRela> {
        self.data.get(index).or_else(|| self.calls.get(index.checked_sub(self.data.len())?))
    }

    /// Those that name hooked functions.
    fn hooked(&self, dynamic: &Dynamic, hooks: &'static HookTable) -> Vec<HookedRelocation> {
        let all = self.data.iter().chain(self.calls).enumerate();
        all.filter_map(|(index, relocation)| Some(HookedRelocation { index, hook: named(relocation, dynamic, hooks)? }))
            .collect()
    }
}

/// The hook that a relocation names.
fn named(relocation: &DynRela, dynamic: &Dynamic, hooks: &'static HookTable) -> Option<&'static Hook> {
    let (kind, symbol) = (relocation.symbol_type(), relocation.symbol_index());
    if symbol == 0 || !matches!(kind, WORD | DATA | CALL) || (kind == WORD && relocation.r_addend != 0) {
        return None;
    }
    hooks.find_start(dynamic.name_start(symbol, hooks.seen())?)
}

/// A relocation that names a hooked function.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookedRelocation {
    /// Its place among the object's [`Relocations`].
    pub(super) index: usize,
    pub(super) hook: &'static Hook,
}

/// What is kept of all objects.
pub(super) struct HookedRelocations {
    objects: Vec<HookedObject>,
    /// How many objects had been unloaded when the first of these was found.
    removed: u64,
}

#[derive(Debug)]
struct HookedObject {
    base: usize,
    headers: usize,
    relocations: Vec<HookedRelocation>,
}

impl HookedRelocations {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self { objects: Vec::new(), removed: 0 }
    }

    /// Forgets all unless as many objects have been unloaded as before.
    pub(super) fn forget_unless(&mut self, removed: u64) {
        if self.removed != removed {
            *self = Self { objects: Vec::new(), removed };
        }
    }

    /// Whether an object was found to have none.
    pub(super) fn has_none(&self, object: &LoadedObject<'_>) -> bool {
        let found = self.place(object).ok().and_then(|place| self.objects.get(place));
        found.is_some_and(|found| found.relocations.is_empty())
    }

    /// Where an object is, or belongs.
    fn place(&self, object: &LoadedObject<'_>) -> Result<usize, usize> {
        let key = (object.base, object.headers.as_ptr() as usize);
        self.objects.binary_search_by_key(&key, |object| (object.base, object.headers))
    }

    /// Those of one object.
    pub(super) fn of(
        &mut self,
        object: &LoadedObject<'_>,
        relocations: Relocations<'_>,
        dynamic: &Dynamic,
        hooks: &'static HookTable,
    ) -> &[HookedRelocation] {
        let place = self.place(object).unwrap_or_else(|place| {
            let relocations = relocations.hooked(dynamic, hooks);
            let headers = object.headers.as_ptr() as usize;
            self.objects.insert(place, HookedObject { base: object.base, headers, relocations });
            place
        });
        self.objects.get(place).map_or(&[], |object| &object.relocations)
    }
}
