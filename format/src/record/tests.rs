//! Round trips of record streams, and decoders on damaged ones.

use super::{
    AllocHead, BlockRecord, CallSite, CodeHead, DecodeError, Decoder, Encoder, FieldSource, LineTableFormat, MAX_TOP,
    RawFrame, Record, RecordBytes, STACK_TOPS,
};
use crate::{Allocator, MapClass};
use proptest::prelude::*;
use std::collections::HashMap;

/// What a test can ask for: records without borrowed texts, which have a test of their own.
pub(crate) fn records() -> impl Strategy<Value = Vec<Record<'static>>> {
    let address = prop_oneof![
        (0u64..40).prop_map(|n| 0x7f00_0000_1000 + n * 32),
        (0u64..1 << 47).prop_map(|address| address & !15),
        0u64..1 << 47,
    ];
    let size = prop_oneof![Just(24u64), 0u64..2000, any::<u32>().prop_map(u64::from), Just(u64::MAX)];
    let allocators: Vec<_> = (0..=u8::MAX).filter_map(Allocator::from_number).collect();
    assert!(Allocator::ALL.iter().all(|allocator| allocators.contains(allocator)));
    let allocator = proptest::sample::select(allocators);
    let class = (0u8..5).prop_map(|n| MapClass::from_number(n).unwrap());
    let time = any::<u64>().prop_map(Some);
    let frame = (0u32..50, prop_oneof![0u32..200, Just(u32::MAX)])
        .prop_map(|(code, instruction)| RawFrame { code, instruction });
    let one = prop_oneof![
        8 => (allocator.clone(), address.clone(), size, time.clone())
            .prop_map(|(allocator, address, size, time)| Record::Alloc { allocator, address, size, time }),
        8 => (address.clone(), time.clone()).prop_map(|(address, time)| Record::Free { address, time }),
        1 => (allocator.clone(), class, address.clone(), any::<u64>(), time.clone())
            .prop_map(|(allocator, class, address, length, time)| Record::Map { allocator, class, address, length, time }),
        1 => (address.clone(), any::<u64>(), time.clone()).prop_map(|(address, length, time)| Record::Unmap { address, length, time }),
        1 => (allocator, any::<u64>(), time.clone())
            .prop_map(|(allocator, size, time)| Record::FailedAlloc { allocator, size, time }),
        1 => (address, any::<u64>(), time).prop_map(|(address, length, time)| Record::RemapFrom { address, length, time }),
        4 => frame.prop_map(Record::Push),
        3 => (1u32..30).prop_map(|count| Record::Pop { count }),
        3 => (0u32..300).prop_map(|instruction| Record::Move { instruction }),
        2 => (top(), 1..=MAX_TOP as u32).prop_map(|(number, frames)| Record::DefineTop { number, frames }),
        4 => (top(), 0u32..8).prop_map(|(number, popped)| Record::ReplaceTop { number, popped }),
        1 => any::<u32>().prop_map(|ticket| Record::Switch { ticket: u64::from(ticket) << 20 }),
        1 => any::<u64>().prop_map(|monotonic_us| Record::Clock { monotonic_us }),
        1 => Just(Record::FreeUndo),
        1 => Just(Record::UnmapUndo),
        1 => any::<bool>().prop_map(Record::Truncated),
        1 => Just(Record::Finalizing),
        1 => any::<u64>().prop_map(Record::SampleDistance),
        1 => Just(Record::ExecBegins),
    ];
    prop::collection::vec(one, 0..400)
}

fn top() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, Just(STACK_TOPS as u32 - 1)]
}

/// The stack and its numbered tops, as the records so far say.
#[derive(Default)]
struct StackModel {
    frames: Vec<RawFrame>,
    tops: HashMap<u32, Vec<RawFrame>>,
}

