//! Function pointers in variables of libraries that the program has copies of.

use std::path::PathBuf;

use crate::support::{Dir, ReportedTally};

/// The fixture's program, linked to its library, with these options.
fn program(dir: &Dir, options: &[&str]) -> PathBuf {
    let library = dir.compile("copied_variables", "libcopied.so", &["-shared", "-fPIC", "-DLIBRARY"]);
    let library = library.to_str().expect("a path of text");
    dir.compile("copied_variables", "copied_variables", &[options, &[library, "-ldl"]].concat())
}

#[test]
fn calls_through_copied_function_pointers_are_seen() {
    for options in [&["-fPIE", "-pie"] as &[_], &["-fno-pic", "-no-pie"], &["-fPIE", "-pie", "-Wl,-z,relro,-z,now"]] {
        let dir = Dir::new();
        let program = program(&dir, options);
        for case in ["as_they_are", "own_function"] {
            let stats = dir.run(&program, [case]).stats();
            assert_eq!(stats.allocator("malloc"), ReportedTally::new(200, 200_000), "{options:?} {case}");
            assert_eq!(stats.allocator("realloc"), ReportedTally::new(200, 500_000), "{options:?} {case}");
            assert_eq!(stats.number("/deallocations/count"), 400, "{options:?} {case}");
            assert_eq!(stats.leaked(), ReportedTally::default(), "{options:?} {case}");
        }
    }
}
