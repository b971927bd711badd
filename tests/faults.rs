//! What may befall a program: crashes inside the allocator, jumps, signals, forks from threads. It ends as it would
//! without memtrack, and every allocation up to there is recorded.

use crate::support::{Dir, Outcome, ReportedTally, Stats, figures};

/// Runs a case of faults.c (with its argument, if it has one) plain and tracked, with these options of `memtrack run`.
#[track_caller]
fn with(options: &[&str], case: &str) -> (Outcome, Stats) {
    let dir = Dir::new();
    let program = dir.compile("faults", "faults", &["-pthread", "-w"]);
    let run = dir.run_with(options, &program, case.split(' '));
    let stats = Stats::of(&run.capture);
    assert_eq!(stats.0["capture"]["complete"], true, "{}", stats.0);
    assert_eq!(stats.number("/capture/lost_blocks"), 0);
    (run.outcome, stats)
}

/// The same, of a case that succeeds and frees nothing that it has not got.
#[track_caller]
fn whole(options: &[&str], case: &str) -> Stats {
    let (outcome, stats) = with(options, case);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
    stats.is_whole();
    stats
}

#[test]
fn the_c_library_finds_its_heap_corrupted_in_the_middle_of_malloc() {
    let (outcome, stats) = with(&[], "corrupted_heap");
    assert_eq!(outcome.status, 128 + libc::SIGABRT);
    assert!(outcome.stderr.contains("corrupted"), "{outcome:?}");
    // The call that found out has not returned.
    assert_eq!(stats.allocated(), ReportedTally::new(10_001, 161_000));
    stats.is_whole();
}

#[test]
fn a_block_is_freed_twice() {
    let (outcome, stats) = with(&[], "freed_twice");
    assert_eq!(outcome.status, 128 + libc::SIGABRT);
    assert_eq!(stats.allocated(), ReportedTally::new(10_001, 161_000));
    assert_eq!(stats.leaked(), ReportedTally::new(10_000, 160_000));
    assert_eq!(stats.number("/capture/unmatched_frees"), 1);
}

/// The handler of a fault inside of realloc or free jumps out of it.
#[test]
fn jumps_out_of_the_allocator() {
    let (outcome, stats) = with(&[], "jumps_out_of_the_allocator");
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(1000, 24_000));
    assert_eq!(stats.number("/capture/unmatched_frees"), 10);
}

#[test]
fn jumps_out_of_deep_frames() {
    for options in [[].as_slice(), &["--native"]] {
        let stats = whole(options, "jumps_out_of_deep_frames");
        // 50 rounds of 1, 21, 41 … calls, and one block at the end.
        let calls = (0..50).map(|round| 20 * round + 1).sum::<u64>();
        assert_eq!(stats.allocated(), ReportedTally::new(2 * calls + 1, 110 * calls + 77), "{options:?}");
        assert_eq!(stats.leaked(), ReportedTally::new(calls + 1, 10 * calls + 77), "{options:?}");
    }
}

#[test]
fn jumps_out_of_a_callback_of_qsort() {
    for options in [[].as_slice(), &["--native"]] {
        let stats = whole(options, "jumps_out_of_a_callback");
        assert_eq!(stats.allocated(), ReportedTally::new(8000 + 200, 8000 * 20 + 200 * 30), "{options:?}");
        assert_eq!(stats.leaked(), ReportedTally::new(8000, 160_000), "{options:?}");
    }
}

/// Another thread sends them without a pause; what the handler allocates inside of a hook is not promised to be seen.
#[test]
fn signals_as_fast_as_they_can_be_sent() {
    for options in [[].as_slice(), &["--native", "--allocation-timestamps"]] {
        let stats = whole(options, "signals_without_end");
        assert_eq!(stats.allocator("malloc"), ReportedTally::new(100_000, 1_600_000), "{options:?}");
        assert_eq!(stats.leaked(), ReportedTally::new(0, 0), "{options:?}");
        let mmap = stats.allocator("mmap");
        // The sender's stack comes from the C library's own mmap, which is not the program's.
        assert_eq!(mmap.bytes, mmap.count * 65_536, "{options:?}");
    }
}

/// Two threads fork at the same time, while two others allocate; the children make threads, too.
#[test]
fn forks_in_threads_while_others_allocate() {
    let own = ReportedTally::new(200_010, 100_000 * 300 + 70);
    assert_eq!(whole(&[], "forks_in_threads").allocated(), own);
}

#[test]
fn children_of_threads_are_followed_while_others_allocate() {
    let dir = Dir::new();
    let program = dir.program("faults");
    let mut command = dir.memtrack(["run", "--no-native", "-q", "--follow", "-o", "capture.bin", "--"]);
    assert_eq!(Outcome::of(command.arg(&program).arg("forks_in_threads")).success(), "forks_in_threads done\n");
    let stats: Vec<Stats> = dir.captures().iter().map(|path| Stats::of(path)).collect();
    stats.iter().for_each(Stats::is_whole);
    let mut found: Vec<ReportedTally> = stats.iter().map(Stats::allocated).collect();
    found.sort();
    let child = ReportedTally::new(1000 + 100_000, 1000 * 3000 + 50_000 * 300);
    let mut expected = vec![child; 30];
    expected.push(ReportedTally::new(200_010, 100_000 * 300 + 70));
    expected.sort();
    assert_eq!(found, expected);
}

/// Another allocator comes by LD_PRELOAD. What its realloc calls in turn is no allocation of the program's.
#[test]
fn another_allocator_is_preloaded() {
    let dir = Dir::new();
    let library = dir.compile("interposer", "interposer.so", &["-shared", "-fPIC"]);
    let program = dir.program("faults");
    let capture = dir.path("capture.bin");
    let mut command = dir.recording(&capture, &[program.as_os_str(), "forks_in_threads".as_ref()]);
    let stdout = Outcome::of(command.env("LD_PRELOAD", &library)).success();
    assert_eq!(stdout, "forks_in_threads done\n");
    let stats = Stats::of(&capture);
    stats.is_whole();
    assert_eq!(stats.allocator("realloc"), ReportedTally::new(100_000, 100_000 * 200));
    assert_eq!(stats.allocator("malloc"), ReportedTally::new(100_010, 100_000 * 100 + 70));
    assert_eq!(stats.leaked(), ReportedTally::new(10, 70));
}

#[test]
fn many_threads_that_live_for_one_block() {
    let threads = figures().threads;
    let stats = whole(&[], &format!("many_threads {threads}"));
    assert_eq!(stats.allocated(), ReportedTally::new(threads, threads * 100));
}
