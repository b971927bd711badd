//! Other allocators than the C library's, linked or preloaded, and other C libraries.
//!
//! Invariant: with an allocator that is tracked the sums are exact to the byte; a program that cannot be tracked runs as it
//! does alone, and memtrack says why.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Dir, Outcome, ReportedTally, Stats};

/// An allocator that Debian has a package of.
struct PackagedAllocator {
    /// Its library; the loader finds it by this name.
    library: &'static str,
    package: &'static str,
    /// What its own functions begin with, where it exports such.
    prefix: Option<&'static str>,
}

const ALLOCATORS: [PackagedAllocator; 3] = [
    PackagedAllocator { library: "libjemalloc.so.2", package: "libjemalloc2", prefix: None },
    PackagedAllocator { library: "libmimalloc.so.2", package: "libmimalloc2.0", prefix: Some("mi_") },
    PackagedAllocator { library: "libtcmalloc_minimal.so.4", package: "libtcmalloc-minimal4", prefix: Some("tc_") },
];

/// Those that are installed; the others are named.
fn installed() -> impl Iterator<Item = &'static PackagedAllocator> {
    ALLOCATORS.iter().filter(|allocator| {
        let dir = Dir::new();
        let found = dir.compiles("allocators", "program", &["-pthread", &link(allocator)]);
        if !found {
            eprintln!("skipped: {} is not installed (package {})", allocator.library, allocator.package);
        }
        found
    })
}

fn link(allocator: &PackagedAllocator) -> String {
    format!("-Wl,--no-as-needed,-l:{}", allocator.library)
}

/// What the fixture's work adds to a run in which it does nothing, where there are but what libraries allocate as they are
/// loaded.
#[derive(Debug)]
struct Added {
    busy: Stats,
    idle: Stats,
}

impl Added {
    /// Runs a program plain and tracked, with this environment, and compares what they print.
    #[track_caller]
    fn by(dir: &Dir, program: &Path, preload: Option<&str>, options: &[&str]) -> Self {
        let stats = |arguments: &[&str]| {
            let with_environment = |mut command: Command| {
                preload.map(|library| command.env("LD_PRELOAD", library));
                Outcome::of(command.args(arguments))
            };
            let plain = with_environment(dir.command(program));
            let mut command = dir.memtrack(["run", "--no-native", "-q", "-f", "-o", "capture.bin"]);
            command.args(options).arg("--").arg(program);
            assert_eq!(with_environment(command), plain);
            let stats = Stats::of(&dir.path("capture.bin"));
            stats.is_whole();
            stats
        };
        Self { busy: stats(&[]), idle: stats(&["idle"]) }
    }

    #[track_caller]
    fn allocator(&self, name: &str) -> ReportedTally {
        minus(self.busy.allocator(name), self.idle.allocator(name))
    }

    /// What an allocator maps for itself is its own affair.
    #[track_caller]
    fn leaked(&self) -> ReportedTally {
        let [busy, idle] = [&self.busy, &self.idle].map(|stats| minus(stats.leaked(), stats.allocator("mmap")));
        minus(busy, idle)
    }

    /// That it is what four threads of the fixture allocate, and what the first of them and main keep.
    #[track_caller]
    fn is_exact(&self, case: &str) {
        let each = 1..=2000_u64;
        let handed: u64 = (10_000..10_100).sum();
        let expected = [
            ("malloc", ReportedTally::new(4 * 2100 + 1, 4 * (each.clone().sum::<u64>() + handed) + (50 << 20))),
            ("calloc", ReportedTally::new(4 * 2000, 4 * each.clone().map(|size| 3 * size).sum::<u64>())),
            ("realloc", ReportedTally::new(4 * 2000, 4 * each.clone().map(|size| 2 * size - 1).sum::<u64>())),
            ("posix_memalign", ReportedTally::new(4 * 2000, 4 * each.sum::<u64>())),
            ("memalign", ReportedTally::new(4 * 2000, 4 * 2000 * 100)),
        ];
        for (name, tally) in expected {
            assert_eq!(self.allocator(name), tally, "{case}, {name}");
        }
        assert_eq!(self.leaked(), ReportedTally::new(101, handed + (50 << 20)), "{case}");
    }
}

#[track_caller]
fn minus(all: ReportedTally, part: ReportedTally) -> ReportedTally {
    ReportedTally::new(all.count - part.count, all.bytes - part.bytes)
}

#[test]
fn linked_allocators_are_counted_to_the_byte() {
    for allocator in installed() {
        let dir = Dir::new();
        let program = dir.compile("allocators", "program", &["-pthread", &link(allocator)]);
        for options in [&[] as &[_], &["--native"], &["--aggregate"]] {
            Added::by(&dir, &program, None, options).is_exact(allocator.library);
        }
    }
}

#[test]
fn preloaded_allocators_are_counted_to_the_byte() {
    for allocator in installed() {
        let dir = Dir::new();
        let program = dir.program("allocators");
        for options in [&[] as &[_], &["--native"]] {
            Added::by(&dir, &program, Some(allocator.library), options).is_exact(allocator.library);
        }
    }
}

