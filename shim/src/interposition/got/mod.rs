//! Redirects calls of hooked functions: patches the GOT slots of every loaded object, and symbol table entries for
//! objects that are loaded later (see [`symbol_redirect`]).
//!
//! [`symbol_redirect`] says why symbol interposition is not used; besides, it cannot change calls that are already
//! bound. Invariant: what is known of loaded objects is touched only under the loader's own lock (see [`patch()`]), so no
//! object can be half relocated or unmapped meanwhile, the shim needs no lock, and a fork child inherits none.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "runs at start-up and in a dlopen only, outside of hooks"
)]

mod copied_variables;
mod dlopen_scopes;
mod dynamic;
mod hook;
mod hook_lookup;
mod hooked_relocations;
mod loader_stubs;
mod originals;
mod patch;
mod protection;
mod seen_objects;
mod slot;
mod symbol_redirect;

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use plt_rs::{DynamicLibrary, LoadedLibrary};

pub(crate) use dlopen_scopes::{DlopenInProgress, Scope};
pub(crate) use hook::{Hook, HookGroup, HookTarget, NameLeads, Original};
pub(crate) use hook_lookup::HookTable;

use crate::platform::dladdr::own_handle;
use crate::platform::loaded_object::LoadedObject;
use copied_variables::PatchedObjects;
use hooked_relocations::{HookedRelocations, Relocations};
use originals::RoundOriginals;
use seen_objects::{Loaded, SeenObject};
use slot::{ChangedWord, PatchOutcome};

/// The objects seen so far, and the process that is patching.
struct PatchState {
    changes: UnsafeCell<ObjectChanges>,
    /// The process that is patching, 0 for none. A fork child may inherit its parent's number: then the list is void.
    patching: AtomicI32,
    /// A round was asked for while one was running.
    again: AtomicBool,
    /// What was changed is to be put back, and nothing is to be changed.
    removing: AtomicBool,
    /// Slots that were patched are to be looked at once more.
    rewriting: AtomicBool,
    /// The program has not run yet: its variables are as the loader left them.
    starting: AtomicBool,
    watcher: OnceLock<ObjectWatcher>,
}

/// What was changed in loaded objects.
struct ObjectChanges {
    known: Vec<SeenObject>,
    /// Words outside of slots: of symbol tables, and of the loader's data.
    words: Vec<ChangedWord>,
    hooked: HookedRelocations,
}

impl ObjectChanges {
    const fn new() -> Self {
        Self { known: Vec::new(), words: Vec::new(), hooked: HookedRelocations::new() }
    }
}

// SAFETY: `changes` is touched only by the one thread that `patching` admits.
unsafe impl Sync for PatchState {}

static STATE: PatchState = PatchState {
    changes: UnsafeCell::new(ObjectChanges::new()),
    patching: AtomicI32::new(0),
    again: AtomicBool::new(false),
    removing: AtomicBool::new(false),
    rewriting: AtomicBool::new(false),
    starting: AtomicBool::new(false),
    watcher: OnceLock::new(),
};

/// Who is told which objects came and went, under the loader's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectWatcher {
    /// An object was loaded, and is not patched yet.
    pub(crate) added: fn(&LoadedObject<'_>),
    /// The object that began at this address was unloaded.
    pub(crate) removed: fn(usize),
}

/// Looks up the originals of `hooks` and patches everything that is loaded, for everything to be recorded or samples.
/// Called when recording begins, outside of hooks, in a program that has not run yet.
pub(crate) fn install_at_start(hooks: &'static HookTable, samples: bool, watcher: ObjectWatcher) {
    STATE.starting.store(true, Ordering::Release);
    install(hooks, samples, watcher);
    STATE.starting.store(false, Ordering::Release);
}

fn install(hooks: &'static HookTable, samples: bool, watcher: ObjectWatcher) {
    hook_lookup::set(hooks);
    // The first caller is the only one.
    let _ = STATE.watcher.set(watcher);
    originals::c_library(samples, seen_objects::removed_so_far());
    STATE.removing.store(false, Ordering::Release);
    patch(None);
}

/// Whether the real `free` calls no hook. After [`install_at_start`] or [`install_among_threads`].
pub(crate) fn frees_call_no_hook() -> bool {
    originals::is_free_the_c_librarys()
}

/// The same in a running program, where other threads may have been binding slots meanwhile, each of which writes what it has found.
pub(crate) fn install_among_threads(hooks: &'static HookTable, samples: bool, watcher: ObjectWatcher) {
    install(hooks, samples, watcher);
    STATE.rewriting.store(true, Ordering::Release);
    patch(None);
}

/// Puts back everything that was changed in loaded objects, except what others have changed since. Hooks that are still
/// called, by pointers that the program has kept, pass the calls on: their originals stay known.
pub(crate) fn remove() {
    STATE.removing.store(true, Ordering::Release);
    patch(None);
}

/// Whether objects came or went since the last [`patch()`]: one look at the loader's counters.
pub(crate) fn is_there_news() -> bool {
    seen_objects::is_there_news()
}

