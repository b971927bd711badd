//! The payload of a watermark block: how far a capture that is being written can be put in order.
//!
//! The block's first ticket is a ticket T that the collector took. All records with tickets up to T stand before the block,
//! but for those of the *busy* streams: their threads were recording when T was taken, and may still add to the last run that
//! they have shown. The payload is the number of busy streams, and their numbers in ascending order, as prefix varints.
//!
//! Readers of a whole file need no watermarks: they know all tickets.
//!
//! Invariant: `decode(encode(x)) = x`; a decoder allocates no more numbers than there are bytes.

use crate::fields::{FieldReader, FieldWriter};

/// The payload.
#[must_use]
pub fn encode(busy: &[u32]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.rows(busy, |out, &stream| out.number(stream.into()));
    out.into_bytes()
}

/// The busy streams, in ascending order; `None` when the payload is not one.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<u32>> {
    let mut input = FieldReader::new(bytes);
    let busy = input.rows(FieldReader::small)?;
    (input.is_at_end() && busy.is_sorted_by(|one, next| one < next)).then_some(busy)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(busy in proptest::collection::btree_set(any::<u32>(), 0..20)) {
            let busy: Vec<u32> = busy.into_iter().collect();
            prop_assert_eq!(decode(&encode(&busy)), Some(busy));
        }

        #[test]
        fn any_bytes_are_a_payload_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(decode(&bytes).is_none_or(|busy| busy.len() <= bytes.len()));
        }
    }
}
