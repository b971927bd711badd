//! Makes the payloads of a picture.
//!
//! Invariant: they are the same whether all columns are encoded in one thread or side by side.

use super::{
    CONSISTENT, MISSES_LARGE, PART, StoredPicture, WITH_CONTENTS, WITH_LISTS, WITH_PARTIAL_SIZES, WITH_POINTERS,
    WITH_VALUE_BYTES, zigzag,
};
use crate::fields::FieldWriter;

/// Parts of the columns of a picture, which can be encoded side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureColumns {
    /// Everything before them, and address, size, type, and contents of each object.
    Objects,
    /// References that are counted, lists, and who holds each object.
    Holders,
    /// What refers to what, roots, and pointers of C code.
    References,
}

impl PictureColumns {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::Objects, Self::Holders, Self::References];
}

impl StoredPicture {
    /// The payloads for it.
    #[must_use]
    pub fn encode(&self) -> Vec<Vec<u8>> {
        self.payloads(&PictureColumns::ALL.map(|columns| self.encode_columns(columns)))
    }

    /// The payloads made of all columns, in their order.
    #[must_use]
    pub fn payloads(&self, columns: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let all: usize = columns.iter().map(Vec::len).sum();
        let count = all.div_ceil(PART).max(1) as u64;
        let (mut columns, mut rest) = (columns.iter(), [].as_slice());
        let mut part = |number: u64| {
            let mut out = FieldWriter::default();
            out.numbers(&[self.head.time_ns, number, count]);
            let mut room = PART;
            while room > 0 {
                if rest.is_empty() {
                    let Some(next) = columns.next() else { break };
                    rest = next;
                }
                let (some, after) = rest.split_at(room.min(rest.len()));
                out.raw(some);
                (room, rest) = (room - some.len(), after);
            }
            out.into_bytes()
        };
        (0..count).map(&mut part).collect()
    }

    /// Some of the columns.
    #[must_use]
    pub fn encode_columns(&self, columns: PictureColumns) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match columns {
            PictureColumns::Objects => self.encode_objects(&mut out),
            PictureColumns::Holders => self.encode_holders(&mut out),
            PictureColumns::References => self.encode_references(&mut out),
        }
        out.into_bytes()
    }

    fn encode_objects(&self, out: &mut FieldWriter) {
        out.numbers(&[self.head.time_ns, self.head.cause as u64]);
        out.bytes(self.head.mark.as_bytes());
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let state = bit(self.is_consistent, CONSISTENT) | bit(self.misses_large, MISSES_LARGE);
        let state = state | WITH_LISTS | WITH_PARTIAL_SIZES | WITH_CONTENTS | WITH_POINTERS | WITH_VALUE_BYTES;
        out.numbers(&[self.minor.into(), self.pause_ns, self.resident, state, self.unreadable]);
        out.rows(&self.texts, |out, text| out.bytes(text.as_bytes()));
        out.rows(&self.types, |out, of| {
            out.number(u64::from(of.text) << 2 | u64::from(of.is_size_partial) << 1 | u64::from(of.is_conservative));
            out.number(of.value_bytes);
        });
        out.number(self.objects.len() as u64);
        let mut last = 0;
        for one in &self.objects {
            out.number(one.address.wrapping_sub(last));
            last = one.address;
        }
        self.objects.iter().for_each(|one| out.number(one.own_bytes << 1 | u64::from(one.list.is_tracked())));
        self.objects.iter().for_each(|one| out.number(one.type_number.into()));
        let mut next = 0;
        out.rows(&self.contents, |out, one| {
            let object = self.objects.get(one.object as usize).map_or(0, |object| object.address);
            out.numbers(&[u64::from(one.object) - next, zigzag(object, one.address)]);
            next = u64::from(one.object) + 1;
        });
    }

    fn encode_holders(&self, out: &mut FieldWriter) {
        let counts = self.reference_counts.iter().copied().chain(std::iter::repeat(0));
        self.objects.iter().zip(counts).for_each(|(one, count)| out.number(u64::from(count) << 3 | one.list as u64));
        for (row, holder) in (0..self.objects.len()).zip(&self.holders) {
            out.number(holder.kind as u64);
            if !holder.kind.is_first() {
                out.number(zigzag(row as u64, holder.parent.into()));
                out.number(holder.value);
            }
        }
    }

    fn encode_references(&self, out: &mut FieldWriter) {
        let bounds = || self.first_reference.windows(2).map(|pair| (pair[0], pair[1]));
        bounds().for_each(|(from, to)| out.number(to - from));
        for ((from, to), row) in bounds().zip(0..) {
            let mut before = row;
            for held in self.references.get(from as usize..to as usize).unwrap_or_default() {
                out.number(zigzag(before, (*held).into()));
                before = (*held).into();
            }
        }
        out.rows(&self.roots, |out, root| {
            out.numbers(&[root.object.into(), root.text.map_or(0, |text| u64::from(text) + 1)]);
        });
        self.pointers.encode(out);
    }
}