/// Patches the objects that came since the last call, and forgets those that went. Called after each dlopen, before the
/// program gets the handle, whose scope is `opened`; the caller's guard keeps what is allocated meanwhile unrecorded.
///
/// The work is done inside a lookup of our own indirect function: the loader calls its resolver with the loader's lock
/// held. That is what keeps other threads from relocating an object while its slots are written (a lazily bound slot is
/// *added to* by relocation) and from unmapping it, at no risk of a deadlock that the program's own dlopen did not have.
pub(crate) fn patch(opened: Option<Scope>) {
    let _entry = opened.map(dlopen_scopes::enter);
    let look_up = |scope| {
        // SAFETY: a pseudo handle or a library's, and a name that ends in zero.
        unsafe { libc::dlsym(scope, c"memtrack_patch_under_loader_lock".as_ptr()) }
    };
    // A library that was loaded into a running process may not be in the global scope.
    if look_up(libc::RTLD_DEFAULT).is_null() && own_handle().is_none_or(|own| look_up(own).is_null()) {
        // Not reachable by name (a statically linked test, a loader without indirect functions).
        patch_exclusively();
    }
    // Lookups that found nothing must not be reported to the program as its own.
    // SAFETY: no preconditions.
    unsafe { libc::dlerror() };
}

/// The hook for `name`, if it is a hooked one, and its original, looked for in `scope` too if its library is new.
pub(crate) fn hook_and_original(name: &[u8], scope: Option<Scope>) -> Option<(&'static Hook, usize)> {
    let hook = hook_lookup::table()?.find(name)?;
    Some((hook, originals::original(hook, scope.as_slice())))
}

