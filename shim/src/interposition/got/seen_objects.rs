//! The loaded objects that were patched before, so that only new ones are patched after a dlopen.
//!
//! Invariant: an object is skipped only while it is provably the same one. Addresses are reused after a dlclose, so
//! once anything was unloaded, a patched slot of the object must still hold what was written there.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "runs at start-up and in a dlopen only, outside of hooks"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, dl_phdr_info};

use super::protection::Protection;
use super::slot::{PatchOutcome, PatchedSlot};
use crate::platform::loaded_object::{LoadedObject, Range};

/// `dlpi_adds` and `dlpi_subs` at the last scan; a difference means that objects were loaded or unloaded.
static COUNTERS: Counters = Counters { added: AtomicU64::new(0), removed: AtomicU64::new(0) };

/// An object has slots that could not be decided on: it is scanned again even if nothing was loaded or unloaded.
static UNDECIDED: AtomicBool = AtomicBool::new(false);

struct Counters {
    added: AtomicU64,
    removed: AtomicU64,
}

/// An object that was seen before.
#[derive(Clone, Debug)]
pub(super) struct SeenObject {
    base: usize,
    headers: usize,
    name: usize,
    /// The addresses it covers.
    pub(super) range: Range,
    pub(super) outcome: PatchOutcome,
    /// Pages that the loader has protected.
    protected: Range,
}

impl SeenObject {
    /// Remembers `object`, and what came of patching it.
    pub(super) fn new(object: &LoadedObject<'_>, outcome: PatchOutcome) -> Self {
        if outcome.undecided {
            UNDECIDED.store(true, Ordering::Relaxed);
        }
        let headers = object.headers.as_ptr() as usize;
        // SAFETY: no preconditions.
        let page_size = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
        let protected = object.relro_pages(page_size);
        Self { base: object.base, headers, name: object.name, range: object.range(), outcome, protected }
    }

    /// The protection of its slots.
    pub(super) fn protection(&self) -> Protection {
        Protection::new(self.protected.clone(), libc::PROT_READ)
    }

    fn is(&self, object: &LoadedObject<'_>, some_were_removed: bool) -> bool {
        self.base == object.base
            && self.headers == object.headers.as_ptr() as usize
            && self.name == object.name
            && !self.outcome.undecided
            && (!some_were_removed || self.outcome.slot.is_some_and(|slot| is_intact(slot, object)))
    }
}

fn is_intact(slot: PatchedSlot, object: &LoadedObject<'_>) -> bool {
    // SAFETY: the word was checked to lie in a writable segment of an object that is loaded now.
    let read = || unsafe { &*(slot.address as *const AtomicUsize) }.load(Ordering::Relaxed);
    object.has_writable_word(slot.address) && read() == slot.value
}

/// Everything that is loaded now, in the loader's order.
pub(super) struct Loaded<'a> {
    /// The objects that have program headers (plt-rs's list has the same ones in the same order).
    pub(super) objects: Vec<LoadedObject<'a>>,
    added: u64,
    /// How many have been unloaded since the program began.
    pub(super) removed: u64,
}

impl Loaded<'_> {
    /// Asks the loader.
    pub(super) fn now() -> Self {
        let mut loaded = Loaded { objects: Vec::with_capacity(64), added: 0, removed: 0 };
        // SAFETY: the callback gets the address of `loaded`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut loaded).cast()) };
        loaded
    }

    /// Whether something was unloaded since the last [`Loaded::remember`].
    pub(super) fn some_were_removed(&self) -> bool {
        COUNTERS.removed.load(Ordering::Relaxed) != self.removed
    }

    /// Notes that nothing is patched any more: whatever is loaded is news.
    pub(super) fn forget() {
        COUNTERS.added.store(0, Ordering::Relaxed);
        UNDECIDED.store(false, Ordering::Relaxed);
    }

    /// Notes that everything up to now has been handled.
    pub(super) fn remember(&self) {
        COUNTERS.removed.store(self.removed, Ordering::Relaxed);
        COUNTERS.added.store(self.added, Ordering::Relaxed);
    }
}

