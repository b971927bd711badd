//! Random histories through files and through the online merge, whole, cut and damaged.

mod accounts;
mod fixture;
mod followed;
pub(crate) mod make;
mod repeats;
mod short_lived;

use crc32fast::hash as crc32;
use memtrack_format::block::{BlockHeader, BlockKind, HEADER_LEN, MAX_RAW, SYNC};
use memtrack_format::header;
use memtrack_format::marks::Mark;
use memtrack_format::observe::{Observation, ObservationWriter, Tick};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use self::make::{Act, ExpectedItem, History, HistoryStep, START_NS, process, push_block, push_columns, steps, tid};
use super::{CaptureReader, Consumer, DataLoss, Online, ReadSummary, RunPosition};
use crate::error::Error;
use crate::event::{Event, EventKind, Snapshot};
use crate::frames::Frames;

/// Notes everything that it is given.
#[derive(Default)]
struct Notes {
    seen: Vec<ExpectedItem>,
    tid: i32,
    replaced_before: Vec<usize>,
    ended_ns: Option<u64>,
}

impl Consumer for Notes {
    fn event(&mut self, event: &Event, frames: &Frames) {
        let orders = self.seen.iter().filter(|seen| matches!(seen, ExpectedItem::Event { .. })).count();
        assert_eq!(event.order, orders as u64);
        let name = |frame| (frames.function(frame).to_owned(), frames.frame(frame).line);
        self.seen.push(ExpectedItem::Event {
            tid: self.tid,
            kind: event.kind,
            address: event.address,
            size: event.size,
            stack: frames.root_to_leaf(event.stack).into_iter().map(name).collect(),
            time_ns: event.time_ns,
        });
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.seen.push(ExpectedItem::Snapshot { time_ns: snapshot.time_ns, rss: snapshot.rss_bytes });
    }

    fn run(&mut self, place: &RunPosition) {
        self.tid = place.tid;
    }

    fn ended(&mut self, time_ns: u64) {
        assert_eq!(self.ended_ns.replace(time_ns), None);
    }

    fn replaced(&mut self) {
        self.replaced_before.push(self.seen.len());
    }
}

fn read(bytes: &[u8]) -> Result<(CaptureReader, Notes, ReadSummary), Error> {
    let capture = CaptureReader::of_bytes(bytes)?;
    let (mut notes, mut progress) = (Notes::default(), 0);
    let summary = capture.read(&mut notes, |bytes| progress += bytes)?;
    assert_eq!(progress, capture.total_record_bytes());
    Ok((capture, notes, summary))
}

/// An event without what depends on other streams: kind, address and stack.
type Own = (EventKind, u64, Vec<(String, u32)>);

/// The events of one stream without what depends on others.
fn of_stream(seen: &[ExpectedItem], stream: usize) -> Vec<Own> {
    let event = |seen: &ExpectedItem| match seen {
        ExpectedItem::Event { tid: seen_tid, kind, address, stack, .. } if *seen_tid == tid(stream) => {
            Some((*kind, *address, stack.clone()))
        }
        _ => None,
    };
    seen.iter().filter_map(event).collect()
}

/// Whether `part` is left when some elements of `whole` are taken out.
fn is_subsequence<T: PartialEq>(part: &[T], whole: &[T]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|item| rest.any(|other| other == item))
}

