//! Records every block of Python's own allocators (`--trace-python-allocators`).
//!
//! The interpreter lets the functions of its three domains (raw, mem, obj) be replaced at any time. The shim installs
//! its wrappers before the interpreter starts. PYTHONMALLOC and the development mode replace them during start-up, so
//! until a thread state exists each event checks whether the wrappers are installed and reinstalls them. Later
//! replacements, such as tracemalloc's, wrap the shim's functions and call them.
//!
//! Other threads may be in the middle of a call meanwhile: a domain is five words, read without a lock. Therefore a
//! wrapper keeps the context of what it wraps; whichever mix of old and new words a thread reads, they fit together.
//!
//! Where blocks are not recorded, but objects are to be read when the interpreter finalizes, [`watchers`] take the wrappers'
//! place in one domain: they look for that moment and do nothing else.
//!
//! Invariant: the functions that were there are always called, with their own context; nothing is replaced.

mod arenas;
mod watchers;
mod wrappers;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

use libc::c_void;
use libloading::os::unix::Library;
use memtrack_transport::layout::python_allocators::{OFF, TRACED};

use crate::platform::recording_switch;
use crate::platform::shared_area;
use crate::platform::symbol_tables::is_defined;
use crate::recording::thread;

pub(crate) use arenas::arena_allocator;

/// `PyMemAllocatorEx`: the same in every version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Domain {
    context: usize,
    functions: wrappers::DomainFunctions,
}

/// `PyMemAllocatorDomain`: raw, mem, obj.
const DOMAINS: [c_int; 3] = [0, 1, OBJ];
/// Whoever replaces the allocators replaces this one; for a moment the interpreter itself puts the raw one aside.
const OBJ: c_int = 2;

/// The interpreter's functions that are needed. All may be called at any time.
#[derive(Clone, Copy, Debug)]
struct Interface {
    get: unsafe extern "C" fn(c_int, *mut Domain),
    set: unsafe extern "C" fn(c_int, *const Domain),
    thread_state: unsafe extern "C" fn() -> *mut c_void,
}

/// Set once, for good, when an interpreter is found.
static INTERFACE: AtomicPtr<Interface> = AtomicPtr::new(null_mut());
/// Whether there are wrappers, or watchers.
static TRACING: AtomicBool = AtomicBool::new(false);
/// One thread at a time puts them back.
static LOOKING: AtomicBool = AtomicBool::new(false);

/// Whether this capture is to have the blocks of Python's allocators.
fn are_wanted() -> bool {
    shared_area::area().is_some_and(|area| area.control().python_allocators.load(Relaxed) != OFF)
}

/// Whether the begin of finalization is to be noticed at once.
fn are_watched() -> bool {
    shared_area::area().is_some_and(|area| area.control().pictured_at_end.load(Relaxed) != 0)
}

impl Interface {
    /// The functions as this library, or what it depends on, exports them.
    fn of(library: &Library) -> Option<Self> {
        Some(Self {
            // SAFETY: the documented type of this function in every version.
            get: unsafe { symbol(library, c"PyMem_GetAllocator") }?,
            // SAFETY: the documented type of this function in every version.
            set: unsafe { symbol(library, c"PyMem_SetAllocator") }?,
            // SAFETY: the documented type of this function in every version.
            thread_state: unsafe { symbol(library, c"PyGILState_GetThisThreadState") }?,
        })
    }

    fn domain(&self, number: c_int) -> Domain {
        let mut domain = Domain::default();
        // SAFETY: writes one `PyMemAllocatorEx` to the place it is given.
        unsafe { (self.get)(number, &raw mut domain) };
        domain
    }

    /// Wraps what the domain has, unless that is a wrapper already.
    fn wrap(&self, number: c_int) {
        let found = self.domain(number);
        let [malloc, ..] = found.functions;
        if wrappers::is_ours(malloc) {
            return;
        }
        let ours = usize::try_from(number).ok().and_then(|domain| wrappers::in_place_of(domain, &found.functions));
        if let Some(functions) = ours {
            let ours = Domain { functions, ..found };
            // SAFETY: the functions do what the domain's did, whatever thread calls them.
            unsafe { (self.set)(number, &raw const ours) };
        }
    }

    /// Wraps what the domain of objects has by what looks for the begin of finalization, unless it is wrapped already.
    fn look_after(&self) {
        let found = self.domain(OBJ);
        let [malloc, ..] = found.functions;
        if wrappers::is_ours(malloc) || watchers::is_ours(malloc) {
            return;
        }
        if let Some(functions) = watchers::in_place_of(&found.functions) {
            let ours = Domain { functions, ..found };
            // SAFETY: the functions do what the domain's did, whatever thread calls them.
            unsafe { (self.set)(OBJ, &raw const ours) };
        }
    }

    /// Puts back what the domain had, if it still has a wrapper. Where another has wrapped that, it stays, and passes
    /// calls on.
    fn unwrap(&self, number: c_int) {
        let found = self.domain(number);
        let [malloc, ..] = found.functions;
        let theirs = usize::try_from(number).ok().and_then(|domain| wrappers::originals_behind(domain, malloc));
        let theirs = theirs.or_else(|| watchers::originals_behind(malloc));
        if let Some(functions) = theirs {
            let theirs = Domain { functions, ..found };
            // SAFETY: the functions that the domain had, with their own context.
            unsafe { (self.set)(number, &raw const theirs) };
        }
    }

