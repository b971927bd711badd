//! Programs that start others: their own figures stay exact, and their children run unharmed and unrecorded.

use crate::support::{Dir, Stats, Tally};

fn processes(case: &str) -> Stats {
    Dir::new().stats("processes", case)
}

#[test]
fn a_fork_child_is_not_recorded() {
    let stats = processes("forks");
    assert_eq!(stats.allocated(), Tally::new(175, 100_000 + 500 + 2500));
    assert_eq!(stats.leaked(), stats.allocated());
}

#[test]
fn fork_children_that_are_killed() {
    assert_eq!(processes("forks_killed").allocated(), Tally::new(200, 20_000));
}

#[test]
fn vfork_and_exec() {
    assert_eq!(processes("vforks").allocated(), Tally::new(20, 11_000));
}

#[test]
fn posix_spawn() {
    assert_eq!(processes("spawns").allocated(), Tally::new(20, 11_000));
}

#[test]
fn system() {
    assert_eq!(processes("systems").allocated(), Tally::new(20, 11_000));
}

/// The C library allocates streams for popen, how many bytes is its own business: all but 10 blocks are small.
#[test]
fn popen() {
    let stats = processes("popens");
    let malloc = stats.allocator("malloc");
    assert_eq!(malloc.bytes / 77_777, 10, "{malloc:?}");
    assert_eq!(stats.leaked().bytes / 77_777, 10);
}

#[test]
fn fork_and_exec() {
    assert_eq!(processes("forks_and_execs").allocated(), Tally::new(200, 2000));
}

#[test]
fn exec_that_fails_changes_nothing() {
    assert_eq!(processes("exec_fails").allocated(), Tally::new(200, 2000));
}

/// What comes after the exec is another program, which is not followed and finds its environment as it should be.
#[test]
fn exec_ends_the_recording_and_loses_nothing() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("processes"), ["execs"]);
    assert_eq!(run.outcome.status, 9);
    assert_eq!(run.outcome.stdout, "from exec  []\n");
    assert_eq!(run.stats().allocated(), Tally::new(1000, 100_000));
}

#[test]
fn a_program_that_closes_all_descriptors() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("processes"), ["closes_descriptors"]);
    assert_eq!(run.outcome.stdout, "next descriptor: 3\ncloses_descriptors done\n");
    assert_eq!(run.stats().allocated(), Tally::new(100_000, 1_000_000));
}

/// Descriptors, environment, signal dispositions and mask: the run compares what the program prints of them.
#[test]
fn the_program_finds_its_surroundings_unchanged() {
    assert_eq!(processes("looks_around").allocated(), Tally::new(1, 1));
}

/// LD_PRELOAD as it was, also for the program itself.
#[test]
fn a_preloaded_library_stays() {
    let dir = Dir::new();
    let library = dir.compile("library", "preloaded.so", &["-shared", "-fPIC", "-DCONSTRUCTED=50"]);
    let program = dir.program("processes");
    let plain = crate::support::Outcome::of(dir.command(&program).arg("looks_around").env("LD_PRELOAD", &library));
    assert!(plain.stdout.contains("LD_PRELOAD="), "{plain:?}");
    let capture = dir.path("capture.bin");
    let mut command = dir.recording(&capture, &[program.as_os_str(), "looks_around".as_ref()]);
    assert_eq!(crate::support::Outcome::of(command.env("LD_PRELOAD", &library)), plain);
    // The preloaded library's constructor allocates 50 bytes, before or after recording begins.
    let allocated = Stats::of(&capture).allocated();
    assert!(allocated == Tally::new(2, 51) || allocated == Tally::new(1, 1), "{allocated:?}");
}
