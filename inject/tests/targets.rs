//! Calls in running programs of many kinds: the call is made, and the program does not notice.
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memtrack_inject::{FreezeCost, Refusal, attach, detach, find_library, freeze};

/// The compiled fixtures: the target program and the library.
struct Fixtures {
    directory: PathBuf,
    image: Vec<u8>,
}

fn fixtures() -> &'static Fixtures {
    static MADE: OnceLock<Fixtures> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inject");
        fs::create_dir_all(&directory).unwrap();
        let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        compile(&["-O2", "-pthread"], &source("target.c"), &directory.join("target"));
        compile(&["-O2", "-shared", "-fPIC"], &source("library.c"), &directory.join("library.so"));
        compile(&["-O2", "-static"], &source("target.c"), &directory.join("static"));
        let image = fs::read(directory.join("library.so")).unwrap();
        Fixtures { directory, image }
    })
}

fn compile(options: &[&str], source: &Path, into: &Path) {
    let status = Command::new("cc").args(options).arg("-o").arg(into).arg(source).arg("-ldl").status().unwrap();
    assert!(status.success(), "{}", source.display());
}

struct Target {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Target {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, output }
    }

    fn of(arguments: &[&str]) -> Self {
        Self::start(&fixtures().directory.join("target"), arguments)
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Ends it, and returns its output.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {errors}");
        text
    }

    /// Its open memory files; other descriptors it opens and closes itself.
    fn memory_files(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().flatten();
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("memfd:")).count()
    }

    fn attach(&self) -> Result<i32, Refusal> {
        let mut result = None;
        let called = attach(self.pid(), &fixtures().image, &|_| false, &mut |shared| {
            (&shared.file).write_all(&40_u64.to_le_bytes())?;
            result = Some(shared.file);
            Ok(Some(2))
        })?;
        let mut word = [0; 8];
        result.unwrap().read_exact_at(&mut word, 0).unwrap();
        assert_eq!(u64::from_le_bytes(word), 42, "both sides see the memory");
        Ok(called)
    }
}

/// The mappings of a process, without the library.
fn mappings(pid: i32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    text.lines().filter(|line| !line.contains("libmemtrack")).map(str::to_owned).collect()
}

fn cycles(arguments: &[&str], count: usize) {
    let target = Target::of(arguments);
    for cycle in 0..count {
        assert_eq!(target.attach().unwrap(), 0, "{arguments:?} cycle {cycle}");
        assert_eq!(detach(target.pid()).unwrap(), 0);
        assert!(find_library(target.pid()).unwrap());
    }
    assert_eq!(target.memory_files(), 0);
    assert_eq!(target.end(), "done 1 1\n");
}

#[test]
fn programs_that_allocate_all_the_time() {
    cycles(&["allocates", "0"], 20);
    cycles(&["allocates", "8"], 20);
}

#[test]
fn programs_that_load_libraries_all_the_time() {
    cycles(&["loads", "3"], 20);
}

#[test]
fn programs_that_fork_all_the_time() {
    cycles(&["forks", "2"], 20);
}

#[test]
fn programs_with_thousands_of_signals_a_second() {
    cycles(&["signals", "2"], 20);
}

#[test]
fn a_waiting_thread_waits_as_long_as_it_would_have() {
    for how in ["sleep", "poll", "select", "futex", "epoll", "read"] {
        let (begun, target) = (Instant::now(), Target::of(&[how]));
        let mut last = Duration::ZERO;
        for cycle in 0..4 {
            std::thread::sleep(Duration::from_millis(60));
            let attached = target.attach();
            last = begun.elapsed();
            match attached {
                Ok(result) => assert_eq!(result, 0, "{how}"),
                // On a busy machine the time is over before all cycles are.
                Err(Refusal::Zombie | Refusal::Gone) if cycle > 0 => break,
                Err(refusal) => panic!("{how}: {refusal}"),
            }
        }
        let text = target.end();
        let (result, time) = text.trim().split_once(' ').unwrap();
        let time: u32 = time.parse().unwrap();
        assert_eq!(result, "0", "{how}");
        // On a busy machine an attach may hold the thread until after that; one that began to wait anew would wait 700 ms from then.
        let most = (last.as_millis() + 600).max(1300);
        assert!((700..most).contains(&u128::from(time)), "{how}: {time} ms, the last attach at {last:?}");
    }
}

#[test]
fn nothing_remains_but_the_library() {
    let target = Target::of(&["poll"]);
    let (before, entry) = (mappings(target.pid()), code(target.pid()));
    assert_eq!(target.attach().unwrap(), 0);
    assert_eq!(mappings(target.pid()), before);
    assert_eq!(code(target.pid()), entry);
    let _ = target.end();
}

