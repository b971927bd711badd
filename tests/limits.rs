//! Programs that are limited, or limit themselves, in what the system lets them do: they do not notice memtrack, and what
//! they go on to allocate is recorded.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::control_groups::MODES;
use crate::support::{Dir, Outcome, ReportedTally, Stats};

/// What `go_on` of limits.c allocates, but for its child.
const GOES_ON: ReportedTally = ReportedTally { count: 402_000, bytes: 400_000 * 64 + 1000 * 50 };
const CHILD: ReportedTally = ReportedTally { count: 1000, bytes: 40_000 };

fn and(one: ReportedTally, count: u64, bytes: u64) -> ReportedTally {
    ReportedTally::new(one.count + count, one.bytes + bytes)
}

pub(crate) fn program(dir: &Dir) -> PathBuf {
    dir.program("limits")
}

/// A case run plain and tracked, with options of `memtrack run`.
#[track_caller]
fn tracked(dir: &Dir, options: &[&str], arguments: &[&OsStr]) -> Stats {
    let program = program(dir);
    let run = dir.run_with(options, &program, arguments);
    assert_eq!((run.outcome.status, run.outcome.stderr.as_str()), (0, ""), "{run:?}");
    let stats = run.stats();
    assert_eq!(stats.number("/deallocations/count"), 400_000);
    stats
}

/// The captures of children, beside the program's own.
fn children(dir: &Dir) -> Vec<ReportedTally> {
    let is_child = |path: &&PathBuf| path.to_string_lossy().ends_with("-1.bin");
    dir.captures().iter().filter(is_child).map(|path| Stats::of(path).allocated()).collect()
}

/// With and without `--follow`, where children cannot be followed: what memtrack says of them.
#[track_caller]
fn without_children(arguments: &[&OsStr], expected: ReportedTally) {
    let dir = Dir::new();
    assert_eq!(tracked(&dir, &[], arguments).allocated(), expected);
    assert_eq!(tracked(&dir, &["--follow"], arguments).allocated(), expected);
    assert!(children(&dir).is_empty());
    let mut command = dir.memtrack(["run", "--no-native", "--follow", "-f", "-o", "capture.bin", "--"]);
    let said = Outcome::of(command.arg(program(&dir)).args(arguments)).stderr;
    assert!(said.contains("1 process that was started was not recorded"), "{said}");
}

pub(crate) fn is_root(what: &str) -> bool {
    // SAFETY: no arguments, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: {what} needs root");
    }
    root
}

#[test]
fn another_user() {
    if is_root("a program that drops its privileges") {
        without_children(&["drops_root".as_ref()], and(GOES_ON, 1000, 10_000));
    }
}

#[test]
fn another_root_directory() {
    if is_root("chroot") {
        let root = Dir::new();
        without_children(&["chroots".as_ref(), root.path(".").as_os_str()], GOES_ON);
    }
}

/// The library is not there, so the program is not told to load it, and finds nothing of memtrack.
#[test]
fn a_program_of_another_root_directory() {
    if !is_root("chroot") {
        return;
    }
    let (dir, root) = (Dir::new(), Dir::new());
    let program = program(&dir);
    let libraries = Outcome::of(dir.command("ldd").arg(&program)).success();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        copy_into(&root, Path::new(library));
    }
    copy_into(&root, &program);
    let root_path = root.path(".");
    let arguments = ["executes_in_chroot".as_ref(), root_path.as_os_str(), program.as_os_str()];
    for options in [[].as_slice(), &["--follow"]] {
        let run = dir.run_with(options, &program, arguments);
        assert!(run.outcome.stdout.ends_with("nothing done\n"), "{run:?}");
        assert_eq!(Stats::of(&run.capture).allocated(), ReportedTally::new(10, 100), "{options:?}");
    }
}

fn copy_into(root: &Dir, file: &Path) {
    let copy = file.strip_prefix("/").expect("a whole path").to_str().expect("a path");
    std::fs::create_dir_all(root.path(copy).parent().expect("a directory")).expect("a directory");
    root.executable(copy, &std::fs::read(file).expect("the file"), 0o755);
}