unsafe extern "C" fn collect(info: *mut dl_phdr_info, _size: usize, loaded: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: this is the address that `Loaded::now` passed.
    let loaded = unsafe { &mut *loaded.cast::<Loaded<'_>>() };
    (loaded.added, loaded.removed) = (info.dlpi_adds, info.dlpi_subs);
    // SAFETY: what uses it holds the loader's lock.
    loaded.objects.extend(unsafe { LoadedObject::of(info) });
    0
}

/// Whether objects came or went since the last [`Loaded::remember`]: one look at the loader's counters.
pub(super) fn is_there_news() -> bool {
    if UNDECIDED.swap(false, Ordering::Relaxed) {
        return true;
    }
    let known = (COUNTERS.added.load(Ordering::Relaxed), COUNTERS.removed.load(Ordering::Relaxed));
    known != counted_so_far()
}

/// How many objects have been unloaded since the program began.
pub(super) fn removed_so_far() -> u64 {
    counted_so_far().1
}

/// How many objects have been loaded since the program began, and unloaded.
fn counted_so_far() -> (u64, u64) {
    let mut counted = (0, 0);
    // SAFETY: the callback gets the address of `counted`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut counted).cast()) };
    counted
}

unsafe extern "C" fn count(info: *mut dl_phdr_info, _size: usize, counted: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: this is the address that `counted_so_far` passed.
    unsafe { *counted.cast::<(u64, u64)>() = (info.dlpi_adds, info.dlpi_subs) };
    1
}

/// How many objects at the front of both lists are the same: all that were known, unless some were unloaded.
pub(super) fn unchanged(known: &[SeenObject], objects: &[LoadedObject<'_>], some_were_removed: bool) -> usize {
    known.iter().zip(objects).take_while(|(known, object)| known.is(object, some_were_removed)).count()
}

/// The known objects against the loaded ones.
pub(super) struct ObjectComparison {
    /// For each loaded object: what is known of it, `None` for a new one.
    pub(super) matches: Vec<Option<SeenObject>>,
    /// What is no longer there.
    pub(super) gone: Vec<SeenObject>,
}

/// Compares in one pass: the loader keeps its order, takes out what is unloaded, and appends what is new.
pub(super) fn compare(
    known: Vec<SeenObject>,
    objects: &[LoadedObject<'_>],
    some_were_removed: bool,
) -> ObjectComparison {
    let mut comparison = ObjectComparison { matches: Vec::with_capacity(objects.len()), gone: Vec::new() };
    let mut rest = known.into_iter();
    for object in objects {
        let found = rest.as_slice().iter().position(|known| known.is(object, some_were_removed));
        if let Some(skipped) = found {
            comparison.gone.extend(rest.by_ref().take(skipped));
        }
        comparison.matches.push(found.and_then(|_| rest.next()));
    }
    comparison.gone.extend(rest);
    comparison
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(base: usize) -> LoadedObject<'static> {
        LoadedObject { base, headers: &[], name: base }
    }

    fn known(bases: &[usize]) -> Vec<SeenObject> {
        bases.iter().map(|&base| SeenObject::new(&object(base), PatchOutcome::default())).collect()
    }

    fn bases(known: &[SeenObject]) -> Vec<usize> {
        known.iter().map(|known| known.base).collect()
    }

    #[test]
    fn appended_objects_are_new_and_missing_ones_are_gone() {
        let objects = [object(1), object(3), object(4), object(5)];
        let comparison = compare(known(&[1, 2, 3]), &objects, false);
        let new: Vec<bool> = comparison.matches.iter().map(Option::is_none).collect();
        assert_eq!(new, [false, false, true, true]);
        assert_eq!(bases(&comparison.gone), [2]);
    }

    #[test]
    fn the_front_is_unchanged_up_to_the_first_difference() {
        assert_eq!(unchanged(&known(&[1, 2, 3]), &[object(1), object(2), object(4), object(3)], false), 2);
    }

    #[test]
    fn after_an_unloading_an_object_without_an_intact_slot_is_looked_at_again() {
        let comparison = compare(known(&[1]), &[object(1)], true);
        assert!(comparison.matches.iter().all(Option::is_none));
        assert_eq!(bases(&comparison.gone), [1]);
    }

    #[test]
    fn this_process_has_objects_and_its_own_counters() {
        let loaded = Loaded::now();
        assert!(loaded.objects.len() > 1);
        assert!(loaded.added >= loaded.objects.len() as u64);
    }
}
