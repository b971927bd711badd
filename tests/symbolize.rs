//! `memtrack symbolize`: a capture that names its native code without the program's files.
//!
//! Invariant: what a report says of the symbolized capture is what it said of the first one, where the files still were.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Dir, Outcome};

/// Function, file and line of each row about a block of the program itself, in order.
fn places(dir: &Dir, capture: &Path) -> Vec<Value> {
    let mut command = dir.memtrack(["table", "--json", "--leaks", "--min-bytes", "4MB"]);
    let table: Value = serde_json::from_str(&Outcome::of(command.arg(capture)).success()).expect("JSON");
    let row = |row: &Value| serde_json::json!([row["function"], row["file"], row["line"], row["count"]]);
    table["rows"].as_array().expect("rows").iter().map(row).collect()
}

/// Records `heap powers`, whose two largest blocks are of over 4 MB, with native stacks.
fn recorded(dir: &Dir) -> std::path::PathBuf {
    recorded_of(dir, &dir.program("heap"))
}

fn recorded_of(dir: &Dir, program: &Path) -> std::path::PathBuf {
    let capture = dir.path("capture.bin");
    let mut command = dir.memtrack(["run", "-q", "--native", "-o"]);
    Outcome::of(command.arg(&capture).arg("--").arg(program).arg("powers")).success();
    capture
}

#[test]
fn symbolized_captures_read_the_same_without_the_program() {
    let dir = Dir::new();
    let capture = recorded(&dir);
    let named = places(&dir, &capture);
    let [row] = named.as_slice() else { panic!("one place allocates over 4 MB: {named:?}") };
    assert_eq!((&row[0], &row[3]), (&Value::from("powers"), &Value::from(2)), "{row}");
    let source =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/heap.c")).expect("the fixture");
    let line = source.lines().position(|line| line.contains("opaque((size_t)1 << bit)")).expect("a line") + 1;
    assert_eq!(row[2], Value::from(line));

    let other = dir.path("other.bin");
    Outcome::of(dir.memtrack(["symbolize", "-o"]).args([&other, &capture])).success();
    fs::remove_file(dir.path("heap")).expect("the program");
    assert_eq!(places(&dir, &other), named);
    let unnamed = places(&dir, &capture);
    assert!(unnamed[0][0].as_str().is_some_and(|name| name.starts_with("heap+0x")), "{unnamed:?}");

    // Names that are there are kept when the files are gone.
    let again = dir.path("again.bin");
    Outcome::of(dir.memtrack(["symbolize", "-o"]).args([&again, &other])).success();
    assert_eq!(places(&dir, &again), named);
}

#[test]
fn captures_are_replaced_by_force_only() {
    let dir = Dir::new();
    let capture = recorded(&dir);
    let before = fs::read(&capture).expect("a capture");
    Outcome::of(dir.memtrack(["symbolize"]).arg(&capture)).fails(1, &["file exists", "--force", "-o"]);
    assert_eq!(fs::read(&capture).expect("a capture"), before);
    Outcome::of(dir.memtrack(["symbolize", "-f"]).arg(&capture)).success();
    assert!(fs::read(&capture).expect("a capture").len() > before.len());
    // One that is cut may still be written to.
    fs::write(&capture, &before[..before.len() - 1]).expect("a capture");
    Outcome::of(dir.memtrack(["symbolize", "-f"]).arg(&capture)).fails(1, &["incomplete", "-o"]);
    let other = dir.path("other.bin");
    Outcome::of(dir.memtrack(["symbolize", "-o"]).args([&other, &capture])).success();
    assert!(!places(&dir, &other).is_empty());
}

#[test]
fn captures_without_native_code_are_told() {
    let dir = Dir::new();
    let run = dir.run(&dir.program("heap"), ["powers"]);
    Outcome::of(dir.memtrack(["symbolize", "-f"]).arg(&run.capture)).fails(1, &["no native frames", "--native"]);
}

