//! What has to hold for any bytes whatever: one function for each fuzz target.
//!
//! The ordinary tests of the reader include this file and run it on the corpus that fuzzing has left, so that what was
//! found once stays found where there is no fuzzer.
//!
//! Invariant: a function returns for every input; it panics only where a promise is broken.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;

use crc32fast::hash as crc32;
use memtrack_format::aggregate::Aggregate;
use memtrack_format::block::{BlockHeader, BlockKind, Codec};
use memtrack_format::header;
use memtrack_format::lines::{LineTableFormat, position};
use memtrack_format::record::{DecodeError, Decoder, FieldSource, MAX_TOP, Record, RecordBytes};
use memtrack_format::record_columns::{ColumnSplitter, RecordColumns, join};
use memtrack_reader::source::{CaptureReader, members};
use memtrack_reader::{Options, Replay, aggregate};

/// Takes the first `N` bytes off.
fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*first)
}

/// Records: decoding makes progress to an end, keeps no more frames than bytes, and a cut gives a prefix. Columns of them are
/// the same records.
pub(crate) fn records(data: &[u8]) {
    let (whole, end) = decode(RecordBytes::at(data, 0));
    let (cut, _) = decode(RecordBytes::at(data.get(..data.len() / 2).unwrap_or_default(), 0));
    assert!(cut.len() <= whole.len() && cut.iter().zip(&whole).all(|(a, b)| a == b), "a cut is no prefix");
    for timed in [false, true] {
        let columns = ColumnSplitter::default().split(data, timed).expect("memory").to_vec();
        let Some(columns) = RecordColumns::new(columns, data.len()).filter(|columns| columns.continues(false)) else {
            continue;
        };
        assert!(decode(columns.reader()) == (whole.clone(), end), "columns are other records");
    }
}

/// Columns, with their lengths before them: the records that they join to, or fewer and an error.
pub(crate) fn columns(mut data: &[u8]) {
    let Some([timed]) = take(&mut data) else { return };
    // None of what is no record. A length of one byte is a prefix varint.
    let Some(mut lengths) = take::<51>(&mut data) else { return };
    (lengths[49], lengths[50]) = (0, 0);
    lengths.iter_mut().for_each(|length| *length &= 31);
    let length = lengths.iter().map(|length| usize::from(*length)).sum();
    let mut columns = vec![timed & 1];
    columns.extend(lengths.iter().map(|length| length << 1 | 1));
    columns.extend(data.iter().chain(std::iter::repeat(&0)).take(length));
    let mut joined = vec![0; length];
    let is_joined = join(&columns, &mut joined).is_some();
    let columns = RecordColumns::new(columns, length).expect("lengths that add up");
    let (found, end) = decode(columns.reader());
    assert!(is_joined || end.is_err(), "columns of no records are decoded to their end");
    if is_joined && columns.continues(false) {
        assert!((found, end) == decode(RecordBytes::at(&joined, 0)), "columns are other records");
    }
}

/// The records, and where they end.
fn decode<'a>(mut fields: impl FieldSource<'a>) -> (Vec<Record<'a>>, Result<usize, DecodeError>) {
    let (mut decoder, mut at, mut records) = (Decoder::new(), 0, Vec::new());
    loop {
        match decoder.read(&mut fields) {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, Ok(at)),
            Err(error) => return (records, Err(error)),
        }
        let next = fields.offset();
        assert!(next > at && next <= fields.length(), "from {at} to {next} of {}", fields.length());
        assert!(decoder.stack().len() <= MAX_TOP * next, "more frames than bytes give");
        at = next;
    }
}

/// Line tables: every offset is answered, and columns belong to a line.
pub(crate) fn lines(mut data: &[u8]) {
    let Some([format, a, b, c]) = take(&mut data) else { return };
    let format =
        [LineTableFormat::Lnotab, LineTableFormat::Ranges, LineTableFormat::Locations][usize::from(format % 3)];
    let offset = u32::from_le_bytes([a, b, 0, 0]);
    for offset in [offset, offset.wrapping_sub(1)] {
        let place = position(format, data, u32::from(c), offset);
        assert!(place.line != 0 || place.column.is_none() || format == LineTableFormat::Locations, "{place:?}");
    }
}

