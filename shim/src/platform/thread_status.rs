//! Whether a thread of this process waits in a system call, by `/proc/self/task/TID/syscall`.
//!
//! Invariant: a thread that may execute code of the process is never said to wait.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

const LONGEST_PATH: usize = 64;

/// Whether it does. `false` where it cannot be seen.
pub(crate) fn is_in_system_call(tid: i32) -> bool {
    let (mut path, mut first) = ([0; LONGEST_PATH], [0]);
    let Ok(()) = write!(&mut path[..], "/proc/self/task/{tid}/syscall") else { return false };
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let Ok(mut file) = File::open(OsStr::from_bytes(path)) else { return false };
    // The number of the call; `running`, or -1 where it waits for something else, as for a page.
    file.read(&mut first).is_ok_and(|length| length == 1) && first[0].is_ascii_digit()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::is_in_system_call;
    use crate::platform::own_ids;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Barrier};

    #[test]
    fn a_thread_that_waits_is_told_from_one_that_runs() {
        let (tell, tid) = channel();
        let barrier = Arc::new(Barrier::new(2));
        let theirs = Arc::clone(&barrier);
        let other = std::thread::spawn(move || {
            tell.send(own_ids::thread_id()).unwrap();
            theirs.wait();
        });
        let tid = tid.recv().unwrap();
        while !is_in_system_call(tid) {
            std::thread::yield_now();
        }
        assert!(!is_in_system_call(0) && !is_in_system_call(-1));
        barrier.wait();
        other.join().unwrap();
        assert!(!is_in_system_call(tid));
    }
}
