//! Finds the interpreter in this process and decides whether its structures are known.
//!
//! It exists so that hooks need one load to know where they stand. Invariant: an interpreter is published whole, once,
//! and only after every check; symbols are looked up outside of hooks only.

use super::layout::{self, Layout};

use super::code_deaths;
use super::current_state::{Current, Getter};
use super::frame_sentinels;
use super::layout_check;
use super::thread_specific;
use super::thread_state_proof::Lease;
use crate::interposition::python_allocators;
use crate::platform::environment;
use crate::platform::symbol_tables::is_defined;
use libc::c_void;
use libloading::os::unix::Library;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::hint::cold_path;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// The first version whose evaluation loop may be built of tail calls.
const FIRST_WITH_TAIL_CALLS: u8 = 14;

/// What hooks need of a known interpreter.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) layout: &'static Layout,
    /// [`Layout::build`].
    pub(super) build: u8,
    pub(super) code_type: usize,
    pub(super) str_type: usize,
    /// Where the code of the function is that runs Python frames; empty when not known.
    evaluation: std::ops::Range<usize>,
    thread_state: thread_specific::Getter,
    current: Current,
}

impl Interpreter {
    /// The state that the calling thread runs, whether or not it holds the GIL; 0 when it has none, or when it is not
    /// certain.
    #[inline(always)]
    pub(super) fn own_thread_state(&self, lease: &mut Lease) -> usize {
        self.current.state(thread_specific::read(self.thread_state), lease)
    }

    /// The same, where neither the interpreter nor anything else needs to be asked.
    #[inline(always)]
    pub(super) fn own_thread_state_at_once(&self) -> Option<usize> {
        if !self.current.is_sole() {
            cold_path();
            return None;
        }
        thread_specific::read_at_once()
    }

    /// Whether the calling thread holds the GIL, `state` being its own.
    pub(super) fn is_attached(&self, state: usize) -> bool {
        self.current.is_attached(state)
    }

    /// Whether any state is attached to the calling thread, in versions in which each thread has its own (3.12 on).
    pub(super) fn is_any_attached(&self) -> bool {
        self.current.current() != 0
    }

    /// Makes sure that deaths of code objects are seen.
    pub(super) fn watch_deaths(&self) {
        // SAFETY: the type was checked before this interpreter was published.
        unsafe { code_deaths::watch(self.code_type.wrapping_add(self.layout.objects.deallocator())) };
    }
}

/// Why an interpreter's frames are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Unsupported {
    /// Not one of the versions 3.8 to 3.15, or a pre-release before the release candidates.
    Version = 1,
    /// Built with the interpreter's own debugging aids, which change its objects.
    DebugBuild = 2,
    /// Its structures are not those of its version.
    Contradiction = 3,
    /// A symbol that every build exports is missing.
    MissingSymbol = 4,
    /// Not CPython at all.
    PyPy = 5,
    /// A program called python that exports nothing of an interpreter.
    Hidden = 6,
}

impl Unsupported {
    const ALL: [Self; 6] =
        [Self::Version, Self::DebugBuild, Self::Contradiction, Self::MissingSymbol, Self::PyPy, Self::Hidden];

    /// A sentence for the person who runs memtrack.
    const fn text(self) -> &'static str {
        match self {
            Self::Version => "this version of Python is not known (known: 3.8 to 3.15)",
            Self::DebugBuild => "debug builds of Python are not supported",
            Self::Contradiction => "the interpreter's structures are not those of its version",
            Self::MissingSymbol => "the interpreter does not export the symbols that are needed",
            Self::PyPy => "this is PyPy; only the frames of CPython can be read",
            Self::Hidden => "the program is called python, but exports no CPython interpreter",
        }
    }

    /// What speaks against Python frames in a program in which no interpreter was found.
    fn without_interpreter() -> Option<Self> {
        if is_defined(c"pypy_main_startup") {
            return Some(Self::PyPy);
        }
        environment::program_name().starts_with(b"python").then_some(Self::Hidden)
    }
}