    /// Whether the wrappers are called first, as far as the domain shows that the interpreter itself never puts aside.
    fn has_ours(&self) -> bool {
        let [malloc, ..] = self.domain(OBJ).functions;
        wrappers::is_ours(malloc) || watchers::is_ours(malloc)
    }

    /// The first function of each domain.
    fn first_functions(&self) -> [usize; DOMAINS.len()] {
        DOMAINS.map(|number| self.domain(number).functions[0])
    }

    fn wrap_all(&self) {
        if are_wanted() {
            DOMAINS.iter().for_each(|number| self.wrap(*number));
        } else {
            self.look_after();
        }
    }

    /// Whether this thread runs Python: then the interpreter has chosen its allocators.
    fn runs_here(&self) -> bool {
        // SAFETY: reads this thread's slot.
        !unsafe { (self.thread_state)() }.is_null()
    }
}

/// # Safety
/// `F` must be the type of the function of this name.
unsafe fn symbol<F: Copy>(library: &Library, name: &CStr) -> Option<F> {
    if !is_defined(name) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
}

/// From now on the arenas of the interpreter that was found in `library` are known; traces its allocators, if this
/// capture is to have them.
pub(crate) fn interpreter_found(library: &Library) {
    arenas::interpreter_found(library);
    if let Some(interface) = Interface::of(library) {
        #[expect(clippy::disallowed_types, reason = "the interface is stored outside of hooks")]
        INTERFACE.store(Box::into_raw(Box::new(interface)), Release);
        start();
    }
}

fn interface() -> Option<&'static Interface> {
    // SAFETY: null, or set once to memory that is never freed.
    unsafe { INTERFACE.load(Acquire).as_ref() }
}

/// Traces the allocators of the interpreter that was found, if this capture is to have them, or watches them: puts the wrappers
/// in, and has them looked after until the interpreter has started. Call it outside of hooks.
pub(crate) fn start() {
    let Some(interface) = interface().filter(|_| are_wanted() || are_watched()) else { return };
    interface.wrap_all();
    note(interface);
    TRACING.store(true, Release);
    if let Some(area) = shared_area::area().filter(|_| are_wanted()) {
        area.control().python_allocators.store(TRACED, Release);
    }
    thread::before_events(watch);
    recording_switch::watch();
}

/// Takes the wrappers out; recording is off. Call it outside of hooks.
pub(crate) fn stop() {
    RESTS.store(false, Release);
    if TRACING.swap(false, AcqRel)
        && let Some(interface) = interface()
    {
        DOMAINS.iter().for_each(|number| interface.unwrap(*number));
    }
}

/// The first function of each domain, as they were when the wrappers had been put in, or were taken out for a rest.
static NOTED: [AtomicUsize; DOMAINS.len()] = [const { AtomicUsize::new(0) }; DOMAINS.len()];

/// Notes what the domains have now.
fn note(interface: &Interface) {
    NOTED.iter().zip(interface.first_functions()).for_each(|(noted, function)| noted.store(function, Release));
}

/// Whether the wrappers are out while the recording rests.
static RESTS: AtomicBool = AtomicBool::new(false);

/// The recording rests: takes the wrappers out, so that calls cost what they do without memtrack, unless somebody has wrapped them.
/// Call it outside of hooks.
pub(crate) fn rest() {
    let Some(interface) = interface().filter(|interface| are_traced() && is_as_noted(interface)) else { return };
    DOMAINS.iter().for_each(|number| interface.unwrap(*number));
    note(interface);
    RESTS.store(true, Release);
}

/// The recording goes on: puts the wrappers in again; `false`: the domains are not as they were left, so somebody has thrown the
/// wrappers out, wrapped them, or replaced what they wrap. Call it outside of hooks.
pub(crate) fn go_on() -> bool {
    let Some(interface) = interface().filter(|_| are_traced()) else { return true };
    if !is_as_noted(interface) {
        return false;
    }
    if RESTS.swap(false, AcqRel) {
        interface.wrap_all();
        note(interface);
    }
    true
}

fn is_as_noted(interface: &Interface) -> bool {
    interface.first_functions() == NOTED.each_ref().map(|noted| noted.load(Acquire))
}

/// Whether there are wrappers to look after.
pub(crate) fn are_traced() -> bool {
    TRACING.load(Acquire)
}

/// What each event does first until the interpreter has started: puts the wrappers back where they were thrown out.
/// Whether they were.
fn watch() -> bool {
    let Some(interface) = interface().filter(|_| are_traced()) else { return false };
    if interface.runs_here() {
        recording_switch::stop_watching();
        return false;
    }
    let were_out = !interface.has_ours() && !LOOKING.swap(true, AcqRel);
    if were_out {
        interface.wrap_all();
        note(interface);
        LOOKING.store(false, Release);
    }
    were_out
}
