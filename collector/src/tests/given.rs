//! Recordings of processes that share their memory, as a Tracker's program does.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use memtrack_transport::clock::monotonic_ns;

use super::{Medium, RecordingEnd, directory, start};

#[test]
fn a_recording_begins_before_its_program_may_write() {
    let (dir, medium, file) = (directory(), Medium::default(), memory_file());
    let collector = start(dir.path(), &medium);
    let pid = std::process::id().cast_signed();
    collector.expect_given(pid);
    let mut told = 0;
    let given = collector.give(pid, file.as_fd(), 0, &mut |_| told = monotonic_ns()).unwrap();
    assert!(given.is_some());
    collector.finish(RecordingEnd::Detached).unwrap();
    let began = medium.read().process.start.monotonic_ns.unwrap();
    assert!(began > 0 && began <= told, "it began {began}, and the program was told at {told}");
}

fn memory_file() -> OwnedFd {
    // SAFETY: a NUL-terminated name and valid flags.
    let file = unsafe { libc::memfd_create(c"memtrack".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(file >= 0);
    // SAFETY: a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(file) }
}
