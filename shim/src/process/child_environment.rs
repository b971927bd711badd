//! The environment of programs that this process starts and that are to be recorded: the caller's, with the variables
//! that load the shim and name the collector's socket. The shim in the new program takes them out again, so that the
//! program sees what the caller wrote.
//!
//! It is built on the stack: most calls come from the child of a vfork, where allocated memory would leak in the
//! parent. Invariant: where it cannot be built, the environment is the caller's; the caller's strings are never written
//! to.

#![expect(clippy::disallowed_types, reason = "what is handed on is set at start-up")]

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

use memtrack_transport::handshake::{PRELOAD_VARIABLE, SOCKET_VARIABLE};

use crate::platform::environment::ExecEnvironment;
use crate::platform::errno::Errno;
use crate::platform::seccomp;

/// Longest environments, in variables: those that fit into the smaller arrays cost less of the stack.
const FEW: usize = 128;
const MANY: usize = 1024;
const MOST: usize = 8192;
/// Longest texts of LD_PRELOAD and its copy, together.
const PRELOAD_ROOM: usize = 8192;
const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// What is handed on; set when recording begins.
static INHERITED: AtomicPtr<InheritedVariables> = AtomicPtr::new(std::ptr::null_mut());

/// The variables that children inherit, each as `NAME=value`.
struct InheritedVariables {
    socket: CString,
    /// Of a program that has no LD_PRELOAD of its own.
    preload: CString,
}

/// Keeps what this process was given: the library and the socket by their paths.
pub(crate) fn keep(library: &[u8], socket: &[u8]) {
    let variable = |name: &[u8], value: &[u8]| CString::new([name, value].concat()).ok();
    let socket_name = [SOCKET_VARIABLE.as_bytes(), b"="].concat();
    let (Some(socket), Some(preload)) = (variable(&socket_name, socket), variable(PRELOAD, library)) else { return };
    if inherited().is_some_and(|known| known.socket == socket && known.preload == preload) {
        return;
    }
    // What was there stays: another thread may be starting a program with it.
    INHERITED.store(Box::leak(Box::new(InheritedVariables { socket, preload })), Release);
}

/// Hands nothing on.
pub(crate) fn forget() {
    // What was there stays, see above.
    INHERITED.store(std::ptr::null_mut(), Release);
}

fn inherited() -> Option<&'static InheritedVariables> {
    // SAFETY: null, or memory that is never freed.
    unsafe { INHERITED.load(Acquire).as_ref() }
}

/// What is handed on to programs that are started from here. `None` where they could not use it: the library is not to
/// be found in another root directory or by another user, or the program may not open sockets.
fn usable() -> Option<&'static InheritedVariables> {
    let inherited = inherited().filter(|_| !seccomp::has_seccomp_filter())?;
    let library = inherited.preload.to_bytes_with_nul().get(PRELOAD.len()..)?;
    let _errno = Errno::keep();
    // SAFETY: the end of a string that ends in zero.
    (unsafe { libc::access(library.as_ptr().cast(), libc::R_OK) } == 0).then_some(inherited)
}

/// The variables as they stand in a shell command: `LD_PRELOAD=…`, `MEMTRACK_SOCKET=…`.
pub(crate) fn variables() -> Option<[&'static CStr; 2]> {
    usable().map(|inherited| [inherited.preload.as_c_str(), inherited.socket.as_c_str()])
}

/// Calls `start` with the environment in which a program is recorded; with `environment` itself where there is none.
pub(crate) fn with_child_environment<R>(environment: ExecEnvironment, start: impl FnOnce(ExecEnvironment) -> R) -> R {
    let Some(inherited) = usable() else { return start(environment) };
    // Two variables and the null come to them.
    let needed = length(environment).saturating_add(3);
    if needed <= FEW {
        arrange::<FEW, R>(inherited, environment, start)
    } else if needed <= MANY {
        arrange::<MANY, R>(inherited, environment, start)
    } else if needed <= MOST {
        arrange::<MOST, R>(inherited, environment, start)
    } else {
        start(environment)
    }
}

#[inline(never)]
fn arrange<const ROOM: usize, R>(
    inherited: &InheritedVariables,
    environment: ExecEnvironment,
    start: impl FnOnce(ExecEnvironment) -> R,
) -> R {
    let mut array: [*const c_char; ROOM] = [std::ptr::null(); ROOM];
    let mut own = None;
    let mut from = environment;
    let mut count = 0;
    for (index, place) in array.iter_mut().enumerate() {
        let Some(entry) = next(&mut from) else { break };
        *place = entry.as_ptr();
        count = index.wrapping_add(1);
        if entry.to_bytes().starts_with(SOCKET_VARIABLE.as_bytes()) {
            // Another memtrack has seen to this program.
            return start(environment);
        }
        if own.is_none() && entry.to_bytes().starts_with(PRELOAD) {
            own = Some((index, entry));
        }
    }
    put(&mut array, count, inherited.socket.as_ptr());
    let last = count.wrapping_add(1);
    let Some((index, own)) = own else {
        put(&mut array, last, inherited.preload.as_ptr());
        return start(array.as_ptr());
    };
    with_both(inherited, own, |texts| {
        let Some((joined, kept)) = texts else { return start(environment) };
        put(&mut array, index, kept.as_ptr().cast());
        put(&mut array, last, joined.as_ptr().cast());
        start(array.as_ptr())
    })
}

