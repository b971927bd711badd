//! Which relocations of an object name hooked functions, found once for as long as the object is loaded.
//!
//! Why: to look at all names takes 2 to 3 ms in a program with 200 objects, and a program that records itself begins and ends
//! again and again. Invariant: what is kept is of objects that have been loaded ever since. Once anything was unloaded, all is
//! forgotten, since another object may have come to the same address; and since the loader's count of what was unloaded is wrong
//! where a program has namespaces (glibc counts their objects several times), names are compared once more before they are used.

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
/// The type that copies another object's variable to the program.
const COPY: u32 = if cfg!(target_arch = "aarch64") { 1024 } else { 5 };

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

    /// Those of variables that are copied.
    pub(super) fn copies(&self) -> impl Iterator<Item = &'a DynRela> {
        self.data.iter().filter(|relocation| relocation.symbol_type() == COPY)
    }

    /// Whether these are still the ones that name hooked functions, as far as names tell.
    fn are_named(&self, hooked: &[HookedRelocation], dynamic: &Dynamic, hooks: &'static HookTable) -> bool {
        hooked.iter().all(|HookedRelocation { index, hook }| {
            let now = self.get(*index).and_then(|relocation| named(relocation, dynamic, hooks));
            now.is_some_and(|now| std::ptr::eq(now, *hook))
        })
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
    object: ObjectIdentity,
    relocations: Vec<HookedRelocation>,
}

/// What tells one object from another at the same address.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectIdentity {
    base: usize,
    headers: usize,
    name: usize,
    end: usize,
    dynamic: Option<(usize, usize)>,
}

impl ObjectIdentity {
    fn of(object: &LoadedObject<'_>) -> Self {
        let dynamic = object.dynamic().map(|section| (section.start, section.end));
        let headers = object.headers.as_ptr() as usize;
        Self { base: object.base, headers, name: object.name, end: object.range().end, dynamic }
    }
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
        let found = self.place(&ObjectIdentity::of(object)).ok().and_then(|place| self.objects.get(place));
        found.is_some_and(|found| found.relocations.is_empty())
    }

    /// Where an object is, or belongs.
    fn place(&self, object: &ObjectIdentity) -> Result<usize, usize> {
        self.objects.binary_search_by(|known| known.object.cmp(object))
    }

    /// Those of one object.
    pub(super) fn of(
        &mut self,
        object: &LoadedObject<'_>,
        relocations: Relocations<'_>,
        dynamic: &Dynamic,
        hooks: &'static HookTable,
    ) -> &[HookedRelocation] {
        let identity = ObjectIdentity::of(object);
        let hooked = || relocations.hooked(dynamic, hooks);
        let place = match self.place(&identity) {
            Ok(place) => {
                if let Some(known) = self.objects.get_mut(place)
                    && !relocations.are_named(&known.relocations, dynamic, hooks)
                {
                    known.relocations = hooked();
                }
                place
            }
            Err(place) => {
                self.objects.insert(place, HookedObject { object: identity, relocations: hooked() });
                place
            }
        };
        self.objects.get(place).map_or(&[], |object| &object.relocations)
    }
}
