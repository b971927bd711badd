//! Resident memory of programs that end right after they have grown: no look from outside comes in time for them, but the
//! kernel's own high-water mark is there.

use serde_json::Value;

use crate::support::{Dir, Stats};

/// What the program grows by.
const GROWS: u64 = 40_000_000;
/// A small program, and what the system counts inexactly.
const SMALL: u64 = 8_000_000;

/// The largest resident memory of a case of resident.c.
#[track_caller]
fn peak(case: &str, options: &[&str], status: i32) -> u64 {
    let dir = Dir::new();
    let program = dir.program("resident");
    let run = dir.run_with(options, &program, [case]);
    assert_eq!(run.outcome.status, status, "{run:?}");
    Stats::of(&run.capture).number("/rss/peak_bytes")
}

#[track_caller]
fn has_grown(case: &str, options: &[&str], status: i32) {
    let peak = peak(case, options, status);
    assert!((GROWS..GROWS + SMALL).contains(&peak), "{case} {options:?}: {peak}");
}

#[test]
fn a_program_that_ends_at_its_peak() {
    for options in [[].as_slice(), &["--aggregate"], &["--native"], &["--snapshot-interval", "1000"]] {
        has_grown("ends", options, 0);
    }
}

#[test]
fn a_program_that_ends_after_its_peak() {
    has_grown("shrinks", &["--snapshot-interval", "1000"], 0);
}

#[test]
fn a_program_that_is_killed_at_its_peak() {
    has_grown("killed", &["--snapshot-interval", "1000"], 137);
}

#[test]
fn a_childs_memory_is_not_its_parents() {
    let peak = peak("child", &[], 0);
    assert!(peak < SMALL, "{peak}");
}

/// What the system says of a process: its resident memory, the most of it, and its addresses, in bytes.
type MemoryFigures = [u64; 3];

/// What the processes of a case print.
fn figures(output: &str) -> Vec<MemoryFigures> {
    let figures_of = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap() * 1024);
        std::array::from_fn(|_| numbers.next().unwrap())
    };
    output.lines().map(figures_of).collect()
}

/// A case without and with memtrack, and the captures of the process and its children, in their order.
fn compared(case: &str, options: &[&str]) -> (Vec<MemoryFigures>, Vec<MemoryFigures>, Vec<Stats>) {
    let dir = Dir::new();
    let program = dir.program("resident");
    let plain = crate::support::Outcome::of(dir.command(&program).arg(case)).success();
    let mut recording = dir.memtrack(["run", "-q", "-f", "--follow"]);
    recording.args(options).arg("-o").arg(dir.path("capture.bin")).arg(&program).arg(case);
    let recorded = crate::support::Outcome::of(&mut recording).success();
    let mut captures: Vec<_> = std::fs::read_dir(dir.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    // capture.bin, capture.PID-1.bin, …
    captures.sort_by_key(|path| path.to_str().unwrap().rsplit_once('-').map(|(_, number)| number.to_owned()));
    (figures(&plain), figures(&recorded), captures.iter().map(|path| Stats::of(path)).collect())
}

/// What memtrack keeps for a thread is not in it: 50 kB and more of each of a thousand, which begin together and are all there at once. The
/// addresses are little more than what is used of them, and the mappings of stacks and of the shared memory.
#[test]
fn what_is_kept_for_each_thread_is_not_the_programs_memory() {
    const ADDRESSES_OF_A_THREAD: u64 = 4 << 20;
    for options in [["--no-native"], ["--native"]] {
        let (plain, recorded, captures) = compared("threads", &options);
        let ([[_, plain, addresses]], [[_, whole, recorded]]) = (&plain[..], &recorded[..]) else {
            panic!("{plain:?}")
        };
        let [last, peak] = ["/rss/last_bytes", "/rss/peak_bytes"].map(|name| captures[0].number(name));
        let own = whole - plain;
        assert!(
            own > 1000 * 20_000 && last.abs_diff(*plain) < own / 2,
            "{options:?}: {last}, plain {plain}, with memtrack's {whole}"
        );
        // It may have what was added between two looks; never less than the program has had.
        assert!(
            peak > plain - plain / 8 && peak <= *whole,
            "{options:?}: {peak}, plain {plain}, with memtrack's {whole}"
        );
        assert!(recorded - addresses < 1000 * ADDRESSES_OF_A_THREAD, "{options:?}: {recorded}, plain {addresses}");
    }
}

/// They inherit what was kept for their parent's threads, and have no use for it.
#[test]
fn what_was_kept_for_a_parents_threads_is_not_its_childrens_memory() {
    let (plain, recorded, captures) = compared("forks", &["--native"]);
    let own = recorded[0][1] - plain[0][1];
    assert_eq!((plain.len(), recorded.len(), captures.len()), (5, 5, 5));
    for ((plain, recorded), capture) in plain.iter().zip(&recorded).zip(&captures).skip(1) {
        let peak = capture.number("/rss/peak_bytes");
        assert!(peak.abs_diff(plain[1]) < own / 3, "{peak}, plain {plain:?}, {own} of the parent are memtrack's");
        assert!(recorded[0].abs_diff(plain[0]) < own / 3, "{recorded:?}, plain {plain:?}");
    }
}

/// Whatever the machine is busy with: it was looked at before it began.
#[test]
fn a_program_that_does_nothing_has_resident_memory() {
    let dir = Dir::new();
    let program = dir.program("resident");
    for _ in 0..10 {
        let capture = dir.path("capture.bin");
        let _ = std::fs::remove_file(&capture);
        crate::support::Outcome::of(&mut dir.recording(&capture, &[program.as_os_str(), "nothing".as_ref()])).success();
        let rss = Stats::of(&capture).0["rss"].clone();
        assert!(rss["peak_bytes"].as_u64().is_some_and(|bytes| (100_000..SMALL).contains(&bytes)), "{rss}");
        assert_ne!(rss["last_bytes"], Value::Null);
    }
}