/// An indirect function: looking it up runs the resolver. Its value is of no use.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn memtrack_patch_under_loader_lock() -> usize {
    std::arch::naked_asm!(
        ".type memtrack_patch_under_loader_lock, @gnu_indirect_function",
        "jmp {resolver}",
        resolver = sym patch_in_resolver,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn memtrack_patch_under_loader_lock() -> usize {
    std::arch::naked_asm!(
        ".type memtrack_patch_under_loader_lock, @gnu_indirect_function",
        "b {resolver}",
        resolver = sym patch_in_resolver,
    )
}

extern "C" fn patch_in_resolver() -> usize {
    patch_exclusively();
    (&raw const STATE) as usize
}

fn patch_exclusively() {
    let process = std::process::id().cast_signed();
    STATE.again.store(true, Ordering::Release);
    let previous = STATE.patching.load(Ordering::Acquire);
    let entered = STATE.patching.compare_exchange(previous, process, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if previous == process || !entered {
        // The other round sees `again`.
        return;
    }
    // SAFETY: `patching` admitted this thread alone.
    let changes = unsafe { &mut *STATE.changes.get() };
    if previous != 0 {
        // Forked in the middle of a round of a thread that is not here: the lists may be half written.
        std::mem::forget(std::mem::replace(changes, ObjectChanges::new()));
    }
    while STATE.again.swap(false, Ordering::AcqRel) {
        if STATE.removing.load(Ordering::Acquire) {
            remove_round(changes);
        } else {
            patch_round(changes);
            if STATE.rewriting.swap(false, Ordering::AcqRel) {
                patch_again(&changes.known);
            }
        }
    }
    STATE.patching.store(0, Ordering::Release);
}

fn patch_round(ObjectChanges { known, words, hooked }: &mut ObjectChanges) {
    let Some(hooks) = hook_lookup::table() else { return };
    let loaded = Loaded::now();
    hooked.forget_unless(loaded.removed);
    let some_were_removed = loaded.some_were_removed();
    let front = seen_objects::unchanged(known, &loaded.objects, some_were_removed);
    let rest = loaded.objects.get(front..).unwrap_or_default();
    let comparison = seen_objects::compare(known.split_off(front), rest, some_were_removed);
    for gone in &comparison.gone {
        if let Some(watcher) = STATE.watcher.get() {
            (watcher.removed)(gone.range.start);
        }
        // An object that was only replaced in our list is still there, and so are its functions.
        if !loaded.objects.iter().any(|object| object.range() == gone.range) {
            originals::forget(&gone.range);
            words.retain(|word| !gone.range.contains(&word.address));
        }
    }
    let (unpatched, scopes) = (UnpatchedObjects::new(), dlopen_scopes::pending());
    let mut round = PatchRound { hooks, originals: RoundOriginals::new(&scopes), unpatched: &unpatched, hooked };
    let is_program_new = front == 0 && comparison.matches.first().is_some_and(Option::is_none);
    let libraries = plt_rs::collect_modules().into_iter().skip(front);
    for ((object, library), found) in rest.iter().zip(libraries).zip(comparison.matches) {
        known.push(found.unwrap_or_else(|| {
            if let Some(watcher) = STATE.watcher.get() {
                (watcher.added)(object);
            }
            if let (true, Some(program)) = (unpatched.is_loader(object), loaded.objects.first()) {
                loader_stubs::bypass_plt_stubs(object, program, hooks, unpatched.page_size, words);
            }
            // It was scanned before, and some slot could not be decided on. Once anything was unloaded, it may be another.
            let earlier = comparison.gone.iter().find(|gone| !some_were_removed && gone.range == object.range());
            let earlier = earlier.map(|gone| &gone.outcome);
            let patch = |patcher: patch::Patcher<'_>| SeenObject::new(object, patcher.run());
            round
                .with_patcher(object, library, earlier, patch)
                .unwrap_or_else(|| SeenObject::new(object, PatchOutcome::default()))
        }));
    }
    let is_new = is_program_new && STATE.starting.load(Ordering::Acquire);
    if let (true, Some(program)) = (is_new, plt_rs::collect_modules().into_iter().next()) {
        let patched = PatchedObjects { objects: &loaded.objects, outcomes: known, page_size: unpatched.page_size };
        // What is not as it should be in the program's tables has no copies.
        let _ = patched.redirect_copies(program);
    }
    symbol_redirect::redirect(&loaded.objects, unpatched.page_size, words);
    loaded.remember();
}

/// Looks at the patched slots of all objects, which were just found to be loaded.
fn patch_again(known: &[SeenObject]) {
    for object in known {
        let mut protection = object.protection();
        object.outcome.saved.iter().for_each(|slot| slot.patch_again(&mut protection));
    }
}

fn remove_round(ObjectChanges { known, words, hooked }: &mut ObjectChanges) {
    let Some(hooks) = hook_lookup::table() else { return };
    let loaded = Loaded::now();
    hooked.forget_unless(loaded.removed);
    let comparison = seen_objects::compare(std::mem::take(known), &loaded.objects, loaded.some_were_removed());
    let is_loaded = |address| loaded.objects.iter().any(|object| object.range().contains(&address));
    // First, so that no slot is bound to a hook after it was looked at.
    slot::restore(words.drain(..).filter(|word| is_loaded(word.address)));
    hooks.rows().iter().for_each(|hook| hook.name_leads.forget());
    let unpatched = UnpatchedObjects::new();
    let mut round = PatchRound { hooks, originals: RoundOriginals::new(&[]), unpatched: &unpatched, hooked };
    let libraries = plt_rs::collect_modules();
    for ((object, library), found) in loaded.objects.iter().zip(libraries).zip(comparison.matches) {
        let earlier = found.as_ref().map(|found| &found.outcome);
        round.with_patcher(object, library, earlier, |patcher| {
            patcher.restore();
        });
    }
    originals::forget_all();
    Loaded::forget();
}

/// One pass over the loaded objects, under the loader's lock.
struct PatchRound<'a> {
    hooks: &'static HookTable,
    originals: RoundOriginals<'a>,
    unpatched: &'a UnpatchedObjects,
    hooked: &'a mut HookedRelocations,
}

impl PatchRound<'_> {
    /// Does something to the slots of one object, unless it is one to leave alone.
    fn with_patcher<R>(
        &mut self,
        object: &LoadedObject<'_>,
        library: LoadedLibrary<'_>,
        earlier: Option<&PatchOutcome>,
        then: impl FnOnce(patch::Patcher<'_>) -> R,
    ) -> Option<R> {
        let Self { hooks, originals, unpatched, hooked } = self;
        if library.addr() != object.base || hooked.has_none(object) || unpatched.has(object, &library) {
            return None;
        }
        let dynamic = dynamic::Dynamic::read(object)?;
        let library = DynamicLibrary::initialize(library).ok()?;
        let relocations = Relocations::of(&library, &dynamic);
        let hooked = hooked.of(object, relocations, &dynamic, hooks);
        let page_size = unpatched.page_size;
        Some(then(patch::Patcher::new(object, &dynamic, relocations, hooked, originals, page_size, earlier)))
    }
}

/// The objects that are never patched: the loader, the kernel's, the shim itself.
struct UnpatchedObjects {
    loader: usize,
    kernel: usize,
    shim: usize,
    page_size: usize,
}

impl UnpatchedObjects {
    fn new() -> Self {
        // SAFETY: no preconditions; an unknown entry gives 0.
        let auxiliary = |kind| unsafe { libc::getauxval(kind) } as usize;
        Self {
            loader: auxiliary(libc::AT_BASE),
            kernel: auxiliary(libc::AT_SYSINFO_EHDR),
            shim: (&raw const STATE) as usize,
            page_size: auxiliary(libc::AT_PAGESZ),
        }
    }

    /// Whether this is the loader, as far as the system knows.
    fn is_loader(&self, object: &LoadedObject<'_>) -> bool {
        self.loader != 0 && object.range().contains(&self.loader)
    }

    fn has(&self, object: &LoadedObject<'_>, library: &LoadedLibrary<'_>) -> bool {
        let range = object.range();
        let file = library.name().rsplit('/').next().unwrap_or_default();
        range.contains(&self.shim)
            || self.is_loader(object)
            || (self.kernel != 0 && range.contains(&self.kernel))
            // A program started as an argument of the loader has no loader in its auxiliary vector.
            || file.starts_with("ld-linux")
            || file.starts_with("ld-musl")
    }
}
