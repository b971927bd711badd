//! A fast path through records for a consumer of stacks.
//!
//! Invariant: it stops at the records at which [`Decoder::next`] would give one that the consumer asks for, with the stack that the
//! decoder would have there.

use super::skip_blocks;
use crate::record::{DecodeError, Decoder, FieldSource, RawFrame, RecordBytes, tag};

/// Where [`pass_stacks`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackStop {
    /// A Push or Move record, which is passed: its newest frame is asked for.
    Frame {
        /// The record's position.
        at: usize,
        /// The position after it.
        next: usize,
    },
    /// The position of a record of another kind, or of the end.
    Other(usize),
}

/// Passes changes of the stack, and Alloc and Free records without reading them, up to a Push or Move record for whose frame
/// `is_known` is false, or to a record of another kind, which [`Decoder::next`] then returns.
///
/// A [`Record`](crate::record::Record) that is returned is stored field by field and loaded as a whole, which fails store
/// forwarding and took four fifths of the time of a walk by [`Decoder::next`].
///
/// # Errors
/// As [`Decoder::read`].
#[inline]
pub fn pass_stacks(
    decoder: &mut Decoder,
    bytes: &[u8],
    mut at: usize,
    mut is_known: impl FnMut(RawFrame) -> bool,
) -> Result<StackStop, DecodeError> {
    loop {
        at = skip_blocks(bytes, at, decoder.is_timed());
        let mut fields = RecordBytes::at(bytes, at);
        let Some(first) = fields.first().filter(|&first| Decoder::is_of_stack(first)) else {
            return Ok(StackStop::Other(at));
        };
        decoder.read_stack_change(&mut fields, first)?;
        let next = fields.offset();
        if brings_frame(first) && decoder.stack().last().is_some_and(|&frame| !is_known(frame)) {
            return Ok(StackStop::Frame { at, next });
        }
        at = next;
    }
}

/// Whether a record with this first byte, which is of the stack, is a Push or a Move.
#[inline(always)]
pub(super) const fn brings_frame(first: u8) -> bool {
    first & tag::MOVE != 0 || matches!(first, tag::PUSH_EXPECTED..=tag::MOVE_FAR)
}

#[cfg(test)]
mod tests {
    use super::{StackStop, pass_stacks};
    use crate::record::tests::{encode, records};
    use crate::record::{Decoder, RawFrame, Record};
    use proptest::prelude::*;

    /// Where a decoder that starts at `at` has the next of what the walk stops at, or an error.
    fn expected(decoder: &mut Decoder, bytes: &[u8], mut at: usize, is_known: impl Fn(RawFrame) -> bool) -> StackStop {
        while let Ok(Some((record, next))) = decoder.next(bytes, at) {
            match record {
                Record::Push(_) | Record::Move { .. } if !is_known(*decoder.stack().last().unwrap()) => {
                    return StackStop::Frame { at, next };
                }
                Record::Push(_) | Record::Move { .. } | Record::Pop { .. } => {}
                Record::Alloc { .. } | Record::Free { .. } => {}
                Record::DefineTop { .. } | Record::ReplaceTop { .. } => {}
                _ => break,
            }
            at = next;
        }
        StackStop::Other(at)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_stops_where_the_decoder_has_what_is_asked_for(wanted in records(), timed: bool, cut in 0usize..3, bit in 0u32..2) {
            let (_, mut bytes) = encode(&wanted, timed);
            bytes.truncate(bytes.len() - cut);
            let is_known = |frame: RawFrame| frame.instruction & 1 == bit;
            let (mut walk, mut decoder, mut at) = (Decoder::new(), Decoder::new(), 0);
            loop {
                let stop = pass_stacks(&mut walk, &bytes, at, is_known).unwrap_or_else(|error| StackStop::Other(error.offset));
                prop_assert_eq!(stop, expected(&mut decoder, &bytes, at, is_known));
                prop_assert_eq!(walk.stack(), decoder.stack());
                at = match stop {
                    StackStop::Frame { next, .. } => next,
                    StackStop::Other(at) => match walk.next(&bytes, at) {
                        Ok(Some((_, next))) => next,
                        _ => break,
                    },
                };
            }
        }
    }
}
