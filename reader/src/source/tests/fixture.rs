//! Captures of each format version, which every later reader must read as the reader of their time did.

use std::path::PathBuf;

use memtrack_format::block::{BlockHeader, BlockKind, Codec, HEADER_LEN, prefix};
use memtrack_format::header;
use memtrack_format::record_columns::{ColumnSplitter, MAX_HEAD, join};
use zstd::zstd_safe::{CCtx, CParameter, compress_bound};

use super::make::{Act, History, HistoryStep};
use super::{DataLoss, Notes, read};
use crate::event::CountedAllocations;
use crate::source::{CaptureReader, Pack};

fn path(version: u32) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", &format!("v{version}.bin")].iter().collect()
}

/// Two threads, three segments of which one in two pieces, frames that move, ticks and a snapshot.
fn history() -> History {
    let steps = [
        HistoryStep::Run(0, vec![Act::Push(1), Act::Alloc(0x1000), Act::Move(12), Act::Push(2), Act::Alloc(0x2000)]),
        HistoryStep::Tick { snapshot: false },
        HistoryStep::Run(1, vec![Act::Push(3), Act::Map(0x7000), Act::Free(0x1000), Act::Cut, Act::Alloc(0x1000)]),
        HistoryStep::Tick { snapshot: true },
        HistoryStep::Run(0, vec![Act::NewSegment, Act::Pop, Act::Free(0x2000), Act::Alloc(0x2001)]),
    ];
    History::of(&steps, true)
}

/// The same with enough repetition to be compressed, and a long segment saved in pieces.
fn long_history() -> History {
    let again = |n: u64| [Act::Push(4), Act::Alloc(0x3000 + n % 7 * 32), Act::Pop, Act::Free(0x3000 + n % 7 * 32)];
    let mut acts: Vec<Act> = (0..40).flat_map(again).collect();
    acts.push(Act::Cut);
    acts.extend((0..40).flat_map(again));
    History::of(
        &[
            HistoryStep::Run(0, acts),
            HistoryStep::Tick { snapshot: true },
            HistoryStep::Run(1, vec![Act::Alloc(0x5000)]),
        ],
        false,
    )
}

/// The same, a thread that tells the time after a pause, and an arena of Python's.
fn history_of_version_3() -> History {
    let pause = [Act::Clock, Act::Alloc(0x6000), Act::Arena(0x10_0000), Act::Cut];
    let again = |n: u64| [Act::Push(4), Act::Alloc(0x3000 + n % 7 * 32), Act::Pop, Act::Free(0x3000 + n % 7 * 32)];
    let acts: Vec<Act> = (0..40).flat_map(again).chain(pause).chain((0..40).flat_map(again)).collect();
    History::of(
        &[
            HistoryStep::Run(0, acts),
            HistoryStep::Tick { snapshot: true },
            HistoryStep::Run(1, vec![Act::Alloc(0x5000)]),
        ],
        false,
    )
}

/// The same, a stack top that is put back, and enough addresses that vary for a block of columns.
fn history_of_version_4() -> History {
    let again = |n: u64| {
        let popped = if n == 0 { 0 } else { 2 };
        [Act::ReplaceTop(popped), Act::Alloc(0x3000 + n % 7 * 32), Act::Move(12), Act::Free(0x3000 + n % 7 * 32)]
    };
    let top = [Act::Push(1), Act::Push(2), Act::Push(4), Act::DefineTop(2), Act::Alloc(0x8000), Act::Pop, Act::Pop];
    let pause = [Act::Clock, Act::Alloc(0x6000), Act::Arena(0x10_0000), Act::Cut];
    let varied = |n: u64| [Act::Alloc(0x10_0000 + n * n % 509 * 32), Act::Move(2 * (n % 9) as u32)];
    let acts = top.into_iter().chain((0..40).flat_map(again)).chain((0..400).flat_map(varied));
    let acts = acts.chain(pause).chain((1..40).flat_map(again));
    History::of(
        &[
            HistoryStep::Run(0, acts.collect()),
            HistoryStep::Tick { snapshot: true },
            HistoryStep::Run(1, vec![Act::Alloc(0x5000)]),
        ],
        false,
    )
}

