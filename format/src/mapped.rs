//! Files that code outside of every loaded object was found to be of: the payload of a mapped block.
//!
//! A process describes its loaded objects itself ([`crate::record::ModuleRecord`]). Code that it meets beside them has a module
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

use crate::fields::{FieldReader, FieldWriter};

/// A file, and the pages that are of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedFile {
    /// Ids of the pages, as of [`crate::record::ModuleRecord::id`].
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
pub fn encode(files: &[MappedFile]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    for file in files {
        out.rows(&file.codes, |out, &code| out.number(code.into()));
        out.numbers(&[file.bias, file.start, file.end]);
        out.bytes(&file.path);
        out.bytes(&file.build_id);
    }
    out.0
}

/// Takes a payload apart; `None` when it is not one.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<MappedFile>> {
    let (mut input, mut files) = (FieldReader::new(bytes), Vec::new());
    while !input.is_at_end() {
        let codes = input.rows(FieldReader::small)?;
        let (bias, start, end) = (input.number()?, input.number()?, input.number()?);
        let (path, build_id) = (input.bytes()?.to_vec(), input.bytes()?.to_vec());
        files.push(MappedFile { codes, bias, start, end, path, build_id });
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::{MappedFile, decode, encode};
    use proptest::prelude::*;

    fn example() -> Vec<MappedFile> {
        let path = b"/srv/a b\n\xff (deleted)".to_vec();
        let first = MappedFile {
            codes: vec![7, 9],
            bias: 1 << 46,
            start: 1 << 46,
            end: (1 << 46) + 4096,
            path,
            ..MappedFile::default()
        };
        vec![first, MappedFile { bias: u64::MAX, build_id: vec![1, 2], ..MappedFile::default() }]
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
