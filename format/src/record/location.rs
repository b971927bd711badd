//! Located records: source positions of instructions, which the collector writes into a capture in place of line tables.
//!
//! A program executes few of the instructions that its line tables describe, and the tables are most of the bytes of a
//! short recording. So a capture has the positions of those instructions that occur in frames, each once per stream.
//!
//! Invariant: the [`LastLocation`] of decoder and encoder are equal, since both are reset with each segment.

use super::byte_writer::open;
use super::{FieldSource, MAX_RECORD, RawFrame, column, extra, tag};
use crate::lines::SourcePosition;
use crate::varint::{unzigzag, zigzag};

/// The last location, to which the next one is encoded as a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastLocation {
    code: u32,
    line: u32,
}

/// Encodes [`super::Record::Located`].
#[derive(Debug, Default)]
pub struct LocationEncoder {
    last: LastLocation,
}

impl LocationEncoder {
    /// A segment begins.
    pub fn begin(&mut self) {
        self.last = LastLocation::new();
    }

    /// Appends the record with this frame's position.
    pub fn put(&mut self, out: &mut Vec<u8>, frame: RawFrame, position: &SourcePosition) {
        let mut bytes = [0; MAX_RECORD];
        let len = self.write(&mut bytes, frame, position).unwrap_or(0);
        out.extend_from_slice(bytes.get(..len).unwrap_or_default());
    }

    fn write(&mut self, bytes: &mut [u8], frame: RawFrame, position: &SourcePosition) -> Option<usize> {
        let mut out = open(bytes, 0, 0)?;
        out.byte(tag::EXTRA)?;
        out.byte(extra::LOCATED)?;
        out.number(difference(frame.code, self.last.code))?;
        out.number(frame.instruction.into())?;
        out.number(difference(position.line, self.last.line))?;
        out.number(difference(position.end_line, position.line))?;
        out.number(one_more(position.column))?;
        out.number(one_more(position.end_column))?;
        self.last = LastLocation { code: frame.code, line: position.line };
        Some(out.at())
    }
}

impl LastLocation {
    pub(super) const fn new() -> Self {
        Self { code: 0, line: 0 }
    }

    /// The inverse of [`LocationEncoder::put`].
    pub(super) fn read<'a>(&mut self, fields: &mut impl FieldSource<'a>) -> Option<(RawFrame, SourcePosition)> {
        let [frame, lines, columns] = column::LOCATED;
        let code = sum(fields.number(frame)?, self.code)?;
        let instruction = fields.small(frame)?;
        let line = sum(fields.number(lines)?, self.line)?;
        let end_line = sum(fields.number(lines)?, line)?;
        let (column, end_column) = (one_less(fields.number(columns)?)?, one_less(fields.number(columns)?)?);
        *self = Self { code, line };
        Some((RawFrame { code, instruction }, SourcePosition { line, end_line, column, end_column }))
    }
}

fn difference(value: u32, base: u32) -> u64 {
    zigzag(i64::from(value) - i64::from(base))
}

fn sum(difference: u64, base: u32) -> Option<u32> {
    u32::try_from(i64::from(base).checked_add(unzigzag(difference))?).ok()
}

fn one_more(value: Option<u32>) -> u64 {
    value.map_or(0, |value| u64::from(value) + 1)
}

#[expect(clippy::option_option, reason = "the outer one is a number that is too large")]
fn one_less(number: u64) -> Option<Option<u32>> {
    match number.checked_sub(1) {
        None => Some(None),
        Some(value) => u32::try_from(value).ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, Encoder, RawFrame, Record};
    use super::LocationEncoder;
    use crate::lines::SourcePosition;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(wanted in prop::collection::vec(any::<(u32, u32, u32, u32, Option<u32>, Option<u32>)>(), 0..20), again: bool) {
            let wanted = wanted.iter().map(|&(code, instruction, line, end_line, column, end_column)| {
                (RawFrame { code, instruction }, SourcePosition { line, end_line, column, end_column })
            });
            let wanted: Vec<_> = wanted.collect();
            let (mut encoder, mut locator, mut bytes, mut expected) = (Encoder::new(false), LocationEncoder::default(), Vec::new(), Vec::new());
            for _ in 0..1 + u32::from(again) {
                let mut head = [0; 64];
                let len = encoder.begin(&mut head, 0, 1, 2, 3).unwrap();
                bytes.extend_from_slice(&head[..len]);
                expected.push(Record::Begin { ticket: 1, ticks: 2, tid: 3, timed: false });
                locator.begin();
                for (frame, position) in &wanted {
                    locator.put(&mut bytes, *frame, position);
                    expected.push(Record::Located { frame: *frame, position: *position });
                }
            }
            let (mut decoder, mut at, mut found) = (Decoder::new(), 0, Vec::new());
            while let Some((record, next)) = decoder.next(&bytes, at).unwrap() {
                found.push(record);
                at = next;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
