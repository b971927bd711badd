//! `--follow`: trees of processes, each with a capture of its own and exact figures in it.
//!
//! Each process of the fixture allocates blocks of a size of its own, so that a capture tells whose it is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Dir, Outcome, ReportedTally, Stats};

/// The captures of one recording.
struct RecordedTree {
    dir: Dir,
    captures: Vec<(PathBuf, Stats)>,
    messages: String,
}

impl RecordedTree {
    /// Runs a case plain and with `--follow`, and compares what they print.
    #[track_caller]
    fn of(case: &str) -> Self {
        Self::with(&[], case)
    }

    /// The same with these options.
    #[track_caller]
    fn with(options: &[&str], case: &str) -> Self {
        let dir = Dir::new();
        let program = dir.program("trees");
        let plain = Outcome::of(dir.command(&program).arg(case));
        let mut command = dir.memtrack(["run", "--no-native", "--follow", "-o", "capture.bin"]);
        let outcome = Outcome::of(command.args(options).arg("--").arg(&program).arg(case));
        assert_eq!((&outcome.stdout, outcome.status), (&plain.stdout, plain.status), "{outcome:?} {plain:?}");
        let captures = captures(&dir);
        Self { dir, captures, messages: outcome.stderr }
    }

    /// What each process allocated, by size of its blocks.
    fn allocated(&self) -> BTreeMap<u64, ReportedTally> {
        let tallies = self.captures.iter().map(|(_, stats)| stats.allocated()).filter(|tally| tally.count > 0);
        tallies.map(|tally| (tally.bytes / tally.count, tally)).collect()
    }

    /// All captures in one report.
    fn whole(&self) -> Value {
        self.json(&["stats"])
    }

    /// The same as another report.
    #[track_caller]
    fn json(&self, report: &[&str]) -> Value {
        let mut command = self.dir.memtrack(report);
        let paths = self.captures.iter().map(|(path, _)| path);
        serde_json::from_str(&Outcome::of(command.arg("--json").args(paths)).success()).expect("JSON")
    }
}

#[track_caller]
fn captures(dir: &Dir) -> Vec<(PathBuf, Stats)> {
    let read = |path: PathBuf| {
        let stats = Stats::of(&path);
        stats.is_whole();
        (path, stats)
    };
    dir.captures().into_iter().map(read).collect()
}

/// The number at a pointer, summed over all captures.
fn sum(tree: &RecordedTree, pointer: &str) -> u64 {
    tree.captures.iter().map(|(_, stats)| stats.number(pointer)).sum()
}

#[test]
fn every_process_of_a_tree_of_51_has_its_own_figures() {
    let tree = RecordedTree::of("forty");
    assert_eq!(tree.captures.len(), 51, "{}", tree.messages);
    let mut expected = vec![ReportedTally::new(53, 50 * 100 + 3 * 77)];
    expected.extend((1..=40).map(|i| ReportedTally::new(i + 1, i * (1000 + i) + 5000)));
    expected.extend((1..=10).map(|i| ReportedTally::new(4 * i, 4 * i * (2000 + 4 * i))));
    let mut found: Vec<ReportedTally> = tree.captures.iter().map(|(_, stats)| stats.allocated()).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    // Every child frees as many blocks of its parent's as its number says, and moves one; every grandchild frees two.
    let inherited: u64 = (1..=40).map(|i| i + 1).sum::<u64>() + 10 * 2;
    assert_eq!(sum(&tree, "/capture/inherited_frees"), inherited);
    let whole = tree.whole();
    assert_eq!(whole["allocations"]["bytes"], expected.iter().map(|tally| tally.bytes).sum::<u64>());
    assert_eq!(whole["capture"]["inherited_frees"], inherited);
    assert_eq!(whole["processes"].as_array().expect("rows").len(), 51);
}

#[test]
fn parents_and_names_of_captures() {
    let tree = RecordedTree::of("forty");
    let first = tree.captures.iter().find(|(path, _)| path.ends_with("capture.bin")).expect("the first process");
    let pid = |stats: &Stats| stats.number("/capture/pid");
    let children = tree.captures.iter().filter(|(_, stats)| stats.number("/capture/ppid") == pid(&first.1));
    assert_eq!(children.count(), 40);
    for (path, stats) in tree.captures.iter().filter(|(path, _)| !path.ends_with("capture.bin")) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.starts_with(&format!("capture.{}-", pid(stats))), "{name}");
    }
}

