//! Replaces the line tables in a stream's records by the source positions of the instructions that occur in frames.
//!
//! The shim records a code object with its whole line table, which is most of the bytes of a short recording. This filter
//! keeps the tables in memory, and writes a Located record before the first record with a frame at a new instruction.
//!
//! Invariant: all other records pass unchanged, and so do bytes that cannot be decoded.

use std::sync::Arc;

use memtrack_format::lines::{PositionCursor, SourcePosition};
use memtrack_format::record::{CodeHead, Decoder, LineTableFormat, LocationEncoder, RawFrame, Record};
use memtrack_format::record_columns::{PieceSplitter, StackStop, pass_stacks};
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum size of the line tables that are kept for one stream. Further tables pass into the file, so that a program that
/// creates code objects without end does not make the collector grow.
const MOST_KEPT: usize = 16 << 20;
/// Frames that are found without hashing.
const LAST_SEEN: usize = 4096;

/// The filter of one stream.
#[derive(Debug, Default)]
pub(crate) struct LineTableFilter {
    /// Absent until the stream has a code object: the records of other programs are not decoded.
    known: Option<Box<CodeLocations>>,
    /// The records of this segment so far, while the stream has no code object.
    before: Vec<u8>,
    /// The rest of the segment passes without being decoded.
    unread: bool,
}

#[derive(Debug, Default)]
struct CodeLocations {
    /// Of stacks only: the blocks are not given to it.
    decoder: Decoder,
    locator: LocationEncoder,
    tables: FxHashMap<u32, KeptLineTable>,
    /// The files of code objects.
    files: FxHashSet<Arc<[u8]>>,
    /// Those added since the last query.
    new_files: Vec<Arc<[u8]>>,
    /// Lines of frames added since the last query.
    new_lines: Vec<(Arc<[u8]>, u32)>,
    kept: usize,
    seen: FxHashSet<RawFrame>,
    /// Those of them that were met last, at places by their bits: nearly all frames are met again soon.
    last_seen: LastSeen,
}

/// Frames by a hash of their numbers.
#[derive(Debug)]
struct LastSeen(Box<[RawFrame; LAST_SEEN]>);

impl Default for LastSeen {
    fn default() -> Self {
        Self(Box::new([RawFrame::NONE; LAST_SEEN]))
    }
}

impl LastSeen {
    #[inline]
    fn has(&self, frame: RawFrame) -> bool {
        self.0[Self::place(frame)] == frame
    }

    fn put(&mut self, frame: RawFrame) {
        self.0[Self::place(frame)] = frame;
    }

    #[inline]
    const fn place(frame: RawFrame) -> usize {
        // Instructions are at even offsets, and numbers of code objects follow each other.
        let mixed = frame.code.wrapping_mul(0x9e5).wrapping_add(frame.instruction / 2).wrapping_mul(0x9e37_79b1);
        (mixed >> (u32::BITS - LAST_SEEN.ilog2())) as usize
    }
}

/// The line table of a code object.
#[derive(Debug)]
struct KeptLineTable {
    file: Arc<[u8]>,
    first_line: u32,
    lines: LineTableFormat,
    len: usize,
    bytes: Vec<u8>,
    cursor: PositionCursor,
}

impl LineTableFilter {
    /// Appends these records of the stream to `out`; `begins` where a segment begins with them, `has_code` where a code
    /// object may be described in the segment. What is appended is split with `splitter`, too; `false`: it is not, or not all.
    pub(crate) fn pass_on(
        &mut self,
        begins: bool,
        has_code: bool,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut splitter: Option<PieceSplitter<'_>>,
    ) -> bool {
        if begins {
            self.unread = false;
            self.before.clear();
        }
        if self.known.is_none() {
            if has_code {
                let (mut known, before) = (Box::<CodeLocations>::default(), std::mem::take(&mut self.before));
                self.unread = !begins && (before.is_empty() || !known.pass_on(&before, &mut Vec::new(), None));
                self.known = Some(known);
            } else {
                self.before.extend_from_slice(bytes);
            }
        }
        match &mut self.known {
            Some(known) if !self.unread => self.unread = !known.pass_on(bytes, out, splitter.as_mut()),
            _ => out.extend_from_slice(bytes),
        }
        splitter.is_some_and(PieceSplitter::finish)
    }
}

impl LineTableFilter {
    /// The files of code objects that were described since the last call.
    pub(crate) fn take_files(&mut self) -> Vec<Arc<[u8]>> {
        self.known.as_mut().map(|known| std::mem::take(&mut known.new_files)).unwrap_or_default()
    }

