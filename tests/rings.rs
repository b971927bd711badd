//! The resident memory that the rings add to a program whose threads record faster than the collector drains: it has a bound,
//! threads wait for no other thread, and nothing is lost.

use crate::support::{Dir, ReportedTally};

#[track_caller]
fn record(options: &[&str], threads: u64, rounds: u64) {
    let dir = Dir::new();
    let program = dir.program("rings");
    let run = dir.run_with(options, &program, [threads.to_string(), rounds.to_string()]);
    assert_eq!(run.outcome.stdout, "done\n", "{threads} threads, {options:?}");
    let stats = run.stats();
    assert_eq!(stats.allocator("malloc").count, threads * rounds, "{options:?}");
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    assert_eq!(stats.number("/deallocations/count"), threads * rounds);
}

#[test]
fn few_threads_at_full_rate() {
    record(&[], 1, 2_000_000);
    record(&["--compress", "zstd:19"], 3, 200_000);
}

#[test]
fn many_threads_at_full_rate() {
    record(&[], 64, 40_000);
    record(&["--compress", "zstd:19"], 64, 8_000);
    record(&["--native", "--aggregate"], 64, 8_000);
}
