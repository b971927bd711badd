//! What runs while a library is being loaded: constructors, at the program's start and inside of dlopen, and what their
//! destructors give back.
//!
//! Invariant: every block is seen when it comes and when it goes, by whichever way the library came.

use std::path::{Path, PathBuf};

use crate::support::{Dir, PairedRun, ParsedStacks, ReportedTally, Stats};

/// What the constructor of constructs.c allocates, by allocator.
const CALLS: [(&str, u64, u64); 4] = [("malloc", 11, 15), ("calloc", 1, 2), ("realloc", 2, 4), ("mmap", 1, 16)];

/// The library whose sizes begin at `base`, with further options.
fn library(dir: &Dir, output: &str, base: u64, options: &[&str]) -> PathBuf {
    let base = format!("-DBASE={base}ul");
    dir.compile("constructs", output, &[["-shared", "-fPIC", "-pthread", &base].as_slice(), options].concat())
}

/// That these constructors were seen, each call of them, and nothing else; and that their destructors were.
#[track_caller]
fn are_seen(stats: &Stats, bases: &[u64]) {
    for (allocator, count, bytes) in CALLS {
        // The ten blocks of malloc's have from 0 to 9 bytes more.
        let more = if allocator == "malloc" { 45 } else { 0 };
        let bytes = bases.iter().map(|base| base * bytes + more).sum();
        let expected = ReportedTally::new(count * bases.len() as u64, bytes);
        assert_eq!(stats.allocator(allocator), expected, "{allocator}");
    }
    assert_eq!(stats.leaked(), ReportedTally::default());
}

#[track_caller]
fn run(dir: &Dir, program: &Path, arguments: &[&str]) -> PairedRun {
    let run = dir.run(program, arguments);
    assert_eq!(run.outcome.status, 0, "{:?}", run.outcome);
    run
}

#[test]
fn constructors_inside_dlopen_however_it_is_called() {
    let dir = Dir::new();
    let (program, library) = (dir.program("loading"), library(&dir, "lib.so", 1000, &[]));
    for flags in ["now", "lazy", "deep", "global"] {
        let run = run(&dir, &program, &["close_again", library.to_str().expect("a path"), flags]);
        are_seen(&run.stats(), &[1000]);
    }
}

/// Their dlopen has not returned, and its objects are no modules of the process's yet.
#[test]
fn stacks_of_constructors_inside_dlopen_are_whole() {
    let dir = Dir::new();
    let options = ["-O1", "-fno-optimize-sibling-calls"];
    let (program, library) = (dir.program("loading"), library(&dir, "lib.so", 1000, &options));
    let run = dir.run_with(&["--native"], &program, ["close_again".as_ref(), library.as_os_str(), "now".as_ref()]);
    assert_eq!(run.stats().number("/capture/truncated_stacks"), 0);
    let stacks = ParsedStacks::of(&run.capture);
    let functions = |size| stacks.functions(stacks.block(size));
    for size in [1001, 1002, 1009, 3000] {
        let functions = functions(size);
        assert_eq!(functions[0], "construct", "{functions:?}");
        assert!(functions.contains(&"main"), "{functions:?}");
    }
    // Of its thread.
    assert_eq!(functions(5000)[0], "allocate", "{:?}", functions(5000));
}

#[test]
fn constructors_of_libraries_that_the_opened_one_needs() {
    let dir = Dir::new();
    let needs = ["-Wl,-rpath,$ORIGIN", "-L."];
    let third = library(&dir, "libthird.so", 3000, &["-DNAME=third"]);
    let options = [needs.as_slice(), &["-DNAME=second", "-DTHEN=third", third.to_str().expect("a path")]].concat();
    let second = library(&dir, "libsecond.so", 2000, &options);
    let options = [needs.as_slice(), &["-DTHEN=second", second.to_str().expect("a path")]].concat();
    let first = library(&dir, "libfirst.so", 1000, &options);
    for flags in ["now", "lazy", "deep"] {
        let arguments = ["close_again", first.to_str().expect("a path"), flags];
        are_seen(&run(&dir, &dir.program("loading"), &arguments).stats(), &[1000, 2000, 3000]);
    }
}

