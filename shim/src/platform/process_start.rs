//! Whether a process is the one that had a pid when it was started, by `/proc/PID/stat`.
//!
//! Invariant: another process that has the same pid by now, or has it in this container, is not taken for it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

/// Longer than the line of any process.
const LONGEST_LINE: usize = 2048;
const LONGEST_PATH: usize = 64;
/// Where fields stand behind the name of the program: the state, and when it was started.
const STATE: usize = 0;
const STARTED: usize = 19;

/// Whether the process that was started at this time, in clock ticks since the system was, is there and has not ended. `false` where it cannot be
/// seen from here.
pub(crate) fn is_there(pid: i32, started: u64) -> bool {
    let (mut path, mut line) = ([0; LONGEST_PATH], [0; LONGEST_LINE]);
    let Ok(()) = write!(&mut path[..], "/proc/{pid}/stat") else { return false };
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let Ok(mut file) = File::open(OsStr::from_bytes(path)) else { return false };
    file.read(&mut line).is_ok_and(|length| is_that(line.get(..length).unwrap_or_default(), started))
}

fn is_that(line: &[u8], started: u64) -> bool {
    // The name may contain anything.
    let Some(rest) = line.rsplit(|byte| *byte == b')').next().and_then(|rest| std::str::from_utf8(rest).ok()) else {
        return false;
    };
    let field = |number| rest.split_ascii_whitespace().nth(number);
    let is_alive = !matches!(field(STATE), None | Some("Z" | "X" | "x"));
    is_alive && field(STARTED).and_then(|text| text.parse().ok()) == Some(started)
}

#[cfg(test)]
mod tests {
    use super::{is_that, is_there};

    const REST: &str = "12 7 7 0 -1 4194560 1 0 0 0 1 0 0 0 20 0 1 0 4711 2 3";

    #[test]
    fn another_process_and_one_that_has_ended_are_not_taken_for_it() {
        let line = |state: &str| format!("7 (a) S 1) {state} {REST}");
        assert!(is_that(line("S").as_bytes(), 4711) && is_that(line("T").as_bytes(), 4711));
        assert!(!is_that(line("Z").as_bytes(), 4711) && !is_that(line("S").as_bytes(), 4712));
        assert!(!is_that(b"7 (a", 4711) && !is_that(b"", 0) && !is_that(b"7 (a) S 1", 0));
    }

    #[test]
    fn no_process_has_no_pid() {
        assert!(!is_there(0, 0) && !is_there(-1, 0));
    }
}