fn put(array: &mut [*const c_char], index: usize, string: *const c_char) {
    if let Some(place) = array.get_mut(index) {
        *place = string;
    }
}

/// Makes `LD_PRELOAD=library:own` and `MEMTRACK_LD_PRELOAD=own` of `LD_PRELOAD=own`.
#[inline(never)]
fn with_both<R>(inherited: &InheritedVariables, own: &CStr, then: impl FnOnce(Option<(&[u8], &[u8])>) -> R) -> R {
    let mut room = [0; PRELOAD_ROOM];
    let value = own.to_bytes().get(PRELOAD.len()..).unwrap_or_default();
    let separator: &[u8] = if value.is_empty() { b"" } else { b":" };
    let joined = [inherited.preload.to_bytes(), separator, value, b"\0"];
    let kept = [PRELOAD_VARIABLE.as_bytes(), b"=", value, b"\0"];
    let end = joined.iter().map(|part| part.len()).sum();
    let mut bytes = room.iter_mut();
    for part in joined.iter().chain(&kept) {
        for byte in *part {
            let Some(place) = bytes.next() else { return then(None) };
            *place = *byte;
        }
    }
    then(room.split_at_checked(end))
}

/// The entry that `from` points to, which is moved on; `None` at the null, and for no environment at all.
fn next(from: &mut ExecEnvironment) -> Option<&'static CStr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: inside the caller's array, whose end is a null entry.
    let entry = unsafe { from.read() };
    if entry.is_null() {
        return None;
    }
    // SAFETY: not beyond the null.
    *from = unsafe { from.add(1) };
    // SAFETY: entries are strings that end in zero; the caller keeps them until the program has started.
    Some(unsafe { CStr::from_ptr(entry) })
}

fn length(mut environment: ExecEnvironment) -> usize {
    std::iter::from_fn(|| next(&mut environment)).count()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use super::{ExecEnvironment, keep, length, next, with_child_environment};
    use std::ffi::CString;

    fn handed_on(variables: &[String]) -> Vec<String> {
        let strings: Vec<CString> = variables.iter().map(|text| CString::new(text.as_str()).unwrap()).collect();
        let mut array: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        array.push(std::ptr::null());
        with_child_environment(array.as_ptr(), read)
    }

    fn read(mut environment: ExecEnvironment) -> Vec<String> {
        std::iter::from_fn(|| next(&mut environment)).map(|entry| entry.to_str().unwrap().to_owned()).collect()
    }

    /// One test, because the inherited variables are process-global.
    #[test]
    fn the_environment_is_the_callers_with_what_was_kept() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(handed_on(&texts(&["A=1"])), ["A=1"]);
        keep(b"/bin/sh", b"/dir/socket");
        assert_eq!(handed_on(&texts(&["A=1"])), ["A=1", "MEMTRACK_SOCKET=/dir/socket", "LD_PRELOAD=/bin/sh"]);
        assert_eq!(with_child_environment(std::ptr::null(), read).len(), 2);
        assert_eq!(
            handed_on(&texts(&["LD_PRELOAD=/a.so", "A=1"])),
            ["MEMTRACK_LD_PRELOAD=/a.so", "A=1", "MEMTRACK_SOCKET=/dir/socket", "LD_PRELOAD=/bin/sh:/a.so"]
        );
        let empty = handed_on(&texts(&["LD_PRELOAD="]));
        assert_eq!(empty, ["MEMTRACK_LD_PRELOAD=", "MEMTRACK_SOCKET=/dir/socket", "LD_PRELOAD=/bin/sh"]);
        let others = texts(&["MEMTRACK_SOCKET=/other", "LD_PRELOAD=/other.so"]);
        assert_eq!(handed_on(&others), others);
        let long = texts(&["A=1", &format!("LD_PRELOAD={}", "x".repeat(9000))]);
        assert_eq!(handed_on(&long), long);
        for count in [124, 125, 126, 127, 128, 1021, 1022, 8189] {
            let many: Vec<String> = (0..count).map(|number| format!("V{number}=x")).collect();
            let got = handed_on(&many);
            assert_eq!((&got[..count], got.len()), (&many[..], count + 2));
        }
        let many: Vec<String> = (0..8190).map(|number| format!("V{number}=x")).collect();
        assert_eq!(handed_on(&many), many);
        assert_eq!(length(std::ptr::null()), 0);
    }
}
