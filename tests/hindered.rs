//! A collector that is hindered: stopped, without disk, with a slow one, without memory. The program never notices, and
//! what is not lost with the medium is in the capture.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Control, Dir, Outcome, ReportedTally, RunningProcess, Stats, figures, kill, limit, wait_until};

/// A program of counting.c under memtrack, which waits to be let go.
pub(crate) struct WaitingProgram {
    pub(crate) dir: Dir,
    pub(crate) control: Control,
    pub(crate) capture: PathBuf,
    pub(crate) memtrack: RunningProcess,
}

impl WaitingProgram {
    pub(crate) fn of(case: &str, options: &[&str]) -> Self {
        let dir = Dir::new();
        let capture = dir.path("capture.bin");
        Self::writing_to(dir, capture, case, options)
    }

    fn writing_to(dir: Dir, capture: PathBuf, case: &str, options: &[&str]) -> Self {
        Self::started(dir, capture, case, options, |_| ())
    }

    /// `change`: what is different about the command.
    fn started(dir: Dir, capture: PathBuf, case: &str, options: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let (program, control) = (dir.program("counting"), dir.control("control"));
        let mut command = dir.memtrack(["run", "--no-native", "-o"]);
        command.arg(&capture).args(options).arg("--").arg(program).arg(case).arg(control.path());
        change(&mut command);
        let memtrack = RunningProcess::start(&mut command);
        wait_until("the program waits", || control.phase() == 1);
        Self { dir, control, capture, memtrack }
    }

    /// Lets it go on and waits until each of its threads sleeps, for nothing but memtrack.
    fn until_it_waits_for_memtrack(&self, before: u64) {
        self.control.let_go(1);
        wait_until("the program waits for memtrack", || {
            let states = threads(self.control.pid());
            assert!(!states.contains(&'Z'), "the program has ended, memtrack has taken everything");
            self.control.count() > before && states.iter().all(|state| *state == 'S')
        });
    }

    /// That it waits for as long as memtrack is to be stopped, instead of going on to its end without; lets both go on.
    fn waits_on(&self) {
        std::thread::sleep(figures().stopped);
        let states = threads(self.control.pid());
        assert!(!states.is_empty() && !states.contains(&'Z'), "it has given memtrack up");
        kill(self.memtrack.pid(), libc::SIGCONT);
    }

    /// That it ends as it would without memtrack; what memtrack says.
    pub(crate) fn ends(self, stdout: &str) -> (Dir, PathBuf, String) {
        let Outcome { stdout: printed, stderr, status } = self.memtrack.wait();
        assert_eq!((printed.as_str(), status), (stdout, 0), "{stderr}");
        (self.dir, self.capture, stderr)
    }
}

/// The state of each thread of a process, as a letter.
fn threads(pid: i32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let stat = |path: PathBuf| std::fs::read_to_string(path.join("stat")).unwrap_or_default();
    let state = |text: String| text.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
    tasks.map(|task| state(stat(task.expect("a thread").path()))).collect()
}

#[track_caller]
fn is_whole_with(capture: &Path, malloc: u64) {
    let stats = Stats::of(capture);
    stats.is_whole();
    assert_eq!(stats.allocator("malloc").count, malloc);
    assert_eq!(stats.number("/deallocations/count"), malloc);
}

#[test]
fn a_program_waits_for_a_stopped_memtrack_and_loses_nothing() {
    let program = WaitingProgram::of("phases", &[]);
    kill(program.memtrack.pid(), libc::SIGSTOP);
    program.until_it_waits_for_memtrack(100_000);
    assert!(program.control.count() < 1_300_000, "its ring holds everything");
    program.waits_on();
    let (_dir, capture, _) = program.ends("1300000 blocks\n");
    is_whole_with(&capture, 1_300_000);
}

#[test]
fn four_threads_wait_for_a_stopped_memtrack() {
    let program = WaitingProgram::of("four", &["--allocation-timestamps"]);
    kill(program.memtrack.pid(), libc::SIGSTOP);
    program.until_it_waits_for_memtrack(0);
    assert!(program.control.count() < 4_000_000, "their rings hold everything");
    program.waits_on();
    let (_dir, capture, _) = program.ends("4000000 blocks\n");
    is_whole_with(&capture, 4_000_000);
}

/// Records a child that begins and ends while memtrack is stopped.
#[track_caller]
fn child_beside_a_stopped_memtrack(options: &[&str]) -> (Dir, PathBuf) {
    let program = WaitingProgram::of("forks", options);
    kill(program.memtrack.pid(), libc::SIGSTOP);
    program.control.let_go(1);
    wait_until("the child has ended", || program.control.phase() == 2);
    kill(program.memtrack.pid(), libc::SIGCONT);
    let (dir, capture, _) = program.ends("");
    (dir, capture)
}

