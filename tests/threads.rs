//! Several threads: one order for all of them, and every thread's own share.

use crate::support::{Dir, ReportedTally, Stats};

fn threads(case: &str) -> Stats {
    Dir::new().stats("threads", case)
}

/// Runs a case in which blocks go from thread to thread. Which thread gets which block is chance, so the program's two runs
/// may print different sums: only the tracked one counts.
fn wander(case: &str, options: &[&str], allocations: u64) {
    let dir = Dir::new();
    let program = dir.program("threads");
    let capture = dir.path("capture.bin");
    let mut command = dir.memtrack(["run", "--no-native", "-q"]);
    command.args(options).arg("-o").arg(&capture).arg("--").arg(program).arg(case);
    let stdout = crate::support::Outcome::of(&mut command).success();
    let (count, bytes) = stdout.lines().next().and_then(|line| line.split_once(' ')).expect("two numbers");
    let allocated = ReportedTally::new(count.parse().expect("a number"), bytes.parse().expect("a number"));
    assert_eq!(allocated.count, allocations);
    let stats = Stats::of(&capture);
    stats.is_whole();
    assert_eq!(stats.allocated(), allocated);
    assert_eq!(stats.number("/deallocations/count"), allocated.count);
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
}

#[test]
fn blocks_that_wander_between_threads_end_once() {
    wander("racing", &[], 500_000);
}

/// Threads that record at full rate share their places in the order, but not for blocks that wander.
#[test]
fn blocks_that_busy_threads_hand_over_end_once() {
    wander("handing", &[], 1_000_000);
    wander("handing", &["--allocation-timestamps"], 1_000_000);
}

#[test]
fn what_busy_threads_hold_at_a_barrier_is_the_peak() {
    assert_eq!(threads("holding").peak(), ReportedTally::new(40_000, 4_000_000));
}

#[test]
fn eight_threads_at_once_have_their_own_totals() {
    let stats = threads("known_totals");
    for index in 0..8 {
        let count = 1000 * (index + 1);
        assert_eq!(
            stats.thread(&format!("w{index}")),
            ReportedTally::new(count, count * (10 + index)),
            "thread {index}"
        );
    }
    assert_eq!(stats.allocator("malloc").count, 36_000);
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
}

#[test]
fn threads_have_their_last_names() {
    let stats = threads("names");
    assert_eq!(stats.thread("own-name"), ReportedTally::new(1, 101));
    assert_eq!(stats.thread("others-name"), ReportedTally::new(2, 103 + 107));
    assert_eq!(stats.thread("prctl-name"), ReportedTally::new(1, 109));
    assert_eq!(stats.thread("threads"), ReportedTally::new(1, 113));
    let tids = stats.0["threads"].as_array().expect("threads").iter().map(|row| row["tid"].as_u64());
    let mut tids: Vec<_> = tids.collect();
    tids.sort_unstable();
    tids.dedup();
    assert_eq!(tids.len(), 4, "{:?}", stats.0);
    assert!(tids.contains(&Some(stats.number("/capture/pid"))), "main's thread has the process's number: {tids:?}");
}

#[test]
fn three_thousand_brief_threads() {
    let stats = threads("many_brief");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(6000, 3000 * 110));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
}

#[test]
fn the_smallest_stack_is_enough() {
    let stats = threads("small_stack");
    assert_eq!(stats.allocator("realloc"), ReportedTally::new(10_000, 2_000_000));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
}

#[test]
fn a_thread_outlives_main() {
    let stats = threads("main_leaves");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(1001, 10_020));
}

/// The loader's tables of threads are not the program's memory, whatever way it takes to the C library's `free`.
#[test]
fn the_loaders_own_memory_is_not_seen() {
    let dir = Dir::new();
    for (name, options) in [("fixed", ["-pthread", "-no-pie", "-fno-pie"]), ("moved", ["-pthread", "-pie", "-fpie"])] {
        let (program, capture) = (dir.compile("stubs", name, &options), dir.path(name).with_extension("bin"));
        crate::support::Outcome::of(&mut dir.recording(&capture, &[program.as_os_str()])).success();
        let stats = Stats::of(&capture);
        stats.is_whole();
        assert_eq!(stats.number("/capture/unmatched_frees"), 0, "{name}");
        assert_eq!(stats.allocated(), ReportedTally::new(36, 36_000), "{name}");
    }
}
