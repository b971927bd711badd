//! The ways in which a program can end: its status is passed on, and the capture has everything up to there.

use crate::support::{Dir, ReportedTally};

#[track_caller]
fn ends(case: &str, status: i32, allocated: ReportedTally) {
    let dir = Dir::new();
    let run = dir.run(&dir.program("processes"), [case]);
    assert_eq!(run.outcome.status, status, "{:?}", run.outcome);
    assert_eq!(run.stats().allocated(), allocated);
}

const WHOLE: ReportedTally = ReportedTally { count: 100_000, bytes: 1_600_000 };

#[test]
fn exit() {
    ends("ends_exit", 23, WHOLE);
}

#[test]
fn immediate_exit() {
    ends("ends_at_once", 24, WHOLE);
}

#[test]
fn abort() {
    ends("ends_abort", 128 + libc::SIGABRT, WHOLE);
}

#[test]
fn segmentation_fault() {
    ends("ends_fault", 128 + libc::SIGSEGV, WHOLE);
}

#[test]
fn termination_by_its_own_hand() {
    ends("ends_term", 128 + libc::SIGTERM, WHOLE);
}

#[test]
fn kill_by_its_own_hand() {
    ends("ends_kill", 128 + libc::SIGKILL, WHOLE);
}

#[test]
fn exit_handlers_are_recorded() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("processes"), ["ends_atexit"]);
    // atexit's own table has room for 32 functions before the C library allocates more.
    assert_eq!(run.stats().allocated(), ReportedTally::new(110, 1700));
}