/// Encodes what makes sense of `wanted` (no pops of what is not there) and returns that with the bytes.
pub(crate) fn encode(wanted: &[Record<'static>], timed: bool) -> (Vec<Record<'static>>, Vec<u8>) {
    encode_by(wanted, timed, encode_one)
}

/// The same, with `encode` for each record.
fn encode_by(wanted: &[Record<'static>], timed: bool, encode: EncodeOne) -> (Vec<Record<'static>>, Vec<u8>) {
    let mut encoder = Encoder::new(timed);
    let mut bytes = vec![0; 64 * (wanted.len() + 3)];
    let mut at = encoder.begin(&mut bytes, 0, 7, 1000, 42).unwrap();
    let mut done = vec![Record::Begin { ticket: 7, ticks: 1000, tid: 42, timed }];
    let mut stack = StackModel::default();
    for record in wanted {
        let record = fit(*record, &stack, timed);
        let Some(record) = record else { continue };
        apply(&record, &mut stack);
        at = encode(&mut encoder, &mut bytes, at, &record, &stack.frames).unwrap();
        done.push(record);
    }
    bytes.truncate(at);
    (done, bytes)
}

fn fit(record: Record<'static>, stack: &StackModel, timed: bool) -> Option<Record<'static>> {
    let keep = |time: Option<u64>| if timed { time } else { None };
    Some(match record {
        Record::Pop { count } if count as usize > stack.frames.len() => return None,
        Record::Move { .. } if stack.frames.is_empty() => return None,
        Record::DefineTop { frames, .. } if frames as usize > stack.frames.len() => return None,
        Record::ReplaceTop { number, .. } if !stack.tops.contains_key(&number) => return None,
        Record::ReplaceTop { popped, .. } if popped as usize > stack.frames.len() => return None,
        Record::Alloc { allocator, address, size, time } => {
            Record::Alloc { allocator, address, size, time: keep(time) }
        }
        Record::Free { address, time } => Record::Free { address, time: keep(time) },
        Record::Map { allocator, class, address, length, time } => {
            Record::Map { allocator, class, address, length, time: keep(time) }
        }
        Record::Unmap { address, length, time } => Record::Unmap { address, length, time: keep(time) },
        Record::RemapFrom { address, length, time } => Record::RemapFrom { address, length, time: keep(time) },
        Record::FailedAlloc { allocator, size, time } => Record::FailedAlloc { allocator, size, time: keep(time) },
        other => other,
    })
}

fn apply(record: &Record<'_>, StackModel { frames: stack, tops }: &mut StackModel) {
    match record {
        Record::Push(frame) => stack.push(*frame),
        Record::Pop { count } => stack.truncate(stack.len() - *count as usize),
        Record::Move { instruction } => stack.last_mut().unwrap().instruction = *instruction,
        Record::DefineTop { number, frames } => {
            tops.insert(*number, stack[stack.len() - *frames as usize..].to_vec());
        }
        Record::ReplaceTop { number, popped } => {
            stack.truncate(stack.len() - *popped as usize);
            stack.extend(&tops[number]);
        }
        _ => {}
    }
}

type EncodeOne = fn(&mut Encoder, &mut [u8], usize, &Record<'_>, &[RawFrame]) -> Option<usize>;

/// As [`encode_one`], but for allocations, of which nothing is expected.
fn encode_varied(
    encoder: &mut Encoder,
    bytes: &mut [u8],
    at: usize,
    record: &Record<'_>,
    stack: &[RawFrame],
) -> Option<usize> {
    match *record {
        Record::Alloc { allocator, address, size, time } => {
            encoder.alloc_varied(bytes, at, AllocHead::of(allocator), (address, size), time)
        }
        _ => encode_one(encoder, bytes, at, record, stack),
    }
}

fn encode_one(
    encoder: &mut Encoder,
    bytes: &mut [u8],
    at: usize,
    record: &Record<'_>,
    stack: &[RawFrame],
) -> Option<usize> {
    let newest = stack.last().copied().unwrap_or(RawFrame::NONE);
    match *record {
        Record::Alloc { allocator, address, size, time } => {
            encoder.alloc(bytes, at, allocator, address, size, time.unwrap_or(5))
        }
        Record::Free { address, time } => encoder.free(bytes, at, address, time.unwrap_or(5)),
        Record::Map { allocator, class, address, length, time } => {
            encoder.map(bytes, at, (allocator, class), (address, length), time.unwrap_or(5))
        }
        Record::Unmap { address, length, time } => encoder.unmap(bytes, at, address, length, time.unwrap_or(5)),
        Record::RemapFrom { address, length, time } => {
            encoder.remap_from(bytes, at, address, length, time.unwrap_or(5))
        }
        Record::FailedAlloc { allocator, size, time } => {
            encoder.failed_alloc(bytes, at, allocator, size, time.unwrap_or(5))
        }
        Record::Push(frame) => encoder.push(bytes, at, frame),
        Record::Pop { count } => encoder.pop(bytes, at, count, newest),
        Record::Move { instruction } => encoder.move_top(bytes, at, instruction),
        Record::DefineTop { number, frames } => encoder.define_top(bytes, at, number, frames),
        Record::ReplaceTop { number, popped } => encoder.replace_top(bytes, at, popped, number, CallSite::of(newest)),
        Record::Switch { ticket } => encoder.switch(bytes, at, ticket),
        Record::Clock { monotonic_us } => encoder.clock(bytes, at, monotonic_us),
        Record::FreeUndo => encoder.free_undo(bytes, at),
        Record::UnmapUndo => encoder.unmap_undo(bytes, at),
        Record::Truncated(truncated) => encoder.truncated(bytes, at, truncated),
        Record::Finalizing => encoder.finalizing(bytes, at),
        Record::SampleDistance(distance) => encoder.sample_distance(bytes, at, distance),
        Record::ExecBegins => encoder.exec(bytes, at, false),
        Record::ExecFailed => encoder.exec(bytes, at, true),
        Record::Counted(ref count) => encoder.counted(bytes, at, count),
        Record::ThreadName { tid, name } => encoder.thread_name(bytes, at, tid, name),
        Record::PythonName { tid, name } => encoder.python_name(bytes, at, tid, name),
        Record::Code(code) => encoder.code(bytes, at, &code),
        Record::CodeLines { id, bytes: part } => encoder.code_lines(bytes, at, id, part),
        Record::Module(module) => encoder.module(bytes, at, &module),
        Record::Begin { .. } | Record::Located { .. } | Record::GroupBegins => None,
    }
}

fn decode(bytes: &[u8]) -> (Vec<Record<'_>>, bool) {
    let (mut decoder, mut at, mut out) = (Decoder::new(), 0, Vec::new());
    loop {
        match decoder.next(bytes, at) {
            Ok(Some((record, next))) => {
                assert!(next > at);
                at = next;
                out.push(record);
            }
            Ok(None) => return (out, true),
            Err(error) => {
                assert_eq!(error.offset, at);
                return (out, false);
            }
        }
    }
}

/// What a decoder shows, but for the records of the stack: the stack itself, after each; and where it ends.
pub(crate) type DecodedRecord<'a> = (Vec<(Record<'a>, Vec<RawFrame>)>, Result<usize, DecodeError>);

pub(crate) fn decode_stacks<'a>(mut fields: impl FieldSource<'a>, blocks: bool) -> DecodedRecord<'a> {
    let (mut decoder, mut out, mut known) = (Decoder::new(), Vec::new(), Vec::new());
    loop {
        let block = if blocks { decoder.read_block(&mut fields) } else { Ok(None) };
        let record = match block {
            Ok(Some(BlockRecord { allocator: Some(allocator), address, size, time })) => {
                Record::Alloc { allocator, address, size, time }
            }
            Ok(Some(BlockRecord { address, time, .. })) => Record::Free { address, time },
            Ok(None) => match decoder.read(&mut fields) {
                Ok(Some(record)) => record,
                Ok(None) => return (out, Ok(fields.offset())),
                Err(error) => return (out, Err(error)),
            },
            Err(error) => return (out, Err(error)),
        };
        let kept = decoder.take_unchanged_frames();
        assert_eq!(decoder.stack().get(..kept), known.get(..kept), "what is said to have stayed did");
        decoder.stack().clone_into(&mut known);
        let is_of_stack = matches!(
            record,
            Record::Push(_)
                | Record::Pop { .. }
                | Record::Move { .. }
                | Record::DefineTop { .. }
                | Record::ReplaceTop { .. }
        );
        if !is_of_stack {
            out.push((record, known.clone()));
        }
    }
}

