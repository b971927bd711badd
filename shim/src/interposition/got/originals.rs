//! Finds the functions that hooks stand in for.
//!
//! Invariant: an original is the first definition in the global scope that is not the shim's own, never a linkage stub
//! that would lead back into a hook, and the functions of a library's group are all of one object.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "runs at start-up and in a dlopen or dlsym, outside of hooks"
)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::dlopen_scopes::{self, Scope};
use super::hook::{Hook, HookGroup};
use super::hook_lookup::hooks;
use crate::platform::dladdr::{in_first_object, is_import_stub, object_at, path_at};
use crate::platform::loaded_object::Range;
use crate::platform::symbol_tables::is_defined;

/// States of a hook group: not looked up, in progress, originals stored, must stay unhooked.
const UNKNOWN: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;
const REFUSED: u8 = 3;

static STATES: [AtomicU8; HookGroup::COUNT] = [const { AtomicU8::new(UNKNOWN) }; HookGroup::COUNT];
unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Whether samples are recorded.
static SAMPLES: AtomicBool = AtomicBool::new(false);

/// How many objects had been unloaded when the C library's originals were looked up; `u64::MAX` before that.
static REMOVED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Stores the C library's originals. Called when recording begins, of everything or of samples, after so many objects have been
/// unloaded.
pub(super) fn c_library(samples: bool, removed: u64) {
    SAMPLES.store(samples, Ordering::Release);
    // The global scope is searched in the order in which objects were loaded: what was found there is found first still.
    let is_first_still = REMOVED.load(Ordering::Acquire) == removed;
    for hook in hooks().iter().filter(|hook| hook.group == HookGroup::C) {
        if !is_first_still || hook.original() == 0 {
            hook.original.store(global(hook.name), Ordering::Release);
        }
        hook.is_sampled.store(samples, Ordering::Release);
    }
    state(HookGroup::C).store(READY, Ordering::Release);
    // At the end: a child that is forked meanwhile looks all of them up.
    REMOVED.store(removed, Ordering::Release);
}

/// The C library's own `free`, once it was found: that library stays loaded. To look up in which object an address is takes
/// 40 us in it, which a program waits for whenever a recording begins.
static OWN_FREE: AtomicUsize = AtomicUsize::new(0);

/// Whether `free` is the C library's own, which calls no hooked function.
pub(super) fn is_free_the_c_librarys() -> bool {
    let free = hooks().iter().find(|hook| hook.group == HookGroup::C && hook.name == c"free");
    let Some(free) = free.map(Hook::original).filter(|&free| free != 0) else { return false };
    if OWN_FREE.load(Ordering::Relaxed) == free {
        return true;
    }
    let library = object_at(libc::sysconf as *const () as usize);
    let is_own = !library.is_null() && object_at(free) == library;
    if is_own {
        OWN_FREE.store(free, Ordering::Relaxed);
    }
    is_own
}

/// The original of `hook`, looked up with its whole group if this is the first time; 0 when there is none.
/// The scopes are searched when the global one does not have the name.
pub(super) fn original(hook: &Hook, scopes: &[Scope]) -> usize {
    look_up_group(hook, scopes);
    known_original(hook)
}

/// The original of `hook` if it was looked up before and may be used; else 0.
pub(super) fn known_original(hook: &Hook) -> usize {
    if state(hook.group).load(Ordering::Acquire) == READY { hook.original() } else { 0 }
}

/// Looks up the whole group of a hook unless that was done; returns whether it was looked for in vain.
fn look_up_group(hook: &Hook, scopes: &[Scope]) -> bool {
    let state = state(hook.group);
    if state.load(Ordering::Acquire) != UNKNOWN
        || state.compare_exchange(UNKNOWN, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return false;
    }
    let found = group(hook, scopes);
    state.store(found, Ordering::Release);
    found == UNKNOWN
}

/// The originals for one round over all objects, in which none comes or goes: a group that is not there is looked for once,
/// and not for each slot.
pub(super) struct RoundOriginals<'a> {
    scopes: &'a [Scope],
    /// The groups that were looked for in vain.
    absent: [Cell<bool>; HookGroup::COUNT],
}

