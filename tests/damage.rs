//! Captures that are cut or damaged: read as far as they go, with a word on what is missing, or refused with a reason.

use crate::support::{Dir, Outcome, Stats};

/// About this many places of a file are tried.
const PLACES: usize = 40;
/// Kilobytes of address space that reading may take: much less than a forged length could ask for.
const ADDRESS_SPACE: &str = "1500000";

/// Captures with every kind of block: events, sums, native code with its names, and several captures in one file.
fn captures(dir: &Dir) -> Vec<(&'static str, Vec<u8>)> {
    let recorded = |name: &str, options: &[&str]| {
        let mut command = dir.memtrack(["run", "--no-native", "-q", "-o", name]);
        Outcome::of(command.args(options).arg("--").arg(dir.program("threads")).arg("known_totals")).success();
    };
    recorded("sums.bin", &["--aggregate"]);
    recorded("native.bin", &["--native", "--allocation-timestamps"]);
    recorded("stored.bin", &["--compress", "none"]);
    Outcome::of(&mut dir.memtrack(["symbolize", "-f", "native.bin"])).success();
    Outcome::of(&mut dir.memtrack(["merge", "-o", "all.bin", "native.bin", "sums.bin"])).success();
    let content = |name| (name, std::fs::read(dir.path(name)).expect("a capture"));
    let others = ["sums.bin", "native.bin", "stored.bin", "all.bin"].map(content);
    std::iter::once(("events.bin", capture(dir))).chain(others).collect()
}

/// A real capture, of a few hundred blocks.
fn capture(dir: &Dir) -> Vec<u8> {
    let run = dir.run(&dir.program("threads"), ["known_totals"]);
    std::fs::read(&run.capture).expect("a capture")
}

/// Reads `content` with `stats --json`: a report, or an explained error.
#[track_caller]
fn read(dir: &Dir, content: &[u8]) -> (Outcome, Option<Stats>) {
    let path = dir.write("damaged.bin", content);
    let script = format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"");
    let outcome = Outcome::of(dir.shell(&script).args(["stats", "--json"]).arg(path));
    outcome.did_not_panic();
    if outcome.status == 0 {
        let stats = Stats(serde_json::from_str(&outcome.stdout).expect("JSON"));
        return (outcome, Some(stats));
    }
    outcome.fails(1, &["damaged.bin"]);
    assert_eq!(outcome.stdout, "", "an error leaves no half report");
    (outcome, None)
}

/// Whether the report, or a warning, says that something is missing. Of two captures in one file one may be whole.
fn says_so(outcome: &Outcome, stats: &Stats) -> bool {
    !outcome.stderr.is_empty()
        && (stats.0["capture"]["complete"] == false
            || stats.number("/capture/lost_blocks") > 0
            || outcome.stderr.contains("captures are missing"))
}

/// What was lost is said, nothing is made up, and more bytes never give less.
#[test]
fn captures_that_are_cut_anywhere() {
    let dir = Dir::new();
    for (name, whole) in captures(&dir) {
        let full = read(&dir, &whole).1.expect("the whole capture is read").allocated().count;
        let mut last = 0;
        for length in (0..whole.len()).step_by(whole.len().div_ceil(PLACES)) {
            let (outcome, stats) = read(&dir, &whole[..length]);
            let Some(stats) = stats else {
                assert_eq!(last, 0, "{name}: {length} bytes cannot be read, fewer could: {outcome:?}");
                continue;
            };
            assert!(says_so(&outcome, &stats), "{name}: {length} of {} bytes: {outcome:?}", whole.len());
            let count = stats.allocated().count;
            assert!((last..=full).contains(&count), "{name}: {length} bytes have {count} of {full}, fewer had {last}");
            last = count;
        }
        assert!(last > full / 2 || name != "events.bin", "the longest cut has {last} of {full}");
    }
}

#[test]
fn captures_with_a_flipped_bit() {
    let dir = Dir::new();
    for (name, whole) in captures(&dir) {
        let full = read(&dir, &whole).1.expect("the whole capture is read").allocated().count;
        for (number, place) in (0..whole.len()).step_by(whole.len().div_ceil(PLACES)).enumerate() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << (number % 8);
            let (outcome, stats) = read(&dir, &damaged);
            let Some(stats) = stats else { continue };
            let count = stats.allocated().count;
            let is_told = count <= full && says_so(&outcome, &stats);
            assert!(count == full || is_told, "{name}: bit {} of byte {place}: {outcome:?}", number % 8);
        }
    }
}

/// Other reports read the same way.
#[test]
fn every_report_reads_a_cut_capture() {
    let dir = Dir::new();
    let whole = capture(&dir);
    let path = dir.write("cut.bin", &whole[..whole.len() * 2 / 3]);
    let path = path.to_str().expect("a path in UTF-8");
    for report in [&["stats", path][..], &["parse", path], &["transform", "speedscope", "-o", "-", path]] {
        let outcome = Outcome::of(&mut dir.memtrack(report));
        outcome.did_not_panic();
        assert_eq!(outcome.status, 0, "{report:?}: {outcome:?}");
        assert!(!outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{report:?}: {outcome:?}");
    }
}

/// A whole capture with something else behind it, as a careless copy makes it.
#[test]
fn a_capture_with_garbage_behind_it() {
    let dir = Dir::new();
    let mut content = capture(&dir);
    let full = read(&dir, &content).1.expect("the whole capture is read").allocated();
    content.extend((0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8));
    assert_eq!(read(&dir, &content).1.expect("what is whole is read").allocated(), full);
}
