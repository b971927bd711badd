//! Which captures belong together: those of one recording, by its id; and the commands that `run` proposes are about those.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::support::{Dir, Outcome, Stats};

/// Files of captures in the directory.
fn captures(dir: &Dir) -> BTreeSet<String> {
    let name = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    dir.captures().into_iter().map(name).collect()
}

/// Records children of a shell, one for each of these; what memtrack says.
fn follow(dir: &Dir, children: usize) -> String {
    let script = "sh -c :; ".repeat(children) + ":";
    let mut command = dir.memtrack(["run", "--follow", "-f", "-o", "capture.bin", "--", "sh", "-c", &script]);
    let outcome = Outcome::of(&mut command);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    outcome.stderr
}

/// What the first command that is proposed is about, as a shell expands it.
fn proposed(dir: &Dir, said: &str) -> BTreeSet<String> {
    let command = said.lines().find_map(|line| line.split_once("memtrack flamegraph ")).expect("a command").1;
    let expanded = Outcome::of(dir.command("sh").args(["-c", &format!("printf '%s\\n' {command}")])).success();
    expanded.lines().map(str::to_owned).collect()
}

#[test]
fn a_second_run_takes_the_place_of_the_first_and_its_children() {
    let dir = Dir::new();
    let said = follow(&dir, 3);
    let first = captures(&dir);
    assert_eq!((first.len(), &proposed(&dir, &said)), (4, &first), "{said}");
    let said = follow(&dir, 1);
    let second = captures(&dir);
    assert_eq!((second.len(), &proposed(&dir, &said)), (2, &second), "{said}");
    assert!(said.contains("  replaced    3 captures of child processes of the previous recording"), "{said}");
}

#[test]
fn what_is_of_another_recording_stays_and_is_not_proposed() {
    let dir = Dir::new();
    follow(&dir, 2);
    // Nobody knows any more whose children they are.
    std::fs::remove_file(dir.path("capture.bin")).expect("the program's own capture");
    let before = captures(&dir);
    let said = follow(&dir, 2);
    let proposed = proposed(&dir, &said);
    assert!(!said.contains("replaced"), "{said}");
    assert_eq!((proposed.len(), before.len()), (3, 2), "{said}");
    assert!(proposed.is_disjoint(&before), "{said}");
    assert_eq!(captures(&dir), proposed.union(&before).cloned().collect());
}

#[test]
fn a_report_is_of_one_recording() {
    let dir = Dir::new();
    let program = dir.program("processes");
    for name in ["one.bin", "two.bin"] {
        let capture: PathBuf = dir.path(name);
        Outcome::of(&mut dir.recording(&capture, &[program.as_os_str(), "ends_exit".as_ref()]));
    }
    for report in ["stats", "table", "tree", "flamegraph", "summary", "parse"] {
        let refused = Outcome::of(&mut dir.memtrack([report, "one.bin", "two.bin"]));
        refused.fails(
            1,
            &["2 different recordings", "one.bin (started 2", "two.bin (started 2", "memtrack diff", "memtrack merge"],
        );
    }
    // These take what they are told.
    Outcome::of(&mut dir.memtrack(["diff", "one.bin", "two.bin"])).success();
    Outcome::of(&mut dir.memtrack(["merge", "-o", "all.bin", "one.bin", "two.bin"])).success();
    let one = Stats::of(&dir.path("one.bin")).allocated();
    assert_eq!(Stats::of(&dir.path("all.bin")).allocated().count, 2 * one.count);
}
