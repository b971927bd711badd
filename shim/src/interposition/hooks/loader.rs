//! dlopen and dlsym: new objects are patched, and a looked-up name gives the same function as a linked one.
//!
//! Both functions answer differently for different callers, whom they know by their return address. Invariant: a lookup
//! that depends on the caller is made by the real function with the caller's own return address on the stack.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::interposition::got::{self, DlopenInProgress, Original, Scope};
use crate::interposition::hooks::dlopen_search;
use crate::interposition::hooks::trampoline::{answer_or_jump, jump_with_caller, jump_with_caller_if_zero};
use crate::interposition::python_allocators;
use crate::platform::arena;
use crate::platform::errno::Errno;
use crate::recording::thread;
use crate::stacks::{native, python};

pub(crate) use dlopen_search::DLOPEN;

type Dlmopen = unsafe extern "C" fn(libc::c_long, *const c_char, c_int) -> *mut c_void;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

pub(crate) static DLMOPEN: Original<Dlmopen> = Original::new();
pub(crate) static DLCLOSE: Original<unsafe extern "C" fn(*mut c_void) -> c_int> = Original::new();
pub(crate) static DLSYM: Original<Dlsym> = Original::new();
pub(crate) static DLVSYM: Original<Dlvsym> = Original::new();

/// Passes the caller's address on as a third argument.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    jump_with_caller!(dlopen_from)
}

/// In the base namespace this equals dlopen. Other namespaces have a C library of their own and are not hooked.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlmopen(namespace: libc::c_long, file: *const c_char, flags: c_int) -> *mut c_void {
    jump_with_caller_if_zero!(dlopen_from, DLMOPEN)
}

/// No guard is held: the constructors that run in here are the program's.
unsafe extern "C" fn dlopen_from(file: *const c_char, flags: c_int, caller: usize) -> *mut c_void {
    catch_up();
    let _in_progress = DlopenInProgress::begin(flags);
    // SAFETY: the caller's string, which ends in zero; null means the program itself.
    let name = (!file.is_null()).then(|| unsafe { CStr::from_ptr(file) });
    let handle = match name {
        Some(name) => dlopen_search::open_for(name, flags, caller),
        None => dlopen_search::open(std::ptr::null(), flags),
    };
    if name.is_some() && !handle.is_null() {
        let _errno = Errno::keep();
        patch(Some(Scope::opened(handle, flags)));
        if !arena::was_short() && python::after_dlopen(python_allocators::interpreter_found) {
            python::tell_collector();
        }
    }
    handle
}

/// What was unloaded is forgotten at the next dlopen, before anything new can be mistaken for it.
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: the caller's handle, for the function it meant. The destructors that run in here are the program's.
    let result = unsafe { DLCLOSE.get()(handle) };
    catch_up();
    result
}

/// Native frames need to know at once what was unloaded: its unwind tables are gone.
fn catch_up() {
    if native::is_on() {
        let _errno = Errno::keep();
        patch(None);
    }
}

/// Patches what came since the last time, unrecorded. Where the system has refused memory, recording has ended: what comes stays as it is, since
/// each look takes some more of a reserve that is not filled again.
fn patch(opened: Option<Scope>) {
    if !arena::was_short() && got::is_there_news() {
        let _guard = thread::enter();
        got::patch(opened);
    }
}

/// A lookup's result in the first register, and in the second whether it was made at all.
#[repr(C)]
struct LookupAnswer {
    address: usize,
    known: usize,
}

/// Asks [`answer`] first, then leaves the stack as it was and goes on into the real function.
macro_rules! looks_up {
    ($name:ident = $original:ident, $answer:ident) => {
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            answer_or_jump!($answer, $original)
        }
    };
}

looks_up!(dlsym = DLSYM, answer_dlsym);
looks_up!(dlvsym = DLVSYM, answer_dlvsym);

unsafe extern "C" fn answer_dlsym(handle: *mut c_void, name: *const c_char) -> LookupAnswer {
    // SAFETY: the caller's arguments, for the function it meant.
    answer(handle, name, || unsafe { DLSYM.get()(handle, name) })
}

unsafe extern "C" fn answer_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> LookupAnswer {
    // SAFETY: the caller's arguments, for the function it meant.
    answer(handle, name, || unsafe { DLVSYM.get()(handle, name, version) })
}

/// Answers lookups of hooked names that do not depend on the caller: with the hook, if the real result is its original
/// or already the hook.
fn answer(handle: *mut c_void, name: *const c_char, look_up: impl Fn() -> *mut c_void) -> LookupAnswer {
    let unknown = LookupAnswer { address: 0, known: 0 };
    if name.is_null() || handle == libc::RTLD_NEXT {
        return unknown;
    }
    // SAFETY: the caller's string, which ends in zero.
    let name = unsafe { CStr::from_ptr(name) };
    let scope = (handle != libc::RTLD_DEFAULT).then(|| Scope::opened(handle, 0));
    let Some((hook, original)) = got::hook_and_original(name.to_bytes(), scope) else {
        return unknown;
    };
    let address = look_up() as usize;
    let is_it = address != 0 && (address == original || address == hook.target());
    LookupAnswer { address: if is_it { hook.target() } else { address }, known: usize::from(is_it) }
}
