//! Programs in control groups and under limits of processes: the system kills them, or refuses them memory and processes,
//! as it does without memtrack, and memtrack says so.
//!
//! Invariant: status and output are those without memtrack.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::limits::{is_root, program};
use crate::support::{Dir, Outcome, RunningProcess, Stats, wait_until};

/// A control group with a limit; removed with the value.
struct LimitedCgroup(PathBuf);

impl LimitedCgroup {
    /// With limited memory; `None`: this user or system has none.
    fn of_memory(bytes: u64) -> Option<Self> {
        Self::new(&[("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")], bytes)
    }

    /// With so many processes and threads at most.
    fn of_tasks(most: u64) -> Option<Self> {
        Self::new(&[("/sys/fs/cgroup/pids", "pids.max"), ("/sys/fs/cgroup", "pids.max")], most)
    }

    fn new(roots: &[(&str, &str)], most: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("memtrack-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        roots.iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(&name);
            std::fs::create_dir(&path).ok()?;
            let group = Self(path);
            let limit = group.0.join(limit);
            // In the file's own words: what was written may be rounded, or mean nothing.
            (limit.exists() && std::fs::write(limit, most.to_string()).is_ok()).then_some(group)
        })
    }

    /// Whether the system counts any process or thread in it.
    fn has_tasks(&self) -> bool {
        std::fs::read_to_string(self.0.join("pids.current")).expect("a count").trim() != "0"
    }

    /// A command that runs in it, with its words behind.
    fn command(&self, dir: &Dir) -> Command {
        let mut command = dir.command("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0);
        command
    }
}

impl Drop for LimitedCgroup {
    fn drop(&mut self) {
        // The last process may not have been taken out of it yet; a group that stays is empty.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// In a group with memtrack, as in a container, the system kills the one that has most.
#[test]
fn a_program_that_is_killed_for_its_memory() {
    let Some(group) = LimitedCgroup::of_memory(96 << 20) else {
        eprintln!("skipped: no memory groups for this user");
        return;
    };
    let dir = Dir::new();
    let (program, control, memtrack) = (program(&dir), dir.control("control"), crate::support::memtrack());
    let mut command = group.command(&dir);
    command.arg(memtrack.get_program());
    command.args(["run", "--no-native", "-q", "-o", "capture.bin", "--"]).arg(program).arg("eats").arg(control.path());
    let running = RunningProcess::start(&mut command);
    wait_until("the program waits", || control.phase() == 1);
    control.let_go(1);
    let outcome = running.wait();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (137, ""), "{outcome:?}");
    let (stats, counted) = (Stats::of(&dir.path("capture.bin")), control.count());
    stats.is_whole();
    let recorded = stats.allocator("malloc").count;
    assert!(counted > 1000 && (counted..=counted + 1).contains(&recorded), "{counted} counted, {recorded} recorded");
}

/// Attaches to a running program, which is recorded when this returns.
fn attach(dir: &Dir, pid: &str) -> RunningProcess {
    let attached = RunningProcess::start(&mut dir.memtrack(["attach", pid, "-o", "capture.bin"]));
    wait_until("it is recorded", || Outcome::of(&mut dir.memtrack(["mark", "-q", pid, "here"])).status == 0);
    attached
}

/// memtrack is in another group, and no parent of the program, whose status it does not get.
#[test]
fn a_program_that_memtrack_was_attached_to_is_killed_for_its_memory() {
    let Some(group) = LimitedCgroup::of_memory(96 << 20) else {
        eprintln!("skipped: no memory groups for this user");
        return;
    };
    let dir = Dir::new();
    let control = dir.control("control");
    let mut command = group.command(&dir);
    let running = RunningProcess::start(command.arg(program(&dir)).arg("eats").arg(control.path()));
    wait_until("the program waits", || control.phase() == 1);
    let pid = control.pid().to_string();
    let attached = attach(&dir, &pid);
    control.let_go(1);
    assert_eq!(running.wait().status, 137);
    let outcome = attached.wait();
    let reason = "SIGKILL: the OOM killer killed a process in its cgroup, whose memory limit is 101 MB";
    assert!(outcome.status == 0 && outcome.stderr.contains(reason), "{outcome:?}");
    let said = Outcome::of(&mut dir.memtrack(["explain", "capture.bin"])).success();
    assert!(said.starts_with("1. warning: ended by signal 9") && said.contains(reason), "{said}");
}

/// It ends by itself as soon as its child was killed in the same group.
#[test]
fn a_program_whose_child_is_killed_for_its_memory_is_not_said_to_be_killed() {
    let Some(group) = LimitedCgroup::of_memory(96 << 20) else {
        eprintln!("skipped: no memory groups for this user");
        return;
    };
    let dir = Dir::new();
    let control = dir.control("control");
    let mut command = group.command(&dir);
    command.args(["sh", "-c", "\"$0\" eats \"$1\"; exit 3"]).arg(program(&dir)).arg(control.path());
    let running = RunningProcess::start(&mut command);
    wait_until("the child waits", || control.phase() == 1);
    let pid = running.pid().to_string();
    let attached = attach(&dir, &pid);
    control.let_go(1);
    assert_eq!(running.wait().status, 3);
    let outcome = attached.wait();
    assert!(outcome.stderr.contains("has ended") && !outcome.stderr.contains("SIGKILL"), "{outcome:?}");
}

/// The last moment before a group is killed: this long, and some turns of each thread of memtrack that has to do with a block,
/// which are few where others have the processors.
const MOMENT: Duration = Duration::from_millis(25);
const TURNS: u64 = 3;

/// Waits until the threads of this name have had so many turns, after each of which they rest.
#[track_caller]
fn has_turns(memtrack: i32, name: &str) {
    let before = rests(memtrack, name);
    wait_until("memtrack has its turns", || rests(memtrack, name) >= before + TURNS);
}

/// How often the threads of this name have given up their processor to wait.
fn rests(process: i32, name: &str) -> u64 {
    sum_of_threads(process, name, "status", "voluntary_ctxt_switches:")
}

/// How often they have written to a file.
fn writes(process: i32, name: &str) -> u64 {
    sum_of_threads(process, name, "io", "syscw:")
}

/// The sum of what is told in a line of this file of the threads of this name.
fn sum_of_threads(process: i32, name: &str, file: &str, line: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("threads").flatten();
    let text = |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).ok();
    let threads = tasks.filter(|task| text(task, "comm").is_some_and(|comm| comm.trim_end() == name));
    let number = |task| text(&task, file)?.lines().find_map(|text| text.strip_prefix(line))?.trim().parse::<u64>().ok();
    threads.filter_map(number).sum()
}

