//! Signals: handlers that allocate in the middle of an allocation, and signals that are sent to memtrack.

use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::hindered::WaitingProgram;
use crate::support::{Dir, Outcome, Patience, ReportedTally, RunningProcess, Stats, kill, wait_until};

/// memtrack takes what it and its probe are sent within 50 ms for one signal; the time until it looks counts, too.
const AT_ONCE: Duration = Duration::from_millis(40);

/// What the handler allocates inside a call of the program's is not promised to be recorded; the program's own calls are.
#[test]
fn a_handler_allocates_every_millisecond() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("signals"), [""; 0]);
    assert_eq!(run.outcome.stdout, "done\n");
    let blocks = std::fs::read_to_string(dir.path("blocks")).expect("the tracked run's number");
    let stats = run.stats();
    assert_eq!(stats.allocator("malloc").count, blocks.parse::<u64>().expect("a number"));
    assert_eq!(stats.leaked(), ReportedTally::new(0, 0));
    let calloc = stats.allocator("calloc");
    assert_eq!(calloc.bytes, calloc.count * 500);
}

/// What a child does that returns into the interrupted call is seen neither by the recorder nor by its parent's hooks; and it ends well.
#[test]
fn handlers_fork_in_the_middle_of_an_allocation() {
    let by_fork = [&["--native"][..], &["--no-native", "--follow"], &["--no-native", "--sample=16kB"]];
    let others = ["fork", "at_once", "clone", "call"].map(|case| (case, &["--no-native"][..]));
    for (case, options) in others.into_iter().chain(by_fork.map(|options| ("fork", options))) {
        let dir = Dir::new();
        let program = dir.program("interrupted");
        let mut command = dir.memtrack(["run", "-q", "-o", "capture.bin"]);
        let outcome = Outcome::of(command.args(options).arg("--").arg(&program).arg(case));
        let expected = Outcome { stdout: "150 children ended well\n".into(), stderr: String::new(), status: 0 };
        assert_eq!(outcome, expected, "{case} {options:?}");
        let allocated = std::fs::read_to_string(dir.path("allocated")).expect("the program's numbers");
        let numbers: Vec<u64> = allocated.split(' ').map(|number| number.parse().expect("a number")).collect();
        let stats = Stats::of(&dir.path("capture.bin"));
        stats.is_whole();
        assert_eq!(stats.allocated(), ReportedTally::new(numbers[0], numbers[1]), "{case} {options:?}");
    }
}

/// Tests may run where a signal is ignored (nohup, a background job of a shell), which is inherited by the program.
fn not_ignored(signal: i32) {
    // SAFETY: sets a disposition back to what it is by default; no handler is involved.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sends `signal` to memtrack while the program waits.
fn signalled(case: &str, signal: i32) -> (Outcome, Stats) {
    let program = WaitingProgram::of(case, &["-q"]);
    kill(program.memtrack.pid(), signal);
    let outcome = program.memtrack.wait();
    let process = format!("/proc/{}", program.control.pid());
    assert!(!std::path::Path::new(&process).exists(), "memtrack has waited for the program");
    (outcome, Stats::of(&program.capture))
}

#[test]
fn sigterm_reaches_the_program() {
    let (outcome, stats) = signalled("untrapped", libc::SIGTERM);
    assert_eq!(outcome, Outcome { stdout: String::new(), stderr: String::new(), status: 143 });
    assert_eq!(stats.allocator("malloc").count, 1000);
}

#[test]
fn a_program_that_handles_sigterm_decides_itself() {
    let (outcome, stats) = signalled("trap", libc::SIGTERM);
    assert_eq!(outcome, Outcome { stdout: "terminated\n".into(), stderr: String::new(), status: 12 });
    assert_eq!(stats.allocator("malloc").count, 1000);
}

#[test]
fn sighup_reaches_the_program() {
    not_ignored(libc::SIGHUP);
    let (outcome, stats) = signalled("untrapped", libc::SIGHUP);
    assert_eq!(outcome.status, 128 + libc::SIGHUP);
    assert_eq!(stats.allocator("malloc").count, 1000);
}

/// Sends `signal` to a program that counts what reaches it, by way of `send`; what it counts.
fn counted(send: impl Fn(i32)) -> String {
    [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1].into_iter().for_each(not_ignored);
    counted_by(|_| (), send)
}

/// The same of signals that are sent one after the other, in so short a time that they count as one; on a busy machine this
/// may take several tries.
fn counted_at_once(send: impl Fn(i32)) -> String {
    let took = Cell::new(Duration::MAX);
    let mut patience = Patience::new();
    loop {
        let count = counted(|memtrack| {
            let begun = Instant::now();
            send(memtrack);
            took.set(begun.elapsed());
        });
        if took.get() < AT_ONCE {
            return count;
        }
        assert!(!patience.is_over(), "the machine never lets a test send two signals in {AT_ONCE:?}");
    }
}

/// A signal was sent to a process or group of memtrack's, or that has ended, where the machine let the test wait.
#[track_caller]
fn is_sent_or_gone(result: i32) {
    let error = std::io::Error::last_os_error();
    assert!(result == 0 || error.raw_os_error() == Some(libc::ESRCH), "{error}");
}

/// Sends a signal to a process that may have ended.
#[track_caller]
fn kill_what_is_there(process: i32, signal: i32) {
    // SAFETY: takes numbers only; the process was a moment ago one that the test started.
    is_sent_or_gone(unsafe { libc::kill(process, signal) });
}

/// The same with a command that is prepared.
fn counted_by(prepare: impl Fn(&mut Command), send: impl Fn(i32)) -> String {
    let dir = Dir::new();
    let (program, capture) = (dir.program("counts_signals"), dir.path("capture.bin"));
    let mut command = dir.recording(&capture, &[program.as_os_str()]);
    prepare(&mut command);
    let mut memtrack = RunningProcess::start(command.process_group(0));
    wait_until("the program waits", || memtrack.stdout() == "ready\n");
    // Until then a signal is passed on whoever else it reaches. memtrack, its probe, and the program:
    wait_until("the probe is there", || of_group(memtrack.pid()).len() == 3);
    send(memtrack.pid());
    let outcome = memtrack.wait();
    assert_eq!(outcome.status, 7, "{outcome:?}");
    outcome.stdout.strip_prefix("ready\n").expect("the first line").to_owned()
}

/// The processes of a group, in the order of their ids.
fn of_group(group: i32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").expect("processes").filter_map(|entry| {
        let process = entry.ok()?.file_name().to_str()?.parse::<i32>().ok()?;
        // SAFETY: takes a number only.
        (unsafe { libc::getpgid(process) } == group).then_some(process)
    });
    let mut processes: Vec<i32> = processes.collect();
    processes.sort_unstable();
    processes
}

