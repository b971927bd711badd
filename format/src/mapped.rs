//! The payload of a mapped block: the files of executable pages that belong to no loaded object.
//!
//! The shim describes the loaded objects ([`crate::record::ModuleRecord`]). For code outside of them it writes a module
//! record of one page, without a path. The collector looks the page up in `/proc/PID/maps` and writes the file that is
//! mapped there. The payload is a sequence of rows, all numbers prefix varints:
//!
//! ```text
//! number of ids, ids, bias, start, end, length path, length build-id
//! ```
//!
//! The block's first ticket identifies the image of the process to which the ids belong.
//!
//! Invariant: `decode(encode(x)) = x`; a decoder allocates no more rows and ids than there are bytes.

use crate::fields::{FieldReader, FieldWriter};

/// How a module was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ModuleSource {
    /// The process reported it, from its dynamic loader.
    #[default]
    Process = 0,
    /// The collector found it in `/proc/PID/maps`, since the loader does not know it.
    Maps = 1,
}

impl ModuleSource {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Maps => "maps",
        }
    }
}

/// A mapped file, and the recorded pages that belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedFile {
    /// Ids of the pages, as of [`crate::record::ModuleRecord::id`].
    pub codes: Vec<u32>,
    /// The load bias: runtime address minus the address in the file (minus the file offset, if the file could not be read
    /// as ELF).
    pub bias: u64,
    /// First address of the mapping.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Path of the file in the process's own file system; ends with ` (deleted)` if the file had been removed.
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
    out.into_bytes()
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
            let bytes = crate::fields::damaged(encode(&example()), at, with, cut);
            let files = decode(&bytes).unwrap_or_default();
            prop_assert!(files.iter().map(|file| file.codes.len() + 6).sum::<usize>() <= bytes.len());
        }
    }
}