/// A set-user-ID program runs as that user, unrecorded, whether it is started or executed by a recorded one.
#[test]
fn a_set_user_id_program() {
    if !is_root("a program of another user") {
        return;
    }
    let dir = Dir::new();
    let first = program(&dir);
    let other = dir.executable("other", &std::fs::read(&first).expect("the program"), 0o755);
    std::os::unix::fs::chown(&other, Some(65534), Some(65534)).expect("another owner");
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o4755)).expect("permissions");
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o755)).expect("permissions");
    let alone = Outcome::of(dir.command(&other).arg("looks"));
    if !alone.stdout.starts_with("user 65534 of 0\n") {
        eprintln!("skipped: set-user-ID programs are not honoured here: {alone:?}");
        return;
    }
    let direct = Outcome::of(dir.memtrack(["run", "--no-native", "--"]).arg(&other).arg("looks"));
    assert_eq!((&direct.stdout, direct.status), (&alone.stdout, 0));
    assert!(direct.stderr.contains("without recording") && direct.stderr.contains("another user"), "{direct:?}");
    for options in [[].as_slice(), &["--follow"]] {
        let run = dir.run_with(options, &first, ["executes".as_ref(), other.as_os_str()]);
        assert_eq!(Stats::of(&run.capture).allocated(), ReportedTally::new(1000, 10_000), "{options:?}");
    }
}

#[test]
fn a_program_that_closes_all_descriptors_at_once() {
    let dir = Dir::new();
    assert_eq!(tracked(&dir, &["--follow"], &["closes_range".as_ref()]).allocated(), GOES_ON);
    assert_eq!(children(&dir), [CHILD]);
}

#[test]
fn a_program_that_may_open_nothing_any_more() {
    without_children(&["without_descriptors".as_ref()], GOES_ON);
}

/// A shell's limit that leaves memtrack none to let the program in: the program does not wait for one, and the reason is
/// the true one.
#[test]
fn memtrack_may_open_few_files() {
    let dir = Dir::new();
    let program = program(&dir);
    let mut refused = 0;
    for files in 6..16 {
        let script = format!("ulimit -n {files}; exec \"$0\" run -f -o capture.bin -- \"$@\"");
        let outcome = Outcome::of(dir.shell(&script).arg(&program).arg("nothing"));
        assert_eq!((outcome.stdout.as_str(), outcome.status), ("child: 5\nnothing done\n", 0), "{files}: {outcome:?}");
        if ["without recording", "no allocations of"].iter().any(|said| outcome.stderr.contains(said)) {
            assert!(outcome.stderr.contains("Too many open files"), "{files}: {outcome:?}");
            assert!(outcome.stderr.contains("ulimit -n"), "{files}: {outcome:?}");
            assert!(!outcome.stderr.contains("TMPDIR"), "{files}: {outcome:?}");
            refused += 1;
        } else {
            assert_eq!(Stats::of(&dir.path("capture.bin")).allocated(), GOES_ON);
        }
    }
    assert!(refused > 0, "it can always record");
}

/// A limit of the shell's, and what is said where memtrack cannot record with it.
const LIMITS: [(&str, &str); 10] = [
    ("-f 1000", "ulimit -f"),
    ("-f 1", "ulimit -f"),
    ("-n 4", "ulimit -n"),
    ("-n 7", "ulimit -n"),
    ("-n 11", "ulimit -n"),
    ("-v 300000", "ulimit -v"),
    ("-s 256", ""),
    ("-l 0", ""),
    ("-c 0", ""),
    ("-t 60", ""),
];

