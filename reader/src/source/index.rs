//! The index of a capture: one pass over the block headers, which resumes after damage.
//!
//! After a damaged header the pass searches for the next sync marker with an intact header. Payloads of records are not
//! read here; their checksums are verified when they are decoded.
//!
//! Invariant: pieces are sorted by stream, segment and offset, and every byte after the file header belongs to a block,
//! is counted as lost, or is the truncated end of an incomplete capture.

use std::ops::{Range, RangeInclusive};

use memtrack_format::block::{BlockError, BlockHeader, BlockKind, HEADER_LEN, SYNC};
use memtrack_format::header;
use memtrack_format::mapped::{self, MappedFile};
use memtrack_format::marks::{self, Mark};
use memtrack_format::meta::Process;
use memtrack_format::sources::{self, FileLines};
use memtrack_format::symbols::{self, ModuleSymbols};

use memtrack_format::aggregate::PART;

use super::DataLoss;
use super::file::{OpenCaptureFile, StoredPiece};
use crate::error::Error;

/// Size of the buffer for the search, in bytes.
const WINDOW: usize = 1 << 20;

/// The pieces of one segment of records.
#[derive(Clone, Debug)]
pub(super) struct IndexedSegment {
    pub(super) stream: u32,
    pub(super) number: u32,
    /// No event in it has an earlier ticket.
    pub(super) first_ticket: u64,
    /// Into [`Index::records`].
    pub(super) pieces: Range<usize>,
}

/// The index.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) process: Process,
    /// First tickets of later images of the process, in order.
    pub(super) images: Vec<u64>,
    pub(super) records: Vec<StoredPiece>,
    /// Sorted by first ticket, stream and number.
    pub(super) segments: Vec<IndexedSegment>,
    /// In the order they were written.
    pub(super) observations: Vec<StoredPiece>,
    /// Whether there are aggregates, damaged or not.
    pub(super) aggregated: bool,
    /// The parts of the newest aggregate that is intact.
    pub(super) aggregates: Vec<StoredPiece>,
    /// Names of native code.
    pub(super) symbols: Vec<ModuleSymbols>,
    /// Source lines of frames.
    pub(super) sources: Vec<FileLines>,
    /// Files of native code outside of loaded objects, each with the first ticket of the image that it is of.
    pub(super) mapped: Vec<(u64, MappedFile)>,
    /// Moments with names, by their times.
    pub(super) marks: Vec<Mark>,
    /// Accounts of resident memory, in the order they were written.
    pub(super) accounts: Vec<StoredPiece>,
    /// Pictures of objects, in the order they were written.
    pub(super) pictures: Vec<StoredPiece>,
    /// The capture says that nothing is missing at its end.
    pub(super) complete: bool,
    /// Bytes behind that end that are no part of a capture.
    pub(super) bytes_behind: u64,
    pub(super) lost: DataLoss,
}

impl Index {
    pub(super) fn build(file: &OpenCaptureFile) -> Result<Self, Error> {
        let mut scan = Scan {
            file,
            index: Self::default(),
            marks: Vec::new(),
            last: None,
            end: None,
            recheck: file.len(),
            window: SearchWindow::default(),
        };
        scan.run()?;
        let (mut index, marks) = (scan.index, scan.marks);
        let included = index.tickets();
        index.marks = marks.into_iter().filter(|(ticket, _)| included.contains(ticket)).map(|(_, mark)| mark).collect();
        index.marks.sort_by_key(|mark| mark.time_ns);
        index.keep_newest_aggregate(file)?;
        index.records.sort_by_key(|piece| (piece.header.stream, piece.header.segment, piece.header.offset));
        index.segments = segments(&index.records);
        Ok(index)
    }

    /// The tickets of the moments that belong to the capture, with that of its first moment. Events with this first ticket
    /// came before it.
    pub(super) fn tickets(&self) -> RangeInclusive<u64> {
        let process = &self.process;
        process.span_ticket.unwrap_or(0)..=process.snapshot_ticket.unwrap_or(u64::MAX)
    }

    /// Keeps the parts of the last checkpoint that is complete.
    fn keep_newest_aggregate(&mut self, file: &OpenCaptureFile) -> Result<(), Error> {
        let mut found = std::mem::take(&mut self.aggregates);
        found.sort_by_key(|part| (part.header.segment, part.header.offset));
        while let Some(newest) = found.last().map(|part| part.header.segment) {
            let parts = found.split_off(found.partition_point(|part| part.header.segment < newest));
            if is_whole(file, &parts)? {
                self.aggregates = parts;
                break;
            }
            self.lost.add(parts.len() as u64, parts.iter().map(StoredPiece::stored_bytes).sum());
        }
        Ok(())
    }

    /// Bytes that a segment takes up in the file.
    pub(super) fn stored_bytes(&self, segment: usize) -> u64 {
        let pieces = self.segments.get(segment).and_then(|segment| self.records.get(segment.pieces.clone()));
        pieces.unwrap_or_default().iter().map(StoredPiece::stored_bytes).sum()
    }
}

