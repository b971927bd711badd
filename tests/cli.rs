//! The command line: what is refused and how, where files go, and that the program gets what was meant for it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::support::{Dir, Outcome, ReportedTally, Stats, memtrack, wait_until};

fn outcome(dir: &Dir, words: &[&str]) -> Outcome {
    Outcome::of(&mut dir.memtrack(words))
}

/// That it failed with this status and one line that begins with `error: ` and contains all parts.
#[track_caller]
fn refused(dir: &Dir, words: &[&str], status: i32, parts: &[&str]) {
    let outcome = outcome(dir, words);
    outcome.fails(status, parts);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn wrong_usage_is_status_2() {
    let dir = Dir::new();
    refused(&dir, &["run", "--aggregate", "--allocation-timestamps", "true"], 2, &["no individual events"]);
    refused(&dir, &["run", "--no-such-option", "true"], 2, &["'--no-such-option'"]);
    refused(&dir, &["run", "-m"], 2, &["'-m' needs"]);
    refused(&dir, &["run"], 2, &["TARGET"]);
    refused(&dir, &["transform", "speedscope", "x", "--leaks", "--allocated"], 2, &["cannot be used with"]);
    refused(&dir, &["no-such-command"], 2, &["no-such-command"]);
}

#[test]
fn programs_that_cannot_be_started() {
    let dir = Dir::new();
    dir.write("text", b"just text");
    for program in ["no-such-program", "./no-such-program", "/no/such/program"] {
        refused(&dir, &["run", program], 127, &[program, "not found"]);
    }
    refused(&dir, &["run", "no-such-script.py"], 127, &["no-such-script.py"]);
    refused(&dir, &["run", "./text"], 126, &["not executable"]);
    refused(&dir, &["run", "/"], 126, &["is a directory without __main__.py"]);
    refused(&dir, &["run", "."], 127, &["program not found", "a directory without __main__.py"]);
    refused(&dir, &["run", "/dev/null"], 126, &["not a program", "memtrack run - </dev/null"]);
    refused(&dir, &["run", ""], 127, &["program name is empty"]);
    assert!(dir.captures().is_empty());
}

#[test]
fn output_is_refused_before_the_program_starts() {
    let dir = Dir::new();
    dir.write("old", b"old");
    let run = |output: &'static str| ["run", "-o", output, "touch", "started"];
    refused(&dir, &run("old"), 1, &["exists", "--force"]);
    refused(&dir, &run("no/such/directory"), 1, &["no directory no/such"]);
    refused(&dir, &run("-"), 1, &["standard output is used by the recorded program"]);
    refused(&dir, &run("/dev/full"), 1, &["No space left"]);
    assert!(!dir.path("started").exists());
    assert_eq!(fs::read(dir.path("old")).expect("the old file"), b"old");
}

#[test]
fn options_end_at_the_program() {
    let dir = Dir::new();
    let words = ["run", "-q", "-o", "c", "sh", "-c", "echo \"$@\"", "name", "-o", "x", "--help", "--", "-q"];
    assert_eq!(outcome(&dir, &words).success(), "-o x --help -- -q\n");
}

#[test]
fn the_capture_is_named_after_the_program_and_its_process() {
    let dir = Dir::new();
    let pid = outcome(&dir, &["run", "-q", "sh", "-c", "echo $$"]).success();
    assert_eq!(dir.captures(), [dir.path(&format!("memtrack-sh.{}.bin", pid.trim()))]);
}

#[test]
fn closing_lines_are_on_standard_error_unless_quiet() {
    let dir = Dir::new();
    let told = outcome(&dir, &["run", "-o", "c.bin", "sh", "-c", "echo out"]);
    assert_eq!((told.status, told.stdout.as_str()), (0, "out\n"));
    ["c.bin", "peak", "leaked", "memtrack flamegraph c.bin", "memtrack stats c.bin"].iter().for_each(|part| {
        assert!(told.stderr.contains(part), "{part:?} is not in {told:?}");
    });
    let quiet = outcome(&dir, &["run", "-q", "-f", "-o", "c.bin", "sh", "-c", "echo out"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("out\n", ""));
}

#[test]
fn a_program_without_python_has_native_stacks_unless_somebody_says_no() {
    let dir = Dir::new();
    let native = outcome(&dir, &["run", "-o", "n.bin", "sh", "-c", "echo out"]);
    assert!(
        native.stderr.contains("stacks      native, because the program does not run Python; --no-native"),
        "{native:?}"
    );
    assert!(outcome(&dir, &["stats", "--json", "n.bin"]).success().contains("\"has_native_traces\": true"));
    let native = outcome(&dir, &["table", "n.bin"]);
    assert!(!native.stderr.contains("no call stacks"), "{native:?}");
    let asked = outcome(&dir, &["run", "--native", "-f", "-o", "n.bin", "sh", "-c", "echo out"]);
    assert!(!asked.stderr.contains("does not run Python"), "{asked:?}");
    let plain = outcome(&dir, &["run", "--no-native", "-o", "c.bin", "sh", "-c", "echo out"]);
    assert!(!plain.stderr.contains("without own code"), "whose it is is not known: {plain:?}");
    assert!(
        plain.stderr.contains("stacks      none recorded: the program does not run Python; use --native"),
        "{plain:?}"
    );
    for report in [&["table"] as &[_], &["tree", "--text"], &["transform", "collapsed", "-o", "-"]] {
        let told = outcome(&dir, &[report, &["c.bin"]].concat());
        assert!(told.stderr.contains("no call stacks") && told.stderr.contains("--native"), "{told:?}");
    }
}

#[test]
fn the_closing_lines_have_the_duration_of_the_whole_also_after_exec() {
    let dir = Dir::new();
    for words in [&["-c", "echo"] as &[_], &["-c", "exec sh -c 'exec echo'"]] {
        let told = outcome(&dir, &[&["run", "-f", "-o", "c.bin", "sh"], words].concat());
        let stats = outcome(&dir, &["stats", "c.bin"]).success();
        let duration = stats.lines().find_map(|line| line.strip_prefix("Duration")).expect("a duration").trim();
        assert!(told.stderr.contains(&format!(" in c.bin, recorded in {duration}\n")), "{duration}: {told:?}");
    }
}

#[test]
fn a_report_that_ends_in_the_middle_says_where_it_was_written() {
    let dir = Dir::new();
    outcome(&dir, &["run", "--no-native", "-q", "-o", "c.bin", "sh", "-c", "echo; echo; echo"]).success();
    for words in [&["parse"] as &[_], &["stats"], &["table", "--json"], &["transform", "speedscope", "-o", "-"]] {
        let printed = Outcome::of(dir.shell("exec \"$0\" \"$@\" c.bin > /dev/full").args(words));
        printed.fails(1, &["error: standard output", "No space left"]);
    }
    refused(&dir, &["parse", "-o", "/dev/full", "c.bin"], 1, &["/dev/full: cannot be written", "No space left"]);
}

#[test]
fn formats_with_all_views_say_so_where_one_is_asked_for() {
    let dir = Dir::new();
    outcome(&dir, &["run", "-q", "-o", "c.bin", "sh", "-c", "echo"]).success();
    for format in ["jsonl", "dhat"] {
        let words = ["transform", format, "-o", "-", "c.bin"];
        let plain = outcome(&dir, &words);
        assert!(!plain.stderr.contains("contains all views"), "{plain:?}");
        let asked = outcome(&dir, &[&words as &[_], &["--leaks"]].concat());
        assert!(asked.stderr.contains("contains all views") && asked.stdout == plain.stdout, "{asked:?}");
    }
}

#[test]
fn nothing_is_left_in_the_directory_for_temporary_files() {
    let dir = Dir::new();
    fs::create_dir(dir.path("tmp")).expect("a directory");
    let mut command = dir.memtrack(["run", "-q", "-o", "c.bin", "sh", "-c", "exit 3"]);
    assert_eq!(Outcome::of(command.env("TMPDIR", dir.path("tmp"))).status, 3);
    assert_eq!(fs::read_dir(dir.path("tmp")).expect("the directory").count(), 0);
}

#[test]
fn scripts_run_as_the_kernel_runs_them() {
    let dir = Dir::new();
    let text = b"#!/usr/bin/env sh\necho \"$0\" \"$@\"; readlink /proc/$$/exe\nexit 4\n";
    let script = dir.executable("script", text, 0o755);
    let plain = Outcome::of(dir.command(&script).arg("a b"));
    let tracked = Outcome::of(dir.memtrack(["run", "-q", "-o", "c.bin"]).arg(&script).arg("a b"));
    assert_eq!(tracked, plain);
    assert!(dir.path("c.bin").exists());
}

#[test]
fn files_that_are_no_captures() {
    let dir = Dir::new();
    dir.write("empty", b"");
    dir.write("text", b"some text that is longer than a header");
    dir.write("zeros", &[0; 100_000]);
    dir.write("short", b"\x89MEM");
    for command in [&["stats"] as &[_], &["stats", "--json"], &["parse"], &["transform", "speedscope", "-o", "-"]] {
        for (file, found) in [
            ("empty", "empty"),
            ("text", "another kind of file"),
            ("zeros", "another kind of file"),
            ("short", "truncated"),
            ("missing", "found no such file"),
            (".", "directory"),
        ] {
            refused(&dir, &[command, &[file]].concat(), 1, &[file, found]);
        }
    }
}

#[test]
fn reports_go_where_they_are_sent() {
    let dir = Dir::new();
    outcome(&dir, &["run", "--no-native", "-q", "-o", "memtrack-x.bin", "sh", "-c", ":"]).success();
    outcome(&dir, &["transform", "speedscope", "memtrack-x.bin"]).success();
    assert!(dir.path("memtrack-speedscope-x.speedscope.json").exists());
    let json = outcome(&dir, &["transform", "speedscope", "-o", "-", "memtrack-x.bin"]).success();
    assert!(json.starts_with("{\"$schema\""));
    assert_eq!(outcome(&dir, &["stats", "-o", "s.txt", "memtrack-x.bin"]).success(), "");
    assert!(fs::read_to_string(dir.path("s.txt")).expect("the report").contains("Peak"));
    refused(
        &dir,
        &["transform", "speedscope", "--order", "exact", "-o", "-", "memtrack-x.bin"],
        1,
        &["--allocation-timestamps"],
    );
}

/// Where files have no extended attributes, every report needs it.
#[test]
fn a_report_of_the_same_capture_is_made_anew_without_force() {
    let dir = Dir::new();
    outcome(&dir, &["run", "--no-native", "-q", "-o", "memtrack-x.bin", "sh", "-c", ":"]).success();
    let report = dir.path("memtrack-speedscope-x.speedscope.json");
    let words = ["transform", "speedscope", "memtrack-x.bin"];
    for leaks in [&[] as &[_], &["--leaks"], &[]] {
        outcome(&dir, &[&words, leaks].concat()).success();
    }
    // Changed by somebody since.
    let mut text = fs::read(&report).expect("the report");
    text.push(b'\n');
    fs::write(&report, text).expect("a change");
    refused(&dir, &words, 1, &["exists", "--force"]);
    outcome(&dir, &[&words as &[_], &["-f"]].concat()).success();
    // Of another capture; a capture; a file of somebody else.
    outcome(&dir, &["run", "--no-native", "-q", "-f", "-o", "memtrack-x.bin", "sh", "-c", ":"]).success();
    refused(&dir, &words, 1, &["exists", "--force"]);
    refused(&dir, &["table", "-o", "memtrack-x.bin", "memtrack-x.bin"], 1, &["exists", "--force"]);
    dir.write("foreign", b"text");
    refused(&dir, &["table", "-o", "foreign", "memtrack-x.bin"], 1, &["exists", "--force"]);
    assert_eq!(fs::read(dir.path("foreign")).expect("the file"), b"text");
    refused(&dir, &["table", "-o", "missing/report", "memtrack-x.bin"], 1, &["missing"]);
    outcome(&dir, &["strip", "-o", "s.bin", "memtrack-x.bin"]).success();
    refused(&dir, &["strip", "-o", "s.bin", "memtrack-x.bin"], 1, &["exists", "--force"]);
}

#[test]
fn a_report_without_a_capture_takes_the_newest() {
    let dir = Dir::new();
    refused(&dir, &["stats"], 2, &["no capture given"]);
    dir.write("newer.bin", b"no capture");
    outcome(&dir, &["run", "-q", "-o", "old.bin", "sh", "-c", ":"]).success();
    outcome(&dir, &["run", "-q", "--follow", "-o", "tree.bin", "sh", "-c", "sh -c : ; sh -c :"]).success();
    let told = outcome(&dir, &["stats"]);
    assert!(
        told.stderr
            .contains("tree.bin: using the newest capture in the working directory, with 2 processes of its children"),
        "{told:?}"
    );
    assert!(told.stdout.contains("Processes"), "{told:?}");
    outcome(&dir, &["run", "-q", "-o", "new.bin", "sh", "-c", ":"]).success();
    outcome(&dir, &["strip", "-o", "memtrack-stripped-new.bin", "new.bin"]).success();
    for words in [&["stats"] as &[_], &["query", "live"], &["transform", "csv", "-o", "-"], &["tree", "--text"]] {
        let told = outcome(&dir, words);
        assert!(told.status == 0 && told.stderr.contains("new.bin: using the newest capture"), "{told:?}");
    }
}

#[test]
fn pages_are_shown_in_the_browser() {
    let dir = Dir::new();
    let browser = dir.executable("browser", b"#!/bin/sh\necho \"$@\" >> shown\n", 0o755);
    // memtrack does not wait for a browser that takes its time.
    let shown = |words: &[&str]| {
        let mut command = dir.memtrack(words);
        let told = Outcome::of(command.env("BROWSER", format!("/no/such/browser:{} %s", browser.display())));
        assert_eq!(told.status, 0, "{told:?}");
        let read = || fs::read_to_string(dir.path("shown")).unwrap_or_default();
        if words.contains(&"--open") {
            wait_until("the browser has shown it", || read().ends_with('\n'));
        }
        let shown = read();
        let _ = fs::remove_file(dir.path("shown"));
        shown.trim().to_owned()
    };
    let page = |name| format!("file://{}", fs::canonicalize(dir.path(name)).expect("the page").display());
    assert_eq!(shown(&["run", "-q", "-o", "c d.bin", "--flamegraph", "sh", "-c", ":"]), "");
    let first = shown(&["run", "-q", "-o", "b.bin", "--flamegraph", "--open", "sh", "-c", ":"]);
    assert_eq!(first, page("memtrack-flamegraph-b.html"));
    let name = "memtrack-flamegraph-c d.html";
    assert_eq!(shown(&["flamegraph", "--open", "c d.bin"]), page(name).replace(' ', "%20"));
    let name = "memtrack-diff-b.html";
    assert_eq!(shown(&["diff", "--html", "--open", "c d.bin", "b.bin"]), page(name));

    refused(&dir, &["flamegraph", "--open", "-o", "-", "b.bin"], 2, &["--open"]);
    let mut unseen = dir.memtrack(["flamegraph", "--open", "b.bin"]);
    let unseen = Outcome::of(unseen.env_remove("BROWSER").env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY"));
    let path = fs::canonicalize(dir.path("memtrack-flamegraph-b.html")).expect("the page");
    assert!(unseen.status == 0 && unseen.stderr.contains(&format!("open {}", path.display())), "{unseen:?}");
}

#[test]
fn an_aggregated_capture_says_what_it_does_not_have() {
    let dir = Dir::new();
    outcome(&dir, &["run", "--no-native", "-q", "--aggregate", "-o", "c.bin", "sh", "-c", ":"]).success();
    refused(&dir, &["parse", "c.bin"], 1, &["has no records"]);
    refused(&dir, &["transform", "speedscope", "--order", "exact", "-o", "-", "c.bin"], 1, &["no exact times"]);
    assert!(outcome(&dir, &["stats", "--json", "c.bin"]).success().contains("\"aggregated\": true"));
}

/// A reader that has seen enough is no error.
#[test]
fn a_closed_pipe_is_silent() {
    let dir = Dir::new();
    dir.run(&dir.program("threads"), ["known_totals"]);
    for (report, lines) in [("parse", 1), ("stats", 0)] {
        let script = format!("\"$0\" {report} capture.bin | head -n {lines} > first");
        let outcome = Outcome::of(&mut dir.shell(&script));
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
        assert_eq!(fs::read_to_string(dir.path("first")).expect("the first lines").lines().count(), lines);
    }
}

#[test]
fn a_capture_that_may_not_be_read() {
    let dir = Dir::new();
    let path = dir.write("private.bin", b"x");
    fs::set_permissions(&path, Permissions::from_mode(0o000)).expect("permissions");
    if File::open(&path).is_ok() {
        eprintln!("skipped: this user may read every file");
        return;
    }
    refused(&dir, &["stats", "private.bin"], 1, &["private.bin", "permission"]);
}

/// Both sides of memtrack run inside memtrack run work, and each records its own program.
#[test]
fn memtrack_under_memtrack() {
    let dir = Dir::new();
    let (program, memtrack) = (dir.program("heap"), memtrack());
    let (outer, inner) = (dir.path("outer.bin"), dir.path("inner.bin"));
    let arguments = ["run".as_ref(), "-q".as_ref(), "-o".as_ref(), inner.as_os_str()];
    let nested = [&[memtrack.get_program()][..], &arguments, &[program.as_os_str(), "powers".as_ref()]].concat();
    assert_eq!(Outcome::of(&mut dir.recording(&outer, &nested)).success(), "powers done\n");
    assert_eq!(Stats::of(&inner).allocated(), ReportedTally::new(24, (1 << 24) - 1));
    assert_eq!(Stats::of(&outer).0["capture"]["complete"], true);
}