/// The program neither notices memtrack nor is kept from running, it comes to an end, and what was not recorded is said.
#[test]
fn every_limit_with_every_mode() {
    let (dir, memtrack) = (Dir::new(), crate::support::memtrack());
    let program = program(&dir);
    for (limit, remedy) in LIMITS {
        let limited = |words: &[&OsStr]| {
            let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
            Outcome::of(dir.command("sh").args(["-c", &script]).args(words))
        };
        let plain = limited(&[program.as_os_str(), "nothing".as_ref()]);
        assert_eq!(plain.status, 0, "{limit}: {plain:?}");
        for mode in MODES {
            let capture = dir.path("capture.bin");
            let _ = std::fs::remove_file(&capture);
            let mut words =
                vec![memtrack.get_program(), "run".as_ref(), "-f".as_ref(), "-o".as_ref(), capture.as_os_str()];
            words.extend(mode.iter().map(OsStr::new));
            words.extend([OsStr::new("--"), program.as_os_str(), "nothing".as_ref()]);
            let outcome = limited(&words);
            let told = format!("{limit} {mode:?}: {outcome:?}");
            assert_eq!((&outcome.stdout, outcome.status), (&plain.stdout, plain.status), "{told}");
            let ends = ["without recording", "no allocations of", "the recording ends here"];
            if ends.iter().any(|said| outcome.stderr.contains(said)) {
                assert!(!remedy.is_empty() && outcome.stderr.contains(remedy), "{told}");
            } else {
                let stats = Stats::of(&capture);
                assert_eq!(stats.allocated(), GOES_ON, "{told}");
            }
        }
    }
}

/// memtrack aborts when it can allocate nothing more; its new image stands in for it.
#[test]
fn a_program_outlives_the_recording() {
    let dir = Dir::new();
    for options in [["--follow"].as_slice(), &["--quiet"]] {
        let mut command = dir.memtrack(["run", "--no-native", "-f", "-o", "capture.bin"]);
        let outcome = Outcome::of(command.args(options).arg("--").arg(program(&dir)).arg("outlives_memtrack"));
        assert_eq!((outcome.stdout.as_str(), outcome.status), ("child: 5\n", 7), "{outcome:?}");
        let is_said = outcome.stderr.contains("the recording ends here, and the program runs on");
        assert_eq!(is_said, options != ["--quiet"], "{outcome:?}");
        let recorded = Stats::of(&dir.path("capture.bin")).allocated();
        assert!(recorded.count <= GOES_ON.count + 1000, "{recorded:?}");
    }
}

/// More children at once than the limit that memtrack was started with has descriptors for; they have that limit.
#[test]
fn more_children_than_descriptors() {
    let dir = Dir::new();
    let children = "mkfifo gate; exec 9<>gate; for child in $(seq 60); do (read go <&9) & done\n\
                    for child in $(seq 60); do echo >&9; done; wait; ulimit -Sn";
    let script = "ulimit -Sn 40; exec \"$0\" run -q --follow -o capture.bin -- sh -c \"$1\"";
    let outcome = Outcome::of(dir.shell(script).arg(children));
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.status), ("40\n", "", 0));
    let captures = dir.captures();
    // The shell, its children, and seq twice with the shell that is to become it.
    assert!(captures.len() > 60, "{captures:?}");
}

/// What memtrack maps in the program leaves it as much of a gigabyte as it has without.
#[test]
fn a_program_that_limits_its_address_space() {
    let dir = Dir::new();
    let run = dir.run(&program(&dir), ["limited_space"]);
    assert_eq!(run.outcome.stdout, "16 blocks\nlimited_space done\n");
    assert_eq!(run.stats().allocated(), ReportedTally::new(26, 16 * 64_000_000 + 100));
}

/// A shell's limit holds for memtrack, too.
#[test]
fn a_limited_address_space() {
    let dir = Dir::new();
    let mut command = dir.shell("ulimit -v 1500000; exec \"$0\" run -q -o capture.bin -- \"$@\"");
    assert_eq!(Outcome::of(command.arg(program(&dir)).arg("nothing")).success(), "child: 5\nnothing done\n");
    let stats = Stats::of(&dir.path("capture.bin"));
    stats.is_whole();
    assert_eq!(stats.allocated(), GOES_ON);
}

/// The program has allocated all that it may have, and goes on when it has given it back.
#[test]
fn a_program_that_runs_out_of_memory() {
    let dir = Dir::new();
    let run = dir.run(&program(&dir), ["out_of_space"]);
    assert_eq!(run.outcome.status, 0, "{:?}", run.outcome);
    let blocks: u64 = std::fs::read_to_string(dir.path("blocks")).expect("its number").parse().expect("a number");
    assert!(blocks > 1000, "{blocks}");
    let stats = run.stats();
    assert_eq!(stats.allocated(), ReportedTally::new(blocks + 100_000, blocks * 100_000 + 6_400_000));
    assert_eq!(
        (stats.peak(), stats.leaked()),
        (ReportedTally::new(blocks, blocks * 100_000), ReportedTally::new(0, 0))
    );
}