/// From its start to its end, of which nothing is lost.
#[test]
fn a_child_does_not_wait_for_a_stopped_memtrack() {
    let (dir, capture) = child_beside_a_stopped_memtrack(&["--follow"]);
    assert_eq!(Stats::of(&capture).allocated(), ReportedTally::new(100, 1200));
    let captures = dir.captures();
    let child = captures.iter().find(|path| path.file_name() != capture.file_name()).expect("the child's capture");
    let stats = Stats::of(child);
    stats.is_whole();
    assert_eq!(stats.allocated(), ReportedTally::new(1000, 11_000));
}

/// It had ended before its parent allocated, and long before memtrack looked at it.
#[test]
fn a_child_does_not_live_on_while_memtrack_is_stopped() {
    let (dir, _) = child_beside_a_stopped_memtrack(&["--follow", "--allocation-timestamps"]);
    let mut command = crate::support::memtrack();
    let whole = Outcome::of(command.args(["stats", "--json"]).args(dir.captures())).success();
    let whole: serde_json::Value = serde_json::from_str(&whole).expect("JSON");
    assert_eq!(whole["peak"]["bytes"], 11_000, "{}", whole["peak"]);
}

/// The capture reaches the largest size that memtrack's files may have.
#[test]
fn a_capture_that_may_not_grow_ends_and_the_program_does_not() {
    for options in [[].as_slice(), &["--aggregate"]] {
        let program = WaitingProgram::of("little", options);
        limit(program.memtrack.pid(), libc::RLIMIT_FSIZE, 300);
        program.control.let_go(1);
        let (_dir, capture, said) = program.ends("200000 blocks\n");
        assert!(
            said.contains("error: ") && said.contains("capture.bin: ") && said.contains("File too large"),
            "{said}"
        );
        assert!(std::fs::metadata(&capture).expect("the capture").len() <= 300, "{options:?}");
    }
}

/// The first may be taken before memtrack finds out.
#[test]
fn marks_of_a_capture_that_cannot_be_written_are_refused() {
    let program = WaitingProgram::of("phases", &[]);
    let pid = program.control.pid().to_string();
    limit(program.memtrack.pid(), libc::RLIMIT_FSIZE, 300);
    let mark = || Outcome::of(&mut program.dir.memtrack(["mark", "-q", &pid, "late"]));
    wait_until("a mark is refused", || mark().status != 0);
    mark().fails(1, &["the recording has ended: its capture could not be written any more"]);
    program.control.let_go(1);
    drop(program.ends("1300000 blocks\n"));
}

