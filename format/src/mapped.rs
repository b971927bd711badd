//! Files that code outside of every loaded object was found to be of: the payload of a mapped block.
//!
//! A process describes its loaded objects itself ([`crate::record::Module`]). Code that it meets beside them has a module
//! record of one page without a path; where the collector, which reads the process's maps, has found that page to be of a
//! file, this says of which. A sequence of rows to the end of the payload, all numbers prefix varints:
//!
//! ```text
//! number of ids, ids, bias, start, end, length path, length build-id
//! ```
//!
//! The block's first ticket tells the image of the process that the ids are of.
//!
//! Invariant: `decode(encode(x)) = x`; a decoder allocates no more rows and ids than there are bytes.

use crate::varint;

/// A file, and the pages that are of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Ids of the pages, as of [`crate::record::Module::id`].
    pub codes: Vec<u32>,
    /// What was added to the addresses of the file; to its offsets, if it is no ELF file that could be read.
    pub bias: u64,
    /// First address of the mapping.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Path of the file, as the process knew it; ends with ` (deleted)` where it had gone.
    pub path: Vec<u8>,
    /// Its GNU build-id; empty when it has none, or the file could not be read.
    pub build_id: Vec<u8>,
}

/// The payload.
#[must_use]
pub fn encode(files: &[Mapped]) -> Vec<u8> {
    let mut out = Vec::new();
    for file in files {
        number(&mut out, file.codes.len() as u64);
        file.codes.iter().for_each(|&code| number(&mut out, code.into()));
        [file.bias, file.start, file.end].into_iter().for_each(|value| number(&mut out, value));
        for text in [&file.path, &file.build_id] {
            number(&mut out, text.len() as u64);
            out.extend_from_slice(text);
        }
    }
    out
}

/// Takes a payload apart; `None` when it is not one.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<Mapped>> {
    let (mut input, mut files) = (In { bytes, at: 0 }, Vec::new());
    while input.at < bytes.len() {
        let count = usize::try_from(input.number()?).ok().filter(|&count| count <= bytes.len() - input.at)?;
        let codes = (0..count).map(|_| u32::try_from(input.number()?).ok()).collect::<Option<_>>()?;
        let (bias, start, end) = (input.number()?, input.number()?, input.number()?);
        files.push(Mapped { codes, bias, start, end, path: input.text()?, build_id: input.text()? });
    }
    Some(files)
}

fn number(out: &mut Vec<u8>, value: u64) {
    let at = out.len();
    out.resize(at + varint::MAX_LEN, 0);
    let end = varint::write(out, at, value).unwrap_or(at);
    out.truncate(end);
}

struct In<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl In<'_> {
    fn number(&mut self) -> Option<u64> {
        let (value, at) = varint::read(self.bytes, self.at)?;
        self.at = at;
        Some(value)
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let len = usize::try_from(self.number()?).ok()?;
        let text = self.bytes.get(self.at..self.at.checked_add(len)?)?.to_vec();
        self.at += len;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::{Mapped, decode, encode};
    use proptest::prelude::*;

    fn example() -> Vec<Mapped> {
        let path = b"/srv/a b\n\xff (deleted)".to_vec();
        let first = Mapped {
            codes: vec![7, 9],
            bias: 1 << 46,
            start: 1 << 46,
            end: (1 << 46) + 4096,
            path,
            ..Mapped::default()
        };
        vec![first, Mapped { bias: u64::MAX, build_id: vec![1, 2], ..Mapped::default() }]
    }

    #[test]
    fn round_trip() {
        assert_eq!(decode(&encode(&example())), Some(example()));
        assert_eq!(decode(&[]), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..100, with: u8, cut in 0usize..100) {
            let mut bytes = encode(&example());
            let at = at % bytes.len();
            bytes[at] ^= with;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            let files = decode(&bytes).unwrap_or_default();
            prop_assert!(files.iter().map(|file| file.codes.len() + 6).sum::<usize>() <= bytes.len());
        }
    }
}