#[test]
fn forks_from_a_thread_while_others_allocate() {
    let tree = RecordedTree::of("from_a_thread");
    let allocated = tree.allocated();
    for round in 1..=20 {
        assert_eq!(allocated[&(3000 + round)], ReportedTally::new(round, round * (3000 + round)));
    }
    assert_eq!((tree.captures.len(), sum(&tree, "/capture/inherited_frees")), (21, 0));
}

/// Children that have ended, and been waited for, before the recorder has looked at them.
#[test]
fn children_beside_busy_threads_have_their_own_figures_however_soon_they_end() {
    let tree = RecordedTree::of("beside_busy_threads");
    let allocated = tree.allocated();
    for i in 1..=200 {
        assert_eq!(allocated[&(3000 + i)], ReportedTally::new(i, i * (3000 + i)));
    }
    assert_eq!((tree.captures.len(), sum(&tree, "/capture/inherited_frees")), (201, 0), "{}", tree.messages);
    let whole = tree.whole();
    let rows = whole["processes"].as_array().expect("rows");
    let program = &rows[0]["command_line"];
    assert!(rows.len() == 201 && rows.iter().all(|row| row["command_line"] == *program), "{rows:?}");
    // One after the other: the last has most, beside what the threads hold for a moment.
    let peak = whole["peak"]["bytes"].as_u64().expect("bytes");
    assert!((200 * 3200..200 * 3200 + 3000).contains(&peak), "{}", whole["peak"]);
}

#[test]
fn posix_spawn_vfork_and_fork_with_exec() {
    let tree = RecordedTree::of("starts");
    let leaks: BTreeMap<u64, u64> = tree
        .captures
        .iter()
        .map(|(_, stats)| (stats.leaked().bytes / stats.leaked().count, stats.leaked().count))
        .collect();
    assert_eq!(leaks, BTreeMap::from([(4003, 3), (4004, 4), (4005, 5), (4006, 6), (4007, 7)]));
    // What the child kept before its exec went with it.
    assert_eq!(sum(&tree, "/allocations/count"), 3 + 4 + 5 + 6 + 7 + 2);
}

#[test]
fn commands_of_system_and_popen() {
    let tree = RecordedTree::of("shells");
    let allocated = tree.allocated();
    assert_eq!(
        (allocated[&4008], allocated[&4009]),
        (ReportedTally::new(8, 8 * 4008), ReportedTally::new(9, 9 * 4009))
    );
    // The two shells, and the program itself.
    assert_eq!(tree.captures.len(), 5, "{}", tree.messages);
}

#[test]
fn a_grandchild_that_outlives_its_parents_is_recorded_to_its_end() {
    let tree = RecordedTree::of("daemon");
    assert_eq!((tree.allocated()[&5005], tree.captures.len()), (ReportedTally::new(50, 50 * 5005), 3));
}

#[test]
fn workers_that_are_killed() {
    let tree = RecordedTree::of("killed");
    assert_eq!((tree.captures.len(), sum(&tree, "/allocations/count")), (11, 1000));
}

#[test]
fn a_child_that_cannot_connect_runs_and_is_told_of() {
    let tree = RecordedTree::of("without_descriptors");
    assert!(tree.messages.contains("1 process that was started was not recorded"), "{}", tree.messages);
    assert_eq!(tree.allocated().into_keys().collect::<Vec<_>>(), [6001, 6002]);
}

/// A tree by processes: of each, the stacks stand below a frame of its own.
#[test]
fn reports_can_keep_processes_apart() {
    let tree = RecordedTree::of("killed");
    let rows = |table: Value| table["rows"].as_array().expect("rows").clone();
    assert_eq!(rows(tree.json(&["table", "--leaks"])).len(), 1);
    let apart = rows(tree.json(&["table", "--leaks", "--split-processes"]));
    assert_eq!(apart.len(), 10);
    for row in &apart {
        assert_eq!((&row["count"], &row["bytes"]), (&100.into(), &800_800.into()));
        assert!(row["process"].as_str().expect("a process").starts_with("process "), "{row}");
    }
}

