//! The symbols of the interpreter, looked for among the loaded objects.
//!
//! Invariant: symbols are looked up outside of hooks only, and a library in which they were found stays loaded.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "runs at start-up and in a dlopen only, outside of hooks"
)]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use libc::c_void;
use libloading::os::unix::Library;

use super::current_state::Getter;
use super::thread_specific;
use crate::platform::symbol_tables::is_defined;

/// What is called with the library, or the global scope, that an interpreter was found in.
pub(crate) type OnLibrary = fn(&Library);

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
    pub(super) evaluation: usize,
    version_number: *const u32,
    version_text: unsafe extern "C" fn() -> *const c_char,
    pub(super) thread_state: Option<thread_specific::SlotGetter>,
    pub(super) current: Option<Getter>,
}

impl Symbols {
    /// The symbols of the global scope, else of a loaded library that was opened for its opener alone.
    pub(super) fn find(found: OnLibrary) -> Option<Self> {
        let global = Library::this();
        let symbols = Self::of(&global, found);
        // Closing has no use: the program itself stays.
        std::mem::forget(global);
        symbols.or_else(|| Self::of_local_libraries(found))
    }

    /// The symbols of the first loaded library that is an interpreter's.
    pub(super) fn of_local_libraries(found: OnLibrary) -> Option<Self> {
        local_libraries().iter().find_map(|name| Self::of_loaded(name, found))
    }

    /// The symbols of an object that is already loaded, which is then kept loaded.
    fn of_loaded(name: &OsStr, found: OnLibrary) -> Option<Self> {
        // SAFETY: RTLD_NOLOAD runs no initialiser.
        let library = unsafe { Library::open(Some(name), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
        let symbols = Self::of(&library, found)?;
        std::mem::forget(library);
        Some(symbols)
    }

    fn of(library: &Library, found: OnLibrary) -> Option<Self> {
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
        // SAFETY: the documented type of this function in every version.
        let thread_state = unsafe { library.get::<thread_specific::SlotGetter>(c"PyGILState_GetThisThreadState") };
        found(library);
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
        })
    }

    /// `PY_VERSION_HEX`, from the constant where there is one (3.11 on), else from the text.
    pub(super) fn version(&self) -> u32 {
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
