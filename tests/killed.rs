//! SIGKILL, of either side: the capture has everything that had happened, and the program never notices.

use std::path::Path;

use crate::hindered::WaitingProgram;
use crate::support::{Control, Dir, RunningProcess, Stats, figures, kill, wait_until};

/// Kills a program that allocates without end once it has counted up to `count`; what it had counted, and its capture.
fn killed_at(dir: &Dir, case: &str, round: u64, count: u64) -> (u64, Stats) {
    let (program, control) = (dir.path("counting"), dir.control(&format!("control{round}")));
    let capture = dir.path(&format!("capture{round}.bin"));
    let command = [program.as_os_str(), case.as_ref(), control.path().as_os_str()];
    let memtrack = RunningProcess::start(&mut dir.recording(&capture, &command));
    wait_until("the program has counted far enough", || control.count() >= count);
    kill(control.pid(), libc::SIGKILL);
    let outcome = memtrack.wait();
    assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()), (137, "", ""));
    let stats = Stats::of(&capture);
    stats.is_whole();
    (control.count(), stats)
}

/// A moment of the program's life; spread over the first 200 000 allocations, and different in each run of the tests.
fn moment(round: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let mut mixed = u64::from(now.subsec_nanos()) ^ round << 32;
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ mixed >> 29) % 200_000
}

#[test]
fn nothing_is_lost_when_the_program_is_killed() {
    let dir = Dir::new();
    dir.program("counting");
    for round in 0..figures().kills {
        let (counted, stats) = killed_at(&dir, "forever", round, moment(round));
        let recorded = stats.allocator("malloc").count;
        assert!((counted..=counted + 1).contains(&recorded), "round {round}: counted {counted}, recorded {recorded}");
        assert!(stats.leaked().count <= 1, "each block is freed before the next: {:?}", stats.leaked());
    }
}

#[test]
fn nothing_is_lost_when_a_program_of_four_threads_is_killed() {
    let dir = Dir::new();
    dir.program("counting");
    for round in 0..figures().kills_of_four {
        let (counted, stats) = killed_at(&dir, "forever_threads", round, moment(round));
        let recorded = stats.allocator("malloc").count;
        assert!((counted..=counted + 4).contains(&recorded), "round {round}: counted {counted}, recorded {recorded}");
        assert!(stats.leaked().count <= 4, "{:?}", stats.leaked());
    }
}

/// Far more is allocated afterwards than the rings hold.
#[test]
fn a_program_runs_on_when_memtrack_is_killed() {
    let mut program = WaitingProgram::of("phases", &["-q"]);
    kill(program.memtrack.pid(), libc::SIGKILL);
    program.control.let_go(1);
    wait_until("the program has come to its end", || has_ended(&program.control));
    assert_eq!(program.control.count(), 1_300_000);
    assert_eq!(program.memtrack.stdout(), "1300000 blocks\n");
    let outcome = program.memtrack.wait();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (137, ""));
}

/// The same in the middle of the allocations, when the program may be waiting for room.
#[test]
fn a_busy_program_runs_on_when_memtrack_is_killed() {
    let mut program = WaitingProgram::of("phases", &["-q"]);
    program.control.let_go(1);
    wait_until("the program is at work", || program.control.count() > 150_000);
    kill(program.memtrack.pid(), libc::SIGKILL);
    wait_until("the program has come to its end", || has_ended(&program.control));
    assert_eq!(program.memtrack.stdout(), "1300000 blocks\n");
}

/// Gone, or a zombie that nobody has reaped.
fn has_ended(control: &Control) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(control.pid().to_string()).join("stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

#[test]
fn a_capture_that_is_being_written_can_be_read() {
    let program = WaitingProgram::of("phases", &["-q"]);
    // The collector writes what a waiting program has left behind within a while.
    wait_until("all that has happened can be read", || {
        let stats = Stats::of(&program.capture);
        assert_eq!(stats.0["capture"]["complete"], false, "{}", stats.0);
        stats.allocator("malloc").count == 100_000
    });
    program.control.let_go(1);
    let (_dir, capture, _) = program.ends("1300000 blocks\n");
    let stats = Stats::of(&capture);
    stats.is_whole();
    assert_eq!(stats.allocator("malloc").count, 1_300_000);
}