/// Near the limit, where the kernel may kill the whole group, blocks are written at once: memtrack and the program are killed
/// together, and no more than the last moment is lost.
#[test]
fn a_group_that_is_killed_near_its_limit_loses_no_more_than_the_last_moment() {
    const LIMIT: u64 = 200 << 20;
    let Some(group) = LimitedCgroup::of_memory(LIMIT) else {
        eprintln!("skipped: no memory groups for this user");
        return;
    };
    let used = ["memory.usage_in_bytes", "memory.current"].map(|file| group.0.join(file));
    let used = used.iter().find(|file| file.exists()).expect("what the group uses");
    for round in 0..4 {
        let dir = Dir::new();
        let (program, control, memtrack) = (program(&dir), dir.control("control"), crate::support::memtrack());
        let mut command = group.command(&dir);
        command.arg(memtrack.get_program());
        command.args(["run", "--no-native", "-q", "-o", "capture.bin", "--"]).arg(program).arg("nears");
        command.arg(control.path()).arg(used).arg((LIMIT / 100 * 93).to_string());
        let running = RunningProcess::start(&mut command);
        wait_until("the program is near the limit", || control.phase() == 2 && control.count() > 60 + round * 40);
        // Each round is written, some milliseconds after the last: checkpoints write a few times in a second.
        let (counted, written) = (control.count(), writes(running.pid(), "memtrack-write"));
        let more = || writes(running.pid(), "memtrack-write") - written;
        wait_until("200 writes, or 4000 blocks", || more() >= 200 || control.count() >= counted + 4000);
        assert!(more() >= 200, "round {round}: written {} times while 4000 blocks were allocated", more());
        let counted = control.count();
        let begun = Instant::now();
        has_turns(running.pid(), "memtrack-drain");
        has_turns(running.pid(), "memtrack-write");
        std::thread::sleep(MOMENT.saturating_sub(begun.elapsed()));
        let pids = std::fs::read_to_string(group.0.join("cgroup.procs")).expect("the processes of the group");
        for pid in pids.lines() {
            // SAFETY: takes numbers only.
            unsafe { libc::kill(pid.parse().expect("a process id"), libc::SIGKILL) };
        }
        running.wait();
        let recorded = Stats::of(&dir.path("capture.bin")).allocator("calloc").count;
        assert!(recorded >= counted, "round {round}: {counted} were counted a moment before, {recorded} are recorded");
    }
}

/// The modes of `run` that differ in what memtrack takes.
pub(crate) const MODES: [&[&str]; 4] = [
    &[],
    &["--follow", "--native", "--allocation-timestamps"],
    &["--follow", "--aggregate", "--live"],
    &["--native", "--trace-python-allocators"],
];

