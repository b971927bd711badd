//! The capture of format version 1 that every later reader must read as this one does.

use std::path::PathBuf;

use super::make::{Act, History, Step};
use super::{Loss, Notes};
use crate::source::Capture;

fn path() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", "v1.bin"].iter().collect()
}

/// Two threads, three segments of which one in two pieces, frames that move, ticks and a snapshot.
fn history() -> History {
    let steps = [
        Step::Run(0, vec![Act::Push(1), Act::Alloc(0x1000), Act::Move(12), Act::Push(2), Act::Alloc(0x2000)]),
        Step::Tick { snapshot: false },
        Step::Run(1, vec![Act::Push(3), Act::Map(0x7000), Act::Free(0x1000), Act::Cut, Act::Alloc(0x1000)]),
        Step::Tick { snapshot: true },
        Step::Run(0, vec![Act::NewSegment, Act::Pop, Act::Free(0x2000), Act::Alloc(0x2001)]),
    ];
    History::of(&steps, true)
}

#[test]
fn version_1_is_read() {
    let capture = Capture::open(path()).unwrap();
    assert_eq!((capture.format_version(), capture.complete(), capture.process().pid), (1, true, Some(7)));
    let mut notes = Notes::default();
    let summary = capture.read(&mut notes, |_| ()).unwrap();
    assert_eq!(notes.seen, history().seen);
    assert_eq!((summary.lost, summary.unknown_frames, summary.threads.len()), (Loss::default(), 0, 2));
}

/// A change of the format that is not a new version shows here. Before a release the fixture may be made anew: run this
/// test with MEMTRACK_WRITE_FIXTURES set.
#[test]
fn version_1_is_still_what_is_written() {
    let written = history().file(&[], 4000);
    if std::env::var_os("MEMTRACK_WRITE_FIXTURES").is_some() {
        std::fs::write(path(), &written).unwrap();
    }
    assert!(std::fs::read(path()).unwrap() == written, "the format has changed and its version has not");
}
