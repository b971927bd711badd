//! Reader and writer of what payloads are made of: bytes, numbers, byte strings and counted rows.
//!
//! Numbers are prefix varints, byte strings have their length before them, rows their count. Records have a writer of
//! their own, which never allocates: see [`crate::record`].
//!
//! Invariant: reading allocates no more rows than there are bytes, and no text longer than the payload.

use crate::varint;

/// Bytes of room that are made at once.
const LEAST_ROOM: usize = 64;

/// Writes a payload.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter {
    /// What was written, and behind it zeroes as room for more: a number is written without a look at how long it is.
    bytes: Vec<u8>,
    len: usize,
}

impl FieldWriter {
    #[inline]
    pub(crate) fn number(&mut self, value: u64) {
        match varint::write(self.bytes.as_mut_slice(), self.len, value) {
            Some(end) => self.len = end,
            None => self.number_with_room(value),
        }
    }

    #[cold]
    fn number_with_room(&mut self, value: u64) {
        self.make_room(varint::MAX_LEN);
        self.len = varint::write(self.bytes.as_mut_slice(), self.len, value).unwrap_or(self.len);
    }

    /// Room for so many bytes, and in proportion to what was written, so that all of it takes linear time.
    fn make_room(&mut self, bytes: usize) {
        self.bytes.resize(self.len + bytes + self.len / 8 + LEAST_ROOM, 0);
    }

    pub(crate) fn numbers(&mut self, values: &[u64]) {
        values.iter().for_each(|&value| self.number(value));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    /// Bytes without their length.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if end > self.bytes.len() {
            self.make_room(bytes.len());
        }
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    pub(crate) fn rows<T>(&mut self, rows: &[T], mut row: impl FnMut(&mut Self, &T)) {
        self.number(rows.len() as u64);
        rows.iter().for_each(|one| row(self, one));
    }

    /// How many bytes were written.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The payload.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.truncate(self.len);
        self.bytes
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
        let bytes = out.into_bytes();
        let mut input = FieldReader::new(&bytes);
        assert_eq!((input.number(), input.small()), (Some(u64::MAX), Some(7)));
        assert_eq!(input.rows(FieldReader::bytes), Some(vec![b"ab".as_slice(), b""]));
        assert!(input.is_at_end() && input.number().is_none());
    }

    #[test]
    fn counts_and_lengths_that_the_bytes_do_not_hold_are_refused() {
        for claimed in [2, 1 << 20, u64::MAX] {
            let mut out = FieldWriter::default();
            out.numbers(&[claimed, 0]);
            let bytes = out.into_bytes();
            assert_eq!(FieldReader::new(&bytes).rows(FieldReader::number), None);
            assert_eq!(FieldReader::new(&bytes).bytes(), None);
        }
    }
}