/// Functions and counts of the rows about `powers`, of a report with these options.
fn powers(dir: &Dir, options: &[&str], capture: &Path) -> Vec<Value> {
    let mut command = dir.memtrack(["table", "--json", "--leaks"]);
    let table: Value = serde_json::from_str(&Outcome::of(command.args(options).arg(capture)).success()).expect("JSON");
    let rows = table["rows"].as_array().expect("rows").iter().filter(|row| row["function"] == "powers");
    rows.map(|row| serde_json::json!([row["file"], row["line"], row["count"], row["bytes"]])).collect()
}

#[test]
fn aggregated_captures_are_symbolized_like_others() {
    let dir = Dir::new();
    let (program, capture) = (dir.program("heap"), dir.path("sums.bin"));
    let mut command = dir.memtrack(["run", "-q", "--native", "--aggregate", "-o"]);
    Outcome::of(command.arg(&capture).arg("--").arg(program).arg("powers")).success();
    let named = powers(&dir, &[], &capture);
    assert_eq!(named, powers(&dir, &[], &recorded(&dir)), "as of the events");
    assert!(!named.is_empty());
    let other = dir.path("other.bin");
    Outcome::of(dir.memtrack(["symbolize", "-o"]).args([&other, &capture])).success();
    fs::remove_file(dir.path("heap")).expect("the program");
    assert!(powers(&dir, &[], &capture).is_empty(), "names are found when a report is made");
    assert_eq!(powers(&dir, &[], &other), named);
}

#[test]
fn one_of_several_captures_in_a_file_is_symbolized() {
    let dir = Dir::new();
    let (first, merged, other) = (dir.path("first.bin"), dir.path("all.bin"), dir.path("other.bin"));
    // Of two processes: that of one is merged once.
    fs::rename(recorded(&dir), &first).expect("the capture");
    let capture = recorded(&dir);
    Outcome::of(dir.memtrack(["merge", "-o"]).args([&merged, &first, &capture])).success();
    let member = dir.path("all.bin#2");
    Outcome::of(dir.memtrack(["symbolize", "-f"]).arg(&member)).fails(1, &["one of several captures", "-o"]);
    Outcome::of(dir.memtrack(["symbolize", "-o"]).args([&other, &member])).success();
    let named = places(&dir, &capture);
    fs::remove_file(dir.path("heap")).expect("the program");
    assert_eq!(places(&dir, &other), named);
}

/// The debug file of a stripped program, where `--debug-dir` alone tells a report to look.
#[test]
fn every_report_looks_where_it_is_told() {
    let dir = Dir::new();
    let (program, debug) = (dir.program("heap"), dir.path("heap.debug"));
    let objcopy = |words: &[&std::ffi::OsStr]| {
        Outcome::of(std::process::Command::new("objcopy").args(words).current_dir(dir.path("."))).success();
    };
    objcopy(&["--only-keep-debug".as_ref(), program.as_os_str(), debug.as_os_str()]);
    objcopy(&["--strip-all".as_ref(), "--add-gnu-debuglink=heap.debug".as_ref(), program.as_os_str()]);
    let symbols = dir.path("symbols");
    let below = symbols.join(program.parent().and_then(|path| path.strip_prefix("/").ok()).expect("absolute"));
    fs::create_dir_all(&below).expect("a directory");
    fs::rename(&debug, below.join("heap.debug")).expect("the debug file");
    let capture = recorded_of(&dir, &program);
    assert!(powers(&dir, &[], &capture).is_empty());
    let there = symbols.to_str().expect("UTF-8");
    assert!(!powers(&dir, &["--debug-dir", there], &capture).is_empty());
    let mut query = dir.memtrack(["query", "--by", "function", "--debug-dir", there, "function = 'powers'"]);
    assert!(Outcome::of(query.arg(&capture)).success().contains("powers"));
    let mut tree = dir.memtrack(["transform", "collapsed", "--leaks", "-o", "-", "--debug-dir", there]);
    assert!(Outcome::of(tree.arg(&capture)).success().contains("powers"));
}
