//! The allocation functions of C: every call with its name and its size, and the ends of every block.

use crate::support::{Dir, ReportedTally, Stats};

fn heap(case: &str) -> Stats {
    Dir::new().stats("heap", case)
}

/// What a case of heap.c allocates and leaks, count and bytes, and how many of its blocks end.
type HeapCase = (&'static str, (u64, u64), (u64, u64), u64);

const CASES: [HeapCase; 10] = [
    ("realloc_zero", (10, 30_000_000), (0, 0), 10),
    // A realloc that fails leaves the block, which can be reallocated then.
    ("realloc_fails", (1, 1000), (1, 1000), 0),
    ("realloc_fails_then_works", (2, 3000), (0, 0), 2),
    ("every_failure", (0, 0), (0, 0), 0),
    // A block of no bytes is one, and freeing NULL is nothing.
    ("zero", (2, 0), (1, 0), 1),
    ("sized", (2, 228), (0, 0), 2),
    ("by_pointer", (2, 17 + 19), (1, 17), 1),
    // Constructors before main, destructors after it.
    ("constructor", (2, 12_345 + 54_321), (1, 54_321), 1),
    ("powers", (24, (1 << 24) - 1), (24, (1 << 24) - 1), 0),
    ("errno_stays", (100_000, 6_400_000), (0, 0), 100_000),
];

#[test]
fn every_block_begins_and_ends_once() {
    let dir = Dir::new();
    let program = dir.program("heap");
    for (case, allocated, leaked, ended) in CASES {
        let run = dir.run(&program, [case]);
        assert_eq!(run.outcome.status, 0, "{case}: {:?}", run.outcome);
        let stats = run.stats();
        let found = (stats.allocated(), stats.leaked(), stats.number("/deallocations/count"));
        assert_eq!(found, (allocated.into(), leaked.into(), ended), "{case}");
    }
}

/// Beside what the C library allocates for itself.
#[test]
fn calls_from_elsewhere_are_seen() {
    let dir = Dir::new();
    let program = dir.program("heap");
    for (case, malloc, leaked) in [
        ("inside_libc", (2, 100 + 50), (1, 50)),
        ("looked_up", (2, 7_000_000 + 13), (1, 7_000_000)),
        // By destructors of thread locals.
        ("thread_end", (8, 4 * 3000), (0, 0)),
    ] {
        let stats = dir.run(&program, [case]).stats();
        assert_eq!((stats.allocator("malloc"), stats.leaked()), (malloc.into(), leaked.into()), "{case}");
    }
}

#[test]
fn the_peak_of_a_block_that_is_reallocated() {
    assert_eq!(heap("realloc_zero").peak(), ReportedTally::new(1, 3_000_000));
    let stats = heap("realloc_fails_then_works");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(1, 1000));
    assert_eq!(stats.allocator("realloc"), ReportedTally::new(1, 2000));
    assert_eq!(stats.peak(), ReportedTally::new(1, 2000));
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
fn sizes_are_exact_and_in_their_bins() {
    let stats = heap("powers");
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