proptest! {
    #[test]
    fn blocks_alone_are_the_same_blocks(wanted in records(), timed: bool, cut in 0.0..1.2f64, damage: (usize, u8)) {
        let (_, mut bytes) = encode(&wanted, timed);
        bytes.truncate((bytes.len() as f64 * cut) as usize);
        if damage.1 % 2 == 0 && !bytes.is_empty() {
            let at = damage.0 % bytes.len();
            bytes[at] ^= damage.1;
        }
        let decoded = |blocks| decode_stacks(RecordBytes::at(&bytes, 0), blocks);
        prop_assert_eq!(decoded(true), decoded(false));
    }

    #[test]
    fn round_trip(wanted in records(), timed: bool) {
        let (done, bytes) = encode(&wanted, timed);
        prop_assert_eq!(decode(&bytes), (done, true));
    }

    #[test]
    fn what_a_segment_allocates_is_never_more_than_its_bound(wanted in records(), timed: bool, varied: bool) {
        let (mut encoder, mut bytes) = (Encoder::new(timed), vec![0; 64 * (wanted.len() + 3)]);
        let mut at = encoder.begin(&mut bytes, 0, 7, 1000, 42).unwrap();
        let (encode, mut all): (EncodeOne, u64) = (if varied { encode_varied } else { encode_one }, 0);
        prop_assert_eq!(encoder.most_bytes(), 0);
        for record in &wanted {
            at = encode(&mut encoder, &mut bytes, at, record, &[]).unwrap();
            let (Record::Alloc { size, .. } | Record::Map { length: size, .. }) = *record else { continue };
            all = all.saturating_add(size);
            prop_assert!(encoder.most_bytes() >= all);
        }
    }

    #[test]
    fn a_block_is_written_alike_whatever_is_expected_of_it(wanted in records(), timed: bool) {
        prop_assert_eq!(encode_by(&wanted, timed, encode_varied), encode(&wanted, timed));
    }

    #[test]
    fn the_decoded_stack_is_the_one_that_was_encoded(wanted in records()) {
        let (done, bytes) = encode(&wanted, false);
        let (mut model, mut decoder, mut at) = (StackModel::default(), Decoder::new(), 0);
        for record in &done {
            let (found, next) = decoder.next(&bytes, at).unwrap().unwrap();
            prop_assert_eq!(&found, record);
            at = next;
            apply(record, &mut model);
            prop_assert_eq!(decoder.stack(), &model.frames);
        }
    }

    #[test]
    fn a_cut_gives_a_prefix(wanted in records(), cut in 0.0..1.0f64) {
        let (done, bytes) = encode(&wanted, true);
        let (got, _) = decode(&bytes[..(bytes.len() as f64 * cut) as usize]);
        prop_assert_eq!(&got[..], &done[..got.len()]);
    }

    #[test]
    fn any_bytes_end(bytes: Vec<u8>) {
        let (records, _) = decode(&bytes);
        prop_assert!(records.len() <= bytes.len());
    }
}

