//! Resident memory of programs that end right after they have grown: no look from outside comes in time for them, but the
//! kernel's own high-water mark is there.

use serde_json::Value;

use crate::support::{Dir, Stats};

/// What the program grows by.
const GROWS: u64 = 40_000_000;
/// A small program, and what the system counts inexactly.
const SMALL: u64 = 8_000_000;

/// The largest resident memory of a case of resident.c.
#[track_caller]
fn peak(case: &str, options: &[&str], status: i32) -> u64 {
    let dir = Dir::new();
    let program = dir.program("resident");
    let run = dir.run_with(options, &program, [case]);
    assert_eq!(run.outcome.status, status, "{run:?}");
    Stats::of(&run.capture).number("/rss/peak_bytes")
}

#[track_caller]
fn has_grown(case: &str, options: &[&str], status: i32) {
    let peak = peak(case, options, status);
    assert!((GROWS..GROWS + SMALL).contains(&peak), "{case} {options:?}: {peak}");
}

#[test]
fn a_program_that_ends_at_its_peak() {
    for options in [[].as_slice(), &["--aggregate"], &["--native"], &["--snapshot-interval", "1000"]] {
        has_grown("ends", options, 0);
    }
}

#[test]
fn a_program_that_ends_after_its_peak() {
    has_grown("shrinks", &["--snapshot-interval", "1000"], 0);
}

#[test]
fn a_program_that_is_killed_at_its_peak() {
    has_grown("killed", &["--snapshot-interval", "1000"], 137);
}

#[test]
fn a_childs_memory_is_not_its_parents() {
    let peak = peak("child", &[], 0);
    assert!(peak < SMALL, "{peak}");
}

/// Whatever the machine is busy with: it was looked at before it began.
#[test]
fn a_program_that_does_nothing_has_resident_memory() {
    let dir = Dir::new();
    let program = dir.program("resident");
    for _ in 0..10 {
        let capture = dir.path("capture.bin");
        let _ = std::fs::remove_file(&capture);
        crate::support::Outcome::of(&mut dir.recording(&capture, &[program.as_os_str(), "nothing".as_ref()])).success();
        let rss = Stats::of(&capture).0["rss"].clone();
        assert!(rss["peak_bytes"].as_u64().is_some_and(|bytes| (100_000..SMALL).contains(&bytes)), "{rss}");
        assert_ne!(rss["last_bytes"], Value::Null);
    }
}