/// A capture whose blocks are intact and whose contents are the input's: reading it ends, with what it has or an error,
/// and a cut of it has no more events.
pub(crate) fn capture(data: &[u8]) {
    let bytes = blocks(data);
    let whole = read(&bytes);
    let cut = read(bytes.get(..bytes.len() / 2).unwrap_or_default());
    // What is refused (a list of captures, say) may be nothing but damaged when it is cut.
    assert!(whole.is_none() || cut <= whole, "half of the file has {cut:?} events, the whole {whole:?}");
}

/// Each block of the input: kind, codec, stream, segment, offset, tickets, length once decoded, stored length; payload.
fn blocks(mut data: &[u8]) -> Vec<u8> {
    let mut file = header::encode().to_vec();
    while let Some([kind, codec, stream, segment, offset, first, last, raw, stored]) = take(&mut data) {
        let (payload, rest) = data.split_at(usize::from(stored).min(data.len()));
        data = rest;
        let codecs = [Codec::Stored, Codec::Zstd, Codec::Lz4, Codec::ZstdPrefix, Codec::ZstdColumns, Codec::Lz4Columns];
        let codec = codecs[usize::from(codec) % codecs.len()];
        let raw_len = if raw == 0 || codec == Codec::Zstd { payload.len() as u32 } else { u32::from(raw) << 3 };
        // A frame is what a fuzzer would hardly ever find.
        let frame = (codec == Codec::Zstd).then(|| zstd::bulk::compress(payload, 1).expect("memory"));
        let payload = frame.as_deref().unwrap_or(payload);
        let header = BlockHeader {
            codec,
            stream: stream.into(),
            segment: segment.into(),
            offset: offset.into(),
            first_ticket: first.into(),
            last_ticket: last.into(),
            raw_len,
            stored_len: payload.len() as u32,
            payload_crc: crc32(payload),
            ..BlockHeader::plain(kind_of(kind))
        };
        file.extend_from_slice(&header.encode());
        file.extend_from_slice(payload);
    }
    file
}

/// What an aggregated capture has is taken over, or refused.
fn sums(capture: &CaptureReader) {
    let payload = capture.aggregate().ok().flatten();
    if let Some(sums) = payload.and_then(|payload| Aggregate::decode(&payload)) {
        let _ = aggregate::restore(&sums);
    }
}

/// Stored in another way it has the same blocks, and one that is not made smaller is the same to the byte.
fn packed_again(capture: &CaptureReader, bytes: &[u8]) {
    let mut copy = Vec::new();
    let mut larger = |_, payload: &[u8], _: &[u8], stored: &mut Vec<u8>| {
        stored.extend_from_slice(payload);
        stored.resize(stored.len() + 512, 0);
        Codec::Stored
    };
    let done = capture.repack(&mut copy, &mut larger, &mut |_| true);
    if done.is_ok_and(|done| done) && copy.len() >= bytes.len() {
        assert!(copy == bytes, "a copy that differs");
    }
}

/// The kinds that came later have numbers of their own, so that older inputs stay what they are.
fn kind_of(number: u8) -> BlockKind {
    let kinds = [BlockKind::Records, BlockKind::Process, BlockKind::Observations, BlockKind::Aggregate, BlockKind::End];
    let later = [BlockKind::Symbols, BlockKind::Mapped, BlockKind::Members];
    match number.checked_sub(248) {
        Some(number) => later[usize::from(number) % later.len()],
        None => kinds[usize::from(number) % kinds.len()],
    }
}

fn read(bytes: &[u8]) -> Option<u64> {
    let mut file: File = tempfile::tempfile().expect("a file without a name");
    file.write_all(bytes).expect("room for it");
    file.rewind().expect("a file");
    let paths = members(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?.paths;
    let events = paths.iter().map(|path| events(&CaptureReader::open(path).ok()?, bytes));
    events.collect::<Option<Vec<u64>>>().map(|all| all.iter().sum())
}

fn events(capture: &CaptureReader, bytes: &[u8]) -> Option<u64> {
    sums(capture);
    if capture.file_bytes() == bytes.len() as u64 {
        packed_again(capture, bytes);
    }
    let mut replay = Replay::new(&Options::default());
    capture.read(&mut replay, |_| {}).ok()?;
    let totals = replay.finish().totals;
    assert!(totals.allocations.count <= totals.events, "more allocations than events");
    Some(totals.events)
}
