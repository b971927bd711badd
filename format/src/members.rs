//! The payload of a members block: several captures in one file, such as those of a process tree (`memtrack merge`).
//!
//! After the file header stands one block of kind [`Members`](crate::block::BlockKind::Members), whose payload is a
//! sequence of lengths in bytes (prefix varints); complete captures of these lengths, with their file headers, follow.
//!
//! Invariant: a capture in such a file has the same bytes as it had in a file of its own.

use crate::fields::{FieldReader, FieldWriter};

/// The payload for captures of these lengths.
#[must_use]
pub fn encode(lengths: &[u64]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.numbers(lengths);
    out.into_bytes()
}

/// The lengths in this payload; `None` if it is malformed.
#[must_use]
pub fn decode(payload: &[u8]) -> Option<Vec<u64>> {
    let (mut input, mut lengths) = (FieldReader::new(payload), Vec::new());
    while !input.is_at_end() {
        lengths.push(input.number()?);
    }
    Some(lengths)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn round_trip_and_cut() {
        let lengths = [0, 16, 1 << 40, u64::MAX];
        let bytes = encode(&lengths);
        assert_eq!(decode(&bytes).unwrap(), lengths);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
    }
}
