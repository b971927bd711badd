//! Whether a process that has replaced its program runs on without memtrack's library: a static one, one with another user's
//! privileges, or one with another C library. Such a process never connects, and nobody else says so.
//!
//! Invariant: a program that only starts slowly, since it is stopped, traced or gets no processor, is not taken for one without the
//! library. Where it connects after all, it is recorded on.

use memtrack_transport::layout::{ControlPage, image};
use std::io::ErrorKind;
use std::sync::atomic::Ordering::Acquire;

use crate::system::process_handle::ProcessHandle;
use crate::system::process_stat::ProcessStat;
use crate::system::procfs;

/// Interval of looks, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// So many looks in a row have to find it running without the library. The loader maps that before anything else.
const LOOKS: u32 = 4;
/// In the names of memtrack's library and of the memory that is shared with a recorded process.
const OWN: &[u8] = b"memtrack";

/// Watches a process that replaces its program.
#[derive(Debug, Default)]
pub(crate) struct ExecWatch {
    next_ns: u64,
    found: u32,
    /// Its processor time at the last look, in ticks.
    used: Option<u64>,
}

/// What one look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecLook {
    /// The old program, or the new one with the library; or it cannot be told.
    Recordable,
    /// Neither the library nor the shared memory, but it is not known to run.
    Waiting,
    /// It runs, without the library.
    Unrecorded,
}

impl ExecWatch {
    /// Looks, if it is time; gives the new program once that is found to run without the library.
    pub(crate) fn look(&mut self, control: &ControlPage, handle: &ProcessHandle, pid: i32, now: u64) -> Option<String> {
        if control.image.load(Acquire) != image::IN_EXEC {
            *self = Self::default();
            return None;
        }
        if now < self.next_ns {
            return None;
        }
        self.next_ns = now.saturating_add(LOOK_NS);
        let found = self.found_now(pid);
        let is_it = self.note(found) && !handle.has_ended();
        is_it.then(|| program(pid))
    }

    /// Whether that was found often enough.
    fn note(&mut self, found: ExecLook) -> bool {
        match found {
            ExecLook::Recordable => self.found = 0,
            ExecLook::Waiting => {}
            ExecLook::Unrecorded => self.found += 1,
        }
        self.found >= LOOKS
    }

    fn found_now(&mut self, pid: i32) -> ExecLook {
        if !lacks_library(pid) {
            return ExecLook::Recordable;
        }
        let Some(stat) = ProcessStat::of(pid) else { return ExecLook::Waiting };
        let used = stat.processor_ticks();
        let before = std::mem::replace(&mut self.used, used);
        let has_run = before.zip(used).is_some_and(|(before, used)| used > before);
        if has_run || stat.sleeps() { ExecLook::Unrecorded } else { ExecLook::Waiting }
    }
}

/// Whether a process has nothing of memtrack's in its memory. One whose memory may not be looked at has another user's privileges, since
/// that of the program before it could be.
fn lacks_library(pid: i32) -> bool {
    match std::fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => !maps.is_empty() && !maps.split(|byte| *byte == b'\n').any(is_own),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// Whether this line of /proc/PID/maps is of a file of memtrack's, by the last part of its path.
fn is_own(line: &[u8]) -> bool {
    let Some(path) = line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]) else { return false };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.windows(OWN.len()).any(|part| part == OWN)
}

/// The program that a process runs, for the user.
fn program(pid: i32) -> String {
    let first = || procfs::command_line(pid).into_iter().next().filter(|word| !word.is_empty());
    let path = procfs::executable(pid).or_else(first);
    path.map_or_else(|| "another program".into(), |path| String::from_utf8_lossy(&path).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{ExecLook, ExecWatch, LOOKS, is_own, lacks_library};

    #[test]
    fn only_files_of_memtrack_are_its_own() {
        let line = |path: &str| format!("7f10-7f20 r--p 00000000 00:01 77    {path}").into_bytes();
        for path in ["/memfd:memtrack (deleted)", "/home/a b/libmemtrack_shim.so"] {
            assert!(is_own(&line(path)), "{path}");
        }
        for path in ["", "[heap]", "/srv/memtrack/server", "/lib/libc.so.6"] {
            assert!(!is_own(&line(path)), "{path}");
        }
    }

    #[test]
    fn a_program_that_only_starts_slowly_is_waited_for() {
        let mut watch = ExecWatch::default();
        for _ in 0..100 {
            assert!(!watch.note(ExecLook::Waiting));
        }
        for _ in 1..LOOKS {
            assert!(!watch.note(ExecLook::Unrecorded));
        }
        assert!(!watch.note(ExecLook::Recordable) && !watch.note(ExecLook::Unrecorded), "from the start again");
        assert_eq!((1..10).find(|_| watch.note(ExecLook::Unrecorded)), Some(LOOKS as i32 - 1));
    }

    #[test]
    fn a_stopped_program_is_not_known_to_run() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut watch = ExecWatch::default();
        let mut until = |wanted| {
            while watch.found_now(pid) != wanted {
                std::thread::yield_now();
            }
        };
        until(ExecLook::Unrecorded);
        // SAFETY: takes numbers only; the process is a child that was not waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        until(ExecLook::Waiting);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!lacks_library(i32::MAX));
    }
}