/// Whether these parts are all of an aggregate, and intact.
fn is_whole(file: &OpenCaptureFile, parts: &[StoredPiece]) -> Result<bool, Error> {
    let mut end = 0;
    for part in parts {
        if u64::from(part.header.offset) != end || !file.payload(part, &mut Vec::new())? {
            return Ok(false);
        }
        end += u64::from(part.header.raw_len);
    }
    // All parts but the last are full: an end at a full part is a cut.
    Ok(parts.last().is_some_and(|last| (last.header.raw_len as usize) < PART))
}

/// Restores the start of the clocks where it was known before.
fn keep_start(process: &mut Process, before: &Process) {
    let start = |now: &mut Option<u64>, before: Option<u64>| *now = before.or(*now);
    let (now, before) = (&mut process.start, &before.start);
    now.clock = before.clock.or(now.clock);
    start(&mut now.ticks, before.ticks);
    start(&mut now.monotonic_ns, before.monotonic_ns);
    start(&mut now.realtime_ns, before.realtime_ns);
    start(&mut now.uncertainty_ns, before.uncertainty_ns);
}

fn segments(records: &[StoredPiece]) -> Vec<IndexedSegment> {
    let mut segments: Vec<IndexedSegment> = Vec::new();
    for (i, StoredPiece { header, .. }) in records.iter().enumerate() {
        match segments.last_mut() {
            Some(last) if (last.stream, last.number) == (header.stream, header.segment) => last.pieces.end = i + 1,
            _ => segments.push(IndexedSegment {
                stream: header.stream,
                number: header.segment,
                first_ticket: header.first_ticket,
                pieces: i..i + 1,
            }),
        }
    }
    segments.sort_by_key(|segment| (segment.first_ticket, segment.stream, segment.number));
    segments
}

struct Scan<'a> {
    file: &'a OpenCaptureFile,
    index: Index,
    /// Named moments, with their tickets.
    marks: Vec<(u64, Mark)>,
    /// The block before, while its payload has not been read.
    last: Option<StoredPiece>,
    /// Where the block ends that says that nothing is missing.
    end: Option<u64>,
    /// Bytes of payloads that may yet be checked on suspicion, so that a hostile file costs no more than its size.
    recheck: u64,
    window: SearchWindow,
}

/// What was last read for a search: after damage near the last one nothing is read again, so that a hostile file with
/// damage everywhere costs no more than its size.
#[derive(Default)]
struct SearchWindow {
    at: u64,
    bytes: Vec<u8>,
}

impl SearchWindow {
    /// The bytes from here on, as far as they were read; less than a header only at the end of the file.
    fn bytes_from(&mut self, file: &OpenCaptureFile, from: u64) -> Result<&[u8], Error> {
        let known = |window: &Self| {
            usize::try_from(from.checked_sub(window.at)?).ok().filter(|skipped| *skipped < window.bytes.len())
        };
        let skipped = match known(self).filter(|skipped| self.bytes.len() - skipped >= HEADER_LEN) {
            Some(skipped) => skipped,
            None => {
                self.bytes.resize(WINDOW.min(usize::try_from(file.len()).unwrap_or(WINDOW)), 0);
                let len = file.read_at(from, &mut self.bytes)?;
                self.bytes.truncate(len);
                self.at = from;
                0
            }
        };
        Ok(self.bytes.get(skipped..).unwrap_or_default())
    }
}