/// Bound lazily, bound at once, and at a fixed address. The program's destructors, which run when it ends, are those of its
/// libraries.
#[test]
fn constructors_of_libraries_that_the_program_is_linked_with() {
    for options in [&[][..], &["-Wl,-z,now,-z,relro"], &["-no-pie", "-fno-pie"]] {
        let dir = Dir::new();
        let library = library(&dir, "liblinked.so", 1000, &[]);
        let always = ["-pthread", "-Wl,--no-as-needed", library.to_str().expect("a path"), "-Wl,-rpath,$ORIGIN"];
        let program = dir.compile("loading", "linked", &[always.as_slice(), options].concat());
        are_seen(&run(&dir, &program, &["nothing"]).stats(), &[1000]);
    }
}

/// Its functions come first for whatever is opened later, and they call the next ones: that is one allocation.
#[test]
fn a_program_with_allocation_functions_of_its_own() {
    let dir = Dir::new();
    let (program, library) =
        (dir.compile("loading", "own", &["-pthread", "-DOWN_MALLOC", "-rdynamic"]), library(&dir, "lib.so", 1000, &[]));
    for flags in ["now", "lazy", "deep", "global"] {
        let stats = run(&dir, &program, &["close_again", library.to_str().expect("a path"), flags]).stats();
        // With RTLD_DEEPBIND the library does not call the program's functions, and so nothing that is recorded.
        let expected = if flags == "deep" { ReportedTally::new(0, 0) } else { ReportedTally::new(11, 15_045) };
        assert_eq!(stats.allocator("malloc"), expected, "{flags}");
        assert_eq!(stats.leaked(), ReportedTally::default(), "{flags}");
    }
}

#[test]
fn the_next_function_of_a_name() {
    let dir = Dir::new();
    let stats = run(&dir, &dir.program("loading"), &["next"]).stats();
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(3, 123 + 456 + 789));
    assert_eq!(stats.leaked(), ReportedTally::new(2, 123 + 456));
}

/// The C++ library comes with the library that needs it: its operators are not known before both are there, and the
/// blocks count as malloc's, which they call. Those of the second library go by their name.
#[test]
fn static_objects_of_cpp_libraries() {
    let dir = Dir::new();
    let Some(library) = dir.compile_cpp("constructs.cc", &["-shared", "-fPIC", "-DBLOCKS=30"]) else { return };
    let first = dir.path("libfirst.so");
    std::fs::rename(&library, &first).expect("a library");
    let Some(second) = dir.compile_cpp("constructs.cc", &["-shared", "-fPIC", "-DBLOCKS=20"]) else { return };
    let [first, second] = [&first, &second].map(|path| path.to_str().expect("a path"));
    let stats = run(&dir, &dir.program("loading"), &["both", first, second]).stats();
    assert_eq!(stats.allocator("operator_new"), ReportedTally::new(20, 20 * 12_345));
    let malloc = stats.allocator("malloc");
    // The C++ library's constructor allocates one block for exceptions when memory is out.
    assert_eq!(malloc.count, 30 + 1, "{malloc:?}");
    assert_eq!(stats.leaked(), ReportedTally::new(1, malloc.bytes - 30 * 12_345));
}

/// Their runtimes replace functions of the C library, and none of these may be called before they are ready. Where the
/// runtime is a library, the program's calls of it are seen; one that is linked in is called directly.
#[test]
fn programs_that_are_built_with_sanitizers() {
    let dir = Dir::new();
    let seen = ReportedTally::new(100_000, 64 * 100_000);
    for (options, expected) in [
        (&["-fsanitize=thread"][..], seen),
        (&["-fsanitize=leak"], seen),
        (&["-fsanitize=thread", "-static-libtsan"], ReportedTally::default()),
        (&["-fsanitize=address", "-static-libasan"], ReportedTally::default()),
    ] {
        if !dir.compiles("heap", "heap", options) {
            eprintln!("skipped: the compiler has no {options:?}");
            continue;
        }
        let stats = run(&dir, &dir.path("heap"), &["errno_stays"]).stats();
        assert_eq!(stats.allocator("malloc"), expected, "{options:?}");
    }
}
