//! The payload of a sources block: source lines of frames, read while the program ran (`run --embed-sources`).
//!
//! All numbers are prefix varints, and each table begins with the count of its rows:
//!
//! ```text
//! files    length path, lines                                      the path as frames have it
//!   lines    number - last number, length text                     ascending, from 1; without the end of line
//! ```
//!
//! A capture has as many of these blocks as were needed; if two have the same line, a reader may use either. Readers of
//! versions that do not know them skip them.
//!
//! Invariant: `decode(encode(x)) = x`; a decoder allocates no more rows than there are bytes.

use crate::fields::{FieldReader, FieldWriter};
use crate::varint;

/// Intended maximum size of a payload, in bytes: [`encode`] begins another one then.
const PART: usize = 4 << 20;

/// Lines of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLines {
    /// The file, by the path that frames have.
    pub path: Vec<u8>,
    /// Numbers from 1, ascending, with their texts.
    pub lines: Vec<(u32, Vec<u8>)>,
}

/// Encodes into one payload or several.
#[must_use]
pub fn encode(files: &[FileLines]) -> Vec<Vec<u8>> {
    let (mut payloads, mut part, mut size) = (Vec::new(), Vec::new(), 0);
    for file in files {
        let own = encoded_size(file);
        if size + own > PART && !part.is_empty() {
            payloads.push(payload(&std::mem::take(&mut part)));
            size = 0;
        }
        size += own;
        part.push(file);
    }
    if !part.is_empty() {
        payloads.push(payload(&part));
    }
    payloads
}

/// Decodes a payload; `None` if it is malformed.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<FileLines>> {
    let mut input = FieldReader::new(bytes);
    let files = input.rows(|input| {
        let path = input.bytes()?.to_vec();
        let mut number = 0_u32;
        let lines = input.rows(|input| {
            number = number.checked_add(input.small()?)?;
            Some((number, input.bytes()?.to_vec()))
        })?;
        Some(FileLines { path, lines })
    })?;
    input.is_at_end().then_some(files)
}

fn payload(files: &[&FileLines]) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.rows(files, |out, file| {
        out.bytes(&file.path);
        let mut last = 0;
        out.rows(&file.lines, |out, (number, text)| {
            out.number(number.saturating_sub(last).into());
            last = *number;
            out.bytes(text);
        });
    });
    out.into_bytes()
}

/// At least the bytes that it takes.
fn encoded_size(file: &FileLines) -> usize {
    let lines = file.lines.iter().map(|(_, text)| text.len() + 2 * varint::MAX_LEN);
    file.path.len() + 2 * varint::MAX_LEN + lines.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::{FileLines, decode, encode};
    use proptest::prelude::*;

    fn file(path: &str, lines: &[(u32, &str)]) -> FileLines {
        FileLines { path: path.into(), lines: lines.iter().map(|(at, text)| (*at, (*text).into())).collect() }
    }

    fn example() -> Vec<FileLines> {
        vec![file("/srv/app.py", &[(1, "import os"), (7, ""), (u32::MAX, "\tlast()")]), file("<string>", &[])]
    }

    #[test]
    fn round_trip() {
        let payloads = encode(&example());
        assert_eq!(payloads.len(), 1);
        assert_eq!(decode(&payloads[0]), Some(example()));
        assert!(encode(&[]).is_empty());
    }

    #[test]
    fn many_files_take_several_blocks() {
        let text = "x".repeat(1 << 20);
        let files: Vec<_> = (1..12).map(|at| file("f", &[(at, &text)])).collect();
        let payloads = encode(&files);
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() <= super::PART));
        assert_eq!(payloads.iter().flat_map(|payload| decode(payload).unwrap()).collect::<Vec<_>>(), files);
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..100, with: u8, cut in 0usize..100) {
            let _ = decode(&crate::fields::damaged(encode(&example()).remove(0), at, with, cut));
        }
    }
}
