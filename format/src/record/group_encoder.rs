//! Writes the addresses of a stream's records anew, by the [`GroupModel`] of their group.
//!
//! Invariant: the records are the same; bytes that cannot be decoded pass unchanged, with all behind them.

use super::decode::Decoder;
use super::delta_state::bin;
use super::group_model::{GroupModel, WINDOW};
use super::{BlockRecord, FieldSource, Record, RecordBytes, extra, tag};
use crate::{Allocator, varint};

/// Slots of the table of blocks by address.
const SLOTS: usize = 1 << 17;

const GROUP_BEGINS: [u8; 2] = [tag::EXTRA, extra::GROUP_BEGINS];
/// Bits of the number of an allocation in a slot.
const NUMBER_BITS: u32 = 20;
const NUMBERS: u64 = 1 << NUMBER_BITS;

/// The encoder of one group.
pub struct GroupEncoder {
    decoder: Decoder,
    model: GroupModel,
    /// The block in each slot: 44 bits of its address, in units of 16, and the number of its allocation below.
    blocks: Vec<u64>,
    begun: bool,
    /// The rest passes unchanged.
    passes: bool,
}

impl std::fmt::Debug for GroupEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupEncoder").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl Default for GroupEncoder {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(),
            model: GroupModel::default(),
            blocks: vec![0; SLOTS],
            begun: false,
            passes: false,
        }
    }
}

impl GroupEncoder {
    /// Appends the next records of the group to `out`.
    pub fn pass_on(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let (mut fields, mut passed) = (RecordBytes::at(bytes, 0), 0);
        while !self.passes {
            match self.decoder.read_block_after(&mut fields) {
                Ok(Some((start, block))) => {
                    out.extend_from_slice(bytes.get(passed..start).unwrap_or_default());
                    passed = fields.offset();
                    self.block(bytes.get(start..passed).unwrap_or_default(), &block, out);
                    continue;
                }
                Ok(None) => {}
                Err(_) => {
                    self.passes = true;
                    break;
                }
            }
            match self.decoder.read(&mut fields) {
                Ok(Some(record)) => {
                    let at = fields.offset();
                    if matches!(record, Record::Begin { .. }) && !self.begun {
                        self.begun = true;
                        // A group that is written so already passes.
                        self.passes = bytes.get(at..).is_some_and(|rest| rest.starts_with(&GROUP_BEGINS));
                        out.extend_from_slice(bytes.get(passed..at).unwrap_or_default());
                        out.extend_from_slice(if self.passes { &[] } else { &GROUP_BEGINS });
                        passed = at;
                    }
                }
                Ok(None) => break,
                Err(_) => self.passes = true,
            }
        }
        out.extend_from_slice(bytes.get(passed..).unwrap_or_default());
    }

    /// Writes an allocation or a free.
    #[inline]
    fn block(&mut self, bytes: &[u8], block: &BlockRecord, out: &mut Vec<u8>) {
        let mut fields = Fields { bytes, at: 1 };
        let first = bytes.first().copied().unwrap_or(0);
        match block.allocator {
            Some(_) => {
                let bin = bin(block.size);
                let kept = fields.kept(first);
                if is_usual(block.address) {
                    let number = self.model.count() as u64 % NUMBERS;
                    self.blocks[slot(block.address)] = block.address >> 4 << NUMBER_BITS | number;
                }
                let number = self.model.encode(bin, block.address);
                let expected = if number.is_none() { tag::ALLOC_ADDRESS_EXPECTED } else { 0 };
                out.push(first & !tag::ALLOC_ADDRESS_EXPECTED | expected);
                out.extend_from_slice(kept);
                if let Some(number) = number {
                    put(out, number);
                }
                if first & tag::ALLOC_ADDRESS_EXPECTED == 0 {
                    fields.skip();
                }
            }
            None => {
                match self.take(block.address) {
                    Some(age @ 0..128) => out.push(tag::FREE_YOUNG | age as u8),
                    Some(age) => {
                        out.push(tag::FREE_OLDER);
                        put(out, age as u64);
                    }
                    None => {
                        out.push(tag::FREE);
                        put(out, self.model.encode_other(block.address));
                    }
                }
                if first == tag::FREE || first == tag::FREE_OLDER {
                    fields.skip();
                }
            }
        }
        out.extend_from_slice(fields.rest());
    }

    /// The age of a block, which is freed.
    #[inline]
    fn take(&mut self, address: u64) -> Option<usize> {
        let slot = self.blocks.get_mut(slot(address))?;
        if *slot >> NUMBER_BITS != address >> 4 || !is_usual(address) {
            return None;
        }
        let number = std::mem::take(slot) % NUMBERS;
        let age = (self.model.count() as u64).wrapping_sub(number + 1) % NUMBERS;
        let age = usize::try_from(age).ok().filter(|age| *age < WINDOW)?;
        // An older block with the same number, which is not in the table any more, has another address.
        (self.model.address(age)? == address).then(|| self.model.free(age))?.map(|_| age)
    }
}

