//! The allocation functions of C: every call with its name and its size, and the ends of every block.

use crate::support::{Dir, ReportedTally, Stats};

fn heap(case: &str) -> Stats {
    Dir::new().stats("heap", case)
}

#[test]
fn realloc_to_zero_frees() {
    let stats = heap("realloc_zero");
    assert_eq!(stats.allocated(), ReportedTally::new(10, 30_000_000));
    assert_eq!(stats.peak(), ReportedTally::new(1, 3_000_000));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    assert_eq!(stats.number("/deallocations/count"), 10);
}

#[test]
fn realloc_that_fails_leaves_the_block() {
    let stats = heap("realloc_fails");
    assert_eq!(stats.allocated(), ReportedTally::new(1, 1000));
    assert_eq!(stats.peak(), ReportedTally::new(1, 1000));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 1000));
    assert_eq!(stats.number("/deallocations/count"), 0);
}

#[test]
fn a_block_that_realloc_failed_on_can_be_reallocated() {
    let stats = heap("realloc_fails_then_works");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(1, 1000));
    assert_eq!(stats.allocator("realloc"), ReportedTally::new(1, 2000));
    assert_eq!(stats.peak(), ReportedTally::new(1, 2000));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    assert_eq!(stats.number("/deallocations/count"), 2);
}

#[test]
fn every_function_has_its_name_and_the_size_that_was_asked_for() {
    let stats = heap("every_function");
    let mut allocators = stats.allocators();
    allocators.sort();
    let expected = [
        ("aligned_alloc", 1152),
        ("calloc", 1111),
        ("malloc", 1001),
        ("memalign", 1061),
        ("posix_memalign", 1049),
        ("pvalloc", 1069),
        ("realloc", 1013),
        ("reallocarray", 1030),
        ("valloc", 1063),
    ];
    assert_eq!(allocators, expected.map(|(name, bytes)| (name.to_owned(), ReportedTally::new(1, bytes))));
    assert_eq!(stats.leaked(), ReportedTally::new(9, 9549));
}

#[test]
fn calls_that_fail_allocate_nothing() {
    assert_eq!(heap("every_failure").allocated(), ReportedTally::new(0, 0));
}

#[test]
fn a_block_of_no_bytes_is_one_and_freeing_null_is_nothing() {
    let stats = heap("zero");
    assert_eq!(stats.allocated(), ReportedTally::new(2, 0));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 0));
    assert_eq!(stats.number("/deallocations/count"), 1);
}

#[test]
fn sized_frees_end_their_blocks() {
    let stats = heap("sized");
    assert_eq!(stats.allocated(), ReportedTally::new(2, 228));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
}

#[test]
fn calls_from_inside_the_c_library_are_seen() {
    let stats = heap("inside_libc");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(2, 100 + 50));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 50));
}

#[test]
fn calls_of_functions_that_were_looked_up_are_seen() {
    let stats = heap("looked_up");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(2, 7_000_000 + 13));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 7_000_000));
}

/// What its functions get from RTLD_NEXT are the C library's themselves, else each call would be counted twice. The linker
/// has bound the program's calls of its own functions for good; those of the C library lead to memtrack, then to them.
#[test]
fn a_program_with_allocation_functions_of_its_own() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("wrapper"), [""; 0]);
    assert_eq!(run.outcome.stdout, "1001 calls\n");
    let stats = run.stats();
    assert_eq!(stats.allocated(), ReportedTally::new(1, 26));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 26));
}

#[test]
fn calls_by_pointers_in_data_are_seen() {
    let stats = heap("by_pointer");
    assert_eq!(stats.allocated(), ReportedTally::new(2, 17 + 19));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 17));
}

#[test]
fn constructors_before_main_and_destructors_after_it_are_seen() {
    let stats = heap("constructor");
    assert_eq!(stats.allocated(), ReportedTally::new(2, 12345 + 54321));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 54321));
}

#[test]
fn blocks_freed_by_destructors_of_thread_locals_are_seen() {
    let stats = heap("thread_end");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(8, 4 * 3000));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
}

#[test]
fn sizes_are_exact_and_in_their_bins() {
    let stats = heap("powers");
    assert_eq!(stats.allocated(), ReportedTally::new(24, (1 << 24) - 1));
    let bins = stats.0["size_histogram"].as_array().expect("bins");
    for bit in 0..24_u64 {
        let size = 1 << bit;
        let holds = |bin: &&serde_json::Value| {
            bin["min_bytes"].as_u64() <= Some(size) && Some(size) <= bin["max_bytes"].as_u64()
        };
        assert_eq!(bins.iter().filter(holds).count(), 1, "{size}: {bins:?}");
    }
    assert_eq!(bins.iter().map(|bin| bin["count"].as_u64().expect("a count")).sum::<u64>(), 24);
}

#[test]
fn errno_stays_as_it_was() {
    assert_eq!(heap("errno_stays").allocated(), ReportedTally::new(100_000, 6_400_000));
}
