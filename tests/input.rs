//! Bad input and unusual programs: an explanation and the right exit status, never a changed program.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Dir, Outcome, ReportedTally, Stats};

/// The commands that read a capture.
const READERS: [&[&str]; 4] = [&["stats"], &["stats", "--json"], &["parse"], &["transform", "speedscope", "-o", "-"]];

/// Every reading command refuses this file, names it, and says nothing on standard output.
#[track_caller]
fn refused(dir: &Dir, path: &Path) {
    for reader in READERS {
        let outcome = Outcome::of(dir.memtrack(reader).arg(path));
        outcome.fails(1, &[path.file_name().and_then(|name| name.to_str()).expect("a name")]);
        assert_eq!(outcome.stdout, "", "{reader:?}");
        assert!(outcome.stderr.len() > "error: ".len() + path.as_os_str().len() + 10, "no remedy: {outcome:?}");
    }
}

#[test]
fn a_capture_that_is_not_there() {
    let dir = Dir::new();
    refused(&dir, &dir.path("missing.bin"));
}

#[test]
fn an_empty_capture() {
    let dir = Dir::new();
    refused(&dir, &dir.write("empty.bin", b""));
}

#[test]
fn a_directory_for_a_capture() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("directory.bin")).expect("a directory");
    refused(&dir, &dir.path("directory.bin"));
}

#[test]
fn files_of_other_kinds_for_a_capture() {
    let dir = Dir::new();
    refused(&dir, &dir.program("counting"));
    refused(&dir, &dir.write("text.txt", "Nothing of the kind.\n".repeat(1000).as_bytes()));
    refused(&dir, &dir.write("zeros.bin", &[0; 100_000]));
    refused(&dir, &dir.write("short.bin", b"M"));
}

#[test]
fn a_capture_that_may_not_be_read() {
    let dir = Dir::new();
    let path = dir.write("private.bin", b"x");
    std::fs::set_permissions(&path, Permissions::from_mode(0o000)).expect("permissions");
    if std::fs::File::open(&path).is_ok() {
        eprintln!("skipped: this user may read every file");
        return;
    }
    refused(&dir, &path);
}

/// A small capture.
fn capture(dir: &Dir) -> std::path::PathBuf {
    dir.run(&dir.program("heap"), ["every_function"]).capture
}

#[test]
fn an_output_that_exists_is_kept_unless_forced() {
    let dir = Dir::new();
    let capture = capture(&dir);
    let report = dir.write("report.json", b"precious");
    let transform = |options: &[&str]| {
        Outcome::of(dir.memtrack(["transform", "speedscope", "-o"]).arg(&report).args(options).arg(&capture))
    };
    transform(&[]).fails(1, &["report.json", "--force"]);
    assert_eq!(std::fs::read(&report).expect("the report"), b"precious");
    transform(&["-f"]).success();
    assert!(std::fs::read_to_string(&report).expect("the report").contains("speedscope"));
}

#[test]
fn a_capture_that_exists_is_kept_unless_forced_and_the_program_is_not_run() {
    let dir = Dir::new();
    let old = dir.write("old.bin", b"precious");
    let touch: [&std::ffi::OsStr; 2] = ["touch".as_ref(), "was-run".as_ref()];
    Outcome::of(&mut dir.recording(&old, &touch)).fails(1, &["old.bin", "--force"]);
    assert_eq!(std::fs::read(&old).expect("the file"), b"precious");
    assert!(!dir.path("was-run").exists());
}

#[test]
fn an_output_in_a_missing_directory() {
    let dir = Dir::new();
    let capture = capture(&dir);
    let report = dir.path("missing/report.json");
    Outcome::of(dir.memtrack(["transform", "speedscope", "-o"]).arg(&report).arg(&capture)).fails(1, &["missing"]);
    let touch: [&std::ffi::OsStr; 2] = ["touch".as_ref(), "was-run".as_ref()];
    Outcome::of(&mut dir.recording(&dir.path("missing/capture.bin"), &touch)).fails(1, &["missing"]);
    assert!(!dir.path("was-run").exists());
}

#[test]
fn a_full_disk_under_a_report() {
    let dir = Dir::new();
    let capture = capture(&dir);
    let full = Path::new("/dev/full");
    if !full.exists() {
        eprintln!("skipped: this machine has no /dev/full");
        return;
    }
    for reader in READERS {
        let file = std::fs::File::options().write(true).open(full).expect("/dev/full");
        let mut command = dir.memtrack(reader);
        let output = command.arg(&capture).stdout(file).output().expect("memtrack runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let outcome = Outcome { stdout: String::new(), stderr, status: output.status.code().unwrap_or(-1) };
        outcome.fails(1, &["No space left"]);
    }
}

#[test]
fn a_report_whose_reader_goes_away_ends_quietly() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("threads"), ["known_totals"]);
    let mut command = dir.command("sh");
    let memtrack = crate::support::memtrack();
    command.args(["-c", "\"$0\" parse \"$1\" | head -n 1 > first"]).arg(memtrack.get_program()).arg(&run.capture);
    let outcome = Outcome::of(&mut command);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(dir.path("first")).expect("the first line").lines().count(), 1);
}

