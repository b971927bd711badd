//! Programs that are started as children: posix_spawn, and the commands of system and popen.
//!
//! The C library starts a command's shell from within, where no hook is. So the command is made to set the variables
//! and to replace that shell by another one, which is recorded, and runs the caller's command.
//!
//! Invariant: where children are not recorded, every call is passed on as it is.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::child_environment::{self, with_child_environment};
use super::fork;
use super::preload_check;
use crate::interposition::got::Original;
use crate::platform::environment::ExecEnvironment;
use crate::platform::errno::Errno;

type SpawnFunction = unsafe extern "C" fn(usize, usize, usize, usize, usize, ExecEnvironment) -> c_int;
type System = unsafe extern "C" fn(*const c_char) -> c_int;
type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;

pub(super) static POSIX_SPAWN: Original<SpawnFunction> = Original::new();
pub(super) static POSIX_SPAWNP: Original<SpawnFunction> = Original::new();
pub(super) static SYSTEM: Original<System> = Original::new();
pub(super) static POPEN: Original<Popen> = Original::new();

/// Starts a child, with an environment in which it is recorded if it can load the library.
fn start(
    environment: ExecEnvironment,
    can_load: impl FnOnce() -> bool,
    start: impl FnOnce(ExecEnvironment) -> c_int,
) -> c_int {
    if !fork::is_followed() {
        return start(environment);
    }
    fork::expect_child();
    let error = if can_load() { with_child_environment(environment, start) } else { start(environment) };
    if error != 0 {
        fork::forget_child();
    }
    error
}

macro_rules! spawns {
    ($name:ident = $original:ident, $can_load:path) => {
        pub(super) unsafe extern "C" fn $name(
            pid: usize,
            path: usize,
            actions: usize,
            attributes: usize,
            arguments: usize,
            environment: ExecEnvironment,
        ) -> c_int {
            let real = $original.get();
            // SAFETY: the caller's arguments, with an environment that outlives the call.
            let spawn = |environment| unsafe { real(pid, path, actions, attributes, arguments, environment) };
            start(environment, || $can_load(path as _), spawn)
        }
    };
}

spawns!(posix_spawn = POSIX_SPAWN, preload_check::at);
spawns!(posix_spawnp = POSIX_SPAWNP, preload_check::named);

pub(super) unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let real = SYSTEM.get();
    // SAFETY: the caller's command, or one that does the same.
    with_command(command, |command| unsafe { real(command) }, |status| *status == -1)
}

pub(super) unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    let real = POPEN.get();
    // SAFETY: the caller's arguments, or a command that does the same.
    with_command(command, |command| unsafe { real(command, mode) }, |stream| stream.is_null())
}

/// What the first shell does: hands on its LD_PRELOAD, then runs the command in a shell that is recorded.
const FIRST: &[u8] = b"test -z \"${LD_PRELOAD+x}\" || export MEMTRACK_LD_PRELOAD=\"$LD_PRELOAD\"; export ";
const SECOND: &[u8] = b"\"${LD_PRELOAD:+:$LD_PRELOAD}\" ";
const LAST: &[u8] = b"; exec /bin/sh -c ";

/// Longest command that is wrapped: quoted, it is not longer than the system takes.
const LONGEST_COMMAND: usize = 24 * 1024;

/// Gives `run` a command that does what `command` does, in a shell that is recorded.
fn with_command<R>(command: *const c_char, run: impl FnOnce(*const c_char) -> R, failed: impl FnOnce(&R) -> bool) -> R {
    let variables = child_environment::variables().filter(|_| fork::is_followed() && !command.is_null());
    let Some([preload, socket]) = variables else { return run(command) };
    // SAFETY: the caller's string, which ends in zero.
    let text = unsafe { CStr::from_ptr(command) }.to_bytes();
    if text.len() > LONGEST_COMMAND {
        return run(command);
    }
    let Some(mut room) = CommandText::new(text.len().saturating_add(4096).saturating_mul(4)) else {
        return run(command);
    };
    room.add(FIRST);
    room.add_quoted(preload.to_bytes());
    room.add(SECOND);
    room.add_quoted(socket.to_bytes());
    room.add(LAST);
    room.add_quoted(text);
    fork::expect_child();
    // The memory ends in zeroes, more than were needed.
    let result = run(room.start.cast());
    if failed(&result) {
        fork::forget_child();
    }
    result
}

/// Bytes in a mapping of their own, all zero at first.
struct CommandText {
    start: *mut u8,
    size: usize,
    length: usize,
}

impl CommandText {
    fn new(size: usize) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let _errno = Errno::keep();
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| Self { start: start.cast(), size, length: 0 })
    }

    /// Appends what fits, leaving a zero at the end.
    fn add(&mut self, text: &[u8]) {
        for byte in text.iter().take(self.size.saturating_sub(self.length).saturating_sub(1)) {
            // SAFETY: below the mapping's size.
            let place = unsafe { self.start.add(self.length) };
            // SAFETY: in the mapping, which nobody else knows.
            unsafe { place.write(*byte) };
            self.length = self.length.wrapping_add(1);
        }
    }

    /// Appends it as one word of the shell; a variable's name and its `=` stay outside of the quotes.
    fn add_quoted(&mut self, text: &[u8]) {
        let name = text.iter().position(|byte| !byte.is_ascii_uppercase() && *byte != b'_');
        let (name, value) = match name {
            Some(end) if text.get(end) == Some(&b'=') => text.split_at_checked(end.wrapping_add(1)).unwrap_or_default(),
            _ => (&[][..], text),
        };
        self.add(name);
        self.add(b"'");
        for byte in value {
            match byte {
                b'\'' => self.add(b"'\\''"),
                byte => self.add(std::slice::from_ref(byte)),
            }
        }
        self.add(b"'");
    }
}

impl Drop for CommandText {
    fn drop(&mut self) {
        let _errno = Errno::keep();
        // SAFETY: exactly the mapping that was made.
        unsafe { libc::munmap(self.start.cast(), self.size) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use super::CommandText;
    use std::ffi::CStr;

    #[test]
    fn words_are_quoted() {
        let quoted = |text: &[u8]| {
            let mut room = CommandText::new(1000).unwrap();
            room.add_quoted(text);
            // SAFETY: the mapping ends in zeroes.
            unsafe { CStr::from_ptr(room.start.cast()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(quoted(b"echo 'a' \"$B\""), r#"'echo '\''a'\'' "$B"'"#);
        assert_eq!(quoted(b"LD_PRELOAD=/a b.so"), "LD_PRELOAD='/a b.so'");
    }
}
