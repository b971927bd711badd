//! The environment: what memtrack put there is read and variables out before the program can see it.
//!
//! Invariant: after [`take`], `environ` is what the user's shell would have given the program.

use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_transport::handshake::{DORMANT_VARIABLE, PID_DIGITS, PID_VARIABLES, PRELOAD_VARIABLE, SOCKET_VARIABLE};

/// An environment as exec functions take it: strings up to a null.
pub(crate) type ExecEnvironment = *const *const c_char;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// What was found in the environment; the strings live as long as the process.
#[derive(Debug, Default)]
pub(crate) struct MemtrackVariables {
    /// Path of the collector's socket.
    pub(crate) socket: Option<&'static [u8]>,
    /// Nothing is to be done before memtrack asks for it.
    pub(crate) is_dormant: bool,
    /// Path of this library, as the loader was given it.
    pub(crate) library: Option<&'static [u8]>,
    /// `PYTHONMALLOC`, which stays.
    pub(crate) python_malloc: Option<&'static [u8]>,
    /// The file of `scripts/verify-marks`, which stays.
    #[cfg(feature = "verify-marks")]
    pub(crate) counts: Option<&'static CStr>,
}

/// Whether the C library has set the program's pointer to its environment, which it does in its constructor.
pub(crate) fn is_set_up() -> bool {
    !current().is_null()
}

/// What the program was called as; null before [`note_name`].
static NAME: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Notes the first of the program's arguments. The C library does not know them yet.
pub(crate) fn note_name(arguments: *const *const c_char) {
    if !arguments.is_null() {
        // SAFETY: the loader's array has a null at its end, if nothing else.
        NAME.store(unsafe { arguments.read() }.cast_mut(), Relaxed);
    }
}

/// What the program was called as, without a directory; empty if it is not known.
pub(crate) fn program_name() -> &'static [u8] {
    let name = NAME.load(Relaxed);
    // SAFETY: the first of the program's arguments, which live as long as the process.
    let name = if name.is_null() { &[] } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    name.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Whether memtrack has put something there. Where it has not, the library was loaded into a running program, or by
/// somebody else: then nothing is touched.
pub(crate) fn has_memtrack_variables(loaders: ExecEnvironment) -> bool {
    let mut from = if is_set_up() { current() } else { loaders }.cast_mut().cast::<*mut c_char>();
    let is_ours = |text| value(text, SOCKET_VARIABLE).or_else(|| value(text, DORMANT_VARIABLE)).is_some();
    while !from.is_null()
        && let Some((_, text)) = entry(from)
    {
        if is_ours(text) {
            return true;
        }
        // SAFETY: not beyond the null that ends the array.
        from = unsafe { from.add(1) };
    }
    false
}

/// Reads memtrack's variables and removes them; puts LD_PRELOAD back to what it was. Before the C library is set up, the
/// environment is the one that the loader has got.
pub(crate) fn take(loaders: ExecEnvironment) -> MemtrackVariables {
    let mut variables = MemtrackVariables::default();
    let mut from = if is_set_up() { current() } else { loaders }.cast_mut().cast::<*mut c_char>();
    if from.is_null() {
        return variables;
    }
    let mut to = from;
    while let Some((entry, text)) = entry(from) {
        // SAFETY: not beyond the null that ends the array.
        from = unsafe { from.add(1) };
        if let Some(kept) = keep(entry, text, &mut variables) {
            // SAFETY: `to` never passes `from`.
            unsafe { to.write(kept) };
            // SAFETY: `to` was not beyond `from`, which has moved on.
            to = unsafe { to.add(1) };
        }
    }
    // SAFETY: `to` is at or before the null that ended the array.
    unsafe { to.write(std::ptr::null_mut()) };
    variables
}

/// The program's environment as it is now.
pub(crate) fn current() -> ExecEnvironment {
    // SAFETY: the program's own pointer, which it may change only while no other thread reads it.
    unsafe { environ }.cast_const().cast()
}

fn entry(at: *mut *mut c_char) -> Option<(*mut c_char, &'static [u8])> {
    // SAFETY: inside the array, whose end is a null entry.
    let entry = unsafe { at.read() };
    if entry.is_null() {
        return None;
    }
    // SAFETY: entries are NUL-terminated strings that live as long as the process.
    Some((entry, unsafe { CStr::from_ptr(entry) }.to_bytes()))
}

/// The entry that stands in place of this one; `None`: none does.
fn keep(entry: *mut c_char, text: &'static [u8], variables: &mut MemtrackVariables) -> Option<*mut c_char> {
    if let Some(socket) = value(text, SOCKET_VARIABLE) {
        variables.socket = Some(socket);
        return None;
    }
    if value(text, DORMANT_VARIABLE).is_some() {
        variables.is_dormant = true;
        return None;
    }
    if let Some(python_malloc) = value(text, "PYTHONMALLOC") {
        variables.python_malloc = Some(python_malloc);
    }
    #[cfg(feature = "verify-marks")]
    if let Some(file) = value(text, "MEMTRACK_VERIFY_MARKS") {
        // SAFETY: the end of a string.
        variables.counts = Some(unsafe { CStr::from_ptr(file.as_ptr().cast()) });
    }
    if let Some(libraries) = value(text, "LD_PRELOAD") {
        variables.library = libraries.split(|byte| matches!(byte, b':' | b' ')).next();
        return None;
    }
    if let Some(place) = PID_VARIABLES.iter().find_map(|name| value(text, name)).filter(|place| is_recorder(place)) {
        // SAFETY: within the string.
        let to = unsafe { entry.add(text.len() - place.len()) };
        // SAFETY: the end of the string, which is writable and has as many digits.
        unsafe { write_pid(to) };
    }
    if value(text, PRELOAD_VARIABLE).is_some() {
        // "MEMTRACK_LD_PRELOAD=x" becomes "LD_PRELOAD=x".
        // SAFETY: the prefix is part of the string.
        return Some(unsafe { entry.add(PRELOAD_VARIABLE.len() - "LD_PRELOAD".len()) });
    }
    Some(entry)
}

/// Whether it is the place that memtrack has made in a variable that named it: its children are not named so.
fn is_recorder(place: &[u8]) -> bool {
    if place.len() != PID_DIGITS || !place.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let number = place.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    // SAFETY: no arguments, cannot fail.
    i32::try_from(number) == Ok(unsafe { libc::getppid() })
}

/// Writes this process's id and the end of the string.
///
/// # Safety
/// There is room for [`PID_DIGITS`] and the end.
unsafe fn write_pid(to: *mut c_char) {
    // SAFETY: no arguments, cannot fail.
    let pid = unsafe { libc::getpid() }.unsigned_abs();
    let from_each_place = (0..PID_DIGITS as u32).rev().map(|place| pid / 10_u32.pow(place));
    let digits = from_each_place.skip_while(|rest| *rest == 0).map(|rest| b'0' + (rest % 10) as u8);
    for (at, digit) in digits.chain([0]).enumerate() {
        // SAFETY: at most the digits and the end, for which there is room.
        let to = unsafe { to.add(at) }.cast::<u8>();
        // SAFETY: as above.
        unsafe { to.write(digit) };
    }
}

fn value(text: &'static [u8], name: &str) -> Option<&'static [u8]> {
    text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}
