//! The loaded objects, as far as unwinding and naming need them.
//!
//! They are put in by the walk that patches them, under the loader's lock, and looked up in hooks without one: the list
//! only grows, and what is unloaded is marked. Invariant: a module has its id for as long as it stays loaded; what is
//! loaded later has another, even at the same address. In a later recording, what has stayed loaded has its id again.

#![expect(clippy::disallowed_types, reason = "modules are added and removed outside of hooks")]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::loading_objects;
use crate::events::stack_model::new_id;
use crate::platform::object_lookup;

/// Most modules that one process can have had. Later ones are not known.
const MOST: usize = 16384;

/// What the patching walk knows of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// What was added to the addresses of the file.
    pub(super) bias: usize,
    /// Its loaded segments, `start..end`.
    pub(super) segments: Vec<std::ops::Range<usize>>,
    /// Its `.eh_frame_hdr`, the index of its unwind tables.
    pub(super) unwind_header: Option<std::ops::Range<usize>>,
    /// Path of its file.
    pub(super) path: Vec<u8>,
    /// Its GNU build-id; the stamp of its file where it has none.
    pub(super) build_id: Vec<u8>,
}

/// A loaded object.
#[derive(Debug)]
pub(super) struct LoadedModule {
    pub(super) id: u32,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) is_own: bool,
    /// It is the dynamic loader, whose first code has no unwind table: what is called from there has no caller.
    pub(super) is_loader: bool,
    is_gone: AtomicBool,
    /// It was loaded when recording ended: if it is met again as it was, it is the same.
    is_set_aside: AtomicBool,
    description: Description,
}

static MODULES: [AtomicPtr<LoadedModule>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Raised when what is known of an address may not hold any longer.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// Raised when a module has come.
static ADDITIONS: AtomicU32 = AtomicU32::new(1);
/// The id for code in no module.
static UNKNOWN: AtomicU32 = AtomicU32::new(0);
/// Where this library begins and ends, once it was added.
static OWN: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Gives code in no module its id.
pub(super) fn start() {
    if UNKNOWN.load(Ordering::Relaxed) == 0 {
        UNKNOWN.store(new_id(), Ordering::Relaxed);
    }
}

/// Recording ends: what is loaded is set aside until it begins again.
pub(super) fn stop() {
    for module in all().map(|(_, module)| module).filter(|module| !module.is_gone.swap(true, Ordering::AcqRel)) {
        module.is_set_aside.store(true, Ordering::Release);
    }
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Takes a module back that was set aside.
fn take_back(description: &Description) -> bool {
    let is_it = |module: &&LoadedModule| {
        module.description == *description && module.is_set_aside.swap(false, Ordering::AcqRel)
    };
    let found = all().map(|(_, module)| module).find(is_it);
    found.inspect(|module| module.is_gone.store(false, Ordering::Release)).is_some()
}

/// Differs from an earlier one when modules have gone.
#[inline(always)]
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire)
}