#[test]
fn texts_round_trip_and_are_cut() {
    let long = vec![b'x'; 5000];
    let code = CodeHead {
        id: 3,
        first_line: 9,
        lines: LineTableFormat::Locations,
        lines_len: 70_000,
        name: b"f.<locals>.g",
        file: &long,
    };
    let mut bytes = vec![0; 20_000];
    let mut encoder = Encoder::new(false);
    let at = encoder.begin(&mut bytes, 0, 0, 0, 1).unwrap();
    let at = encoder.code(&mut bytes, at, &code).unwrap();
    let at = encoder.code_lines(&mut bytes, at, 3, &[1, 2, 3]).unwrap();
    let at = encoder.thread_name(&mut bytes, at, 12, b"worker").unwrap();
    let at = encoder.python_name(&mut bytes, at, 12, b"pool_0").unwrap();
    let (records, whole) = decode(&bytes[..at]);
    assert!(whole);
    assert_eq!(records[1], Record::Code(CodeHead { file: &long[..4096], ..code }));
    assert_eq!(records[2], Record::CodeLines { id: 3, bytes: &[1, 2, 3] });
    assert_eq!(records[3], Record::ThreadName { tid: 12, name: b"worker" });
    assert_eq!(records[4], Record::PythonName { tid: 12, name: b"pool_0" });
}