#[test]
fn a_program_whose_sockets_are_refused() {
    without_children(&["forbids_sockets".as_ref()], GOES_ON);
}

#[test]
fn a_program_that_would_die_of_a_socket() {
    without_children(&["dies_of_sockets".as_ref()], GOES_ON);
}

/// Of the strict mode's thread nothing is recorded any more, and reports say so: it may not even read the clock.
#[test]
fn a_program_that_may_only_read_and_write() {
    let dir = Dir::new();
    let run = dir.run(&program(&dir), ["strictly"]);
    assert_eq!((run.outcome.stdout.as_str(), run.outcome.status), ("strictly done\n", 0));
    assert_eq!(run.stats().allocated(), ReportedTally::new(1, 100_000));
    let report = Outcome::of(dir.memtrack(["stats"]).arg(&run.capture));
    assert!(report.stderr.contains("strict mode"), "{report:?}");
}

/// Where the system has no memory files, or a sandbox forbids them, both sides share a file that has no name.
#[test]
fn without_memory_files() {
    let dir = Dir::new();
    let (program, memtrack) = (program(&dir), crate::support::memtrack());
    let mut command = dir.command(&program);
    command.arg("without_memory_files").arg(memtrack.get_program());
    command.args(["run", "--no-native", "-q", "--follow", "-o", "capture.bin", "--"]).arg(&program).arg("nothing");
    assert_eq!(Outcome::of(&mut command).success(), "child: 5\nnothing done\n");
    let stats = Stats::of(&dir.path("capture.bin"));
    stats.is_whole();
    assert_eq!((stats.allocated(), children(&dir)), (GOES_ON, vec![CHILD]));
}

/// Its library ends the program unless it is the first; so it is left alone, and memtrack says why.
#[test]
fn a_program_with_an_address_sanitizer() {
    let dir = Dir::new();
    if !dir.compiles("limits", "sanitized", &["-pthread", "-fsanitize=address"]) {
        eprintln!("skipped: no AddressSanitizer");
        return;
    }
    let alone = Outcome::of(dir.command("./sanitized").arg("nothing").env("ASAN_OPTIONS", "detect_leaks=0"));
    assert_eq!((alone.stdout.as_str(), alone.status), ("child: 5\nnothing done\n", 0), "{alone:?}");
    let (direct, from_a_shell) = (["./sanitized", "nothing"].as_slice(), ["sh", "-c", "./sanitized nothing; exit $?"]);
    for (command, said) in [(direct, "AddressSanitizer"), (&from_a_shell, "")] {
        for options in [[].as_slice(), &["--follow"]] {
            let mut tracked = dir.memtrack(["run", "--no-native", "-f", "-o", "capture.bin"]);
            tracked.args(options).arg("--").args(command).env("ASAN_OPTIONS", "detect_leaks=0");
            let outcome = Outcome::of(&mut tracked);
            assert_eq!((&outcome.stdout, outcome.status), (&alone.stdout, 0), "{command:?} {options:?}: {outcome:?}");
            assert!(outcome.stderr.contains(said), "{command:?} {options:?}: {outcome:?}");
        }
    }
}

/// As under a limit of processes: what reads side by side elsewhere is read one after the other.
#[test]
fn reports_need_no_further_threads() {
    let dir = Dir::new();
    let few = dir.compile("no_threads", "libfew.so", &["-shared", "-fPIC"]);
    let recorded = Outcome::of(dir.memtrack(["run", "-q", "-o", "capture.bin", "--"]).arg(program(&dir)).arg("looks"));
    assert_eq!(recorded.status, 0, "{recorded:?}");
    for report in [["stats", "--json"], ["tree", "--allocated"], ["table", "--allocated"]] {
        let command = || {
            let mut command = dir.memtrack(report);
            command.arg("capture.bin");
            command
        };
        let expected = Outcome::of(&mut command());
        assert_eq!(expected.status, 0, "{expected:?}");
        for threads in ["0", "1"] {
            let outcome = Outcome::of(command().env("LD_PRELOAD", &few).env("THREADS", threads));
            assert_eq!(outcome, expected, "{report:?} with {threads} more threads");
        }
    }
}