/// The published interpreter, null before.
static INTERPRETER: AtomicPtr<Interpreter> = AtomicPtr::new(null_mut());
/// Set while one thread looks; cleared again if it finds nothing.
static LOOKING: AtomicBool = AtomicBool::new(false);
/// The verdict on what was found, as a number of [`Unsupported`]; 0 for none.
static REASON: AtomicU8 = AtomicU8::new(0);
static VERSION: AtomicU32 = AtomicU32::new(0);
/// Stands for the interpreter's pointer as long as there is none.
static NOT_FINALIZING: AtomicUsize = AtomicUsize::new(0);
static FINALIZING: AtomicPtr<AtomicUsize> = AtomicPtr::new((&raw const NOT_FINALIZING).cast_mut());

/// The interpreter, if there is one whose frames can be read.
#[inline(always)]
pub(super) fn interpreter() -> Option<&'static Interpreter> {
    // SAFETY: null, or an interpreter that is never freed.
    unsafe { INTERPRETER.load(Ordering::Acquire).as_ref() }
}

/// The number of the interpreter's build, for `for_version`, if there is one whose frames can be read.
#[inline(always)]
pub(crate) fn build() -> Option<u8> {
    Some(interpreter()?.build)
}

#[inline(always)]
fn finalizing_state() -> usize {
    // SAFETY: the static above, or a word of the interpreter's runtime; both live as long as the process.
    unsafe { &*FINALIZING.load(Ordering::Relaxed) }.load(Ordering::Relaxed)
}

/// Whether the interpreter has begun to finalize. False where there is none.
#[inline(always)]
pub(crate) fn finalizing() -> bool {
    finalizing_state() != 0
}

/// Whether it is the calling thread that finalizes the interpreter.
pub(crate) fn finalizes_here() -> bool {
    let finalizing = finalizing_state();
    finalizing != 0 && interpreter().is_some_and(|python| thread_specific::read(python.thread_state) == finalizing)
}

/// Whether the interpreter is being finalized by a thread whose state is not `state`.
#[inline(always)]
pub(super) fn finalized_by_other(state: usize) -> bool {
    let finalizing = finalizing_state();
    if finalizing == 0 {
        return false;
    }
    cold_path();
    finalizing != state
}

/// The interpreter's version as `PY_VERSION_HEX`, whether or not its frames are read; 0 when none was found.
pub(crate) fn version_hex() -> u32 {
    VERSION.load(Ordering::Relaxed)
}

/// Why there are no Python frames although there is an interpreter, as a sentence.
pub(crate) fn reason() -> Option<&'static str> {
    let reason = REASON.load(Ordering::Relaxed);
    Unsupported::ALL.into_iter().find(|candidate| *candidate as u8 == reason).map(Unsupported::text)
}

/// Where the code of the function is that runs Python frames; empty when not known.
pub(crate) fn evaluation_loop() -> std::ops::Range<usize> {
    interpreter().map_or(0..0, |python| python.evaluation.clone())
}

/// Whether the evaluation loop is a function for each instruction, each of which ends with a jump to the next, behind one
/// that only enters the first.
pub(crate) fn evaluates_by_tail_calls() -> bool {
    /// In bytes. The function that enters has less than a kilobyte of code, a loop of all instructions dozens of them.
    const SHORT: usize = 1 << 13;
    interpreter().is_some_and(|python| {
        python.layout.minor >= FIRST_WITH_TAIL_CALLS && (1..SHORT).contains(&python.evaluation.len())
    })
}

/// Looks for an interpreter among the loaded objects. Call it outside of hooks, at start-up.
pub(crate) fn start() {
    if !look(Symbols::find) {
        REASON.store(Unsupported::without_interpreter().map_or(0, |reason| reason as u8), Ordering::Relaxed);
    }
}

/// Looks again after a dlopen, unless an interpreter was found before. Call it outside of hooks.
///
/// `true`: one was found just now. Asks only libraries with an interpreter's name, which costs less than asking all.
pub(crate) fn after_dlopen() -> bool {
    look(Symbols::of_local_libraries)
}

fn look(find: impl FnOnce() -> Option<Symbols>) -> bool {
    if LOOKING.swap(true, Ordering::AcqRel) {
        return false;
    }
    let found = find();
    if let Some(symbols) = &found {
        decide(symbols);
    }
    LOOKING.store(found.is_some(), Ordering::Release);
    found.is_some()
}

