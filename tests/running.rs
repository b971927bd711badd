//! Recordings that are reached while they run: what is listed, marks, snapshots, limits, and clients that misbehave.

use std::path::Path;

use serde_json::{Value, json};

use crate::hindered::WaitingProgram;
use crate::support::{Dir, Outcome, Stats, memtrack, wait_until};

/// Runs a command of memtrack.
fn memtrack_says(words: &[&str]) -> Outcome {
    Outcome::of(memtrack().args(words))
}

/// The process of this pid in the list.
fn listed(pid: i32) -> Option<Value> {
    let list: Value = serde_json::from_str(&memtrack_says(&["ps", "--json"]).success()).expect("JSON");
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
    let process = listed(pid).expect("it is listed");
    assert_eq!(process["state"], "recording");
    assert_eq!(process["capture"], json!(program.capture.canonicalize().expect("it is there")));
    assert!(process["command_line"][0].as_str().is_some_and(|word| word.ends_with("counting")), "{process}");
    assert!(process["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{process}");
    assert!(process["started"].as_str().is_some_and(|text| text.ends_with('Z')), "{process}");
    let text = memtrack_says(&["ps"]).success();
    assert!(text.lines().any(|line| line.contains(&pid.to_string()) && line.contains("counting")), "{text}");
    program.control.let_go(1);
    drop(program.ends("1300000 blocks\n"));
    assert_eq!(listed(pid), None);
}

/// The program waits between two phases of 100 000 and 1 200 000 blocks.
#[test]
fn a_mark_divides_the_events_exactly() {
    for options in [&["-q"] as &[&str], &["-q", "--allocation-timestamps"]] {
        let program = WaitingProgram::of("phases", options);
        let pid = program.control.pid().to_string();
        for name in ["early", "the wait", "the wait"] {
            memtrack_says(&["mark", "-q", &pid, name]).success();
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
    memtrack_says(&["mark", "-q", &program.control.pid().to_string(), "wait"]).success();
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
    memtrack_says(&["mark", "1", "name"]).fails(1, &["process 1 is not being recorded", "memtrack ps"]);
    memtrack_says(&["mark", "1", "a\nb"]).fails(2, &["control characters"]);
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
    wait_until("it is not listed", || listed(pid).is_none());
    program.control.let_go(1);
    wait_until("the program ends", || program.memtrack.stdout() == "1300000 blocks\n");
}
