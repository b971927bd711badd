//! The file of a capture: opened with a clear word on what is wrong with it, and read at positions.
//!
//! Invariant: nothing is allocated for a payload but what its stored bytes, which are in the file, justify.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memtrack_format::block::{Codec, HEADER_LEN, Header};
use memtrack_format::header::{self, HeaderError};

use crate::error::Error;

/// LZ4 makes at most this many bytes of one.
const LZ4_RATIO: u64 = 255;

/// A block that stands in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Where its payload begins.
    pub(super) payload: u64,
    /// Its header.
    pub(super) header: Header,
}

impl Piece {
    /// Bytes it takes up in the file.
    pub(super) fn stored_bytes(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.header.stored_len)
    }
}

/// An open capture.
#[derive(Debug)]
pub(super) struct CaptureFile {
    path: PathBuf,
    file: File,
    len: u64,
    version: u32,
}

impl CaptureFile {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let unusable = |found: &str, remedy: &'static str| Error::Unusable {
            file: path.to_owned(),
            expected: "a memtrack capture",
            found: found.to_owned(),
            remedy,
        };
        let file = File::open(path).map_err(|source| match source.kind() {
            ErrorKind::NotFound => unusable("no file of this name", "check the path"),
            ErrorKind::PermissionDenied => {
                unusable("a file that may not be read", "ask its owner for permission to read it")
            }
            _ => Error::Io { file: path.to_owned(), source },
        })?;
        let metadata = file.metadata().map_err(|source| Error::Io { file: path.to_owned(), source })?;
        if metadata.is_dir() {
            return Err(unusable("a directory", "name the capture file in it"));
        }
        if !metadata.is_file() {
            return Err(unusable("no regular file", "copy the capture to a file first"));
        }
        if metadata.len() == 0 {
            return Err(unusable("an empty file", "record again: nothing was written to it"));
        }
        let mut opened = Self { path: path.to_owned(), file, len: metadata.len(), version: 0 };
        opened.version = opened.read_header()?;
        Ok(opened)
    }

    fn read_header(&self) -> Result<u32, Error> {
        let mut bytes = [0; header::LEN];
        let len = self.read_at(0, &mut bytes)?;
        header::decode(&bytes[..len]).map_err(|error| {
            let (found, remedy) = match error {
                HeaderError::Short => (
                    format!("the first {len} of the {} bytes of its header", header::LEN),
                    "record again, or copy the whole file: it was cut before any data",
                ),
                HeaderError::Foreign => ("another kind of file".to_owned(), "name a file that `memtrack run` wrote"),
                HeaderError::Damaged => {
                    ("a damaged header (its checksum differs)".to_owned(), "copy the file again, in binary mode")
                }
                HeaderError::Newer(version) => (
                    format!("format version {version}, where this memtrack reads versions 1 to {}", header::VERSION),
                    "use the memtrack that recorded it, or a newer one",
                ),
            };
            Error::Unusable { file: self.path.clone(), expected: "a memtrack capture", found, remedy }
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buffer` from `offset` on as far as the file goes; returns the number of bytes.
    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(self.io(source)),
            }
        }
        Ok(done)
    }

    fn io(&self, source: io::Error) -> Error {
        Error::Io { file: self.path.clone(), source }
    }

    /// Appends the piece's decoded payload to `out`. `false`: it is damaged, and `out` is as it was.
    pub(super) fn payload(&self, piece: &Piece, out: &mut Vec<u8>) -> Result<bool, Error> {
        let header = &piece.header;
        let before = out.len();
        if piece.payload.saturating_add(u64::from(header.stored_len)) > self.len {
            return Ok(false);
        }
        let mut stored = vec![0; header.stored_len as usize];
        let len = self.read_at(piece.payload, &mut stored)?;
        let intact = header.fits(&stored[..len]) && unpack(header, &stored, out);
        if !intact {
            out.truncate(before);
        }
        Ok(intact)
    }
}

fn unpack(header: &Header, stored: &[u8], out: &mut Vec<u8>) -> bool {
    let raw_len = header.raw_len as usize;
    match header.codec {
        Codec::Stored => {
            out.extend_from_slice(stored);
            stored.len() == raw_len
        }
        Codec::Lz4 => {
            if u64::from(header.raw_len) > u64::from(header.stored_len) * LZ4_RATIO {
                return false;
            }
            let before = out.len();
            out.resize(before + raw_len, 0);
            lz4_flex::block::decompress_into(stored, &mut out[before..]).is_ok_and(|len| len == raw_len)
        }
    }
}