/// The same, of which a thread says twice how much it has allocated.
fn history_of_version_5() -> History {
    let again = |n: u64| [Act::Push(4), Act::Alloc(0x3000 + n % 7 * 32), Act::Pop, Act::Free(0x3000 + n % 7 * 32)];
    let varied = |n: u64| [Act::Alloc(0x10_0000 + n * n % 509 * 32), Act::Push(1), Act::Move(2 * (n % 9) as u32)];
    let acts = (0..40).flat_map(again).chain([Act::Counted(1000)]).chain((0..400).flat_map(varied));
    History::of(
        &[
            HistoryStep::Run(0, acts.chain([Act::Counted(5000)]).collect()),
            HistoryStep::Tick { snapshot: true },
            HistoryStep::Run(1, vec![Act::Alloc(0x5000)]),
        ],
        false,
    )
}

fn reads(version: u32, history: &History) {
    let capture = CaptureReader::open(path(version)).unwrap();
    assert_eq!((capture.format_version(), capture.complete(), capture.process().pid), (version, true, Some(7)));
    let mut notes = Notes::default();
    let summary = capture.read(&mut notes, |_| ()).unwrap();
    assert_eq!(notes.seen, history.seen);
    let counted = (version == 5).then_some(CountedAllocations { bytes: 5000 * 77, count: 5000 });
    assert_eq!(summary.threads[0].counted, counted);
    assert_eq!((summary.lost, summary.unknown_frames, summary.threads.len()), (DataLoss::default(), 0, 2));
}

#[test]
fn every_version_is_read() {
    reads(1, &history());
    reads(2, &long_history());
    reads(3, &history_of_version_3());
    reads(4, &history_of_version_4());
    reads(5, &history_of_version_5());
}

/// A change of the format that is not a new version shows here. Before a release the fixture may be made anew: run this
/// test with MEMTRACK_WRITE_FIXTURES set. A compressor may change what it makes of a payload, so payloads are compared.
#[test]
fn version_5_is_still_what_is_written() {
    let written = history_of_version_5().collected(1);
    if std::env::var_os("MEMTRACK_WRITE_FIXTURES").is_some() {
        std::fs::write(path(5), &written).unwrap();
    }
    let fixture = std::fs::read(path(5)).unwrap();
    assert_eq!(fixture[..header::LEN], written[..header::LEN]);
    assert!(blocks(&fixture) == blocks(&written), "the format has changed and its version has not");
    assert!(blocks(&fixture).iter().any(|(header, _)| header.codec == Codec::ZstdColumns));
}

/// The capture with its payloads stored as `pack` says.
fn repacked(bytes: &[u8], pack: &mut Pack<'_>) -> Vec<u8> {
    let mut copy = Vec::new();
    assert!(CaptureReader::of_bytes(bytes).unwrap().repack(&mut copy, pack, &mut |_| true).unwrap());
    copy
}

/// As small as can be, with what comes before in the group.
fn smallest(_: BlockKind, payload: &[u8], before: &[u8], stored: &mut Vec<u8>) -> Codec {
    let mut context = CCtx::create();
    context.set_parameter(CParameter::CompressionLevel(19)).unwrap();
    context.ref_prefix(prefix(before)).unwrap();
    stored.resize(compress_bound(payload.len()), 0);
    let len = context.compress2(stored.as_mut_slice(), payload).unwrap();
    stored.truncate(len);
    if before.is_empty() { Codec::Zstd } else { Codec::ZstdPrefix }
}

#[test]
fn packed_again_the_blocks_are_the_same() {
    let bytes = std::fs::read(path(2)).unwrap();
    let copy = repacked(&bytes, &mut smallest);
    assert!(copy.len() < bytes.len(), "{} of {}", copy.len(), bytes.len());
    let without_codec = |bytes| {
        blocks(bytes).into_iter().map(|(header, payload)| (BlockHeader { codec: Codec::Stored, ..header }, payload))
    };
    assert!(without_codec(&copy).eq(without_codec(&bytes)));
    // There is nothing to be gained by storing them as they are.
    let stored = &mut |_, payload: &[u8], _: &[u8], stored: &mut Vec<u8>| {
        stored.extend_from_slice(payload);
        Codec::Stored
    };
    assert!(repacked(&copy, stored) == copy);
    // A version that knows LZ4 only stays as it is.
    let old = std::fs::read(path(1)).unwrap();
    assert!(repacked(&old, &mut smallest) == old);
}

