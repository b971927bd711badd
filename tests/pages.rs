//! Accounts of resident memory: their classes add up to what the system counts, to the page; what is said to be kept is what
//! malloc_trim gives back; and one block in many pages is found.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::Value;

use crate::support::{Dir, Outcome};

const PAGE: u64 = 4096;
/// Blocks that stay, of pages.c.
const BLOCKS: u64 = 128;

/// pages.c while it waits.
struct Waiting {
    dir: Dir,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pid: String,
}

impl Waiting {
    fn start(case: &str) -> Self {
        let dir = Dir::new();
        let program = dir.program("pages");
        let mut command = dir.memtrack(["run", "-q", "--native", "-o", "capture.bin"]);
        command.args([program.as_os_str(), case.as_ref()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a start");
        let (stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut waiting = Self { dir, child, stdin, stdout: BufReader::new(stdout), pid: String::new() };
        waiting.pid = waiting.line()[0].to_string();
        waiting
    }

    /// The program's own count: process id, anonymous, file and shared bytes.
    fn line(&mut self) -> Vec<u64> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    /// Names this moment, at which the program waits. A snapshot waits for the accounts that were asked for before it, and has one
    /// of its own, later than the mark's.
    fn mark(&self, name: &str) {
        Outcome::of(&mut self.dir.memtrack(["mark", &self.pid, name])).success();
        Outcome::of(&mut self.dir.memtrack(["snapshot", "-q", "-f", "-o", "waited.bin", &self.pid])).success();
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"\n").expect("a line");
    }

    /// What the system counts now: all resident bytes, and those that are anonymous.
    fn system(&self) -> (u64, u64) {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", self.pid)).expect("smaps");
        let sum = |name: &str| {
            let values = smaps.lines().filter_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
            values.map(|value| value.parse::<u64>().expect("kilobytes") * 1024).sum()
        };
        (sum("Rss:"), sum("Anonymous:"))
    }

    fn end(mut self) -> Dir {
        self.go_on();
        assert!(self.child.wait().expect("an end").success());
        self.dir
    }
}

fn resident(dir: &Dir, at: &str) -> Value {
    let said = Outcome::of(&mut dir.memtrack(["resident", "--json", "--at", at, "capture.bin"])).success();
    serde_json::from_str(&said).expect("JSON")
}

fn class(report: &Value, name: &str) -> u64 {
    let classes = report["classes"].as_array().expect("classes");
    let found = classes.iter().find(|class| class["class"] == name).expect("the class");
    found["bytes"].as_u64().expect("bytes")
}

fn rss(report: &Value) -> [u64; 3] {
    ["anon_bytes", "file_bytes", "shared_bytes"].map(|name| report["rss"][name].as_u64().expect("bytes"))
}

/// All classes that are resident.
fn sum(report: &Value) -> u64 {
    let classes = report["classes"].as_array().expect("classes");
    let resident = classes.iter().filter(|class| class["class"] != "untouched" && class["class"] != "swapped");
    resident.map(|class| class["bytes"].as_u64().expect("bytes")).sum()
}

#[test]
fn classes_add_up_to_what_the_system_counts_to_the_page() {
    for case in ["scatter", "threads", "all"] {
        let mut waiting = Waiting::start(case);
        waiting.mark("here");
        let (all, anonymous) = waiting.system();
        waiting.go_on();
        let trimmed = waiting.line();
        let dir = waiting.end();
        let here = resident(&dir, "mark:here");
        let [anon, file, shared] = rss(&here);
        assert_eq!((anon, file + shared), (anonymous, all - anonymous), "{case}");
        assert_eq!(sum(&here), all, "{case}");
        // What the program has counted itself before it ended: it has run a few functions since.
        let end = resident(&dir, "end");
        let near = |found: u64, known: u64| found.abs_diff(known) <= 16 * PAGE;
        let [anon, file, shared] = rss(&end);
        assert!(
            near(anon, trimmed[1]) && near(file, trimmed[2]) && near(shared, trimmed[3]),
            "{case} {end} {trimmed:?}"
        );
        assert_eq!(sum(&end), anon + file + shared);
    }
}

#[test]
fn what_is_retained_is_what_malloc_trim_gives_back() {
    for case in ["scatter", "all"] {
        let mut waiting = Waiting::start(case);
        waiting.mark("before");
        let (_, before) = waiting.system();
        waiting.go_on();
        waiting.line();
        let (_, after) = waiting.system();
        let dir = waiting.end();
        let report = resident(&dir, "mark:before");
        // Without the ends of arenas of threads, which malloc_trim keeps.
        let advice = report["advice"].as_array().expect("advice");
        let of_trim = advice.iter().find(|one| one["text"].as_str().is_some_and(|text| text.contains("malloc_trim")));
        let predicted = of_trim.expect("malloc_trim")["bytes"].as_u64().expect("bytes");
        let given_back = before - after;
        let room = predicted / 100;
        assert!(predicted.abs_diff(given_back) <= room, "{case}: {predicted} predicted, {given_back} given back");
        assert!(class(&report, "retained") >= predicted && given_back >= 25 << 20);
    }
}

#[test]
fn one_block_in_64_pages_is_the_first_row() {
    let mut waiting = Waiting::start("all");
    waiting.mark("here");
    waiting.go_on();
    let dir = waiting.end();
    let report = resident(&dir, "mark:here");
    let first = &report["pinned"][0];
    let stack = first["stack"].as_array().expect("a stack");
    assert!(stack.iter().any(|frame| frame["function"] == "keep_one"), "{first}");
    let pinned = first["pinned_bytes"].as_u64().expect("bytes");
    assert!((BLOCKS * PAGE..=(BLOCKS + 8) * PAGE).contains(&pinned), "{first}");
    assert_eq!(first["blocks"], BLOCKS, "{first}");
    // 5 of 8 pages of shared memory are touched, and 1 of 100 of a block.
    assert_eq!(class(&report, "shared"), 5 * PAGE);
    assert!((98 * PAGE..=100 * PAGE).contains(&class(&report, "untouched")));
    let arenas = report["arenas"].as_array().expect("arenas");
    assert_eq!(arenas.iter().filter(|arena| arena["allocator"] == "glibc").count(), 5, "{report}");
}

/// The tree of pinned pages adds up to the table, and ends at the function whose blocks keep them.
#[test]
fn pinned_pages_have_a_tree() {
    let mut waiting = Waiting::start("all");
    waiting.mark("here");
    waiting.go_on();
    let dir = waiting.end();
    let tree = Outcome::of(&mut dir.memtrack(["tree", "--pinned", "--json", "capture.bin"])).success();
    let tree: Value = serde_json::from_str(&tree).expect("JSON");
    assert_eq!(tree["view"], "pinned");
    let calls = tree["calls"].as_array().expect("calls");
    let of_function = calls.iter().filter(|call| call["function"] == "keep_one");
    let bytes: u64 = of_function.map(|call| call["total"]["bytes"].as_u64().expect("bytes")).sum();
    assert!((BLOCKS * PAGE..=(BLOCKS + 8) * PAGE).contains(&bytes), "{tree}");
    let table = Outcome::of(&mut dir.memtrack(["table", "--pinned", "--json", "capture.bin"])).success();
    let table: Value = serde_json::from_str(&table).expect("JSON");
    let rows = table["rows"].as_array().expect("rows");
    let sum: u64 = rows.iter().map(|row| row["bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(tree["total"]["bytes"], sum);
    Outcome::of(&mut dir.memtrack(["tree", "--pinned", "--from", "1ms", "capture.bin"])).fails(1, &["pinned pages"]);
}

/// The moment of most resident memory is the default; a time shows the last account before it.
#[test]
fn moments_are_found_by_their_names_and_times() {
    let mut waiting = Waiting::start("scatter");
    // On a busy machine the collector may not have run since the program grew: the mark takes the account.
    waiting.mark("before");
    waiting.go_on();
    waiting.line();
    let dir = waiting.end();
    let most = resident(&dir, "peak");
    let default: Value =
        serde_json::from_str(&Outcome::of(&mut dir.memtrack(["resident", "--json", "capture.bin"])).success())
            .expect("JSON");
    assert_eq!(most, default);
    assert!(sum(&most) > sum(&resident(&dir, "end")) + (25 << 20));
    assert_eq!(resident(&dir, "100%"), resident(&dir, "end"));
    Outcome::of(&mut dir.memtrack(["resident", "--at", "mark:nothing", "capture.bin"])).fails(1, &["no mark"]);
    Outcome::of(&mut dir.memtrack(["resident", "--at", "0ms", "capture.bin"])).fails(1, &["was taken later"]);
}
