//! Calls for memory that fail: they are counted with their place, and change nothing else.

use serde_json::{Value, json};

use crate::support::{Dir, Outcome, ReportedTally, Stats};

const HUGE: u64 = 1 << 46;

fn failed(stats: &Stats) -> ReportedTally {
    ReportedTally::new(stats.number("/failed_allocations/count"), stats.number("/failed_allocations/bytes"))
}

#[test]
fn every_function_that_fails_is_counted_once() {
    let dir = Dir::new();
    let program = dir.program("failed");
    for options in [&[][..], &["--allocation-timestamps"], &["--aggregate"], &["--native"]] {
        let stats = dir.run_with(options, &program, ["fails"]).stats();
        assert_eq!(failed(&stats), ReportedTally::new(5, (1 + 2 + 3 + 4 + 5) * HUGE), "{options:?}");
        assert_eq!(stats.number("/failed_allocations/largest/bytes"), 5 * HUGE);
        assert_eq!(stats.0["failed_allocations"]["largest"]["allocator"], "mmap");
        // The block that was not moved, and nothing else.
        assert_eq!(
            (stats.allocated(), stats.leaked()),
            (ReportedTally::new(1, 1000), ReportedTally::new(1, 1000)),
            "{options:?}"
        );
        if options == ["--native"] {
            assert_eq!(stats.0["failed_allocations"]["largest"]["function"], "fails");
        }
    }
}

#[test]
fn a_call_with_wrong_arguments_has_not_failed_for_want_of_memory() {
    let dir = Dir::new();
    let stats = dir.stats("failed", "is_wrong");
    assert_eq!(stats.0["failed_allocations"], json!({"count": 0, "bytes": 0, "largest": Value::Null}));
}

/// `operator new` tries again by other functions before it throws.
#[test]
fn what_new_is_refused_is_counted_once() {
    let dir = Dir::new();
    let Some(program) = dir.compile_cpp("failed_new.cc", &[]) else { return };
    let run = dir.run(&program, [""; 0]);
    assert_eq!(run.outcome.stdout, "bad_alloc\n1\n1\n");
    assert_eq!(failed(&run.stats()), ReportedTally::new(3, 3 << 45));
}

#[test]
fn the_last_lines_name_the_largest_and_the_limit() {
    let dir = Dir::new();
    let mut command = dir.shell("ulimit -v 4000000; exec \"$0\" run -o capture.bin -- \"$@\"");
    let outcome = Outcome::of(command.arg(dir.program("failed")).arg("fails"));
    let said = &outcome.stderr;
    assert!(said.contains("  failed      352 TB in fails at ") && said.contains(", the largest of 5\n"), "{said}");
    assert!(said.contains("  limit       address space limit (ulimit -v) 4.10 GB\n"), "{said}");
    assert!(!said.contains("no symbols for"), "{said}");
}

#[test]
fn the_limit_behind_a_signal_is_named() {
    let script = "ulimit -S -t 1; exec \"$0\" run -o capture.bin -- sh -c 'while :; do :; done'";
    let outcome = Outcome::of(&mut Dir::new().shell(script));
    let expected = "ended by signal 24 (SIGXCPU: CPU time limit (ulimit -t) of 1 s)";
    assert!(outcome.stderr.contains(expected), "{outcome:?}");
}

#[test]
fn a_capture_that_the_program_removed_is_said_to_be_gone() {
    let dir = Dir::new();
    let outcome = Outcome::of(&mut dir.memtrack(["run", "-o", "capture.bin", "--", "rm", "capture.bin"]));
    assert_eq!(outcome.status, 0);
    let said = &outcome.stderr;
    assert!(
        said.contains("memtrack: the capture capture.bin was deleted while the program ran") && !said.contains("0 B"),
        "{said}"
    );
}
