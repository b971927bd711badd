//! Programs that start others: their own figures stay exact, and their children run unharmed and unrecorded.

use std::ffi::OsStr;

use crate::support::{Dir, Outcome, ReportedTally, Stats};

fn processes(case: &str) -> Stats {
    Dir::new().stats("processes", case)
}

/// Their children run unrecorded, whichever way they are started.
#[test]
fn programs_with_children() {
    let dir = Dir::new();
    let program = dir.program("processes");
    for (case, allocated) in [
        ("forks", (175, 100_000 + 500 + 2500)),
        ("forks_killed", (200, 20_000)),
        ("vforks", (20, 11_000)),
        ("spawns", (20, 11_000)),
        ("systems", (20, 11_000)),
        ("forks_and_execs", (200, 2000)),
        ("exec_fails", (200, 2000)),
    ] {
        let run = dir.run(&program, [case]);
        assert_eq!(run.outcome.status, 0, "{case}: {:?}", run.outcome);
        assert_eq!(run.stats().allocated(), ReportedTally::from(allocated), "{case}");
    }
}

/// The C library allocates streams for popen, how many bytes is its own business: all but 10 blocks are small.
#[test]
fn popen() {
    let stats = processes("popens");
    let malloc = stats.allocator("malloc");
    assert_eq!(malloc.bytes / 77_777, 10, "{malloc:?}");
    assert_eq!(stats.leaked().bytes / 77_777, 10);
}

/// The program that takes the place of another is recorded in the same capture, and finds its environment as it should be.
#[test]
fn a_program_that_replaces_itself_goes_on_being_recorded() {
    let dir = Dir::new();
    let program = dir.program("trees");
    for options in [["--aggregate"].as_slice(), &[]] {
        let run = dir.run_with(options, &program, ["replaces"]);
        let said = Outcome::of(dir.memtrack(["stats"]).arg(&run.capture)).stderr;
        assert!(!said.contains("was replaced"), "{options:?}: {said}");
    }
    let stats = Stats::of(&dir.path("capture.bin"));
    stats.is_whole();
    // Two images with 10 blocks each; the command line that they handed on is the C library's own business.
    assert_eq!(stats.allocated(), ReportedTally::new(20 + 11, 20 * 7001 + 11 * 7011));
    assert_eq!(stats.leaked(), ReportedTally::new(11, 11 * 7011));
    assert_eq!(stats.0.pointer("/capture/command_line/1").unwrap(), "leaf");
}

/// Of a shell that executes a program in its place, the capture is the program's.
#[test]
fn wrappers_do_not_take_the_programs_capture() {
    let dir = Dir::new();
    let trees = dir.program("trees");
    let script = dir.write("wrapper.sh", format!("exec {} leaf 9 1009\n", trees.display()).as_bytes());
    for wrapper in [["env", "A=b", "sh"].as_slice(), &["nice", "sh"], &["sh"]] {
        let arguments = wrapper[1..].iter().map(OsStr::new).chain([script.as_os_str()]);
        let run = dir.run(wrapper[0].as_ref(), arguments);
        assert_eq!(run.stats().leaked(), ReportedTally::new(9, 9 * 1009), "{wrapper:?}");
        assert_eq!(run.stats().0.pointer("/capture/command_line/1").unwrap(), "leaf", "{wrapper:?}");
    }
}

/// A program that cannot load the library finds nothing of memtrack in its environment, though it was executed by one
/// that could.
#[test]
fn a_static_program_finds_its_environment_unchanged() {
    let dir = Dir::new();
    if !dir.compiles("processes", "static", &["-static"]) {
        return;
    }
    let script = dir.write("script.sh", b"exec ./static looks_around\n");
    for options in [[].as_slice(), &["--follow"], &["--aggregate"]] {
        let run = dir.run_with(options, "sh".as_ref(), [&script]);
        // What is recorded is the shell's.
        let report = Outcome::of(dir.memtrack(["stats"]).arg(&run.capture));
        assert!(report.stderr.contains("ends at an exec"), "{options:?}: {report:?}");
    }
}

#[test]
fn a_program_that_closes_all_descriptors() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("processes"), ["closes_descriptors"]);
    assert_eq!(run.outcome.stdout, "next descriptor: 3\ncloses_descriptors done\n");
    assert_eq!(run.stats().allocated(), ReportedTally::new(100_000, 1_000_000));
}

/// Descriptors, environment, signal dispositions and mask: the run compares what the program prints of them.
#[test]
fn the_program_finds_its_surroundings_unchanged() {
    assert_eq!(processes("looks_around").allocated(), ReportedTally::new(1, 1));
}

/// LD_PRELOAD as it was, also for the program itself.
#[test]
fn a_preloaded_library_stays() {
    let dir = Dir::new();
    let library = dir.compile("library", "preloaded.so", &["-shared", "-fPIC", "-DCONSTRUCTED=50"]);
    let program = dir.program("processes");
    let plain = Outcome::of(dir.command(&program).arg("looks_around").env("LD_PRELOAD", &library));
    assert!(plain.stdout.contains("LD_PRELOAD="), "{plain:?}");
    let capture = dir.path("capture.bin");
    let mut command = dir.recording(&capture, &[program.as_os_str(), "looks_around".as_ref()]);
    assert_eq!(Outcome::of(command.env("LD_PRELOAD", &library)), plain);
    // The preloaded library's constructor allocates 50 bytes, before or after recording begins.
    let allocated = Stats::of(&capture).allocated();
    assert!(allocated == ReportedTally::new(2, 51) || allocated == ReportedTally::new(1, 1), "{allocated:?}");
}
