//! Blocks that are marked as short-lived change no sum.

use proptest::prelude::{any, prop, prop_assert_eq, proptest};

use super::make::{Act, History, HistoryStep, steps};
use crate::analysis::short_lived_sums::ShortLivedSums;
use crate::analysis::{Analysis, Options};
use crate::event::{Event, EventKind, RunEvent, Snapshot};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::source::{CaptureReader, Consumer, ShortLivedUse};

/// Replays events without their marks.
struct Unmarked(Replay);

impl Consumer for Unmarked {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.0.event(event);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.0.snapshot(snapshot.time_ns, snapshot.rss_bytes);
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.0.truncated_stacks(count);
    }

    fn ended(&mut self, time_ns: u64) {
        self.0.ended(time_ns);
    }

    fn replaced(&mut self) {
        self.0.replaced();
    }
}

/// The kinds of the events, and whether they are marked.
#[derive(Default)]
struct Marks(Vec<(EventKind, bool)>);

impl Consumer for Marks {
    fn event(&mut self, _event: &Event, _frames: &Frames) {}

    fn short_lived(&self) -> ShortLivedUse {
        ShortLivedUse::Marks
    }

    fn run_events(&mut self, events: impl ExactSizeIterator<Item = RunEvent> + Clone, _frames: &Frames) {
        self.0.extend(events.map(|RunEvent { event, short_lived }| (event.kind, short_lived)));
    }
}

/// The steps with a few addresses, and frees that are undone.
fn crowded(steps: Vec<HistoryStep>) -> Vec<HistoryStep> {
    let place = |address: u64| 0x1000 + address % 5 * 16;
    let act = |act| match act {
        Act::Alloc(address) => Act::Alloc(place(address)),
        Act::Free(address) => Act::Free(place(address)),
        Act::Move(49..) => Act::FreeUndo,
        other => other,
    };
    let step = |step| match step {
        HistoryStep::Run(stream, acts) => HistoryStep::Run(stream, acts.into_iter().map(act).collect()),
        HistoryStep::Shared(acts) => {
            HistoryStep::Shared(acts.into_iter().map(|(stream, one)| (stream, act(one))).collect())
        }
        tick @ HistoryStep::Tick { .. } => tick,
    };
    steps.into_iter().map(step).collect()
}

/// Replays by the sums of runs, and notes how many events that spares.
struct Summed {
    replay: Replay,
    spared: usize,
}

impl Consumer for Summed {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.replay.event(event);
    }

    fn short_lived(&self) -> ShortLivedUse {
        self.replay.short_lived()
    }

    fn summed_run(
        &mut self,
        sums: &ShortLivedSums,
        length: usize,
        event: impl Fn(usize) -> Event + Clone,
        _frames: &Frames,
    ) {
        self.spared += length - sums.others.len();
        self.replay.summed_run(sums, length, event);
    }

    fn ended(&mut self, time_ns: u64) {
        self.replay.ended(time_ns);
    }
}

fn marked(capture: &CaptureReader, options: &Options) -> Analysis {
    let mut replay = Replay::new(options);
    capture.read(&mut replay, |_| ()).unwrap();
    replay.into_analysis()
}