#[test]
fn a_free_of_what_was_just_allocated_is_one_byte() {
    let mut bytes = vec![0; 1000];
    let mut encoder = Encoder::new(false);
    let at = encoder.begin(&mut bytes, 0, 0, 0, 1).unwrap();
    // The size is predicted by the call site and the size before.
    let at = (0..2).fold(at, |at, _| {
        let at = encoder.alloc(&mut bytes, at, Allocator::Malloc, 0x5000, 600, 0).unwrap();
        encoder.free(&mut bytes, at, 0x5000, 0).unwrap()
    });
    let again = encoder.alloc(&mut bytes, at, Allocator::Malloc, 0x5000, 600, 0).unwrap();
    assert_eq!(again, at + 1);
    assert_eq!(encoder.free(&mut bytes, again, 0x5000, 0), Some(again + 1));
}

#[test]
fn a_top_that_is_too_large_or_unknown_is_damage() {
    let begin = |encoder: &mut Encoder, bytes: &mut [u8]| {
        let at = encoder.begin(bytes, 0, 0, 0, 1).unwrap();
        (0..17).fold(at, |at, code| encoder.push(bytes, at, RawFrame { code, instruction: 2 }).unwrap())
    };
    for (number, frames) in [(0, 17), (0, 0), (STACK_TOPS as u32, 1), (u32::MAX, 1), (0, 18)] {
        let (mut bytes, mut encoder) = ([0; 256], Encoder::new(false));
        let at = begin(&mut encoder, &mut bytes);
        let at = encoder.define_top(&mut bytes, at, number, frames).unwrap();
        assert!(!decode(&bytes[..at]).1, "{number} {frames}");
    }
    let (mut bytes, mut encoder) = ([0; 256], Encoder::new(false));
    let at = begin(&mut encoder, &mut bytes);
    let at = encoder.define_top(&mut bytes, at, 3, 16).unwrap();
    for (number, popped, is_there) in [(3, 0, true), (3, 17, true), (3, 18, false), (2, 0, false), (4, 1, false)] {
        let after = encoder.replace_top(&mut bytes, at, popped, number, CallSite::default()).unwrap();
        assert_eq!(decode(&bytes[..after]).1, is_there, "{number} {popped}");
    }
    // Tops belong to their segment.
    let after = encoder.begin(&mut bytes, at, 0, 0, 1).unwrap();
    let after = encoder.replace_top(&mut bytes, after, 0, 3, CallSite::default()).unwrap();
    assert!(!decode(&bytes[..after]).1);
}

#[test]
fn a_full_segment_is_told_before_anything_is_written() {
    let mut bytes = [0; 80];
    let mut encoder = Encoder::new(false);
    let at = encoder.begin(&mut bytes, 0, 0, 0, 1).unwrap();
    let at = encoder.switch(&mut bytes, at, 1).unwrap();
    let before = bytes;
    assert_eq!(encoder.switch(&mut bytes, at + 20, 1), None);
    assert_eq!(bytes, before);
}