    /// The files and lines of frames with new positions since the last call.
    pub(crate) fn take_lines(&mut self) -> Vec<(Arc<[u8]>, u32)> {
        self.known.as_mut().map(|known| std::mem::take(&mut known.new_lines)).unwrap_or_default()
    }
}

impl CodeLocations {
    /// `false`: not all of the bytes could be decoded.
    fn pass_on(&mut self, bytes: &[u8], out: &mut Vec<u8>, mut splitter: Option<&mut PieceSplitter<'_>>) -> bool {
        let (mut at, mut passed) = (0, 0);
        let pass_until = |passed: &mut usize, at, next, out: &mut Vec<u8>| {
            out.extend_from_slice(bytes.get(std::mem::replace(passed, next)..at).unwrap_or_default());
        };
        loop {
            let (decoder, last_seen) = (&mut self.decoder, &self.last_seen);
            let is_known = |frame| last_seen.has(frame);
            let stop = match &mut splitter {
                Some(splitter) => splitter.pass_stacks(decoder, is_known),
                None => pass_stacks(decoder, bytes, at, is_known),
            };
            match stop {
                Ok(StackStop::Frame { at: start, next }) => {
                    if let Some((frame, place)) = self.new_location() {
                        pass_until(&mut passed, start, start, out);
                        let before = out.len();
                        self.locator.put(out, frame, &place);
                        splitter.iter_mut().for_each(|splitter| splitter.insert(&out[before..]));
                    }
                    splitter.iter_mut().for_each(|splitter| splitter.pass());
                    at = next;
                }
                Ok(StackStop::Other(start)) => {
                    at = start;
                    let Ok(Some((record, next))) = self.decoder.next(bytes, at) else { break };
                    match record {
                        Record::CodeLines { id, bytes: part } if self.keep(id, part) => {
                            pass_until(&mut passed, at, next, out);
                            splitter.iter_mut().for_each(|splitter| splitter.leave_out(next));
                        }
                        other => {
                            self.note(&other);
                            splitter.iter_mut().for_each(|splitter| splitter.pass());
                        }
                    }
                    at = next;
                }
                Err(error) => {
                    at = error.offset;
                    break;
                }
            }
        }
        pass_until(&mut passed, bytes.len(), bytes.len(), out);
        at == bytes.len()
    }

    fn note(&mut self, record: &Record<'_>) {
        match record {
            Record::Code(head) => self.describe(head),
            Record::Begin { .. } => self.locator.begin(),
            _ => {}
        }
    }

    fn describe(&mut self, head: &CodeHead<'_>) {
        let file = match self.files.get(head.file) {
            Some(known) => Arc::clone(known),
            None => {
                let file = Arc::from(head.file);
                self.files.insert(Arc::clone(&file));
                self.new_files.push(Arc::clone(&file));
                file
            }
        };
        let len = head.lines_len as usize;
        if self.kept.saturating_add(len) <= MOST_KEPT {
            self.kept += len;
            let table = KeptLineTable {
                file,
                first_line: head.first_line,
                lines: head.lines,
                len,
                bytes: Vec::new(),
                cursor: PositionCursor::default(),
            };
            self.tables.insert(head.id, table);
        }
    }

    /// Keeps a part of a table; `false` where the table is not kept.
    fn keep(&mut self, id: u32, part: &[u8]) -> bool {
        let Some(table) = self.tables.get_mut(&id) else { return false };
        let room = table.len.saturating_sub(table.bytes.len());
        table.bytes.extend_from_slice(part.get(..part.len().min(room)).unwrap_or_default());
        true
    }

    /// The newest frame and its source position, if they are new and its table is kept.
    fn new_location(&mut self) -> Option<(RawFrame, SourcePosition)> {
        let frame = *self.decoder.stack().last()?;
        if self.seen.contains(&frame) {
            self.last_seen.put(frame);
            return None;
        }
        let table = self.tables.get_mut(&frame.code)?;
        self.seen.insert(frame);
        // Before its first instruction a frame is at the function's first line, which needs no table.
        if frame.instruction == RawFrame::NOT_STARTED {
            self.new_lines.push((Arc::clone(&table.file), table.first_line));
            return None;
        }
        let place = table.cursor.position(table.lines, &table.bytes, table.first_line, frame.instruction);
        self.new_lines.push((Arc::clone(&table.file), place.line));
        Some((frame, place))
    }
}

#[cfg(test)]
mod tests {
    use super::LineTableFilter;
    use memtrack_format::Allocator;
    use memtrack_format::lines::SourcePosition;
    use memtrack_format::record::{CodeHead, Decoder, Encoder, LineTableFormat, RawFrame, Record};

