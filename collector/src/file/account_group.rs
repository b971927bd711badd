//! Accounts of resident memory are compressed in groups: an account is mostly the one before it, but for a few mappings.
//!
//! Invariant: a group has at most [`MOST`] payloads, so that damage does not reach beyond them.

use memtrack_format::block::prefix;

/// Payloads of a group.
const MOST: u32 = 32;

/// The current group.
#[derive(Debug, Default)]
pub(crate) struct AccountGroup {
    /// Number of its first payload in the capture.
    first: u32,
    /// Its payloads, and their bytes.
    count: u32,
    len: u32,
    /// The last of these bytes, to which the next payload may refer.
    bytes: Vec<u8>,
}

impl AccountGroup {
    /// Segment and offset of the next payload's block.
    pub(crate) fn place(&self) -> (u32, u32) {
        (self.first, self.len)
    }

    /// The bytes to which the next payload may refer.
    pub(crate) fn before(&self) -> &[u8] {
        &self.bytes
    }

    /// A payload was written. Of a large one there would be too little left to refer to.
    pub(crate) fn add(&mut self, payload: &[u8]) {
        self.count += 1;
        let fits = self.count < MOST && prefix(payload).len() == payload.len();
        match u32::try_from(payload.len()).ok().and_then(|len| self.len.checked_add(len)).filter(|_| fits) {
            Some(len) => {
                self.len = len;
                self.bytes.extend_from_slice(payload);
                let needed = prefix(&self.bytes).len();
                self.bytes.drain(..self.bytes.len() - needed);
            }
            None => *self = Self { first: self.first.wrapping_add(self.count), ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AccountGroup, MOST};

    #[test]
    fn groups_end_at_many_payloads_and_at_large_ones() {
        let mut group = AccountGroup::default();
        for number in 0..MOST {
            assert_eq!((group.place(), group.before().len()), ((0, 7 * number), 7 * number as usize));
            group.add(b"account");
        }
        assert_eq!((group.place(), group.before().len()), ((MOST, 0), 0));
        group.add(b"account");
        group.add(&vec![1; 1 << 20]);
        assert_eq!((group.place(), group.before().len()), ((MOST + 2, 0), 0));
        for _ in 0..3 {
            group.add(&vec![2; 100 << 10]);
        }
        assert_eq!((group.place(), group.before().len()), ((MOST + 2, 300 << 10), 256 << 10));
    }
}