/// What is known of an address may not hold any longer.
pub(super) fn changed() {
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Differs from an earlier one when modules have come.
#[inline(always)]
pub(super) fn additions() -> u32 {
    ADDITIONS.load(Ordering::Acquire)
}

/// The id for code in no module.
pub(super) fn unknown() -> u32 {
    UNKNOWN.load(Ordering::Relaxed)
}

/// Whether an address lies in this library.
#[inline(always)]
pub(super) fn is_own(address: usize) -> bool {
    let [start, end] = OWN.each_ref().map(|place| place.load(Ordering::Relaxed));
    (start..end).contains(&address)
}

/// An object was loaded. To be called under the loader's lock, outside of hooks.
pub(super) fn add(description: Description) {
    let segments = &description.segments;
    let start = segments.iter().map(|segment| segment.start).min().unwrap_or(0);
    let end = segments.iter().map(|segment| segment.end).max().unwrap_or(0);
    if take_back(&description) {
        loading_objects::forget(start);
        ADDITIONS.fetch_add(1, Ordering::Release);
        return;
    }
    let is_own = (start..end).contains(&(&raw const COUNT as usize));
    if is_own {
        OWN[0].store(start, Ordering::Relaxed);
        OWN[1].store(end, Ordering::Relaxed);
    }
    let is_loader = is_loader(&description, start..end);
    let module = LoadedModule {
        id: new_id(),
        start,
        end,
        is_own,
        is_loader,
        is_gone: AtomicBool::new(false),
        is_set_aside: AtomicBool::new(false),
        description,
    };
    let count = COUNT.load(Ordering::Relaxed);
    if let Some(place) = MODULES.get(count) {
        place.store(Box::into_raw(Box::new(module)), Ordering::Release);
        COUNT.store(count.wrapping_add(1), Ordering::Release);
        loading_objects::forget(start);
        ADDITIONS.fetch_add(1, Ordering::Release);
    }
}

fn is_loader(description: &Description, range: std::ops::Range<usize>) -> bool {
    // SAFETY: no preconditions; an unknown entry gives 0.
    let base = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    // There is none where the loader was started with the program as its argument.
    let name = description.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    (base != 0 && range.contains(&base)) || name.starts_with(b"ld-linux")
}

/// The object that began here was unloaded. As [`add`].
pub(super) fn forget(start: usize) {
    for module in all().map(|(_, module)| module).filter(|module| module.start == start) {
        module.is_gone.store(true, Ordering::Release);
    }
    loading_objects::forget(start);
    GENERATION.fetch_add(1, Ordering::Release);
}

/// The modules with their numbers, the newest first.
fn all() -> impl Iterator<Item = (usize, &'static LoadedModule)> {
    let known = MODULES.get(..COUNT.load(Ordering::Acquire)).unwrap_or_default();
    known.iter().enumerate().rev().filter_map(|(number, place)| {
        // SAFETY: null, or a module, which is never freed.
        Some((number, unsafe { place.load(Ordering::Acquire).as_ref() }?))
    })
}

/// The module at an address, and its number in the list; none that was unloaded by the C library, see [`forget_unloaded`].
#[cold]
pub(super) fn at(address: usize) -> Option<(usize, &'static LoadedModule)> {
    let found = all().find(|(_, module)| module.holds(address))?;
    if found.1.is_loaded() {
        return Some(found);
    }
    found.1.set_gone();
    None
}

/// The program has mapped code in this range. The C library loads and unloads modules itself (of iconv, of the name service),
/// by no call that is hooked: those that were here and are not any more are forgotten.
#[cold]
pub(super) fn forget_unloaded(range: &std::ops::Range<usize>) {
    let here = all().map(|(_, module)| module).filter(|module| {
        module.start < range.end && range.start < module.end && !module.is_gone.load(Ordering::Acquire)
    });
    here.filter(|module| !module.is_loaded()).for_each(LoadedModule::set_gone);
}

impl LoadedModule {
    fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
            && !self.is_gone.load(Ordering::Acquire)
            && self.segment_end(address).is_some()
    }

    /// It is not loaded any more. Another one may have come to its place, so only this one is forgotten.
    fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
        GENERATION.fetch_add(1, Ordering::Release);
    }

    /// Whether the loader has it still, as far as that can be asked.
    fn is_loaded(&self) -> bool {
        let header = self.description.unwind_header.as_ref().map(|header| header.start);
        object_lookup::is_loaded(self.start, header) != Some(false)
    }

    /// The end of the segment that an address is in.
    pub(super) fn segment_end(&self, address: usize) -> Option<usize> {
        self.description.segments.iter().find(|segment| segment.contains(&address)).map(|segment| segment.end)
    }

    /// The `.eh_frame_hdr` table, if it is readable.
    pub(super) fn unwind_header(&self) -> Option<(usize, usize)> {
        let header = self.description.unwind_header.as_ref()?;
        let end = self.segment_end(header.start)?;
        Some((header.start, header.end.min(end)))
    }

    /// As a record.
    pub(super) fn record(&self) -> memtrack_format::record::ModuleRecord<'_> {
        memtrack_format::record::ModuleRecord {
            id: self.id,
            bias: self.description.bias as u64,
            start: self.start as u64,
            end: self.end as u64,
            path: &self.description.path,
            build_id: &self.description.build_id,
        }
    }

    /// An address as an offset.
    pub(super) fn offset(&self, address: usize) -> u32 {
        address.wrapping_sub(self.description.bias) as u32
    }
}