#[test]
fn a_signal_reaches_the_program_once() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1] {
        assert_eq!(counted(|memtrack| kill(memtrack, signal)), "1\n", "to memtrack: {signal}");
        let to_the_group = |memtrack: i32| {
            // SAFETY: takes numbers only; the group is memtrack's own.
            assert_eq!(unsafe { libc::killpg(memtrack, signal) }, 0);
        };
        assert_eq!(counted(to_the_group), "1\n", "to the group: {signal}");
    }
}

/// As a server in the background of a script, which the shell starts with SIGINT ignored.
#[test]
fn a_signal_that_was_ignored_reaches_a_program_that_handles_it() {
    let ignoring = |command: &mut Command| {
        // SAFETY: the child sets a disposition, which is a system call; no handler is involved.
        let ignore = || unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        let ignore = move || if ignore() == libc::SIG_ERR { Err(std::io::Error::last_os_error()) } else { Ok(()) };
        // SAFETY: what runs in the child is that call.
        unsafe { command.pre_exec(ignore) };
    };
    assert_eq!(counted_by(ignoring, |memtrack| kill(memtrack, libc::SIGINT)), "1\n");
}

/// As `timeout` does: to the process that it has started, and at once to the whole group.
#[test]
fn a_signal_to_memtrack_and_to_its_group_reaches_the_program_once() {
    let to_both = |memtrack: i32| {
        kill(memtrack, libc::SIGINT);
        // Two that are pending at once would be one.
        std::thread::sleep(Duration::from_millis(5));
        // SAFETY: takes numbers only; the group is memtrack's own, and may have ended by now.
        is_sent_or_gone(unsafe { libc::killpg(memtrack, libc::SIGINT) });
    };
    assert_eq!(counted_at_once(to_both), "1\n");
}

/// As a supervisor does with a control group: one after the other.
#[test]
fn a_signal_to_every_process_reaches_the_program_once() {
    let to_each =
        |memtrack| of_group(memtrack).into_iter().for_each(|process| kill_what_is_there(process, libc::SIGTERM));
    assert_eq!(counted_at_once(to_each), "1\n");
    let backwards =
        |memtrack| of_group(memtrack).into_iter().rev().for_each(|process| kill_what_is_there(process, libc::SIGTERM));
    assert_eq!(counted_at_once(backwards), "1\n");
}

/// Names in the directory that a report which was not finished would have.
fn leftovers(dir: &Dir) -> Vec<String> {
    let entries = std::fs::read_dir(dir.path(".")).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".memtrack-")).collect()
}

/// Whether a process has a file of this directory open that has no name.
fn has_nameless_file(pid: i32, dir: &Dir) -> bool {
    let here = dir.path(".").canonicalize().expect("a directory");
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let links = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
    links.into_iter().any(|link| link.starts_with(&here) && link.to_string_lossy().ends_with(" (deleted)"))
}

/// The signal comes when the report has been begun, so that most rounds end in the middle of it.
#[test]
fn a_report_that_is_interrupted_leaves_nothing_behind() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("threads"), ["known_totals"]);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let report = dir.path("report.html");
        let arguments =
            ["flamegraph".as_ref(), "-f".as_ref(), "-o".as_ref(), report.as_os_str(), run.capture.as_os_str()];
        let memtrack = RunningProcess::start(&mut dir.memtrack(arguments));
        let is_begun = || !leftovers(&dir).is_empty() || has_nameless_file(memtrack.pid(), &dir);
        wait_until("the report has been begun", || is_begun() || report.exists());
        kill(memtrack.pid(), signal);
        let outcome = memtrack.wait();
        assert!(outcome.status == 128 + signal || outcome.status == 0, "{outcome:?}");
        assert_eq!(leftovers(&dir), [""; 0], "after {signal}");
        let _ = std::fs::remove_file(report);
    }
}