impl<'a> RoundOriginals<'a> {
    /// Those of a round. The scopes are searched when the global one does not have a name.
    pub(super) fn new(scopes: &'a [Scope]) -> Self {
        Self { scopes, absent: Default::default() }
    }

    /// The original of `hook`; 0 when there is none.
    pub(super) fn of(&self, hook: &Hook) -> usize {
        match self.absent.get(hook.group as usize) {
            Some(absent) if !absent.get() => absent.set(look_up_group(hook, self.scopes)),
            _ => return 0,
        }
        known_original(hook)
    }

    /// Whether a new object that came with one of the scopes will call `original` by this name; `None` if they do not
    /// tell. Without scopes it is an object of the program's start. No slot needs to be decided on that will get the hook
    /// from the loader, if it would get the original.
    pub(super) fn leads_to(&self, hook: &Hook, original: usize) -> Option<bool> {
        let scopes = self.scopes;
        if hook.group == HookGroup::C && !dlopen_scopes::is_any_deep() {
            return Some(true);
        }
        if hook.name_leads.to_hook() {
            return Some(false);
        }
        let seen_from = |scope: &Scope| match (scope.deep, global(hook.name), within(scope, hook.name)) {
            (true, address, 0) | (false, 0, address) => address,
            (true, _, address) | (false, address, _) => address,
        };
        let from_scopes = scopes.iter().map(seen_from).filter(|&address| address != 0);
        let addresses: Vec<usize> = if scopes.is_empty() { vec![global(hook.name)] } else { from_scopes.collect() };
        (!addresses.is_empty()).then(|| addresses.iter().all(|&address| address == original))
    }
}

/// Whether looking again cannot change what is known of this hook's original.
pub(super) fn is_settled(hook: &Hook) -> bool {
    hook.group == HookGroup::C || state(hook.group).load(Ordering::Acquire) == REFUSED
}

/// Forgets the groups whose functions lie in `range`, which was unloaded: all that imported them went before.
pub(super) fn forget(range: &Range) {
    for hook in hooks().iter().filter(|hook| hook.group != HookGroup::C) {
        if range.contains(&hook.original()) {
            hook.name_leads.forget();
            state(hook.group).store(UNKNOWN, Ordering::Release);
        }
    }
}

/// Looks all groups up anew when they are asked for next: nothing is told of what is loaded meanwhile.
pub(super) fn forget_all() {
    for hook in hooks().iter().filter(|hook| hook.group != HookGroup::C) {
        state(hook.group).store(UNKNOWN, Ordering::Release);
    }
}

fn state(group: HookGroup) -> &'static AtomicU8 {
    // The array has a place for every group.
    let [first, ..] = &STATES;
    STATES.get(group as usize).unwrap_or(first)
}

/// Resolves all functions of a group in the object that defines its first allocating function; returns the new state.
fn group(wanted: &Hook, scopes: &[Scope]) -> u8 {
    let look_up = |name| match global(name) {
        0 => scopes.iter().map(|scope| within(scope, name)).find(|&address| address != 0).unwrap_or(0),
        address => address,
    };
    let same_group = || hooks().iter().filter(|hook| hook.group == wanted.group);
    let allocating = same_group().filter(|hook| !only_passes_on(hook)).map(|hook| look_up(hook.name));
    let first = allocating.into_iter().find(|&address| address != 0).unwrap_or(0);
    let home = object_at(first);
    if home.is_null() {
        return UNKNOWN;
    }
    let is_sampled = SAMPLES.load(Ordering::Acquire) && is_cxx_library(first);
    for hook in same_group() {
        let address = look_up(hook.name);
        let is_elsewhere = address != 0 && object_at(address) != home;
        // A program may replace some of the functions: then the calls beneath are seen, and this level is left alone.
        if is_elsewhere && !only_passes_on(hook) {
            return REFUSED;
        }
        hook.original.store(if is_elsewhere { 0 } else { address }, Ordering::Release);
        hook.is_sampled.store(is_sampled, Ordering::Release);
    }
    READY
}

/// Whether an address lies in the C++ library, whose `operator new` and `operator delete` call malloc and free.
fn is_cxx_library(address: usize) -> bool {
    let name = path_at(address).and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    name.is_some_and(|name| name.starts_with(b"libstdc++.so"))
}

