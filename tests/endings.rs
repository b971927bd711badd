//! The ways in which a program can end: its status is passed on, and the capture has everything up to there.

use crate::support::{Dir, Outcome, ReportedTally};

#[test]
fn the_status_is_passed_on_and_everything_is_there() {
    let dir = Dir::new();
    let program = dir.program("processes");
    for (case, status) in [
        ("ends_exit", 23),
        ("ends_at_once", 24),
        ("ends_quickly", 25),
        ("ends_abort", 128 + libc::SIGABRT),
        ("ends_fault", 128 + libc::SIGSEGV),
        ("ends_term", 128 + libc::SIGTERM),
        ("ends_kill", 128 + libc::SIGKILL),
    ] {
        let run = dir.run(&program, [case]);
        assert_eq!(run.outcome.status, status, "{case}: {:?}", run.outcome);
        assert_eq!(run.stats().allocated(), ReportedTally::new(100_000, 1_600_000), "{case}");
    }
}

/// A process waits at its end until its resident memory was read.
#[test]
fn the_end_has_an_account() {
    let dir = Dir::new();
    let program = dir.program("processes");
    for case in ["ends_exit", "ends_at_once", "ends_quickly"] {
        let run = dir.run(&program, [case]);
        let mut command = dir.memtrack(["resident", "--json", "--at", "end"]);
        let said = Outcome::of(command.arg(&run.capture)).success();
        let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let live = report["classes"][0]["bytes"].as_u64();
        assert!(live.is_some_and(|live| live >= 1_600_000), "{case}: {report}");
    }
}

#[test]
fn exit_handlers_are_recorded() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("processes"), ["ends_atexit"]);
    // atexit's own table has room for 32 functions before the C library allocates more.
    assert_eq!(run.stats().allocated(), ReportedTally::new(110, 1700));
}