/// glibc's debugging allocator has the allocation functions under the versions that programs import, and has no defaults.
#[test]
fn a_preloaded_allocator_that_has_versions_only_stays_the_programs_allocator() {
    let dir = Dir::new();
    let program = dir.program("checked");
    let checked = |mut command: Command| {
        Outcome::of(command.env("LD_PRELOAD", "libc_malloc_debug.so.0").env("MALLOC_CHECK_", "3"))
    };
    if checked(dir.command(&program)).stderr.contains("cannot be preloaded") {
        eprintln!("skipped: this C library has no debugging allocator of its own");
        return;
    }
    for (case, status) in [("destructors", 0), ("overflow", 128 + libc::SIGABRT)] {
        let with_case = |mut command: Command| {
            checked({
                command.arg(case);
                command
            })
        };
        let plain = with_case(dir.command(&program));
        assert_eq!(plain.status, status, "{plain:?}");
        for options in [&[] as &[_], &["--native"], &["--sample"]] {
            let mut command = dir.memtrack(["run", "--no-native", "-q", "-f", "-o", "capture.bin"]);
            command.args(options).arg("--").arg(&program);
            assert_eq!(with_case(command), plain, "{case} {options:?}");
            if case == "destructors" && options != ["--sample"] {
                let stats = Stats::of(&dir.path("capture.bin"));
                stats.is_whole();
                assert_eq!(stats.allocator("malloc"), ReportedTally::new(20, 20_000), "{options:?}");
                assert!(stats.number("/deallocations/count") >= 20, "{stats:?}");
            }
        }
    }
}

/// What a C++ program creates and destroys is counted as its operators are, whoever provides them.
#[test]
fn operators_new_and_delete_are_counted_to_the_byte() {
    let options = installed().map(|allocator| [String::from("-O2"), link(allocator)]);
    for options in std::iter::once([String::from("-O2"), String::from("-O1")]).chain(options) {
        let dir = Dir::new();
        let Some(program) = dir.compile_cpp("containers.cc", &options.each_ref().map(String::as_str)) else { return };
        let plain = Outcome::of(&mut dir.command(&program)).success();
        let mut told = plain.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
        let [count, bytes, deleted] = [(); 3].map(|()| told.next().expect("a number"));
        let added = Added::by(&dir, &program, None, &[]);
        // The first block is made before main.
        assert_eq!(added.allocator("operator_new"), ReportedTally::new(count - 1, bytes - 7_000_001), "{options:?}");
        assert_eq!(added.leaked(), ReportedTally::new(count - 1 - deleted, 0), "{options:?}");
    }
}

#[test]
fn functions_that_allocators_have_besides_the_usual_ones() {
    for allocator in installed() {
        let Some(prefix) = allocator.prefix else { continue };
        let dir = Dir::new();
        let options = ["-pthread", &link(allocator), &format!("-DOWN={prefix}")];
        let program = dir.compile("allocators", "program", &options);
        let added = Added::by(&dir, &program, None, &[]);
        // The C library has blocks for threads.
        let threads = added.allocator("calloc").count - 8000;
        assert!(threads <= 4, "{added:?}");
        assert_eq!(added.allocator("memalign"), ReportedTally::new(8000, 800_000), "{added:?}");
        assert_eq!(added.allocator("realloc"), ReportedTally::new(8000, 16_000_000), "{added:?}");
    }
}

/// A program that cannot be tracked, and why.
fn foreign(dir: &Dir) -> Vec<(PathBuf, &'static str)> {
    let mut programs = Vec::new();
    if dir.compiles("allocators", "static", &["-pthread", "-static"]) {
        programs.push((dir.path("static"), "statically linked"));
    } else {
        eprintln!("skipped: this machine has no static C library");
    }
    if dir.compiles_with("musl-gcc".as_ref(), "allocators", "musl", &["-pthread"]) {
        programs.push((dir.path("musl"), "musl"));
    } else {
        eprintln!("skipped: musl-gcc is not installed (package musl-tools)");
    }
    programs
}

#[test]
fn programs_that_cannot_be_tracked_run_unharmed_and_memtrack_says_why() {
    let dir = Dir::new();
    for (program, why) in foreign(&dir) {
        let outcome = Outcome::of(dir.memtrack(["run", "--no-native", "-o", "untracked.bin", "--"]).arg(&program));
        assert_eq!((outcome.stdout.as_str(), outcome.status), ("done\n", 0), "{outcome:?}");
        assert!(outcome.stderr.contains("without recording") && outcome.stderr.contains(why), "{outcome:?}");
        assert!(!dir.path("untracked.bin").exists());
    }
}

/// Started by a program that is followed: they run as they are, and their parent is recorded.
#[test]
fn children_that_cannot_be_tracked_run_unharmed_and_are_counted() {
    let dir = Dir::new();
    for (program, _) in foreign(&dir) {
        let script = "env | grep -c LD_PRELOAD; \"$0\"; echo \"status $?\"";
        let arguments = [OsStr::new("sh"), "-c".as_ref(), script.as_ref(), program.as_os_str()];
        let plain = Outcome::of(dir.command(arguments[0]).args(&arguments[1..]));
        for options in [&["--follow"] as &[_], &[]] {
            let mut command = dir.memtrack(["run", "--no-native", "-f", "-o", "capture.bin"]);
            let outcome = Outcome::of(command.args(options).arg("--").args(arguments));
            assert_eq!((&outcome.stdout, outcome.status), (&plain.stdout, plain.status), "{outcome:?}");
            let is_told = outcome.stderr.contains("1 process that was started was not recorded");
            assert_eq!(is_told, !options.is_empty(), "{outcome:?}");
            Stats::of(&dir.path("capture.bin")).is_whole();
        }
    }
}