/// Whether this is an `operator delete`. mimalloc, for one, does not replace all of them: those of the C++ library call
/// the ones that it does replace, and need no hook of their own.
fn only_passes_on(hook: &Hook) -> bool {
    hook.group == HookGroup::Cxx && hook.name.to_bytes().starts_with(b"_Zd")
}

fn global(name: &CStr) -> usize {
    let first = as_programs_look_up(libc::RTLD_DEFAULT, name);
    let next = as_programs_look_up(libc::RTLD_NEXT, name);
    // They differ when the program itself has the name, as its own function or as a stub: it takes the address of an
    // import then, and behind the stub is a slot that leads to the hook.
    if first != next && is_import_stub(first) { next } else { first }
}

/// What a program gets that imports the name with the version that the C library gives it. A preloaded library may have the
/// name under that version only, and not as its default, as glibc's `libc_malloc_debug.so.0` has: dlsym passes it over.
fn as_programs_look_up(scope: *mut c_void, name: &CStr) -> usize {
    let without_version = look_up(scope, name);
    let Some(version) = import_version(name).filter(|_| without_version != 0) else { return without_version };
    // SAFETY: a pseudo handle and two strings that end in zero.
    let with_version = unsafe { dlvsym(scope, name.as_ptr(), version.as_ptr()) as usize };
    // dlvsym, again, passes over what has no version.
    if with_version == 0 || with_version == without_version {
        return without_version;
    }
    in_first_object(with_version, without_version)
}

/// The version under which programs import an allocation function of the C library.
fn import_version(name: &CStr) -> Option<&'static CStr> {
    match name.to_bytes() {
        b"malloc" | b"calloc" | b"realloc" | b"free" | b"posix_memalign" | b"memalign" | b"valloc" | b"pvalloc" => {
            Some(FIRST_VERSION)
        }
        b"aligned_alloc" if cfg!(target_arch = "x86_64") => Some(c"GLIBC_2.16"),
        b"aligned_alloc" => Some(FIRST_VERSION),
        _ => None,
    }
}

/// The program's stub that stands for this function wherever its address is asked for.
pub(super) fn stub(hook: &Hook) -> Option<usize> {
    Some(look_up(libc::RTLD_DEFAULT, hook.name)).filter(|&address| address != 0 && is_import_stub(address))
}

fn within(scope: &Scope, name: &CStr) -> usize {
    look_up(scope.handle, name)
}

fn look_up(scope: *mut c_void, name: &CStr) -> usize {
    if !is_defined(name) {
        return 0;
    }
    if name == c"cfree" {
        return obsolete_cfree();
    }
    // SAFETY: the scope is a pseudo handle or a loaded object's, the name ends in zero.
    unsafe { libc::dlsym(scope, name.as_ptr()) as usize }
}

/// The first version of the C library's symbols.
const FIRST_VERSION: &CStr = if cfg!(target_arch = "aarch64") { c"GLIBC_2.17" } else { c"GLIBC_2.2.5" };

/// `cfree` is kept for old binaries only, under the first version.
fn obsolete_cfree() -> usize {
    // SAFETY: a pseudo handle and two strings that end in zero.
    unsafe { dlvsym(libc::RTLD_DEFAULT, c"cfree".as_ptr(), FIRST_VERSION.as_ptr()) as usize }
}

#[cfg(test)]
mod tests {
    use super::{CStr, dlvsym, import_version, look_up};

    #[test]
    fn what_programs_import_from_the_c_library_is_what_it_has_by_default() {
        let names = [c"malloc", c"calloc", c"realloc", c"free", c"posix_memalign", c"memalign", c"valloc", c"pvalloc"];
        for name in names.into_iter().chain([c"aligned_alloc"]) {
            // SAFETY: a pseudo handle and two strings that end in zero.
            let with = |version: &CStr| unsafe { dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), version.as_ptr()) as usize };
            let address = import_version(name).map(with);
            assert_eq!(address, Some(look_up(libc::RTLD_DEFAULT, name)), "{name:?}");
            assert_ne!(address, Some(0), "{name:?}");
        }
    }
}