proptest! {
    #[test]
    fn a_file_gives_the_total_order(steps in steps(), timed: bool, shuffle in prop::collection::vec(any::<u16>(), 1..20), split in 1usize..400) {
        let history = History::of(&steps, timed);
        let (capture, notes, summary) = read(&history.file(&shuffle, split)).unwrap();
        prop_assert_eq!(notes.seen, history.seen);
        prop_assert!(capture.complete());
        prop_assert_eq!(notes.ended_ns, capture.process().duration_ns());
        prop_assert_eq!((summary.lost, summary.unknown_frames), (DataLoss::default(), 0));
    }

    #[test]
    fn what_the_collector_writes_gives_the_total_order(steps in steps(), timed: bool, every in 1usize..20) {
        let history = History::of(&steps, timed);
        let (capture, notes, summary) = read(&history.collected(every)).unwrap();
        prop_assert_eq!(notes.seen, history.seen);
        prop_assert!(capture.complete());
        prop_assert_eq!((summary.lost, summary.unknown_frames), (DataLoss::default(), 0));
    }

    #[test]
    fn online_gives_the_same_order(steps in steps(), busy in prop::collection::vec(0u8..16, 1..20)) {
        let history = History::of(&steps, false);
        let mut online = Online::new(START_NS);
        let mut notes = Notes::default();
        let (mut pieces, mut observations) = (history.pieces.iter(), history.observations.iter());
        let (mut pieces_done, mut observed) = (0, 0);
        for (i, &(ticket, pieces_then, observed_then)) in history.rounds.iter().enumerate() {
            for _ in observed..observed_then {
                online.observe(observations.next().unwrap());
            }
            for _ in pieces_done..pieces_then {
                let piece = pieces.next().unwrap();
                online.records(piece.stream, piece.segment, piece.offset, &piece.bytes);
            }
            (pieces_done, observed) = (pieces_then, observed_then);
            // Whatever has not been cut off by now is yet to come: its stream is busy, and so may others be.
            let behind: Vec<u32> = history.pieces[pieces_done..].iter().map(|piece| piece.stream).collect();
            let chosen = busy[i % busy.len()];
            let busy: Vec<u32> = (0..4).filter(|stream| behind.contains(stream) || chosen >> stream & 1 == 1).collect();
            online.watermark(ticket, &busy, &mut notes).unwrap();
        }
        for piece in pieces {
            online.records(piece.stream, piece.segment, piece.offset, &piece.bytes);
        }
        let summary = online.finish(&mut notes).unwrap();
        prop_assert_eq!(summary.lost, DataLoss::default());
        prop_assert_eq!(&notes.seen, &history.seen);
    }

    #[test]
    fn a_cut_file_gives_a_prefix_of_each_stream(steps in steps(), timed: bool, cut in 0.0..1.0f64, split in 20usize..400, collected: bool) {
        let history = History::of(&steps, timed);
        let whole = if collected { history.collected(split / 20) } else { history.file(&[], split) };
        let cut = (whole.len() as f64 * cut) as usize;
        match read(&whole[..cut]) {
            Ok((capture, notes, summary)) => {
                prop_assert!(!capture.complete());
                prop_assert_eq!(summary.unknown_frames, 0);
                for stream in 0..4 {
                    let (got, all) = (of_stream(&notes.seen, stream), of_stream(&history.seen, stream));
                    prop_assert!(all.starts_with(&got));
                }
            }
            Err(error) => {
                prop_assert!(cut < header::LEN, "{error}");
                let refused = matches!(error, Error::Unusable { .. });
                prop_assert!(refused);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_told(steps in steps(), timed: bool, place in 0.0..1.0f64, bit in 0u8..8, split in 1usize..400, collected: bool) {
        let history = History::of(&steps, timed);
        let mut file = if collected { history.collected(split.div_ceil(20)) } else { history.file(&[3], split) };
        let place = (file.len() as f64 * place) as usize;
        file[place] ^= 1 << bit;
        match read(&file) {
            Ok((capture, notes, summary)) => {
                prop_assert!(summary.lost.blocks > 0 && summary.lost.bytes > 0 || !capture.complete());
                for stream in 0..4 {
                    let plain = |events: Vec<Own>| {
                        events.into_iter().map(|(kind, address, _)| (kind, address)).collect::<Vec<_>>()
                    };
                    let (got, all) = (of_stream(&notes.seen, stream), of_stream(&history.seen, stream));
                    prop_assert!(is_subsequence(&plain(got), &plain(all)));
                }
            }
            Err(error) => prop_assert!(place < header::LEN, "{error}"),
        }
    }

    #[test]
    fn any_bytes_after_the_header_are_read_to_their_end(mut noise: Vec<u8>, syncs in prop::collection::vec(any::<u16>(), 0..4)) {
        for sync in syncs {
            let at = usize::from(sync) % (noise.len() + 1);
            noise.splice(at..at, SYNC);
        }
        let mut file = header::encode().to_vec();
        file.extend(&noise);
        let (capture, notes, _) = read(&file).unwrap();
        prop_assert!(!capture.complete());
        prop_assert!(notes.seen.is_empty());
        prop_assert!(capture.lost().bytes <= noise.len() as u64);
    }

    #[test]
    fn any_records_are_read_to_their_end(records in prop::collection::vec(any::<u8>(), 0..2000), timed: bool) {
        let history = History::of(&[HistoryStep::Run(0, vec![Act::Alloc(1)])], timed);
        let mut bytes = history.pieces[0].bytes.clone();
        bytes.extend(records);
        let mut file = header::encode().to_vec();
        push_block(&mut file, BlockHeader::plain(BlockKind::Records), &bytes);
        let (_, notes, summary) = read(&file).unwrap();
        prop_assert!(notes.seen.len() <= bytes.len());
        prop_assert!(summary.lost.bytes <= bytes.len() as u64);
    }
}

/// Runs of one allocation each, in streams 0 and 1.
fn two_runs() -> Vec<HistoryStep> {
    vec![
        HistoryStep::Run(0, vec![Act::Alloc(1)]),
        HistoryStep::Tick { snapshot: false },
        HistoryStep::Run(1, vec![Act::Alloc(2)]),
        HistoryStep::Tick { snapshot: true },
        HistoryStep::Run(0, vec![Act::Alloc(3)]),
    ]
}

#[test]
fn stamps_are_held_between_the_ticks_around_them() {
    let mut history = History::of(&two_runs(), true);
    // The collector's clock was read late: the first event of stream 1 would come before the tick before it.
    history.observations[0] = Observation::Tick(Tick { ticket: 2, time_ns: START_NS + 100 });
    history.observations[1] =
        Observation::Snapshot { tick: Tick { ticket: 4, time_ns: START_NS + 200 }, ticks: 400, rss: 1 };
    let (_, notes, _) = read(&history.file(&[0], 400)).unwrap();
    let times: Vec<u64> = notes
        .seen
        .iter()
        .map(|seen| match seen {
            ExpectedItem::Event { time_ns, .. } | ExpectedItem::Snapshot { time_ns, .. } => *time_ns,
        })
        .collect();
    assert_eq!(times, [2, 100, 200, 200]);
    // And early: both would come after the ticks after them.
    history.observations[0] = Observation::Tick(Tick { ticket: 2, time_ns: START_NS + 1 });
    history.observations[1] =
        Observation::Snapshot { tick: Tick { ticket: 4, time_ns: START_NS + 3 }, ticks: 400, rss: 1 };
    let (_, notes, _) = read(&history.file(&[0], 400)).unwrap();
    // Before them, so that a tick divides the events by their times.
    assert!(matches!(notes.seen[0], ExpectedItem::Event { time_ns: 0, .. }));
    assert!(matches!(notes.seen[1], ExpectedItem::Event { time_ns: 2, .. }));
}

#[test]
fn an_exec_begins_another_image() {
    let history = History::of(&two_runs(), false);
    let mut file = history.file(&[0], 400);
    push_block(
        &mut file,
        BlockHeader { first_ticket: 3, ..BlockHeader::plain(BlockKind::Process) },
        &process().encode(),
    );
    let (_, notes, summary) = read(&file).unwrap();
    assert_eq!(notes.replaced_before, [1]);
    assert_eq!(summary.unknown_frames, 0);
}

#[test]
fn a_run_is_given_out_once_every_stream_is_past_it() {
    let steps = [
        HistoryStep::Run(0, vec![Act::Alloc(1), Act::Cut, Act::Alloc(2), Act::Cut]),
        HistoryStep::Run(1, vec![Act::Alloc(3), Act::Cut]),
        HistoryStep::Tick { snapshot: true },
        HistoryStep::Run(0, vec![Act::Alloc(4), Act::Cut]),
    ];
    let history = History::of(&steps, false);
    let mut online = Online::new(START_NS);
    let mut notes = Notes::default();
    let give = |online: &mut Online, piece: usize| {
        let piece = &history.pieces[piece];
        online.records(piece.stream, piece.segment, piece.offset, &piece.bytes);
    };
    give(&mut online, 0);
    give(&mut online, 2);
    online.observe(&history.observations[0]);
    // Stream 0 may add to its run, which another may share, and does so late: all runs from that on have to wait.
    online.watermark(3, &[0], &mut notes).unwrap();
    assert_eq!(notes.seen, []);
    give(&mut online, 1);
    online.watermark(3, &[0], &mut notes).unwrap();
    assert_eq!(notes.seen, []);
    // It shows a later ticket: all before that is closed.
    give(&mut online, 3);
    online.watermark(5, &[0], &mut notes).unwrap();
    assert_eq!(notes.seen, history.seen[..4]);
    online.watermark(5, &[], &mut notes).unwrap();
    assert_eq!(notes.seen, history.seen);
}

#[test]
fn a_missing_piece_costs_what_is_behind_it_in_its_segment() {
    let acts = vec![Act::Alloc(1), Act::Cut, Act::Alloc(2), Act::Cut, Act::Alloc(3), Act::NewSegment, Act::Alloc(4)];
    let mut history = History::of(&[HistoryStep::Run(0, acts)], false);
    history.pieces.remove(1);
    let (_, notes, summary) = read(&history.file(&[0], 4000)).unwrap();
    let addresses: Vec<u64> = of_stream(&notes.seen, 0).into_iter().map(|(_, address, _)| address).collect();
    assert_eq!(addresses, [1, 4]);
    assert_eq!(summary.lost.blocks, 1);
}

#[test]
fn columns_that_were_cut_within_records_are_joined() {
    let acts = (1..8).flat_map(|n| [Act::Alloc(n << 20), Act::Free(n << 20)]).collect();
    let mut history = History::of(&[HistoryStep::Run(0, acts)], true);
    let whole = history.pieces.remove(0);
    for cut in whole.bytes.len() - 30..whole.bytes.len() {
        for again in cut..whole.bytes.len() {
            let mut file = history.file(&[], 4000);
            // Sorted as records without times, the second piece may look as if its records were whole.
            for (range, timed) in [(0..cut, true), (cut..again, false), (again..whole.bytes.len(), true)] {
                let header = BlockHeader { offset: range.start as u32, ..whole.header() };
                push_columns(&mut file, header, &whole.bytes[range], timed);
            }
            let (_, notes, summary) = read(&file).unwrap();
            assert!(notes.seen == history.seen, "{cut} {again}");
            assert_eq!(summary.lost, DataLoss::default());
        }
    }
}

#[test]
fn frames_that_were_never_described_are_unknown() {
    let acts = vec![Act::Push(1), Act::Alloc(1), Act::NewSegment, Act::Alloc(2)];
    let mut history = History::of(&[HistoryStep::Run(0, acts)], false);
    history.pieces.remove(0);
    let (_, notes, summary) = read(&history.file(&[0], 4000)).unwrap();
    assert_eq!(of_stream(&notes.seen, 0)[0].2, [("<unknown>".to_owned(), 0)]);
    assert_eq!(summary.unknown_frames, 1);
}

#[test]
fn a_segment_of_more_than_one_batch_is_whole() {
    let acts: Vec<Act> = (1..=9).map(|n| Act::Alloc(n << 20)).collect();
    let one = History::of(&[HistoryStep::Run(0, acts)], true).pieces.remove(0);
    let mut bytes = one.bytes.clone();
    let mut at = bytes.len();
    bytes.resize(1 << 20, 0);
    // Frees that the decoder knows by slot: a tag and a time each, half of them without an address.
    while at < bytes.len() {
        (bytes[at], bytes[at + 1]) = (0x80, 1);
        at += 2;
        if at + 1 >= bytes.len() {
            break;
        }
    }
    bytes.truncate(at);
    let mut file = header::encode().to_vec();
    push_block(&mut file, BlockHeader::plain(BlockKind::Records), &bytes);
    let (_, notes, summary) = read_counted(&file);
    assert_eq!(summary.lost, DataLoss::default());
    assert_eq!(notes, 9 + (bytes.len() - one.bytes.len()) as u64 / 2);
}

/// Counts, for histories that are too long to be noted.
struct Count(u64);

impl Consumer for Count {
    fn event(&mut self, event: &Event, _: &Frames) {
        assert_eq!(event.order, self.0);
        self.0 += 1;
    }
}

fn read_counted(bytes: &[u8]) -> (CaptureReader, u64, ReadSummary) {
    let capture = CaptureReader::of_bytes(bytes).unwrap();
    let mut count = Count(0);
    let summary = capture.read(&mut count, |_| ()).unwrap();
    (capture, count.0, summary)
}

#[test]
fn lengths_that_lie_are_damage() {
    let mut file = header::encode().to_vec();
    let stored = [0x10, 0x41];
    let lying = BlockHeader {
        codec: memtrack_format::block::Codec::Lz4,
        raw_len: MAX_RAW,
        stored_len: 2,
        payload_crc: crc32(&stored),
        ..BlockHeader::plain(BlockKind::Records)
    };
    file.extend(lying.encode());
    file.extend(stored);
    let (_, notes, summary) = read(&file).unwrap();
    assert!(notes.seen.is_empty());
    assert_eq!(summary.lost, DataLoss { blocks: 1, bytes: HEADER_LEN as u64 + 2 });
}

#[test]
fn bytes_that_are_missing_in_a_block_do_not_cost_the_next() {
    let history = History::of(&two_runs(), false);
    let mut file = history.file(&[0], 4000);
    let records = file.windows(8).enumerate().filter(|(at, bytes)| **bytes == SYNC && file[at + 8] == 1);
    let first = records.map(|(at, _)| at).next().unwrap();
    file.drain(first + HEADER_LEN + 3..first + HEADER_LEN + 10);
    let (capture, notes, summary) = read(&file).unwrap();
    assert!(capture.complete());
    assert_eq!(summary.lost.blocks, 1);
    assert_eq!(notes.seen.len() + 1 + usize::from(of_stream(&notes.seen, 0).is_empty()), history.seen.len());
}

#[test]
fn the_last_intact_aggregate_counts() {
    let mut file = header::encode().to_vec();
    for (segment, payload) in [(0, b"first "), (1, b"second"), (2, b"third ")] {
        push_block(&mut file, BlockHeader { segment, ..BlockHeader::plain(BlockKind::Aggregate) }, payload);
    }
    let capture = CaptureReader::of_bytes(&file).unwrap();
    assert_eq!(capture.aggregate().unwrap().as_deref(), Some(b"third ".as_slice()));
    let last = file.len() - 1;
    file[last] ^= 1;
    let capture = CaptureReader::of_bytes(&file).unwrap();
    assert_eq!(capture.aggregate().unwrap().as_deref(), Some(b"second".as_slice()));
    assert_eq!((capture.aggregated(), capture.lost().blocks), (true, 1));
}

#[test]
fn names_of_threads_are_the_last_ones() {
    let history = History::of(&two_runs(), false);
    let mut file = history.file(&[0], 4000);
    let mut writer = ObservationWriter::default();
    for name in ["first", "last"] {
        writer.add(&Observation::Thread { tid: tid(1), name: name.into() });
    }
    push_block(&mut file, BlockHeader::plain(BlockKind::Observations), &writer.take().0);
    let (_, _, summary) = read(&file).unwrap();
    let named = summary.threads.iter().find(|thread| thread.tid == tid(1)).unwrap();
    assert_eq!(named.name, "last");
}

#[test]
fn what_is_no_capture_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &std::path::Path| CaptureReader::open(path).unwrap_err().to_string();
    assert!(refused(directory.path()).contains("a directory"));
    let path = directory.path().join("it.bin");
    assert!(refused(&path).contains("no such file"));
    let of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        refused(&path)
    };
    assert!(of(b"").contains("an empty file"));
    assert!(of(b"#!/usr/bin/env python3\n").contains("another kind of file"));
    assert!(of(b"\x1f\x8b\x08\0\0\0\0\0").contains("compressed by gzip; decompress it first"));
    assert!(of(b"\x28\xb5\x2f\xfd\x04").contains("compressed by zstd; decompress it first"));
    assert!(refused(std::path::Path::new("-")).contains("standard input"));
    assert!(of(&header::encode()[..9]).contains("9 of the 16 bytes"));
    let mut newer = header::encode();
    newer[8] = 99;
    assert!(of(&newer).contains("damaged header"));
    let checksum = crc32(&newer[..12]);
    newer[12..].copy_from_slice(&checksum.to_le_bytes());
    assert!(of(&newer).contains("version 99"));
    assert!(of(&newer).contains(path.to_str().unwrap()));
}

/// Over more bytes than are read at once, so that headers lie across the end of what was read.
#[test]
fn damage_everywhere_costs_no_block() {
    const BLOCKS: u64 = 20_000;
    let mut file = header::encode().to_vec();
    push_block(&mut file, BlockHeader::plain(BlockKind::Process), &process().encode());
    for number in 0..BLOCKS {
        let payload = [0_u8; 200];
        let mark = memtrack_format::marks::encode(&[Mark { time_ns: number, name: "here".into() }]);
        push_block(&mut file, BlockHeader::plain(BlockKind::Watermark), &payload[..(number % 200) as usize]);
        file.extend(&SYNC[..3]);
        push_block(&mut file, BlockHeader::plain(BlockKind::Marks), &mark);
    }
    push_block(&mut file, BlockHeader::plain(BlockKind::End), &[]);
    let capture = CaptureReader::of_bytes(&file).unwrap();
    assert_eq!((capture.marks().len() as u64, capture.complete()), (BLOCKS, true));
    assert_eq!(capture.lost(), DataLoss { blocks: BLOCKS, bytes: 3 * BLOCKS });
}