/// Ten children of a program that is stripped of its names.
#[test]
fn what_all_processes_lack_is_told_once() {
    let dir = Dir::new();
    let program = dir.compile("trees", "trees", &["-pthread", "-s"]);
    let recorded = Outcome::of(dir.memtrack(["run", "-q", "--native", "--follow", "--"]).arg(program).arg("killed"));
    assert_eq!(recorded.status, 0, "{recorded:?}");
    let captures = captures(&dir);
    assert_eq!(captures.len(), 11);
    let stats = Outcome::of(dir.memtrack(["stats"]).args(captures.iter().map(|(path, _)| path)));
    let unnamed = stats.stderr.lines().filter(|line| line.contains("no symbols for") && line.contains("/trees:"));
    assert_eq!((stats.status, unnamed.count()), (0, 1), "{}", stats.stderr);
    let [_, threads] = stats.stdout.split("\nThreads, of everything ever allocated\n").collect::<Vec<_>>()[..] else {
        panic!("{}", stats.stdout)
    };
    let threads: Vec<&str> = threads.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!((threads.len(), threads.last()), (6, Some(&"  and 5 more (-n 0 shows all)")), "{threads:?}");
    assert!(stats.stdout.contains(", in all processes together, after "), "{}", stats.stdout);
    // One worker after the other.
    assert_eq!(captures.iter().map(|(_, stats)| stats.peak().bytes).sum::<u64>(), 10 * 800_800);
    assert!(stats.stdout.contains("\n  sum of peaks   8.01 MB, each process at its own time\n"), "{}", stats.stdout);
}

/// The high-water mark of a tree is the largest sum at one moment: 70 MB, where the processes' own add up to 150 MB, and
/// the last of them to 75 MB, if one that has ended counted.
#[test]
fn the_peak_of_a_tree_is_of_one_moment() {
    let tree = RecordedTree::with(&["--allocation-timestamps"], "peaks");
    let whole = tree.whole();
    let peak = &whole["peak"];
    assert_eq!((&peak["bytes"], &peak["allocations"]), (&70_000_024.into(), &2.into()), "{whole}");
    assert_eq!(peak["sum_of_peaks"], 60_000_007 + 40_000_013 + 50_000_017);
    let mut at_peak: Vec<_> = whole["processes"].as_array().expect("rows").iter().map(|row| &row["at_peak"]).collect();
    at_peak.sort_by_key(|tally| tally["bytes"].as_u64());
    let sizes: Vec<_> = at_peak.iter().map(|tally| tally["bytes"].as_u64().expect("bytes")).collect();
    assert_eq!(sizes, [0, 30_000_011, 40_000_013]);
    for report in [&["table"][..], &["table", "--split-processes"], &["tree"], &["summary"], &["flamegraph", "-o", "-"]]
    {
        let json = tree.json(report);
        let rows = ["/rows", "/calls", "/trees/0/calls"].into_iter().find_map(|place| json.pointer(place));
        let rows = rows.and_then(Value::as_array).unwrap_or_else(|| panic!("no rows in {json}"));
        assert_eq!(rows.iter().map(own_bytes).sum::<u64>(), 70_000_024, "{report:?}");
    }
    let resident = &whole["rss"];
    let most = tree.captures.iter().map(|(_, stats)| stats.number("/rss/peak_bytes")).max();
    assert!(
        resident["peak_bytes"].as_u64() >= most && resident["peak_bytes"].as_u64() <= resident["sum_of_peaks"].as_u64()
    );
}

fn own_bytes(row: &Value) -> u64 {
    let own = ["/own_bytes", "/own/bytes", "/bytes"].into_iter().find_map(|place| row.pointer(place));
    own.and_then(Value::as_u64).unwrap_or_else(|| panic!("no bytes in {row}"))
}

