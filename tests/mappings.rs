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

#[test]
fn a_mapping_grows() {
    let stats = mappings("grown");
    assert_eq!(stats.peak(), ReportedTally::new(1, 64 * MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 64 * MIB));
    assert_eq!(stats.allocator("mmap"), ReportedTally::new(1, 4 * MIB));
    assert_eq!(stats.allocator("mremap"), ReportedTally::new(1, 64 * MIB));
}

#[test]
fn a_mapping_shrinks() {
    let stats = mappings("shrunk");
    assert_eq!(stats.peak(), ReportedTally::new(1, 64 * MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 4 * MIB));
}

#[test]
fn a_mapping_that_is_moved_onto_another_replaces_it() {
    let stats = mappings("moved_onto_another");
    assert_eq!(stats.peak(), ReportedTally::new(2, 12 * MIB));
    // The 4 MiB that were moved, and the 4 MiB of the other one that they did not cover.
    assert_eq!(stats.leaked(), ReportedTally::new(2, 8 * MIB));
}

#[test]
fn mremap_that_fails_changes_nothing() {
    let stats = mappings("remap_fails");
    assert_eq!(stats.allocated(), ReportedTally::new(1, 8 * MIB));
    assert_eq!(stats.peak(), ReportedTally::new(1, 8 * MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 8 * MIB));
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
fn munmap_that_fails_changes_nothing() {
    let stats = mappings("unmap_fails");
    assert_eq!(stats.peak(), ReportedTally::new(1, 2 * MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 2 * MIB));
    assert_eq!(stats.number("/deallocations/count"), 0);
}

#[test]
fn a_mapping_loses_its_middle() {
    let stats = mappings("middle");
    assert_eq!(stats.peak(), ReportedTally::new(1, MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(1, MIB * 3 / 4));
    assert_eq!(stats.number("/deallocations/count"), 0);
}

#[test]
fn a_mapping_without_its_middle_is_unmapped_as_one() {
    let stats = mappings("middle_then_all");
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    assert_eq!(stats.number("/deallocations/count"), 1);
}

#[test]
fn one_munmap_ends_three_mappings() {
    let stats = mappings("across");
    assert_eq!(stats.allocated(), ReportedTally::new(3, 3 * MIB));
    assert_eq!(stats.peak(), ReportedTally::new(3, 3 * MIB));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    assert_eq!(stats.number("/deallocations/count"), 3);
}

#[test]
fn file_backed_and_shared_mappings_are_not_heap() {
    let stats = mappings("classes");
    assert_eq!(stats.allocated(), ReportedTally::new(1, 5 * MIB));
    assert_eq!(apart(&stats), [0, 3 * MIB, (17 + 2) * MIB]);
}

#[test]
fn four_functions_on_one_line_are_four_rows() {
    let mut rows = mappings("one_line").allocators();
    rows.sort();
    let expected = [("aligned_alloc", 4032), ("calloc", 2000), ("malloc", 1000), ("mmap", 4096)];
    assert_eq!(rows, expected.map(|(name, bytes)| (name.to_owned(), ReportedTally::new(1, bytes))));
}

#[test]
fn twenty_thousand_mappings() {
    let stats = mappings("many");
    assert_eq!(stats.allocated(), ReportedTally::new(20_000, 20_000 * 4096));
    assert_eq!(stats.peak(), ReportedTally::new(20_000, 20_000 * 4096));
    assert_eq!(stats.leaked(), ReportedTally::new(1, 4096));
    assert_eq!(stats.number("/deallocations/count"), 19_999);
}

#[test]
fn both_names_of_mmap() {
    assert_eq!(mappings("both_names").allocator("mmap"), ReportedTally::new(2, 3 * MIB));
}