/// The executable's code.
fn code(pid: i32) -> Vec<u8> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = text.lines().find(|line| line.contains("/target") && line.contains("r-xp")).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let end = rest.split_once(' ').unwrap().0;
    let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).unwrap());
    let mut bytes = vec![0; (end - start) as usize];
    fs::File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut bytes, start).unwrap();
    bytes
}

/// Waits until a child has stopped or ended, and leaves that for others to wait for.
fn wait_for(child: i32, what: i32) {
    // SAFETY: zeroes are a value of it.
    let mut found = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
    // SAFETY: writes to a live local.
    let waited = unsafe { libc::waitid(libc::P_PID, child.cast_unsigned(), &raw mut found, what | libc::WNOWAIT) };
    assert_eq!(waited, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn what_cannot_be_used_is_refused_and_untouched() {
    let stopped = Target::of(&["poll"]);
    // SAFETY: takes numbers only.
    unsafe { libc::kill(stopped.pid(), libc::SIGSTOP) };
    wait_for(stopped.pid(), libc::WSTOPPED);
    assert!(matches!(stopped.attach(), Err(Refusal::Stopped(_))));
    // SAFETY: takes numbers only.
    unsafe { libc::kill(stopped.pid(), libc::SIGCONT) };
    assert!(stopped.end().starts_with("0 7"));

    let linked = Target::start(&fixtures().directory.join("static"), &["poll"]);
    assert!(matches!(linked.attach(), Err(Refusal::Static)));
    assert!(linked.end().starts_with("0 7"));

    let damaged = Target::of(&["poll"]);
    let refused = attach(damaged.pid(), b"no library", &|_| false, &mut |_| panic!("not reached"));
    assert!(matches!(&refused, Err(Refusal::NotLoaded(text)) if text.contains("file too short")), "{refused:?}");
    assert!(matches!(detach(damaged.pid()), Err(Refusal::NoLibrary)));
    assert!(damaged.end().starts_with("0 7"));

    let mut zombie = Command::new("true").spawn().unwrap();
    wait_for(zombie.id().cast_signed(), libc::WEXITED);
    assert!(matches!(find_library(zombie.id().cast_signed()), Err(Refusal::Zombie)));
    zombie.wait().unwrap();
    assert!(matches!(find_library(2), Err(Refusal::Kernel | Refusal::NoProcess)));
}

#[test]
fn memory_that_is_refused_is_offered_again() {
    let target = Target::of(&["poll"]);
    let mut attempts = Vec::new();
    let result = attach(target.pid(), &fixtures().image, &|result| result == -2, &mut |shared| {
        attempts.push(shared.attempt);
        Ok((shared.attempt < 2).then_some(1))
    });
    // The file is empty, so that the function returns -2.
    assert_eq!((result.unwrap(), attempts), (-2, vec![0, 1, 2]));
    assert!(!find_library(target.pid()).unwrap(), "the library is unloaded again");
    assert!(target.end().starts_with("0 7"));
}

#[test]
fn threads_run_on_while_another_waits_where_it_cannot_be_stopped() {
    // The first thread ends that wait, once it sees that the other one is asked to stop.
    let target = Target::of(&["vforks"]);
    let read = |_: &_, cost: FreezeCost| cost;
    let cost = freeze(target.pid(), false, &memtrack_inject::CopyInUse::default(), &|_| true, read).unwrap();
    assert!(cost.is_copied && cost.was_ready, "{cost:?}");
    assert_eq!(target.end(), "done 1 1\n");
}

#[test]
fn a_process_without_room_is_refused_untouched_until_there_is_room() {
    let target = Target::of(&["poll"]);
    let before = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    let number = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let set = |resource, bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads a live local.
        let set = unsafe { libc::prlimit(target.pid(), resource, &raw const limit, std::ptr::null_mut()) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    };
    for (resource, option, used) in [(libc::RLIMIT_AS, "--as=", "VmSize:"), (libc::RLIMIT_DATA, "--data=", "VmData:")] {
        for megabytes in [0, 2, 10, 18, 20, 24] {
            set(resource, (number(used) << 10) + (megabytes << 20));
            let refused = target.attach().unwrap_err().to_string();
            assert!(refused.contains(&format!("prlimit --pid {} {option}unlimited", target.pid())), "{refused}");
            assert_eq!(fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap(), before);
        }
        set(resource, (number(used) << 10) + (40 << 20));
    }
    assert_eq!(target.attach().unwrap(), 0);
    assert!(target.end().starts_with("0 7"));
}