/// Publishes the interpreter or the reason against it.
fn decide(symbols: &Symbols) {
    let version = symbols.version();
    VERSION.store(version, Ordering::Relaxed);
    symbols.allocators.into_iter().for_each(python_allocators::trace);
    match known(symbols, version) {
        Ok((layout, thread_state)) => {
            REASON.store(0, Ordering::Relaxed);
            publish(symbols, layout, thread_state);
        }
        Err(reason) => REASON.store(reason as u8, Ordering::Relaxed),
    }
}

/// The layout for an interpreter that passes every check.
fn known(symbols: &Symbols, version: u32) -> Result<(&'static Layout, thread_specific::Getter), Unsupported> {
    const RELEASE_CANDIDATE: u32 = 0xc;
    let [major, minor, _, level] = version.to_be_bytes();
    // SAFETY: the runtime of that version.
    let is_free_threaded = unsafe { layout_check::is_free_threaded(minor, symbols.runtime) };
    let layout =
        layout::of(minor, is_free_threaded).filter(|_| major == 3 && u32::from(level >> 4) >= RELEASE_CANDIDATE);
    let layout = layout.ok_or(Unsupported::Version)?;
    let Symbols { runtime, code_type, type_type, str_type, bytes_type, frame_type, .. } = *symbols;
    let all_there = ![runtime, code_type, type_type, str_type, bytes_type, frame_type].contains(&0);
    let thread_state = symbols.thread_state.filter(|_| all_there).ok_or(Unsupported::MissingSymbol)?;
    // SAFETY: the symbols were found under CPython's names, in one object or scope.
    unsafe { layout_check::check(layout, symbols, version) }?;
    Ok((layout, thread_state))
}

fn publish(symbols: &Symbols, layout: &'static Layout, thread_state: thread_specific::Getter) {
    let Symbols { code_type, str_type, frame_type, runtime, current, .. } = *symbols;
    // SAFETY: the runtime and the function of a version that was checked.
    let current = unsafe { Current::new(layout.minor, runtime, frame_type, current) };
    let evaluation = crate::interposition::got::function_at(symbols.evaluation);
    let build = layout.build();
    let interpreter = Interpreter { layout, build, code_type, str_type, evaluation, thread_state, current };
    interpreter.watch_deaths();
    if !layout.marking.holds_for(symbols.version()) {
        frame_sentinels::forbid();
    }
    let finalizing = symbols.runtime.wrapping_add(layout.finalizing) as *mut AtomicUsize;
    FINALIZING.store(finalizing, Ordering::Relaxed);
    INTERPRETER.store(Box::into_raw(Box::new(interpreter)), Ordering::Release);
}

/// The interpreter's symbols: addresses, 0 where missing.
#[derive(Debug)]
pub(super) struct Symbols {
    pub(super) runtime: usize,
    pub(super) code_type: usize,
    pub(super) type_type: usize,
    pub(super) str_type: usize,
    pub(super) bytes_type: usize,
    pub(super) frame_type: usize,
    pub(super) is_debug_build: bool,
    evaluation: usize,
    version_number: *const u32,
    version_text: unsafe extern "C" fn() -> *const c_char,
    thread_state: Option<thread_specific::Getter>,
    current: Option<Getter>,
    /// Only where they are to be traced.
    allocators: Option<python_allocators::Interface>,
}

impl Symbols {
    /// The symbols of the global scope, else of a loaded library that was opened for its opener alone.
    fn find() -> Option<Self> {
        let global = Library::this();
        let found = Self::of(&global);
        // Closing has no use: the program itself stays.
        std::mem::forget(global);
        found.or_else(Self::of_local_libraries)
    }

    /// The symbols of the first loaded library that is an interpreter's.
    fn of_local_libraries() -> Option<Self> {
        local_libraries().iter().find_map(|name| Self::of_loaded(name))
    }

