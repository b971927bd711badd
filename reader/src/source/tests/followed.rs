//! A capture with watermarks is followed in the total order, and no more of it is decoded than its turn needs.

use std::io::Write;

use memtrack_collector::{FileSink, RecordPiece, Sink};
use memtrack_format::observe::ObservationWriter;
use proptest::prelude::{any, prop, prop_assert_eq, proptest};

use super::Notes;
use super::make::{Act, EncodedPiece, History, HistoryStep, process, steps};
use crate::source::{DataLoss, FollowStep, FollowedCapture};

/// The history as the collector writes it for who follows it; at each moment the streams of one of these sets are busy, as those are
/// that have records to come.
fn watched(history: &History, busy: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = Vec::new();
    let mut sink = FileSink::new(&mut bytes).unwrap();
    sink.process(&process()).unwrap();
    let (mut pieces_done, mut observed) = (0, 0);
    for (&(ticket, pieces_then, observed_then), chosen) in history.rounds.iter().zip(busy.iter().cycle()) {
        let mut writer = ObservationWriter::default();
        history.observations[observed..observed_then].iter().for_each(|observation| writer.add(observation));
        if observed_then > observed {
            let (payload, first_ticket, last_ticket) = writer.take();
            sink.observations(&payload, first_ticket, last_ticket).unwrap();
        }
        history.pieces[pieces_done..pieces_then].iter().for_each(|piece| add(&mut sink, piece));
        (pieces_done, observed) = (pieces_then, observed_then);
        let behind: Vec<u32> = history.pieces[pieces_done..].iter().map(|piece| piece.stream).collect();
        let busy: Vec<u32> = (0..4).filter(|stream| behind.contains(stream) || chosen >> stream & 1 == 1).collect();
        sink.watermark(ticket, &busy).unwrap();
        sink.checkpoint().unwrap();
    }
    history.pieces[pieces_done..].iter().for_each(|piece| add(&mut sink, piece));
    sink.finish(true).unwrap();
    drop(sink);
    file.write_all(&bytes).unwrap();
    file
}

fn add(sink: &mut FileSink<&mut Vec<u8>>, piece: &EncodedPiece) {
    let &EncodedPiece { stream, segment, offset, tickets: (first_ticket, last_ticket), ref bytes } = piece;
    sink.records(&RecordPiece { stream, segment, offset, first_ticket, last_ticket, has_code: true, bytes }).unwrap();
}

proptest! {
    #[test]
    fn a_followed_capture_gives_the_total_order(steps in steps(), busy in prop::collection::vec(any::<u8>(), 1..20)) {
        let history = History::of(&steps, false);
        let file = watched(&history, &busy);
        let (mut followed, mut notes) = (FollowedCapture::open(file.path()).unwrap(), Notes::default());
        while followed.step(&mut notes).unwrap() == FollowStep::Block {}
        prop_assert_eq!(&notes.seen, &history.seen);
        prop_assert_eq!(followed.lost(), DataLoss::default());
    }
}

#[test]
fn no_more_than_a_few_batches_are_decoded_at_a_time() {
    const EVENTS: u64 = 3000;
    let acts = |stream: u64| (0..EVENTS).map(move |at| Act::Alloc(at * 7919 % 4096 * 16 + (stream << 32)));
    let runs = (0..2).map(|stream| HistoryStep::Run(stream, acts(stream as u64).chain([Act::Cut]).collect()));
    let both = runs.chain([HistoryStep::Tick { snapshot: false }]).collect::<Vec<_>>();
    // A thread that stays in a hook, as in an `munmap` that takes long, while another one allocates.
    let begun = HistoryStep::Run(1, vec![Act::Alloc(16), Act::Cut]);
    let parts: Vec<_> = acts(0).collect();
    let parts = parts.chunks(100).map(|part| HistoryStep::Run(0, part.iter().cloned().chain([Act::Cut]).collect()));
    let held = [begun].into_iter().chain(parts).chain([HistoryStep::Tick { snapshot: false }]).collect::<Vec<_>>();
    for (steps, busy, events) in [(both, 0, 2 * EVENTS), (held, 0b11, EVENTS + 1)] {
        let history = History::of(&steps, false);
        let file = watched(&history, &[busy]);
        let (mut followed, mut notes) = (FollowedCapture::open(file.path()).unwrap(), Notes::default());
        let mut most = 0;
        while followed.step(&mut notes).unwrap() == FollowStep::Block {
            most = most.max(followed.decoded_events());
        }
        assert_eq!(notes.seen.len() as u64, events);
        assert!(most > 0 && most < EVENTS as usize / 4, "{most}");
    }
}
