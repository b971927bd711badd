//! 1 to 1000 threads that allocate at once and free each other's blocks: counts are exact, no event stands before the one
//! that it follows, and no thread ever waits for another one that memtrack has interrupted.

use crate::support::{Dir, ReportedTally, Stats};

/// An address that is handed out again before its block was freed would be two live blocks, and an unmatched free later.
#[track_caller]
fn exchange(options: &[&str], threads: u64, rounds: u64) {
    let dir = Dir::new();
    let program = dir.program("crowds");
    let run = dir.run_with(options, &program, ["exchange".to_owned(), threads.to_string(), rounds.to_string()]);
    assert_eq!(run.outcome.stdout, "exchange done\n");
    let stats = run.stats();
    let blocks = threads * rounds;
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(blocks, 40 * blocks), "{options:?}");
    assert_eq!(
        (stats.number("/deallocations/count"), stats.leaked()),
        (blocks, ReportedTally::new(0, 0)),
        "{options:?}"
    );
    assert!(stats.peak().count <= 256 + threads, "more than the shelf and the threads hold: {:?}", stats.peak());
    let own: Vec<u64> = own_counts(&stats, rounds);
    assert_eq!(own.len() as u64, threads, "{options:?}: {own:?}");
}

/// What each thread has allocated, of those that have as much as they should.
fn own_counts(stats: &Stats, rounds: u64) -> Vec<u64> {
    let rows = stats.0["threads"].as_array().expect("threads").iter();
    rows.filter_map(|row| row["count"].as_u64()).filter(|count| *count == rounds).collect()
}

#[test]
fn one_thread() {
    exchange(&[], 1, 200_000);
}

#[test]
fn two_threads() {
    exchange(&[], 2, 200_000);
    exchange(&["--allocation-timestamps"], 2, 100_000);
}

#[test]
fn eight_threads() {
    exchange(&[], 8, 50_000);
    exchange(&["--native"], 8, 20_000);
}

#[test]
fn sixty_four_threads() {
    exchange(&[], 64, 5000);
    exchange(&["--aggregate"], 64, 2000);
}

#[test]
fn a_thousand_threads() {
    exchange(&[], 1000, 200);
}

/// Nothing that a thread is in the middle of keeps others waiting: there is no lock on the way of an allocation.
#[test]
fn a_thread_that_stands_still_in_the_middle_of_anything() {
    let stats = Dir::new().stats("crowds", "frozen");
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    let others = own_counts(&stats, 20_000);
    assert_eq!(others.len(), 600, "{}", stats.0);
}
