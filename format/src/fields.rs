//! Reader and writer of what payloads are made of: bytes, numbers, byte strings and counted rows.
//!
//! Numbers are prefix varints, byte strings have their length before them, rows their count. Records have a writer of
//! their own, which never allocates: see [`crate::record`].
//!
//! Invariant: reading allocates no more rows than there are bytes, and no text longer than the payload.

use crate::varint;

/// Writes a payload.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter(pub(crate) Vec<u8>);

impl FieldWriter {
    pub(crate) fn number(&mut self, value: u64) {
        let mut bytes = [0; varint::MAX_LEN];
        let end = varint::write(&mut bytes, 0, value).unwrap_or(0);
        // Most numbers of a picture of objects have one byte or two, which need no call.
        match (end, bytes) {
            (1, [first, ..]) => self.0.push(first),
            (2, [first, second, ..]) => self.0.extend_from_slice(&[first, second]),
            _ => self.0.extend_from_slice(bytes.get(..end).unwrap_or_default()),
        }
    }

    pub(crate) fn numbers(&mut self, values: &[u64]) {
        values.iter().for_each(|&value| self.number(value));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn rows<T>(&mut self, rows: &[T], mut row: impl FnMut(&mut Self, &T)) {
        self.number(rows.len() as u64);
        rows.iter().for_each(|one| row(self, one));
    }
}

/// Reads a payload; every method returns `None` if the payload ends too early.
#[derive(Clone, Debug)]
pub(crate) struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// From this position on.
    pub(crate) const fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The position after what was read.
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// Whether nothing follows.
    pub(crate) const fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let (value, at) = varint::read(self.bytes, self.at)?;
        self.at = at;
        Some(value)
    }

    /// A number of 32 bits; a larger one is none.
    pub(crate) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let bytes = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }

    pub(crate) fn rows<T>(&mut self, mut row: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok()?;
        if count > self.bytes.len() - self.at {
            return None; // every row has at least a byte
        }
        let mut rows = Vec::new();
        for _ in 0..count {
            rows.push(row(self)?);
        }
        Some(rows)
    }
}

/// A payload with damage: one byte changed, and some cut off.
#[cfg(test)]
pub(crate) fn damaged(mut payload: Vec<u8>, at: usize, with: u8, cut: usize) -> Vec<u8> {
    let at = at % payload.len();
    payload[at] ^= with;
    payload.truncate(payload.len() - cut.min(payload.len()));
    payload
}

#[cfg(test)]
mod tests {
    use super::{FieldReader, FieldWriter};

    #[test]
    fn what_was_written_is_read_and_no_more() {
        let mut out = FieldWriter::default();
        out.numbers(&[u64::MAX, 7]);
        out.rows(&[b"ab".as_slice(), b""], |out, text| out.bytes(text));
        let mut input = FieldReader::new(&out.0);
        assert_eq!((input.number(), input.small()), (Some(u64::MAX), Some(7)));
        assert_eq!(input.rows(FieldReader::bytes), Some(vec![b"ab".as_slice(), b""]));
        assert!(input.is_at_end() && input.number().is_none());
    }

    #[test]
    fn counts_and_lengths_that_the_bytes_do_not_hold_are_refused() {
        for claimed in [2, 1 << 20, u64::MAX] {
            let mut out = FieldWriter::default();
            out.numbers(&[claimed, 0]);
            assert_eq!(FieldReader::new(&out.0).rows(FieldReader::number), None);
            assert_eq!(FieldReader::new(&out.0).bytes(), None);
        }
    }
}