/// Everybody is told while the program runs, and nobody gets a file that has nothing.
#[test]
fn that_a_capture_cannot_be_written_is_said_while_the_program_runs() {
    const ENDED: &str = "the recording has ended: its capture could not be written any more: File too large";
    for options in [&["--compress", "none"] as &[&str], &["--window", "100ms", "--sample"]] {
        let mut program = WaitingProgram::of("phases", options);
        let pid = program.control.pid().to_string();
        let mut live = program.dir.memtrack(["live", "--jsonl", "--every", "100ms", &pid]);
        let mut live = RunningProcess::start(&mut live);
        wait_until("a window", || live.stdout().contains(r#""window""#));
        limit(program.memtrack.pid(), libc::RLIMIT_FSIZE, 300);
        let list = || Outcome::of(&mut program.dir.memtrack(["ps"]));
        wait_until("it has ended", || list().stdout.contains(" ended "));
        let listed = list();
        wait_until("it is said at once", || program.memtrack.stderr().contains("written any more: File too large"));
        assert!(
            listed.stderr.contains("recorded no more: its capture could not be written: File too large"),
            "{listed:?}"
        );
        assert!(listed.stdout.contains(" ended ") && !listed.stdout.contains(" counting  "), "{listed:?}");
        Outcome::of(&mut program.dir.memtrack(["snapshot", &pid, "-o", "now.bin"]))
            .fails(1, &[ENDED, "capture.bin has"]);
        assert!(!program.dir.path("now.bin").exists());
        for watched in [live.wait(), Outcome::of(&mut program.dir.memtrack(["live", "--jsonl", &pid]))] {
            assert!(watched.status == 0 && watched.stderr.contains(ENDED), "{watched:?}");
        }
        program.control.let_go(1);
        drop(program.ends("1300000 blocks\n"));
    }
}

/// As root, or where users may have name spaces of their own.
#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let dir = Dir::new();
    let (program, control) = (dir.program("counting"), dir.control("control"));
    control.let_go(1);
    std::fs::create_dir(dir.path("small")).expect("a directory");
    let script = "mount -t tmpfs -o size=2m none small || exit 77\n\
                  \"$0\" run -o small/capture.bin -- \"$@\"; echo \"status $?\"\n\
                  \"$0\" stats --json small/capture.bin > stats.json";
    let memtrack = crate::support::memtrack();
    let mut command = dir.command("unshare");
    command.args(["-m", "sh", "-c", script]).arg(memtrack.get_program()).arg(program).arg("much").arg(control.path());
    let outcome = Outcome::of(&mut command);
    if outcome.stderr.starts_with("unshare: ") || outcome.status == 77 {
        eprintln!("skipped: no mount name space: {}", outcome.stderr);
        return;
    }
    assert_eq!((outcome.stdout.as_str(), outcome.status), ("12000000 blocks\nstatus 0\n", 0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("small/capture.bin: ") && outcome.stderr.contains("No space left"), "{outcome:?}");
    let text = std::fs::read_to_string(dir.path("stats.json")).expect("a report on what there was room for");
    let stats = Stats(serde_json::from_str(&text).expect("JSON"));
    assert_eq!(stats.0["capture"]["complete"], false);
    let count = stats.allocator("malloc").count;
    assert!(count > 100_000 && count < 12_000_000, "{count}");
}

/// Copies what there is in a pipe, as long as there is more at once; whether that was the last.
fn is_at_end(pipe: &mut File, copy: &mut File) -> bool {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => copy.write_all(&buffer[..length]).expect("room"),
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// The capture goes through a pipe that nobody reads until the program waits for memtrack.
#[test]
fn a_program_waits_for_a_slow_medium_and_loses_nothing() {
    let dir = Dir::new();
    let pipe = dir.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let mut end = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("the pipe");
    let program = WaitingProgram::writing_to(dir, pipe, "much", &["--allocation-timestamps"]);
    program.until_it_waits_for_memtrack(0);
    let counted = program.control.count();
    assert!(counted < 12_000_000, "everything was taken");
    // From now on more may go through it at a time. Where this user's pipes have no more room, they keep what they have.
    // SAFETY: takes numbers only; the descriptor is open.
    unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    let capture = program.dir.path("capture.bin");
    let mut copy = File::create(&capture).expect("a file");
    wait_until("the end of the capture", || is_at_end(&mut end, &mut copy));
    let (_dir, _, _) = program.ends("12000000 blocks\n");
    let stats = Stats::of(&capture);
    stats.is_whole();
    assert_eq!(stats.allocator("malloc").count, 12_000_000);
    assert_eq!(stats.leaked().count, 256);
}

/// What it needs to record it has from the start, whichever of its threads begins late; for its report there is not enough
/// left, and the program's status is passed on all the same.
#[test]
fn memtrack_gets_no_more_memory() {
    for late in 0..9 {
        let dir = Dir::new();
        let slow = dir.compile("slow_threads", "libslow.so", &["-shared", "-fPIC"]);
        let capture = dir.path("capture.bin");
        let with_slow_threads = |command: &mut Command| {
            command.env("LD_PRELOAD", slow).env("SLOW_THREAD", late.to_string());
        };
        let program = WaitingProgram::started(dir, capture, "little", &[], with_slow_threads);
        let pid = program.memtrack.pid();
        limit(pid, libc::RLIMIT_AS, 1 << 20);
        program.control.let_go(1);
        let (_dir, capture, said) = program.ends("200000 blocks\n");
        eprintln!("with thread {late} late: {said}");
        let stats = Stats::of(&capture);
        stats.is_whole();
        assert_eq!(stats.allocator("malloc").count, 200_000);
    }
}

/// The limit of a shell, which memtrack's own shared memory does not fit in.
#[test]
fn no_file_may_become_large() {
    let dir = Dir::new();
    let (program, control) = (dir.program("counting"), dir.control("control"));
    control.let_go(1);
    let mut command = dir.shell("ulimit -f 1000; exec \"$0\" run -o capture.bin -- \"$@\"");
    let outcome = Outcome::of(command.arg(program).arg("little").arg(control.path()));
    assert_eq!((outcome.stdout.as_str(), outcome.status), ("200000 blocks\n", 0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no allocations of") && outcome.stderr.contains("File too large"), "{outcome:?}");
}