proptest! {
    #[test]
    fn sums_are_those_without_marks(
        steps in prop::collection::vec(steps(), 1..4), timed: bool, moments in 0u32..3, details: bool, collected: bool, split in 20usize..400,
        temporary_threshold in 0u32..4,
    ) {
        let history = History::of(&crowded(steps.concat()), timed);
        let file = if collected { history.collected(split / 20) } else { history.file(&[], split) };
        let capture = CaptureReader::of_bytes(&file).unwrap();
        let options = Options { moments, details, temporary_threshold, ..Options::default() };
        let mut unmarked = Unmarked(Replay::new(&options));
        capture.read(&mut unmarked, |_| ()).unwrap();
        let expected = unmarked.0.into_analysis();
        prop_assert_eq!(&marked(&capture, &options), &expected);
    }

    /// Without times and moments, where runs are replayed by their sums.
    #[test]
    fn sums_of_runs_are_those_of_their_events(
        steps in prop::collection::vec(steps(), 1..4), collected: bool, split in 20usize..400, temporary_threshold in 0u32..4,
    ) {
        let history = History::of(&crowded(steps.concat()), false);
        let file = if collected { history.collected(split / 20) } else { history.file(&[], split) };
        let capture = CaptureReader::of_bytes(&file).unwrap();
        let options = Options { temporary_threshold, ..Options::default() };
        let mut unmarked = Unmarked(Replay::new(&options));
        capture.read(&mut unmarked, |_| ()).unwrap();
        prop_assert_eq!(marked(&capture, &options), unmarked.0.into_analysis());
    }

    /// However records go on after a block that was marked: its free may be undone.
    #[test]
    fn an_undone_free_is_of_no_marked_block(acts in prop::collection::vec(any::<u8>(), 0..8)) {
        let act = |byte: u8| match byte % 3 {
            0 => Act::Alloc(u64::from(byte) / 3 % 2 * 16),
            1 => Act::Free(u64::from(byte) / 3 % 2 * 16),
            _ => Act::FreeUndo,
        };
        let begin = [Act::Free(0), Act::Alloc(0), Act::Free(0), Act::Alloc(0), Act::Free(0)];
        let acts = begin.into_iter().chain(acts.into_iter().map(act)).collect();
        let history = History::of(&[HistoryStep::Run(0, acts)], false);
        let capture = CaptureReader::of_bytes(&history.file(&[], 400)).unwrap();
        let mut unmarked = Unmarked(Replay::new(&Options::default()));
        capture.read(&mut unmarked, |_| ()).unwrap();
        prop_assert_eq!(marked(&capture, &Options::default()), unmarked.0.into_analysis());
    }
}

#[test]
fn a_block_that_begins_and_ends_in_a_run_at_a_free_address_is_marked() {
    const A: u64 = 0x1000;
    const B: u64 = 0x2000;
    let first = [Act::Alloc(A), Act::Free(A), Act::Alloc(A), Act::Alloc(B), Act::Free(A), Act::Free(B), Act::Alloc(B)];
    let second = [Act::Free(B), Act::Alloc(A), Act::Free(A), Act::Alloc(A), Act::Free(A), Act::Free(B)];
    let steps = [HistoryStep::Run(0, first.to_vec()), HistoryStep::Run(0, second.to_vec())];
    let capture = CaptureReader::of_bytes(&History::of(&steps, false).file(&[], 400)).unwrap();
    let mut marks = Marks::default();
    capture.read(&mut marks, |_| ()).unwrap();
    let marked: Vec<usize> = (0..).zip(&marks.0).filter(|(_, (_, marked))| *marked).map(|(number, _)| number).collect();
    assert_eq!(marked, [2, 4, 10, 11]);
    assert_eq!(marks.0.len(), first.len() + second.len());
}

#[test]
fn short_lived_blocks_are_replayed_by_their_sums_where_nothing_else_is_asked_for() {
    const A: u64 = 0x1000;
    const B: u64 = 0x2000;
    let pair = [Act::Alloc(A), Act::Alloc(B), Act::Free(B), Act::Free(A)];
    let last = [Act::Alloc(B), Act::Alloc(A)];
    let steps = [HistoryStep::Run(0, [pair.repeat(3), last.to_vec()].concat())];
    let capture = CaptureReader::of_bytes(&History::of(&steps, false).file(&[], 400)).unwrap();
    let spared = |options: Options| {
        let mut summed = Summed { replay: Replay::new(&options), spared: 0 };
        capture.read(&mut summed, |_| ()).unwrap();
        let mut unmarked = Unmarked(Replay::new(&options));
        capture.read(&mut unmarked, |_| ()).unwrap();
        assert_eq!(summed.replay.into_analysis(), unmarked.0.into_analysis());
        summed.spared
    };
    // All but the first pair, at whose addresses something may have been, and the last free, which may be undone.
    assert_eq!(spared(Options::default()), 6);
    assert_eq!(spared(Options { moments: 1, ..Options::default() }), 0);
    assert_eq!(spared(Options { details: true, ..Options::default() }), 0);
    assert_eq!(spared(Options { shared_peak: true, ..Options::default() }), 0);
}