    /// The symbols of an object that is already loaded, which is then kept loaded.
    fn of_loaded(name: &OsStr) -> Option<Self> {
        // SAFETY: RTLD_NOLOAD runs no initialiser.
        let library = unsafe { Library::open(Some(name), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
        let found = Self::of(&library)?;
        std::mem::forget(library);
        Some(found)
    }

    fn of(library: &Library) -> Option<Self> {
        if !is_defined(c"Py_GetVersion") {
            return None;
        }
        let address = |name: &CStr| {
            if !is_defined(name) {
                return 0;
            }
            // SAFETY: only the address is taken, so the type does not matter.
            unsafe { library.get::<*const u8>(name) }.map_or(0, |symbol| symbol.as_raw_ptr() as usize)
        };
        // SAFETY: the documented type of this function in every version.
        let version_text = *unsafe { library.get::<unsafe extern "C" fn() -> *const c_char>(c"Py_GetVersion") }.ok()?;
        // SAFETY: as above.
        let thread_state = unsafe { library.get::<thread_specific::Getter>(c"PyGILState_GetThisThreadState") };
        Some(Self {
            runtime: address(c"_PyRuntime"),
            code_type: address(c"PyCode_Type"),
            type_type: address(c"PyType_Type"),
            str_type: address(c"PyUnicode_Type"),
            bytes_type: address(c"PyBytes_Type"),
            frame_type: address(c"PyFrame_Type"),
            is_debug_build: [c"_Py_NegativeRefcount", c"_Py_RefTotal"].iter().any(|name| address(name) != 0),
            evaluation: address(c"_PyEval_EvalFrameDefault"),
            version_number: address(c"Py_Version") as *const u32,
            version_text,
            thread_state: thread_state.ok().map(|symbol| *symbol),
            current: [c"_PyThreadState_UncheckedGet", c"PyThreadState_GetUnchecked"].iter().find_map(|name| {
                // SAFETY: the type of both.
                is_defined(name).then(|| unsafe { library.get::<Getter>(*name) })?.ok().map(|symbol| *symbol)
            }),
            allocators: python_allocators::are_wanted().then(|| python_allocators::Interface::of(library)).flatten(),
        })
    }

    /// `PY_VERSION_HEX`, from the constant where there is one (3.11 on), else from the text.
    fn version(&self) -> u32 {
        if !self.version_number.is_null() {
            // SAFETY: a constant of the interpreter.
            return unsafe { self.version_number.read() };
        }
        // SAFETY: callable without an initialised interpreter: it formats constants into a static buffer.
        let text = unsafe { (self.version_text)() };
        // SAFETY: the function gives a string that is never freed.
        parse_version(unsafe { CStr::from_ptr(text) }.to_bytes()).unwrap_or(0)
    }
}

/// Reads the version that a text like `3.9.18 (main, …)` or `3.10.0rc2+ (…)` begins with.
fn parse_version(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text.split(|byte| *byte == b' ').next()?).ok()?;
    let mut parts = text.splitn(3, '.');
    let (major, minor) = (parts.next()?.parse::<u8>().ok()?, parts.next()?.parse::<u8>().ok()?);
    let rest = parts.next()?;
    let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    let (micro, suffix) = rest.split_at_checked(end)?;
    let level = match suffix.as_bytes().first() {
        Some(b'a') => 0xa0,
        Some(b'b') => 0xb0,
        Some(b'r') => 0xc0,
        _ => 0xf0,
    };
    Some(u32::from_be_bytes([major, minor, micro.parse().ok()?, level]))
}

/// The names of loaded objects that look like the interpreter's library.
fn local_libraries() -> Vec<OsString> {
    let mut names: Vec<OsString> = Vec::new();
    // SAFETY: the callback below gets the pointer that is passed here, and does not outlive the call.
    unsafe { libc::dl_iterate_phdr(Some(note_library), (&raw mut names).cast()) };
    names
}

/// Notes one loaded object; for `dl_iterate_phdr`, under whose lock nothing may be opened.
unsafe extern "C" fn note_library(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
    // SAFETY: `local_libraries` passes its vector.
    let names = unsafe { &mut *names.cast::<Vec<OsString>>() };
    // SAFETY: the dynamic loader gives a valid record.
    let name = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: the loader's string, valid during the call.
        let name = unsafe { CStr::from_ptr(name) };
        let file = name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libpython3") {
            names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions_are_read_from_the_text() {
        assert_eq!(parse_version(b"3.9.18 (main, Nov  1 2026)"), Some(0x0309_12f0));
        assert_eq!(parse_version(b"3.10.0rc2+ (heads)"), Some(0x030a_00c0));
        assert_eq!(parse_version(b"3.8.0a1"), Some(0x0308_00a0));
        assert_eq!(parse_version(b"3.8"), None);
        assert_eq!(parse_version(b""), None);
    }
}