    const NAME: &[u8] = b"function";

    /// A segment: a code object, if asked for, and an allocation at each of these instructions.
    fn segment(encoder: &mut Encoder, describe: bool, instructions: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let mut at = encoder.begin(&mut bytes, 0, 1, 2, 3).unwrap();
        if describe {
            let head = CodeHead {
                id: 7,
                first_line: 10,
                lines: LineTableFormat::Lnotab,
                lines_len: 6,
                name: NAME,
                file: b"f",
            };
            at = encoder.code(&mut bytes, at, &head).unwrap();
            at = encoder.code_lines(&mut bytes, at, 7, &[10, 1, 10]).unwrap();
            at = encoder.code_lines(&mut bytes, at, 7, &[2, 10, 3]).unwrap();
        }
        for (i, &instruction) in instructions.iter().enumerate() {
            let frame = RawFrame { code: 7, instruction };
            at = match i {
                0 => encoder.push(&mut bytes, at, frame),
                _ => encoder.move_top(&mut bytes, at, instruction),
            }
            .unwrap();
            at = encoder.alloc(&mut bytes, at, Allocator::Malloc, 0x1000 + u64::from(instruction), 8, 0).unwrap();
        }
        bytes.truncate(at);
        bytes
    }

    /// Located lines by instruction, and the number of other records.
    fn told(bytes: &[u8]) -> (Vec<(u32, u32)>, usize) {
        let (mut decoder, mut at, mut lines, mut others) = (Decoder::new(), 0, Vec::new(), 0);
        while let Some((record, next)) = decoder.next(bytes, at).unwrap() {
            at = next;
            match record {
                Record::Located { frame, position: SourcePosition { line, .. } } => {
                    lines.push((frame.instruction, line))
                }
                Record::CodeLines { .. } => panic!("a line table"),
                _ => others += 1,
            }
        }
        (lines, others)
    }

    #[test]
    fn a_place_is_told_once_in_place_of_tables() {
        let (mut places, mut encoder, mut out) = (LineTableFilter::default(), Encoder::new(false), Vec::new());
        let first = segment(&mut encoder, true, &[2, 12, 24, 12, RawFrame::NOT_STARTED]);
        // In pieces, as a segment comes that had to be saved unfinished.
        let (mut decoder, mut borders, mut at) = (Decoder::new(), vec![0], 0);
        while let Some((_, next)) = decoder.next(&first, at).unwrap() {
            borders.push(next);
            at = next;
        }
        for pair in borders.windows(2) {
            places.pass_on(pair[0] == 0, pair[0] >= borders[1], &first[pair[0]..pair[1]], &mut out, None);
        }
        assert_eq!(told(&out), (vec![(2, 10), (12, 11), (24, 13)], borders.len() - 1 - 2));
        let lines = [10, 11, 13, 10].map(|line| (b"f".as_slice().into(), line));
        assert_eq!(places.take_lines(), lines);
        assert!(places.take_lines().is_empty());

        let (mut places, mut out) = (LineTableFilter::default(), Vec::new());
        places.pass_on(true, true, &first[..borders[4]], &mut out, None);
        places.pass_on(false, true, &first[borders[4]..], &mut out, None);
        assert_eq!(told(&out), (vec![(2, 10), (12, 11), (24, 13)], borders.len() - 1 - 2));
        out.clear();
        places.pass_on(true, true, &segment(&mut encoder, false, &[12, 34, 2]), &mut out, None);
        assert_eq!(told(&out), (vec![(34, 16)], 7));
    }

    #[test]
    fn what_cannot_be_read_is_passed_on() {
        let (mut places, mut encoder, mut out) = (LineTableFilter::default(), Encoder::new(false), Vec::new());
        let whole = segment(&mut encoder, true, &[2]);
        let mut damaged = whole.clone();
        damaged.extend_from_slice(&[0, 1, 2, 3]);
        places.pass_on(true, true, &damaged, &mut out, None);
        assert!(out.ends_with(&[0, 1, 2, 3]));
        places.pass_on(false, true, &whole, &mut out, None);
        assert!(out.ends_with(&whole));
    }

    #[test]
    fn a_stream_without_code_objects_is_not_decoded() {
        let (mut places, mut out) = (LineTableFilter::default(), Vec::new());
        // The bytes of a Code record's tag, in addresses and sizes.
        let bytes = segment(&mut Encoder::new(false), true, &[2]);
        places.pass_on(true, false, &bytes, &mut out, None);
        assert_eq!(out, bytes);
        assert!(places.known.is_none());
    }
}