#[test]
fn packed_again_with_a_model_of_each_group_the_events_are_the_same() {
    let steps = (0..4).map(|thread| {
        let acts = (0..900_u64).flat_map(|n| {
            // The places of 600 blocks, in an order that does not repeat itself.
            let address = |n: u64| 0x1_0000 + ((n + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 600 * 32;
            [
                Act::Alloc(address(n)),
                Act::Free(address(n * 7 / 11)),
                if n == 650 { Act::Cut } else { Act::Free(address(n / 2)) },
            ]
        });
        HistoryStep::Run(thread as usize % 2, acts.chain([Act::NewSegment]).collect())
    });
    for timed in [false, true] {
        let history = History::of(&steps.clone().collect::<Vec<_>>(), timed);
        for every in [1, 1000] {
            let bytes = history.collected(every);
            let mut models = 0;
            let copy = repacked(&bytes, &mut |kind, payload, before, stored| {
                models += usize::from(payload.windows(2).any(|two| two == [8, 23]));
                if kind != BlockKind::Records {
                    return smallest(kind, payload, before, stored);
                }
                let columns = ColumnSplitter::default().split(payload, timed).unwrap().to_vec();
                stored.extend(zstd::bulk::compress(&columns, 19).unwrap());
                Codec::ZstdColumns
            });
            assert!(models > 0 && copy.len() < bytes.len(), "{} {}", copy.len(), bytes.len());
            let ((_, before, first), (_, after, second)) = (read(&bytes).unwrap(), read(&copy).unwrap());
            assert!(before.seen == after.seen && !before.seen.is_empty());
            assert_eq!((first.lost, second.lost), (DataLoss::default(), DataLoss::default()));
        }
    }
}

#[test]
fn packed_again_damage_stays_what_it_is() {
    let bytes = std::fs::read(path(2)).unwrap();
    for place in (header::LEN..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        let Ok((capture, notes, summary)) = read(&damaged) else { continue };
        let (again, same, found) = read(&repacked(&damaged, &mut smallest)).unwrap();
        assert_eq!((again.complete(), same.seen), (capture.complete(), notes.seen), "byte {place}");
        assert_eq!(found.lost.blocks, summary.lost.blocks, "byte {place}");
    }
}

/// The blocks of a capture, decoded; without what depends on how well they were compressed.
fn blocks(mut file: &[u8]) -> Vec<(BlockHeader, Vec<u8>)> {
    let (mut blocks, mut group) = (Vec::new(), Vec::new());
    file = &file[header::LEN..];
    while let Ok(header) = BlockHeader::decode(file) {
        let stored = &file[HEADER_LEN..][..header.stored_len as usize];
        file = &file[HEADER_LEN + stored.len()..];
        let mut payload = vec![0; header.raw_len as usize];
        match header.codec {
            Codec::Stored => payload.copy_from_slice(stored),
            Codec::Lz4 => payload = lz4_flex::block::decompress(stored, payload.len()).unwrap(),
            Codec::Zstd => payload = zstd::bulk::decompress(stored, payload.len()).unwrap(),
            Codec::ZstdColumns => {
                let columns = zstd::bulk::decompress(stored, payload.len() + MAX_HEAD).unwrap();
                join(&columns, &mut payload).unwrap();
            }
            Codec::Lz4Columns => {
                let columns = lz4_flex::block::decompress(stored, payload.len() + MAX_HEAD).unwrap();
                join(&columns, &mut payload).unwrap();
            }
            Codec::ZstdPrefix => {
                let mut context = zstd::zstd_safe::DCtx::create();
                context.ref_prefix(prefix(&group)).unwrap();
                context.decompress(payload.as_mut_slice(), stored).unwrap();
            }
        }
        if header.offset == 0 {
            group.clear();
        }
        group.extend_from_slice(&payload);
        blocks.push((BlockHeader { stored_len: 0, payload_crc: 0, ..header }, payload));
    }
    blocks
}
