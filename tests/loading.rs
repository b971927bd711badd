//! Libraries that are opened while the program runs, and the memory protection that patching must leave as it was.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::support::{Dir, ReportedTally, Stats};

/// How library.c is compiled.
const LIBRARY: [&str; 2] = ["-shared", "-fPIC"];
/// Where a name is looked for by memtrack first, the C library may keep 24 bytes for the error text of each thread.
const ERROR_TEXT: ReportedTally = ReportedTally { count: 1, bytes: 24 };

fn library(dir: &Dir, output: &str) -> PathBuf {
    dir.compile("library", output, &LIBRARY)
}

#[track_caller]
fn stats(dir: &Dir, arguments: &[&OsStr]) -> Stats {
    let run = dir.run(&dir.program("loading"), arguments);
    assert_eq!(run.outcome.status, 0, "{:?}", run.outcome);
    run.stats()
}

#[track_caller]
fn allocated_besides_error_text(stats: &Stats, expected: ReportedTally) {
    let malloc = stats.allocator("malloc");
    let with_text = ReportedTally::new(expected.count + ERROR_TEXT.count, expected.bytes + ERROR_TEXT.bytes);
    assert!(malloc == expected || malloc == with_text, "{malloc:?}");
}

#[test]
fn what_a_library_allocates_is_seen_however_often_it_comes_and_goes() {
    let dir = Dir::new();
    let (program, library) = (dir.program("loading"), library(&dir, "lib.so"));
    for (case, malloc, leaked) in [
        ("one", (3, 6000), (2, 3000)),
        ("again", (50 * 2, 50 * 1007), (100, 50 * 1007)),
        ("ten_thousand", (10_000, 10_000_000), (0, 0)),
        ("with_threads", (50 * 2, 50 * 1007), (100, 50 * 1007)),
    ] {
        let stats = dir.run(&program, [case.as_ref(), library.as_os_str()]).stats();
        assert_eq!((stats.allocator("malloc"), stats.leaked()), (malloc.into(), leaked.into()), "{case}");
    }
}

#[test]
fn four_hundred_libraries() {
    let dir = Dir::new();
    let library = library(&dir, "lib.so");
    for number in 0..400 {
        std::fs::copy(&library, dir.path(&format!("lib{number}.so"))).expect("a copy");
    }
    let stats = stats(&dir, &["four_hundred".as_ref(), dir.path(".").as_ref()]);
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(400 * 2, 400 * 3000));
}

#[test]
fn two_libraries_in_turn_at_one_place() {
    let dir = Dir::new();
    let (first, second) = (library(&dir, "first.so"), dir.compile("library", "second.so", &["-shared", "-fPIC"]));
    let stats = stats(&dir, &["in_turn".as_ref(), first.as_ref(), second.as_ref()]);
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(50, 50_000));
    assert_eq!(stats.leaked(), ReportedTally::new(50, 50_000));
}

#[test]
fn a_library_that_only_the_programs_runpath_finds() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("libs")).expect("a directory");
    library(&dir, "libs/liballocates.so");
    let program = dir.compile("loading", "loading", &["-pthread", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/libs"]);
    let stats = dir.run(&program, ["by_runpath", "liballocates.so"]).stats();
    allocated_besides_error_text(&stats, ReportedTally::new(1, 1000));
}

#[test]
fn a_library_that_only_the_runpath_of_another_library_finds() {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.path("a/b")).expect("a directory");
    library(&dir, "a/b/liballocates.so");
    let options = ["-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/b"];
    let middleman = dir.compile("middleman", "a/libmiddleman.so", &options);
    let stats = stats(&dir, &["by_librarys_runpath".as_ref(), middleman.as_ref(), "liballocates.so".as_ref()]);
    allocated_besides_error_text(&stats, ReportedTally::new(1, 1000));
}

#[test]
fn a_library_in_a_name_space_of_its_own_runs_unharmed() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("loading"), ["name_space".as_ref(), library(&dir, "lib.so").as_os_str()]);
    assert_eq!(run.outcome.stdout, "name_space done\n");
    // What is in the other name space may be seen or not; what is in the program's own is, once.
    let malloc = run.stats().allocator("malloc");
    assert!(malloc == ReportedTally::new(1, 11) || malloc == ReportedTally::new(2, 1011), "{malloc:?}");
}

#[test]
fn a_failing_dlopen_says_why() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("loading"), ["missing"]);
    assert!(run.outcome.stdout.contains("/no/such/library.so: cannot open"), "{:?}", run.outcome);
    let malloc = run.stats().allocator("malloc");
    assert!(malloc.bytes >= 13, "{malloc:?}");
}

/// The program prints the protection of its RELRO pages: as without memtrack, and read-only.
#[test]
fn relocated_pages_are_read_only_again_however_they_are_bound() {
    for binding in ["-Wl,-z,relro,-z,now", "-Wl,-z,relro,-z,lazy"] {
        let dir = Dir::new();
        let program = dir.compile("loading", "loading", &["-pthread", binding]);
        let library = dir.compile("library", "lib.so", &["-shared", "-fPIC", binding]);
        let run = dir.run(&program, ["relro".as_ref(), library.as_os_str()]);
        let pages: Vec<&str> = run.outcome.stdout.lines().filter(|line| line.contains(" page ")).collect();
        for object in ["program", "libc.so.6", "lib.so"] {
            assert!(pages.iter().any(|line| line.starts_with(object)), "{object}: {pages:?}");
        }
        assert!(pages.iter().all(|line| line.ends_with("r--p")), "{pages:?}");
        assert_eq!(run.stats().allocator("malloc"), ReportedTally::new(2, 1017));
    }
}