/// `starts` of limits.c under a limit of processes and threads, which memtrack's own are among: `limited` gives the command
/// that the words behind it run under, once nothing `is_left` there. It starts what it starts without memtrack, and what is not
/// recorded is said.
#[track_caller]
fn few_tasks(dir: &Dir, most: u64, is_left: impl Fn() -> bool, limited: impl Fn() -> Command) {
    let (program, memtrack) = (program(dir), crate::support::memtrack());
    let limited = || {
        wait_until("what was started before has ended", || !is_left());
        limited()
    };
    let plain = Outcome::of(limited().arg(&program).arg("starts"));
    for mode in MODES {
        let _ = std::fs::remove_file(dir.path("capture.bin"));
        let mut command = limited();
        command.arg(memtrack.get_program()).args(["run", "-f", "-o", "capture.bin"]).args(mode);
        let outcome = Outcome::of(command.arg("--").arg(&program).arg("starts"));
        let told = format!("{most} {mode:?}: {plain:?} {outcome:?}");
        assert_eq!((&outcome.stdout, outcome.status), (&plain.stdout, plain.status), "{told}");
        let recorded = dir.path("capture.bin").exists();
        assert_eq!(recorded, !outcome.stderr.contains("without recording:"), "{told}");
        assert!(recorded || outcome.stderr.contains("ulimit -u, pids.max"), "{told}");
        assert!(recorded || most < 40, "{told}");
        if recorded && mode.contains(&"--follow") {
            let captures = dir.captures();
            let said = outcome.stderr.contains("a child process was not recorded");
            assert_eq!(captures.len() < 9, said, "{told} {captures:?}");
            captures.iter().for_each(|capture| drop(std::fs::remove_file(capture)));
        }
    }
}

/// Whether the user has any process, of those that have ended and were not waited for, too.
fn has_processes(user: u32) -> bool {
    let is_own = |status: String| {
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        users.is_some_and(|users| users.split_whitespace().next() == Some(user.to_string().as_str()))
    };
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok()).any(is_own)
}

/// A user's limit; root has none.
#[test]
fn a_user_with_few_processes() {
    // A user that no other run of this test is at the same time.
    let user = 100_000 + std::process::id();
    if !is_root("another user's limit of processes") {
        return;
    }
    if !crate::support::memtrack().arg("--version").uid(user).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: memtrack lies where another user does not get");
        return;
    }
    let dir = Dir::new();
    program(&dir);
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o777)).expect("permissions");
    let sockets = dir.path("sockets");
    std::fs::create_dir(&sockets).expect("a directory");
    std::os::unix::fs::chown(&sockets, Some(user), Some(user)).expect("another owner");
    for most in [1, 3, 8, 12, 17, 24, 40, 80] {
        few_tasks(
            &dir,
            most,
            || has_processes(user),
            || {
                let mut command = dir.command("bash");
                command.args(["-c", &format!("ulimit -u {most} && exec \"$@\""), "bash"]).uid(user).gid(user);
                command.env("XDG_RUNTIME_DIR", &sockets);
                command
            },
        );
    }
}

/// As in a container.
#[test]
fn a_control_group_with_few_processes() {
    let dir = Dir::new();
    for most in [1, 3, 8, 12, 17, 24, 40, 80] {
        let Some(group) = LimitedCgroup::of_tasks(most) else {
            eprintln!("skipped: no groups with a limit of processes for this user");
            return;
        };
        few_tasks(&dir, most, || group.has_tasks(), || group.command(&dir));
    }
}

/// What the program would not have met without memtrack, or does not tell, is said.
#[test]
fn limits_of_a_control_group_are_told() {
    let (Some(tasks), Some(memory)) = (LimitedCgroup::of_tasks(34), LimitedCgroup::of_memory(96 << 20)) else {
        eprintln!("skipped: no control groups for this user");
        return;
    };
    let (dir, memtrack) = (Dir::new(), crate::support::memtrack());
    let run = |group: &LimitedCgroup, code: &str| {
        let mut command = group.command(&dir);
        command.arg(memtrack.get_program()).args(["run", "-f", "-o", "capture.bin", "--"]).args(["sh", "-c", code]);
        Outcome::of(&mut command)
    };
    // None ends before the last is refused, which ends the shell.
    let many = "trap 'kill $all' EXIT; for i in $(seq 40); do sleep 1000 & all=\"$all $!\"; done 2> /dev/null; exit 3";
    let many = run(&tasks, many);
    assert!(many.stderr.contains("(pids.max) refused processes or threads"), "{many:?}");
    let control = dir.control("control");
    control.let_go(1);
    let killed = run(&memory, &format!("{} eats {}; exit 3", program(&dir).display(), control.path().display()));
    assert_eq!(killed.status, 3, "{killed:?}");
    assert!(killed.stderr.contains("the OOM killer killed a process of the control group"), "{killed:?}");
}

/// Where the system would kill memtrack, the program runs alone; its status is its own in each case.
#[test]
fn a_control_group_with_little_memory() {
    let (dir, memtrack) = (Dir::new(), crate::support::memtrack());
    for megabytes in [24, 64] {
        let Some(group) = LimitedCgroup::of_memory(megabytes << 20) else {
            eprintln!("skipped: no memory groups for this user");
            return;
        };
        let mut command = group.command(&dir);
        command.arg(memtrack.get_program()).args(["run", "-f", "-o", "capture.bin", "--"]).arg(program(&dir));
        let outcome = Outcome::of(command.arg("nothing"));
        assert_eq!(
            (outcome.stdout.as_str(), outcome.status),
            ("child: 5\nnothing done\n", 0),
            "{megabytes}: {outcome:?}"
        );
        let said = outcome.stderr.contains("memory limit of the control group");
        assert_eq!((said, dir.path("capture.bin").exists()), (megabytes == 24, megabytes == 64), "{outcome:?}");
    }
}