/// Sums do not tell what was live in all processes at one moment, and no report says that they did.
#[test]
fn of_aggregated_captures_no_peak_of_the_tree_is_said() {
    let tree = RecordedTree::with(&["--aggregate"], "peaks");
    let peak = &tree.whole()["peak"];
    assert_eq!((&peak["bytes"], &peak["allocations"], &peak["time_ms"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!((&peak["at_least"], &peak["sum_of_peaks"]), (&60_000_007.into(), &150_000_037.into()));
    let mut command = tree.dir.memtrack(["table"]);
    let table = Outcome::of(command.args(tree.captures.iter().map(|(path, _)| path)));
    assert!(table.stdout.starts_with("Per-process high-water marks (not simultaneous): 150 MB in 3 "), "{table:?}");
    assert!(table.stderr.contains("an aggregated capture has no events"), "{table:?}");
}

/// Children are as if memtrack were not there, and there is one capture.
#[test]
fn without_the_option_nothing_is_followed() {
    let dir = Dir::new();
    dir.run(&dir.program("trees"), ["forty"]);
    assert_eq!(captures(&dir).len(), 1);
}

/// A loop of a shell that takes much processor time.
const LOOP: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

/// Whether memtrack's closing lines say that children took much of the processor time.
#[track_caller]
fn says_that_children_did_the_work(command: &mut std::process::Command) -> bool {
    let outcome = Outcome::of(command);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    outcome.stderr.contains("  children    not recorded, ")
}

#[test]
fn children_that_did_the_work_are_told_of_where_they_are_not_recorded() {
    let dir = Dir::new();
    for (option, script, expected) in [
        ("--no-native", format!("({LOOP}); true"), true),
        ("--follow", format!("({LOOP}); true"), false),
        ("-q", format!("({LOOP}); true"), false),
        ("--no-native", LOOP.to_owned(), false),
        // What a wrapper did before its exec is not the work of children, and hides none of theirs.
        ("--no-native", format!("({LOOP}); exec sh -c :"), false),
        ("--no-native", format!("{LOOP}; exec sh -c :"), false),
        ("--no-native", format!("({LOOP}); exec sh -c '({LOOP}); true'"), true),
    ] {
        let mut command = dir.memtrack(["run", "-f", "-o", "capture.bin", option, "--", "sh", "-c", &script]);
        assert_eq!(says_that_children_did_the_work(&mut command), expected, "{option} {script}");
    }
}

/// As pyenv's is: memtrack asks it which interpreter it would run, and starts that one.
#[test]
fn the_work_of_a_version_managers_script_is_not_that_of_children() {
    let dir = Dir::new();
    let python = Outcome::of(dir.command("sh").args(["-c", "python3 -c 'import sys; print(sys.executable)'"]));
    if python.status != 0 {
        eprintln!("skipped: this machine has no python3");
        return;
    }
    let pyenv = dir.write("pyenv", format!("({LOOP})\nshift 2\nexec {} \"$@\"\n", python.stdout.trim()).as_bytes());
    let script = format!("#!/bin/sh\nexec sh {} exec python3 \"$@\"\n", pyenv.display());
    dir.executable("python3", script.as_bytes(), 0o755);
    let path = std::env::join_paths([dir.path("."), "/usr/bin".into(), "/bin".into()]);
    let mut command = dir.memtrack(["run", "-f", "-o", "capture.bin", "-c", "print(6 * 7)"]);
    assert!(!says_that_children_did_the_work(command.env("PATH", path.expect("a path"))));
}

#[test]
fn sums_instead_of_events() {
    let dir = Dir::new();
    let program = dir.program("trees");
    let mut command =
        dir.memtrack(["run", "--no-native", "-q", "--follow-fork", "--aggregate", "-o", "capture.bin", "--"]);
    Outcome::of(command.arg(&program).arg("forty")).success();
    let captures = captures(&dir);
    let bytes: u64 = captures.iter().map(|(_, stats)| stats.allocated().bytes).sum();
    let expected = 50 * 100 + 3 * 77 + (1..=40).map(|i| i * (1000 + i) + 5000).sum::<u64>();
    let grandchildren: u64 = (1..=10).map(|i| 4 * i * (2000 + 4 * i)).sum();
    assert_eq!((captures.len(), bytes), (51, expected + grandchildren));
    let inherited: u64 = captures.iter().map(|(_, stats)| stats.number("/capture/inherited_frees")).sum();
    assert_eq!(inherited, (1..=40).map(|i| i + 1).sum::<u64>() + 20);
}
