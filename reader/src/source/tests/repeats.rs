//! The rounds of loops are passed over while records are decoded online, and change nothing.

use std::io::Write;

use proptest::prelude::{ProptestConfig, prop, prop_assert_eq, proptest};

use super::make::{Act, History, HistoryStep, START_NS, steps};
use super::{Notes, Online};
use crate::analysis::Options;
use crate::event::{Event, Snapshot};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::replay::repeated::round;
use crate::source::{Consumer, FollowStep, FollowedCapture};

/// Replays event by event, and notes how many events came as rounds.
struct OneByOne {
    replay: Replay,
    in_rounds: u64,
}

impl Consumer for OneByOne {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.replay.event(event);
    }

    fn repeated(&mut self, times: u64, events: impl ExactSizeIterator<Item = Event> + Clone, frames: &Frames) {
        self.in_rounds += times * events.len() as u64;
        (0..times).for_each(|number| self.events(round(&events, number), frames));
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes);
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.replay.truncated_stacks(count);
    }
}

/// Each run so often, with few addresses.
fn looped(steps: Vec<HistoryStep>, times: &[usize]) -> Vec<HistoryStep> {
    let place = |address: u64| 0x1000 + address % 4 * 16;
    let act = |act| match act {
        Act::Alloc(address) => Act::Alloc(place(address)),
        Act::Free(address) => Act::Free(place(address)),
        other => other,
    };
    let step = |(step, &times)| match step {
        HistoryStep::Run(stream, acts) => {
            HistoryStep::Run(stream, acts.into_iter().map(act).collect::<Vec<_>>().repeat(times))
        }
        other => other,
    };
    steps.into_iter().zip(times.iter().cycle()).map(step).collect()
}

/// The history as the collector writes it, with groups of segments, as it is followed.
fn followed<C: Consumer>(history: &History, every: usize, consumer: &mut C) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&history.collected(every)).unwrap();
    let mut followed = FollowedCapture::open(file.path()).unwrap();
    while followed.step(consumer).unwrap() == FollowStep::Block {}
}

fn given<C: Consumer>(history: &History, consumer: &mut C) {
    let mut online = Online::new(START_NS);
    history.observations.iter().for_each(|observation| online.observe(observation));
    for piece in &history.pieces {
        online.records(piece.stream, piece.segment, piece.offset, &piece.bytes);
    }
    online.finish(consumer).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rounds_are_the_events_that_were_recorded(steps in steps(), times in prop::collection::vec(1usize..60, 1..9)) {
        let history = History::of(&looped(steps, &times), false);
        let mut notes = Notes::default();
        given(&history, &mut notes);
        prop_assert_eq!(&notes.seen, &history.seen);
        let mut notes = Notes::default();
        followed(&history, 2, &mut notes);
        prop_assert_eq!(&notes.seen, &history.seen);
    }

    #[test]
    fn sums_of_rounds_are_those_of_their_events(
        steps in steps(), times in prop::collection::vec(1usize..60, 1..9), every in 1usize..4, flows: bool, details: bool, temporary_threshold in 0u32..4
    ) {
        let history = History::of(&looped(steps, &times), false);
        let options = Options { flows, details, temporary_threshold, ..Options::default() };
        let mut one_by_one = OneByOne { replay: Replay::new(&options), in_rounds: 0 };
        followed(&history, every, &mut one_by_one);
        let mut replay = Replay::new(&options);
        followed(&history, every, &mut replay);
        prop_assert_eq!(replay.flows().collect::<Vec<_>>(), one_by_one.replay.flows().collect::<Vec<_>>());
        prop_assert_eq!(replay.into_analysis(), one_by_one.replay.into_analysis());
    }
}

#[test]
fn nearly_all_rounds_are_passed_over() {
    let round = [
        Act::Push(1),
        Act::Alloc(0x1000),
        Act::Move(3),
        Act::Alloc(0x2000),
        Act::Free(0x1000),
        Act::Pop,
        Act::Free(0x2000),
    ];
    let begin = [Act::Alloc(0x9000), Act::Push(5)];
    let history = History::of(&[HistoryStep::Run(0, [&begin[..], &round.repeat(1000)].concat())], false);
    let mut one_by_one = OneByOne { replay: Replay::new(&Options::default()), in_rounds: 0 };
    given(&history, &mut one_by_one);
    assert_eq!(one_by_one.replay.totals().events, 4001);
    assert!(one_by_one.in_rounds > 3800, "{}", one_by_one.in_rounds);
    let mut in_group = OneByOne { replay: Replay::new(&Options::default()), in_rounds: 0 };
    followed(&history, 1, &mut in_group);
    assert_eq!((in_group.replay.totals().events, in_group.in_rounds > 3800), (4001, true));
}
