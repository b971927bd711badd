//! mmap, munmap and mremap: what is mapped at each moment, and as what it counts.

use crate::support::{Dir, ReportedTally, Stats};

const MIB: u64 = 1 << 20;

fn mappings(case: &str) -> Stats {
    Dir::new().stats("mappings", case)
}

/// Reserved, file-backed and shared bytes.
fn apart(stats: &Stats) -> [u64; 3] {
    ["reserved", "file", "shared"].map(|class| stats.number(&format!("/mappings/{class}_bytes")))
}

/// What a case of mappings.c holds at its peak and leaks, count and bytes, and how many of its mappings end.
type MappingCase = (&'static str, (u64, u64), (u64, u64), u64);

const CASES: [MappingCase; 9] = [
    ("grown", (1, 64 * MIB), (1, 64 * MIB), 1),
    ("shrunk", (1, 64 * MIB), (1, 4 * MIB), 1),
    // A mapping that is moved onto another replaces it: the 4 MiB that were moved, and the 4 MiB that they did not cover.
    ("moved_onto_another", (2, 12 * MIB), (2, 8 * MIB), 1),
    ("remap_fails", (1, 8 * MIB), (1, 8 * MIB), 0),
    ("unmap_fails", (1, 2 * MIB), (1, 2 * MIB), 0),
    ("middle", (1, MIB), (1, MIB * 3 / 4), 0),
    ("middle_then_all", (1, MIB), (0, 0), 1),
    ("across", (3, 3 * MIB), (0, 0), 3),
    ("many", (20_000, 20_000 * 4096), (1, 4096), 19_999),
];

#[test]
fn every_mapping_begins_and_ends_once() {
    let dir = Dir::new();
    let program = dir.program("mappings");
    for (case, peak, leaked, ended) in CASES {
        let run = dir.run(&program, [case]);
        assert_eq!(run.outcome.status, 0, "{case}: {:?}", run.outcome);
        let stats = run.stats();
        let found = (stats.peak(), stats.leaked(), stats.number("/deallocations/count"));
        assert_eq!(found, (peak.into(), leaked.into(), ended), "{case}");
        assert_eq!(stats.allocated().count, leaked.0 + ended, "{case}");
    }
}

#[test]
fn a_mapping_that_grows_is_of_both_functions() {
    let stats = mappings("grown");
    assert_eq!(stats.allocator("mmap"), ReportedTally::new(1, 4 * MIB));
    assert_eq!(stats.allocator("mremap"), ReportedTally::new(1, 64 * MIB));
}

#[test]
fn a_fixed_mapping_replaces_what_it_covers() {
    let stats = mappings("fixed_over_reserved");
    assert_eq!(stats.peak(), ReportedTally::new(1, 16 * MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 16 * MIB));
    assert_eq!(apart(&stats), [16 * MIB, 0, 0]);
}

#[test]
fn reserved_address_space_is_not_heap() {
    let stats = mappings("reservation");
    assert_eq!(stats.allocated(), ReportedTally::new(0, 0));
    assert_eq!(stats.peak(), ReportedTally::new(0, 0));
    assert_eq!(apart(&stats), [1024 * MIB, 0, 0]);
}

#[test]
fn file_backed_and_shared_mappings_are_not_heap() {
    let stats = mappings("classes");
    assert_eq!(stats.allocated(), ReportedTally::new(1, 5 * MIB));
    assert_eq!(apart(&stats), [0, 3 * MIB, (17 + 2) * MIB]);
}

/// A file on a disk is one however it is mapped; where the tests' files are in memory, they are shared memory.
#[test]
fn a_shared_mapping_of_a_file_on_a_disk_is_file_backed() {
    let dir = Dir::new();
    let program = dir.program("mappings");
    let told = std::process::Command::new("stat").args(["-f", "-c", "%T"]).arg(&program).output().expect("stat");
    let is_in_memory = told.stdout.starts_with(b"tmpfs");
    let stats = dir.run(&program, ["shared_file"]).stats();
    assert_eq!(apart(&stats), if is_in_memory { [0, 0, 4096] } else { [0, 4096, 0] });
}

#[test]
fn four_functions_on_one_line_are_four_rows() {
    let mut rows = mappings("one_line").allocators();
    rows.sort();
    let expected = [("aligned_alloc", 4032), ("calloc", 2000), ("malloc", 1000), ("mmap", 4096)];
    assert_eq!(rows, expected.map(|(name, bytes)| (name.to_owned(), ReportedTally::new(1, bytes))));
}

#[test]
fn both_names_of_mmap() {
    assert_eq!(mappings("both_names").allocator("mmap"), ReportedTally::new(2, 3 * MIB));
}