#[test]
fn a_program_that_is_not_there() {
    let dir = Dir::new();
    for program in ["no-such-program", "./no-such-program", "/no/such/program"] {
        let outcome = Outcome::of(&mut dir.memtrack(["run", "--no-native", "--", program]));
        outcome.fails(127, &["no", "such", "program"]);
        assert_eq!(outcome.stdout, "");
    }
    Outcome::of(&mut dir.memtrack(["run", "no_such_script.py"])).fails(127, &["no_such_script.py"]);
}

#[test]
fn a_program_that_may_not_be_executed() {
    let dir = Dir::new();
    dir.write("plain.txt", b"not a program\n");
    for program in ["./plain.txt", "/"] {
        Outcome::of(&mut dir.memtrack(["run", "--no-native", "--", program])).fails(126, &[program]);
    }
}

#[test]
fn a_program_that_does_not_run_leaves_no_capture() {
    let dir = Dir::new();
    let before = std::fs::read_dir(dir.path(".")).expect("the directory").count();
    assert_eq!(Outcome::of(&mut dir.memtrack(["run", "no-such-program"])).status, 127);
    assert_eq!(std::fs::read_dir(dir.path(".")).expect("the directory").count(), before);
}

#[test]
fn a_static_program_runs_unharmed_and_memtrack_says_why_nothing_was_recorded() {
    let dir = Dir::new();
    if !dir.compiles("processes", "static", &["-static"]) {
        eprintln!("skipped: this machine has no static C library");
        return;
    }
    let plain = Outcome::of(dir.command(dir.path("static")).arg("forks"));
    let outcome = Outcome::of(
        dir.memtrack(["run", "--no-native", "-o", "capture.bin", "--"]).arg(dir.path("static")).arg("forks"),
    );
    assert_eq!((outcome.stdout.as_str(), outcome.status), (plain.stdout.as_str(), plain.status));
    assert!(outcome.stderr.contains("without recording") && outcome.stderr.contains("static"), "{outcome:?}");
}

#[test]
fn a_quiet_run_adds_nothing_and_a_usual_one_only_to_stderr() {
    let dir = Dir::new();
    let program = dir.program("heap");
    let run = dir.run(&program, ["powers"]);
    assert_eq!(run.outcome, Outcome { stdout: "powers done\n".into(), stderr: String::new(), status: 0 });
    let usual = Outcome::of(dir.memtrack(["run", "--no-native", "-o", "usual.bin"]).arg(&program).arg("powers"));
    assert_eq!((usual.stdout.as_str(), usual.status), ("powers done\n", 0));
    for word in ["usual.bin", "peak", "leaked", "memtrack stats"] {
        assert!(usual.stderr.contains(word), "{word:?} is not in {usual:?}");
    }
    assert_eq!(Stats::of(&dir.path("usual.bin")).allocated(), ReportedTally::new(24, (1 << 24) - 1));
}

#[test]
fn a_capture_without_a_name_is_named_after_the_program() {
    let dir = Dir::new();
    let program = dir.program("heap");
    Outcome::of(dir.memtrack(["run", "--no-native", "-q"]).arg(&program).arg("zero")).success();
    let names =
        std::fs::read_dir(dir.path(".")).expect("the directory").map(|entry| entry.expect("an entry").file_name());
    let captures: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".bin")).collect();
    let [capture] = &captures[..] else { panic!("{captures:?}") };
    let pid = Stats::of(&dir.path(capture)).number("/capture/pid");
    assert_eq!(capture, &format!("memtrack-heap.{pid}.bin"));
}

#[test]
fn a_shell_script_is_run_by_its_interpreter() {
    let dir = Dir::new();
    let script = dir.write("script", b"#!/bin/sh\necho \"$0\" \"$@\"\nexit 33\n");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("permissions");
    let run = dir.run(&script, ["a b", "c"]);
    assert_eq!(run.outcome.status, 33);
    assert_eq!(Stats::of(&run.capture).0["capture"]["complete"], true);
}

/// Both sides of memtrack run inside memtrack run work, and each records its own program.
#[test]
fn memtrack_under_memtrack() {
    let dir = Dir::new();
    let (program, memtrack) = (dir.program("heap"), crate::support::memtrack());
    let (outer, inner) = (dir.path("outer.bin"), dir.path("inner.bin"));
    let arguments = ["run".as_ref(), "-q".as_ref(), "-o".as_ref(), inner.as_os_str()];
    let nested = [&[memtrack.get_program()][..], &arguments, &[program.as_os_str(), "powers".as_ref()]].concat();
    assert_eq!(Outcome::of(&mut dir.recording(&outer, &nested)).success(), "powers done\n");
    assert_eq!(Stats::of(&inner).allocated(), ReportedTally::new(24, (1 << 24) - 1));
    assert_eq!(Stats::of(&outer).0["capture"]["complete"], true);
}

#[test]
fn wrong_usage() {
    let dir = Dir::new();
    for arguments in [&["run"][..], &["run", "--no-such-option", "x"], &["stats"], &["no-such-command"], &["run", "-m"]]
    {
        let outcome = Outcome::of(&mut dir.memtrack(arguments));
        outcome.fails(2, &[]);
        assert_eq!(outcome.stdout, "", "{arguments:?}");
    }
    let both = ["run", "--aggregate", "--allocation-timestamps", "true"];
    Outcome::of(&mut dir.memtrack(both)).fails(2, &["--aggregate", "--allocation-timestamps"]);
}