/// The fields of a record behind its first byte.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// The fields of an allocation before its address.
    #[inline]
    fn kept(&mut self, first: u8) -> &'a [u8] {
        self.at += usize::from(first & 15 == Allocator::SHORT);
        if first & tag::ALLOC_SIZE_EXPECTED == 0 {
            self.skip();
        }
        self.bytes.get(1..self.at).unwrap_or_default()
    }

    /// A number that is written anew.
    #[inline]
    fn skip(&mut self) {
        self.at += self.bytes.get(self.at).map_or(0, |&first| varint::length(first));
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
}

#[inline]
fn put(out: &mut Vec<u8>, number: u64) {
    match varint::encode(number) {
        Some((word, length)) => {
            let at = out.len();
            out.extend_from_slice(&word.to_le_bytes());
            out.truncate(at + length);
        }
        None => {
            out.push(0);
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Whether a slot has room for this address.
#[inline]
const fn is_usual(address: u64) -> bool {
    address & 15 == 0 && address != 0 && address >> 48 == 0
}

/// The slot of an address: the high bits of a product.
#[inline]
fn slot(address: u64) -> usize {
    (address.wrapping_mul(0x09e3_779b_97f4_a7c1) >> (64 - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, Encoder, Record};
    use super::GroupEncoder;
    use crate::Allocator;
    use proptest::prelude::*;

    /// Allocations and frees at few addresses in two segments, and where records end.
    fn group(timed: bool, steps: &[(bool, u16, u16)]) -> (Vec<u8>, Vec<usize>) {
        let (mut encoder, mut bytes, mut ends) = (Encoder::new(timed), vec![0; 256 + steps.len() * 64], Vec::new());
        let mut at = 0;
        for (i, &(alloc, place, size)) in steps.iter().enumerate() {
            if i == 0 || i == steps.len() / 2 {
                at = encoder.begin(&mut bytes, at, 1, 2, 3).unwrap();
                ends.push(at);
            }
            let (address, time) = (0x7000_0000 + u64::from(place) % 1400 * 8, i as u64 * 10);
            let allocator = if size % 5 == 0 { Allocator::PymallocRealloc } else { Allocator::Malloc };
            at = match alloc {
                true => encoder.alloc(&mut bytes, at, allocator, address, u64::from(size) % 300, time),
                false => encoder.free(&mut bytes, at, address, time),
            }
            .unwrap();
            ends.push(at);
        }
        bytes.truncate(at);
        (bytes, ends)
    }

    fn decoded(bytes: &[u8]) -> Vec<Record<'_>> {
        let (mut decoder, mut at, mut records) = (Decoder::new(), 0, Vec::new());
        while let Ok(Some((record, next))) = decoder.next(bytes, at) {
            at = next;
            records.push(record);
        }
        assert_eq!(at, bytes.len());
        records
    }

    fn rewritten(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut encoder, mut out) = (GroupEncoder::default(), Vec::new());
        pieces.iter().for_each(|piece| encoder.pass_on(piece, &mut out));
        out
    }

    proptest! {
        #[test]
        fn the_records_stay_the_same(timed: bool, cut: prop::sample::Index, steps in prop::collection::vec(any::<(bool, u16, u16)>(), 1..1500)) {
            let (bytes, ends) = group(timed, &steps);
            let (first, second) = bytes.split_at(ends[cut.index(ends.len())]);
            let written = rewritten(&[first, second]);
            let mut records = decoded(&written);
            prop_assert_eq!(records.remove(1), Record::GroupBegins);
            prop_assert_eq!(records, decoded(&bytes));
            // Once more changes nothing.
            prop_assert_eq!(rewritten(&[&written]), written);
        }

        #[test]
        fn any_bytes_pass_without_loss(noise in prop::collection::vec(any::<u8>(), 0..300)) {
            let written = rewritten(&[&noise]);
            prop_assert!(written.len() + 2 >= noise.len() / 4);
            let (bytes, _) = group(false, &[(true, 1, 2), (false, 1, 2)]);
            let damaged = [&bytes[..], &[0], &noise].concat();
            prop_assert!(rewritten(&[&damaged]).ends_with(&[&[0], &noise[..]].concat()));
        }
    }

    #[test]
    fn a_block_is_freed_by_its_age_across_segments() {
        let allocations = (0..5000).map(|i| (true, i * 2 % 1400, 9));
        let frees = (0..700).map(|i| (false, i * 6 % 1400, 0));
        let (bytes, _) = group(false, &allocations.chain(frees).collect::<Vec<_>>());
        let by_address = |bytes: &[u8]| {
            let (mut decoder, mut at, mut found) = (Decoder::new(), 0, 0);
            while let Ok(Some((_, next))) = decoder.next(bytes, at) {
                found += usize::from(bytes[at] == super::tag::FREE);
                at = next;
            }
            found
        };
        assert_eq!((by_address(&bytes) > 100, by_address(&rewritten(&[&bytes]))), (true, 0));
    }
}
