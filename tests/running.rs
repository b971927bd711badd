//! Recordings that are reached while they run: what is listed, marks, snapshots, limits, and clients that misbehave.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::hindered::WaitingProgram;
use crate::support::{Dir, Outcome, RunningProcess, Stats, memtrack, wait_until};

/// Runs a command of memtrack where it finds the recordings of this directory.
fn memtrack_says(dir: &Dir, words: &[&str]) -> Outcome {
    Outcome::of(&mut dir.memtrack(words))
}

/// The process of this pid in the list.
fn listed(dir: &Dir, pid: i32) -> Option<Value> {
    let list: Value = serde_json::from_str(&memtrack_says(dir, &["ps", "--json"]).success()).expect("JSON");
    assert_eq!((&list["schema"], &list["version"]), (&json!("memtrack-ps"), &json!(1)));
    list["processes"].as_array().expect("processes").iter().find(|process| process["pid"] == pid).cloned()
}

/// The figures of a capture with these options.
fn stats(capture: &Path, options: &[&str]) -> Stats {
    let outcome = Outcome::of(memtrack().args(["stats", "--json"]).args(options).arg(capture));
    Stats(serde_json::from_str(&outcome.success()).expect("JSON"))
}

#[test]
fn a_recording_is_listed_while_it_runs() {
    let program = WaitingProgram::of("phases", &["-q"]);
    let pid = program.control.pid();
    let process = listed(&program.dir, pid).expect("it is listed");
    assert_eq!(process["state"], "recording");
    assert_eq!(process["capture"], json!(program.capture.canonicalize().expect("it is there")));
    assert!(process["command_line"][0].as_str().is_some_and(|word| word.ends_with("counting")), "{process}");
    assert!(process["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{process}");
    assert!(process["started"].as_str().is_some_and(|text| text.ends_with('Z')), "{process}");
    let text = memtrack_says(&program.dir, &["ps"]).success();
    assert!(text.lines().any(|line| line.contains(&pid.to_string()) && line.contains("counting")), "{text}");
    program.control.let_go(1);
    let (dir, ..) = program.ends("1300000 blocks\n");
    assert_eq!(listed(&dir, pid), None);
}

/// Its recording has ended, and the process has not: what was recorded before is in the capture, and the children are recorded on.
#[test]
fn a_process_that_becomes_a_static_program_is_recorded_no_more() {
    let dir = Dir::new();
    if !dir.compiles("counting", "static", &["-static"]) {
        return;
    }
    let control = dir.control("control");
    let script = format!("exec ./static phases {}", control.path().display());
    let mut command = dir.memtrack(["run", "--no-native", "--follow", "-o", "capture.bin", "--", "sh", "-c"]);
    let memtrack = RunningProcess::start(command.arg(&script));
    wait_until("the program waits", || control.phase() == 1);
    let (pid, mut process) = (control.pid(), Value::Null);
    assert_eq!(listed(&dir, pid).expect("it is listed")["state"], "recording", "it may only be slow to start");
    wait_until("its recording has ended", || {
        process = listed(&dir, pid).expect("it is listed");
        process["state"] == "ended"
    });
    assert!(process["unrecorded_program"].as_str().is_some_and(|path| path.ends_with("/static")), "{process}");
    let text = memtrack_says(&dir, &["ps"]);
    assert!(text.stderr.contains("/static, which cannot load memtrack's library"), "{text:?}");
    let snapshot = memtrack_says(&dir, &["snapshot", &pid.to_string(), "-o", "now.bin"]);
    assert!(snapshot.status == 0 && snapshot.stderr.contains("its recording has ended"), "{snapshot:?}");
    let live = memtrack_says(&dir, &["live", "--jsonl", &pid.to_string()]);
    assert!(live.stderr.contains("/static, which cannot load memtrack's library"), "{live:?}");
    control.let_go(1);
    let ended = memtrack.wait();
    assert_eq!((ended.stdout.as_str(), ended.status), ("1300000 blocks\n", 0), "{}", ended.stderr);
    for capture in ["now.bin", "capture.bin"] {
        let stats = memtrack_says(&dir, &["stats", capture]);
        assert!(stats.status == 0 && stats.stderr.contains("ends at an exec"), "{stats:?}");
    }
}

/// It is waited for, since it may start a program that is recorded, and what was recorded of it is all there was.
#[test]
fn the_capture_of_a_child_that_becomes_a_static_program_is_complete() {
    let dir = Dir::new();
    if !dir.compiles("counting", "static", &["-static"]) {
        return;
    }
    let control = dir.control("control");
    let script = format!("./static phases {} &", control.path().display());
    let mut command = dir.memtrack(["run", "--no-native", "--follow", "-o", "capture.bin", "--", "sh", "-c"]);
    let memtrack = RunningProcess::start(command.arg(&script));
    wait_until("the program waits", || control.phase() == 1);
    let (pid, mut process) = (control.pid(), Value::Null);
    wait_until("its recording has ended", || {
        process = listed(&dir, pid).expect("it is waited for");
        process["state"] == "ended"
    });
    control.let_go(1);
    let ended = memtrack.wait();
    assert_eq!((ended.stdout.as_str(), ended.status), ("1300000 blocks\n", 0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("incomplete"), "{}", ended.stderr);
    let capture = process["capture"].as_str().expect("it has a capture");
    assert_eq!(stats(Path::new(capture), &[]).0["capture"]["complete"], true);
}

/// As of an emulator or a wrapper that is linked statically: what it executes in the end has the library, and is recorded.
#[test]
fn a_program_that_connects_late_is_recorded_after_all() {
    let dir = Dir::new();
    if !dir.compiles("waits_and_executes", "wrapper", &["-static"]) {
        return;
    }
    let (program, control) = (dir.program("counting"), dir.control("control"));
    let interpreter = format!("#!{}\n", dir.path("wrapper").display());
    let script = dir.executable("script", interpreter.as_bytes(), 0o755);
    let mut command = dir.memtrack(["run", "--no-native", "-o", "capture.bin", "--", "sh", "-c", "exec \"$0\" \"$@\""]);
    let memtrack = RunningProcess::start(command.arg(script).arg("go").arg(program).arg("phases").arg(control.path()));
    let states = || {
        let list: Value = serde_json::from_str(&memtrack_says(&dir, &["ps", "--json"]).success()).expect("JSON");
        let processes = list["processes"].as_array().expect("processes");
        processes.iter().map(|process| process["state"].clone()).collect::<Vec<_>>()
    };
    wait_until("its recording has ended", || states() == ["ended"]);
    dir.write("go", b"");
    wait_until("the program waits", || control.phase() == 1);
    assert_eq!(states(), ["recording"]);
    control.let_go(1);
    let ended = memtrack.wait();
    assert_eq!((ended.stdout.as_str(), ended.status), ("1300000 blocks\n", 0), "{}", ended.stderr);
    // With what the shell had allocated before.
    assert!(stats(&dir.path("capture.bin"), &[]).allocator("malloc").count >= 1_300_000);
}

/// The program says that it waits as soon as it has made its blocks: long before the next checkpoint.
#[test]
fn what_is_listed_counts_everything_until_the_question() {
    for options in [&["-q"] as &[&str], &["-q", "--allocation-timestamps"], &["-q", "--aggregate"], &["-q", "--live"]] {
        let program = WaitingProgram::of("phases", options);
        let pid = program.control.pid();
        let mut told = None;
        wait_until("it was counted in time", || {
            let process = listed(&program.dir, pid).expect("it is listed");
            let is_counted = process["events"].is_u64();
            assert_eq!(process["counting"], json!(!is_counted), "{process}");
            assert_eq!(process["live_bytes"].is_u64(), is_counted, "{process}");
            told = Some(process);
            is_counted
        });
        let told = told.expect("it was listed");
        assert!(told["events"].as_u64().is_some_and(|events| events >= 100_000), "{options:?}: {told}");
        program.control.let_go(1);
        drop(program.ends("1300000 blocks\n"));
    }
}

/// The program waits between two phases of 100 000 and 1 200 000 blocks.
#[test]
fn a_mark_divides_the_events_exactly() {
    for options in [&["-q"] as &[&str], &["-q", "--allocation-timestamps"]] {
        let program = WaitingProgram::of("phases", options);
        let pid = program.control.pid().to_string();
        for name in ["early", "the wait", "the wait"] {
            memtrack_says(&program.dir, &["mark", "-q", &pid, name]).success();
        }
        program.control.let_go(1);
        let (_dir, capture, _) = program.ends("1300000 blocks\n");
        let count = |options: &[&str]| stats(&capture, options).allocator("malloc").count;
        assert_eq!(count(&["--to", "mark:early"]), 100_000);
        assert_eq!(count(&["--from", "mark:the wait"]), 1_200_000);
        assert_eq!(count(&["--from", "mark:the wait#1", "--to", "mark:the wait#2"]), 0);
        let whole = Stats::of(&capture);
        whole.is_whole();
        let marks = whole.0["capture"]["marks"].as_array().expect("marks");
        let names: Vec<_> = marks.iter().map(|mark| mark["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["early", "the wait", "the wait"]);
        let unknown = Outcome::of(memtrack().args(["table", "--from", "mark:no"]).arg(&capture));
        unknown.fails(1, &["no mark \"no\"", "\"early\", \"the wait\""]);
        let parsed = Outcome::of(memtrack().arg("parse").arg(&capture)).success();
        let lines: Vec<&str> =
            parsed.lines().filter(|line| line.contains("allocator=malloc") || line.starts_with("MARK")).collect();
        let first = lines.iter().position(|line| line.starts_with("MARK")).expect("a mark");
        assert!(lines[first].ends_with("name=early"), "{}", lines[first]);
        assert_eq!((first, lines.len()), (100_000, 1_300_003));
    }
}

/// A rewritten capture has the marks at the same places.
#[test]
fn rewritten_captures_keep_marks() {
    let program = WaitingProgram::of("phases", &["-q"]);
    memtrack_says(&program.dir, &["mark", "-q", &program.control.pid().to_string(), "wait"]).success();
    program.control.let_go(1);
    let (dir, capture, _) = program.ends("1300000 blocks\n");
    let anonymous = dir.path("anonymous.bin");
    Outcome::of(memtrack().arg("anonymize").arg(&capture).arg("-o").arg(&anonymous)).success();
    let figures = Stats::of(&anonymous);
    let name = figures.0["capture"]["marks"][0]["name"].as_str().expect("a name");
    assert!(name.starts_with("mark-"), "{name}");
    assert_eq!(stats(&anonymous, &["--to", &format!("mark:{name}")]).allocator("malloc").count, 100_000);
    let merged = dir.path("merged.bin");
    Outcome::of(memtrack().arg("merge").arg(&capture).arg("-o").arg(&merged)).success();
    assert_eq!(stats(&merged, &["--to", "mark:wait"]).allocator("malloc").count, 100_000);
}

#[test]
fn marks_without_a_recording_are_refused() {
    let dir = Dir::new();
    memtrack_says(&dir, &["mark", "1", "name"]).fails(1, &["process 1 is not being recorded", "memtrack ps"]);
    memtrack_says(&dir, &["mark", "1", "a\nb"]).fails(2, &["control characters"]);
    let plain = dir.path("plain.bin");
    Outcome::of(dir.memtrack(["run", "-q", "-o"]).arg(&plain).arg("true")).success();
    let none = Outcome::of(memtrack().args(["stats", "--from", "mark:x"]).arg(&plain));
    none.fails(1, &["no mark \"x\"", "memtrack mark PID NAME"]);
}

/// The recorder is killed: its socket is left behind, and gone as soon as somebody lists.
#[test]
fn a_killed_recorder_is_not_listed() {
    let mut program = WaitingProgram::of("phases", &["-q"]);
    let pid = program.control.pid();
    crate::support::kill(program.memtrack.pid(), libc::SIGKILL);
    wait_until("it is not listed", || listed(&program.dir, pid).is_none());
    program.control.let_go(1);
    wait_until("the program ends", || program.memtrack.stdout() == "1300000 blocks\n");
}

/// Writes a snapshot of a process to this file.
#[track_caller]
fn snapshot(dir: &Dir, pid: i32, to: &Path, options: &[&str]) -> Stats {
    let outcome = Outcome::of(dir.memtrack(["snapshot"]).args(options).arg(pid.to_string()).arg("-o").arg(to));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let stats = Stats::of(to);
    stats.is_whole();
    assert_eq!(
        (&stats.0["capture"]["snapshot"], &stats.0["capture"]["still_recording"]),
        (&json!(true), &json!(false))
    );
    stats
}

#[test]
fn a_snapshot_has_everything_up_to_now() {
    for options in [&["-q"] as &[&str], &["-q", "--allocation-timestamps"], &["-q", "--aggregate"], &["-q", "--live"]] {
        let program = WaitingProgram::of("phases", options);
        let (pid, dir) = (program.control.pid(), &program.dir);
        let taken = snapshot(dir, pid, &dir.path("one.bin"), &["-q"]);
        assert_eq!(taken.allocator("malloc").count, 100_000, "{options:?}");
        assert_eq!(taken.0["leaked"]["moment"], "snapshot");
        let refused = Outcome::of(dir.memtrack(["snapshot", &pid.to_string(), "-o"]).arg(dir.path("one.bin")));
        refused.fails(1, &["one.bin", "--force"]);
        program.control.let_go(1);
        let (_dir, capture, _) = program.ends("1300000 blocks\n");
        assert_eq!(Stats::of(&capture).allocator("malloc").count, 1_300_000);
    }
}

#[test]
fn a_growing_capture_is_not_called_damaged() {
    let program = WaitingProgram::of("phases", &["-q"]);
    let outcome = Outcome::of(memtrack().args(["stats", "--json"]).arg(&program.capture));
    assert!(outcome.stderr.contains("still being recorded") && !outcome.stderr.contains("incomplete"), "{outcome:?}");
    let stats = Stats(serde_json::from_str(&outcome.stdout).expect("JSON"));
    assert_eq!(
        (&stats.0["capture"]["complete"], &stats.0["capture"]["still_recording"]),
        (&json!(false), &json!(true))
    );
    crate::support::kill(program.memtrack.pid(), libc::SIGKILL);
    wait_until("it is not recorded any more", || {
        Outcome::of(memtrack().arg("stats").arg(&program.capture)).stderr.contains("incomplete: ")
    });
    crate::support::kill(program.control.pid(), libc::SIGKILL);
}

/// Threads free each other's blocks at full rate: no snapshot has a free without its block, or a block whose free is there.
/// They do so only while there is something to see, so that there is not more to read the longer that takes.
#[test]
fn snapshots_at_full_rate_have_no_contradictions() {
    let dir = Dir::new();
    let (program, capture, control) = (dir.program("handover"), dir.path("capture.bin"), dir.control("control"));
    let memtrack =
        RunningProcess::start(&mut dir.recording(&capture, &[program.as_os_str(), control.path().as_os_str()]));
    wait_until("the program waits", || control.phase() == 1);
    let pid = control.pid();
    let paths = [1, 2, 3].map(|number| dir.path(&format!("{number}.bin")));
    for (number, path) in (0..).zip(&paths) {
        control.let_go(2 * number);
        let before = control.count();
        control.let_go(2 * number + 1);
        wait_until("the threads are at it", || control.count() > before + 100_000);
        Outcome::of(dir.memtrack(["snapshot", "-q", &pid.to_string(), "-o"]).arg(path)).success();
    }
    crate::support::kill(pid, libc::SIGKILL);
    assert_eq!(memtrack.wait().status, 137);
    let mut counts = vec![0];
    for path in &paths {
        let taken = Stats::of(path);
        taken.is_whole();
        // A shelf of 64 blocks, and one or two in the hands of each thread.
        assert!(taken.leaked().count <= 64 + 8, "{:?}", taken.leaked());
        counts.push(taken.allocator("malloc").count);
    }
    assert!(counts.is_sorted_by(|one, next| one < next), "{counts:?}");
    Stats::of(&capture).is_whole();
}

/// Both processes wait; the snapshot of the first one has both.
#[test]
fn a_snapshot_of_the_first_process_has_its_children() {
    let dir = Dir::new();
    let capture = dir.path("capture.bin");
    let script = "sleep 1000 & echo $!; wait";
    let mut command = dir.memtrack(["run", "-q", "--follow", "-o"]);
    command.arg(&capture).args(["sh", "-c", script]);
    let mut memtrack = RunningProcess::start(&mut command);
    wait_until("the child has started", || memtrack.stdout().ends_with('\n'));
    let child: i32 = memtrack.stdout().trim().parse().expect("a process id");
    wait_until("the child is recorded", || listed(&dir, child).is_some_and(|child| child["capture"].is_string()));
    let parent = {
        let list: Value = serde_json::from_str(&memtrack_says(&dir, &["ps", "--json"]).success()).expect("JSON");
        let of_test = |process: &&Value| process["capture"] == json!(capture.canonicalize().expect("it is there"));
        let all = list["processes"].as_array().expect("processes");
        all.iter().find(of_test).and_then(|process| process["pid"].as_i64()).expect("it is listed")
    };
    let both = snapshot(&dir, i32::try_from(parent).expect("a process id"), &dir.path("both.bin"), &["-q"]);
    assert_eq!(both.0["processes"].as_array().map(Vec::len), Some(2), "{}", both.0["processes"]);
    let one = snapshot(&dir, child, &dir.path("one.bin"), &["-q"]);
    assert_eq!(one.0["capture"]["pid"], child);
    memtrack_says(&dir, &["mark", "-q", &child.to_string(), "both"]).success();
    crate::support::kill(child, libc::SIGKILL);
    assert_eq!(memtrack.wait().status, 0);
    for path in dir.captures().iter().filter(|path| path.to_string_lossy().contains("capture")) {
        assert_eq!(Stats::of(path).0["capture"]["marks"][0]["name"], "both", "{}", path.display());
    }
}

#[test]
fn a_program_that_grows_is_ended_by_its_limit() {
    let dir = Dir::new();
    let (program, capture) = (dir.program("grows"), dir.path("capture.bin"));
    let mut command = dir.memtrack(["run", "-q", "--stop-above", "40MB", "-o"]);
    let outcome = Outcome::of(command.arg(&capture).arg(&program).arg("1000"));
    assert_eq!((outcome.status, outcome.stdout.as_str()), (143, ""), "{outcome:?}");
    assert!(outcome.stderr.contains("--stop-above 40.0 MB") && outcome.stderr.contains("SIGTERM"), "{outcome:?}");
    let stats = Stats::of(&capture);
    stats.is_whole();
    // The limit is one of resident memory, which holds the pages of the program's files, too: 2 to 3 MB.
    assert!((36_000_000..100_000_000).contains(&stats.peak().bytes), "{:?}", stats.peak());
    // What was live before the program was told, which may free it first.
    let snapshot = dir.path("capture.snapshot1.bin");
    assert!(outcome.stderr.contains(&format!("what it held then is in {}", snapshot.display())), "{outcome:?}");
    let then = Stats::of(&snapshot);
    then.is_whole();
    assert!((30_000_000..=stats.peak().bytes).contains(&then.leaked().bytes), "{:?}", then.leaked());
}

#[test]
fn a_snapshot_is_written_above_a_limit() {
    let dir = Dir::new();
    let (program, capture, control) = (dir.program("grows"), dir.path("capture.bin"), dir.control("control"));
    let mut command = dir.memtrack(["run", "-q", "--snapshot-above", "20MB", "-o"]);
    let memtrack = RunningProcess::start(command.arg(&capture).arg(&program).arg("40").arg(control.path()));
    wait_until("there is a snapshot", || dir.path("capture.snapshot1.bin").exists());
    control.let_go(1);
    let outcome = memtrack.wait();
    assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "grown\n", ""));
    let taken = Stats::of(&dir.path("capture.snapshot1.bin"));
    taken.is_whole();
    assert!((18_000_000..42_000_000).contains(&taken.peak().bytes), "{:?}", taken.peak());
    assert!(!dir.path("capture.snapshot2.bin").exists());
}

/// The numbers of the snapshots `often.snapshotN.bin` that there are.
fn snapshots(dir: &Dir) -> Vec<u32> {
    let number =
        |path: PathBuf| path.file_name()?.to_str()?.strip_prefix("often.snapshot")?.strip_suffix(".bin")?.parse().ok();
    let mut numbers: Vec<u32> = dir.captures().into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn snapshots_are_written_from_time_to_time() {
    let dir = Dir::new();
    let (program, control) = (dir.program("grows"), dir.control("control"));
    let mut command = dir.memtrack(["run", "-q", "--snapshot-every", "100ms", "--snapshot-keep", "2", "-o"]);
    let memtrack =
        RunningProcess::start(command.arg(dir.path("often.bin")).arg(&program).arg("150").arg(control.path()));
    wait_until("there were four", || snapshots(&dir).into_iter().any(|number| number > 3));
    control.let_go(1);
    memtrack.wait().success();
    let numbers = snapshots(&dir);
    assert!(numbers.len() == 2 && numbers[1] == numbers[0] + 1 && numbers[1] > 3, "{numbers:?}");
    let [one, next] = [0, 1].map(|at| Stats::of(&dir.path(&format!("often.snapshot{}.bin", numbers[at]))));
    // The program may not have had its turn between them, but time has passed.
    assert!(one.number("/capture/duration_ms") < next.number("/capture/duration_ms"), "{:?} {:?}", one.0, next.0);
    assert!(one.peak().bytes <= next.peak().bytes, "{:?} {:?}", one.peak(), next.peak());
}

/// A client that does what none should.
fn misbehave(socket: &Path, kind: usize) -> Option<UnixStream> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_nonblocking(true).ok()?;
    let bytes = match kind % 6 {
        0 => vec![b'x'; 200_000],
        1 => b"{\"id\":1,\"command\":\"status\"}\n".repeat(5000),
        2 => b"{\"id\":1,\"comm".to_vec(),
        3 => b"nonsense\n".repeat(50),
        4 => b"{\"id\":1,\"command\":\"live\",\"every_ms\":1}\n".to_vec(),
        // Connects and closes.
        _ => return None,
    };
    let _ = (&stream).write(&bytes);
    Some(stream)
}

/// A thousand clients flood, talk nonsense, do not read, and connect and close, while a program allocates at full rate: every
/// event is recorded, and whoever behaves is answered.
#[test]
fn a_recording_does_not_notice_hostile_clients() {
    let program = WaitingProgram::of("storm", &["-q"]);
    let pid = program.control.pid();
    let socket = program.dir.socket(pid);
    program.control.let_go(1);
    let mut kept: Vec<Option<UnixStream>> = (0..1000).map(|kind| misbehave(&socket, kind)).collect();
    memtrack_says(&program.dir, &["mark", "-q", &pid.to_string(), "after them"]).success();
    let dropped = |stream: &mut Option<UnixStream>| {
        let mut rest = [0; 4096];
        stream.as_mut().is_none_or(|stream| {
            loop {
                match stream.read(&mut rest) {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
                }
            }
        })
    };
    let is_dropped = kept.iter_mut().filter_map(|stream| dropped(stream).then_some(())).count();
    assert!(is_dropped >= 1000 - 64, "{is_dropped} were dropped");
    wait_until("a good part of it happened while they were there", || program.control.count() >= 20_000_000);
    program.control.let_go(2);
    let outcome = program.memtrack.wait();
    let blocks = program.control.count();
    assert_eq!((outcome.status, outcome.stdout), (0, format!("{blocks} blocks\n")), "{}", outcome.stderr);
    let stats = Stats::of(&program.capture);
    stats.is_whole();
    assert_eq!((stats.allocator("malloc").count, stats.number("/deallocations/count")), (blocks, blocks));
    assert_eq!(stats.0["capture"]["marks"][0]["name"], "after them");
}