impl Scan<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let mut at = header::LEN as u64;
        while at < self.file.len() {
            at = match self.header(at)? {
                Ok(header) if self.ends(at, header.stored_len) <= self.file.len() => {
                    self.block(StoredPiece { payload: at + HEADER_LEN as u64, header })?;
                    self.ends(at, header.stored_len)
                }
                Err(BlockError::Unknown { stored_len }) if self.ends(at, stored_len) <= self.file.len() => {
                    self.ends(at, stored_len)
                }
                // The payload goes on beyond the end: cut, or bytes are missing before a block that is still there.
                Ok(_) | Err(BlockError::Unknown { .. } | BlockError::Short) => self.resume(at, true)?,
                Err(BlockError::Damaged) => self.resume(at, false)?,
            };
        }
        Ok(())
    }

    fn ends(&self, at: u64, stored_len: u32) -> u64 {
        at + HEADER_LEN as u64 + u64::from(stored_len)
    }

    fn header(&self, at: u64) -> Result<Result<BlockHeader, BlockError>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let len = self.file.read_at(at, &mut bytes)?;
        Ok(BlockHeader::decode(&bytes[..len]))
    }

    fn block(&mut self, piece: StoredPiece) -> Result<(), Error> {
        match piece.header.kind {
            BlockKind::Records => {
                self.index.records.push(piece);
                self.last = Some(piece);
                return Ok(());
            }
            BlockKind::Process => self.process(&piece)?,
            BlockKind::Observations => self.index.observations.push(piece),
            BlockKind::Aggregate => {
                self.index.aggregated = true;
                self.index.aggregates.push(piece);
            }
            BlockKind::Symbols => {
                let named = self.decoded(&piece, symbols::decode)?;
                self.index.symbols.extend(named);
            }
            BlockKind::Sources => {
                let files = self.decoded(&piece, sources::decode)?;
                self.index.sources.extend(files);
            }
            BlockKind::Mapped => {
                let files = self.decoded(&piece, mapped::decode)?.into_iter();
                self.index.mapped.extend(files.map(|file| (piece.header.first_ticket, file)));
            }
            // For those who follow a capture while it is written.
            BlockKind::Watermark => {}
            BlockKind::Marks => {
                let marks = self.decoded(&piece, marks::decode)?;
                self.marks.extend(marks.into_iter().map(|mark| (piece.header.first_ticket, mark)));
            }
            BlockKind::Resident => self.index.accounts.push(piece),
            BlockKind::Objects => self.index.pictures.push(piece),
            // Stands at the beginning of a file only, and is dealt with there.
            BlockKind::Members => self.index.lost.add(1, piece.stored_bytes()),
            BlockKind::End => {
                self.index.complete = self.file.whole_payload(&piece)?.is_some();
                if self.index.complete {
                    self.end = Some(self.ends(piece.payload - HEADER_LEN as u64, piece.header.stored_len));
                } else {
                    self.index.lost.add(1, piece.stored_bytes());
                }
            }
        }
        self.last = None;
        Ok(())
    }

    /// What the payload decodes to; else it is counted as lost.
    fn decoded<T>(&mut self, piece: &StoredPiece, decode: fn(&[u8]) -> Option<Vec<T>>) -> Result<Vec<T>, Error> {
        let decoded = self.file.whole_payload(piece)?.and_then(|payload| decode(&payload));
        if decoded.is_none() {
            self.index.lost.add(1, piece.stored_bytes());
        }
        Ok(decoded.unwrap_or_default())
    }

    /// An exec begins another image of the process, with a description of its own; but time counts from the first.
    fn process(&mut self, piece: &StoredPiece) -> Result<(), Error> {
        let index = &mut self.index;
        let first_ticket = piece.header.first_ticket;
        if first_ticket > index.images.last().copied().unwrap_or(0) {
            index.images.push(first_ticket);
            index.process.ended_by_exec = false;
        }
        let before = index.process.clone();
        if !self.file.whole_payload(piece)?.is_some_and(|payload| index.process.update(&payload)) {
            index.lost.add(1, piece.stored_bytes());
        }
        if first_ticket > 0 {
            keep_start(&mut index.process, &before);
        }
        Ok(())
    }

    /// The offset where reading resumes after damage at `at`; counts the loss. If no block follows, it is the end of
    /// the file, which is no loss if the damage may be the truncated end (`cut`) of an unfinished file, or if the capture
    /// had ended before.
    ///
    /// Blocks of another capture are never read: they would be taken for this one's.
    fn resume(&mut self, at: u64, cut: bool) -> Result<u64, Error> {
        self.file.refuse_header_at(at)?;
        let from = self.suspect(at)?;
        let next = self.find(from + 1)?;
        let end = next.unwrap_or(self.file.len());
        if let Some(first_block) = next {
            self.file.refuse_header_at(first_block - header::LEN as u64)?;
        } else if self.end == Some(at) {
            self.index.bytes_behind = end - at;
            return Ok(end);
        }
        if next.is_none() {
            self.index.complete = false;
        }
        if next.is_some() || !cut {
            self.index.lost.add(1, end - from);
        }
        Ok(end)
    }

    /// Where the damage begins: at the previous block, if its payload is damaged too, since then its length may be
    /// wrong.
    fn suspect(&mut self, at: u64) -> Result<u64, Error> {
        let Some(last) = self.last.take() else { return Ok(at) };
        let Some(left) = self.recheck.checked_sub(u64::from(last.header.stored_len)) else { return Ok(at) };
        self.recheck = left;
        if self.file.is_intact(&last)? {
            return Ok(at);
        }
        self.index.records.pop();
        Ok(last.payload - HEADER_LEN as u64)
    }

    /// The next position from `from` on with an intact block header.
    fn find(&mut self, mut from: u64) -> Result<Option<u64>, Error> {
        loop {
            let bytes = self.window.bytes_from(self.file, from)?;
            if bytes.len() < HEADER_LEN {
                return Ok(None);
            }
            // A header that is not whole here is looked at with the next bytes.
            let places = bytes.windows(HEADER_LEN).enumerate().filter(|(_, bytes)| bytes.starts_with(&SYNC));
            for (place, header) in places {
                if matches!(BlockHeader::decode(header), Ok(_) | Err(BlockError::Unknown { .. })) {
                    return Ok(Some(from + place as u64));
                }
            }
            from += (bytes.len() - HEADER_LEN + 1) as u64;
        }
    }
}
