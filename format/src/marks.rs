//! The payload of a marks block: moments that somebody has named while the program ran (`memtrack mark`).
//!
//! It is a sequence of
//!
//! ```text
//! time length name
//! ```
//!
//! with the time as a prefix varint: CLOCK_MONOTONIC in nanoseconds. The collector takes a tick of the same time for each mark
//! (see [`crate::observe`]), so a mark has a place in the order of events: the tick's ticket, which also is the block's.
//!
//! Invariant: no other tick of the process has the time of a mark.

use crate::fields::{FieldReader, FieldWriter};

/// A moment with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// Its name. Several marks may have one name.
    pub name: String,
}

/// The payload for these marks.
#[must_use]
pub fn encode(marks: &[Mark]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    for Mark { time_ns, name } in marks {
        out.number(*time_ns);
        out.bytes(name.as_bytes());
    }
    out.into_bytes()
}

/// The marks in this payload; `None` if it is malformed.
#[must_use]
pub fn decode(payload: &[u8]) -> Option<Vec<Mark>> {
    let (mut input, mut marks) = (FieldReader::new(payload), Vec::new());
    while !input.is_at_end() {
        let time_ns = input.number()?;
        marks.push(Mark { time_ns, name: String::from_utf8_lossy(input.bytes()?).into_owned() });
    }
    Some(marks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Mark, decode, encode};
    use crate::fields::damaged;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_damage_is_survived(
            marks in proptest::collection::vec((any::<u64>(), ".{0,20}"), 1..5), at: usize, with: u8, cut in 0_usize..9
        ) {
            let marks: Vec<_> = marks.into_iter().map(|(time_ns, name)| Mark { time_ns, name }).collect();
            let payload = encode(&marks);
            prop_assert_eq!(decode(&payload), Some(marks));
            let _ = decode(&damaged(payload, at, with, cut));
        }
    }
}
