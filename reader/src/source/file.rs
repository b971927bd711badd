//! Opens a capture's file, with errors that say what is wrong with it, and reads it at given offsets.
//!
//! Invariant: memory for a payload is allocated only in proportion to its stored bytes, which are in the file.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memtrack_format::block::{BlockHeader, BlockKind, Codec, HEADER_LEN, prefix};
use memtrack_format::header::{self, HeaderError};
use memtrack_format::record_columns::{self, RecordColumns, join};
use zstd::zstd_safe::DCtx;

use crate::error::Error;

/// Bytes that are copied at a time.
const COPIED: u64 = 1 << 20;

/// A block in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredPiece {
    /// Where its payload begins.
    pub(super) payload: u64,
    /// Its header.
    pub(super) header: BlockHeader,
}

impl StoredPiece {
    /// Bytes it takes up in the file.
    pub(super) fn stored_bytes(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.header.stored_len)
    }
}

/// An open capture.
#[derive(Debug)]
pub(super) struct OpenCaptureFile {
    path: PathBuf,
    file: File,
    /// Where the capture begins in the file, which may be one of several.
    start: u64,
    len: u64,
    version: u32,
}

impl OpenCaptureFile {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let unusable = |found: &str, remedy: &'static str| Error::Unusable {
            file: path.to_owned(),
            expected: "a memtrack capture",
            found: found.to_owned(),
            remedy,
        };
        let file = File::open(path).map_err(|source| match source.kind() {
            ErrorKind::NotFound if path == Path::new("-") => {
                unusable("standard input, which cannot be read twice", "copy the capture to a file first")
            }
            ErrorKind::NotFound => unusable("no such file", "check the path"),
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
            return Err(unusable("not a regular file", "copy the capture to a file first"));
        }
        if metadata.len() == 0 {
            return Err(unusable("an empty file", "record again: nothing was written to it"));
        }
        let mut opened = Self { path: path.to_owned(), file, start: 0, len: metadata.len(), version: 0 };
        opened.version = opened.read_header()?;
        Ok(opened)
    }

    /// Whether the recorder has it locked, as long as it writes it.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self.file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Where captures stand in this one, if it is a file of several.
    pub(super) fn members(&self) -> Result<Option<Vec<Range<u64>>>, Error> {
        let first = self.first_piece()?.filter(|piece| piece.header.kind == BlockKind::Members);
        let Some(piece) = first else { return Ok(None) };
        let lengths = self.whole_payload(&piece)?.and_then(|payload| memtrack_format::members::decode(&payload));
        let lengths = lengths.ok_or_else(|| Error::Unusable {
            file: self.path.clone(),
            expected: "a merged capture file",
            found: "a corrupt capture index".to_owned(),
            remedy: "copy the file again, or merge the captures again",
        })?;
        let mut start = header::LEN as u64 + piece.stored_bytes();
        let range = |length| {
            let end = start.saturating_add(length);
            let range = start..end;
            start = end;
            range
        };
        let places: Vec<Range<u64>> = lengths.into_iter().map(range).collect();
        places.last().map_or(Ok(()), |last| self.refuse_header_at(last.end))?;
        Ok(Some(places))
    }

    /// The payload of the first block if it is of this kind and intact.
    pub(super) fn first_block(&self, kind: BlockKind) -> Result<Option<Vec<u8>>, Error> {
        let piece = self.first_piece()?.filter(|piece| piece.header.kind == kind);
        piece.map_or(Ok(None), |piece| self.whole_payload(&piece))
    }

    /// Where the blocks of this kind stand that it begins with.
    pub(super) fn leading_blocks(&self, kind: BlockKind) -> Result<Range<u64>, Error> {
        let start = header::LEN as u64;
        let mut end = start;
        while let Some(piece) = self.piece_at(end)?.filter(|piece| piece.header.kind == kind) {
            end += piece.stored_bytes();
        }
        Ok(start..end)
    }

    fn first_piece(&self) -> Result<Option<StoredPiece>, Error> {
        self.piece_at(header::LEN as u64)
    }

    /// The block whose intact header stands here.
    fn piece_at(&self, at: u64) -> Result<Option<StoredPiece>, Error> {
        let mut bytes = [0; HEADER_LEN];
        let len = self.read_at(at, &mut bytes)?;
        let header = BlockHeader::decode(&bytes[..len]).ok();
        Ok(header.map(|header| StoredPiece { payload: at + HEADER_LEN as u64, header }))
    }

    /// Copies this part, as far as it is there; `progress` is called with the number of bytes since.
    pub(super) fn copy(
        &self,
        part: Range<u64>,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let (mut at, mut buffer) = (part.start, Vec::new());
        while at < part.end {
            buffer.resize((part.end - at).min(COPIED) as usize, 0);
            let len = self.read_at(at, &mut buffer)?;
            if len == 0 {
                break;
            }
            out.write_all(&buffer[..len]).map_err(Error::Copy)?;
            at += len as u64;
            progress(len as u64);
        }
        Ok(())
    }

    /// The capture that stands in this place of the file.
    pub(super) fn member(mut self, path: &Path, place: &Range<u64>) -> Result<Self, Error> {
        path.clone_into(&mut self.path);
        self.len = place.end.min(self.len).saturating_sub(place.start);
        self.start = place.start;
        self.version = self.read_header()?;
        Ok(self)
    }

    fn read_header(&self) -> Result<u32, Error> {
        let mut bytes = [0; header::LEN];
        let len = self.read_at(0, &mut bytes)?;
        header::decode(&bytes[..len]).map_err(|error| {
            let (found, remedy) = match error {
                HeaderError::Short => (
                    format!("the first {len} of the {} bytes of its header", header::LEN),
                    "record again or copy the whole file; this one is truncated within its header",
                ),
                HeaderError::Foreign => foreign(&bytes),
                HeaderError::Damaged => {
                    ("a damaged header (its checksum differs)".to_owned(), "copy the file again, in binary mode")
                }
                HeaderError::Newer(version) => (
                    format!("format version {version}; this memtrack supports 1 to {}", header::VERSION),
                    "use the memtrack that recorded it, or a newer one",
                ),
            };
            Error::Unusable { file: self.path.clone(), expected: "a memtrack capture", found, remedy }
        })
    }

    /// Refuses a file with the header of another capture at this offset: somebody has put captures one behind the other.
    pub(super) fn refuse_header_at(&self, at: u64) -> Result<(), Error> {
        let mut bytes = [0; header::LEN];
        let len = self.read_at(at, &mut bytes)?;
        match header::decode(&bytes[..len]) {
            Ok(_) | Err(HeaderError::Newer(_)) => Err(Error::Unusable {
                file: self.path.clone(),
                expected: "one capture",
                found: format!("another capture behind it, from byte {at} on"),
                remedy: "join captures with 'memtrack merge' instead of putting one file behind the other",
            }),
            Err(_) => Ok(()),
        }
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

    /// Reads into `buffer` from `offset` on, up to the end of the file; returns the number of bytes.
    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        let room = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let room = room.min(buffer.len());
        let buffer = &mut buffer[..room];
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], self.start + offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(self.io(source)),
            }
        }
        Ok(done)
    }

    /// Looks how long the file is by now.
    pub(super) fn grow(&mut self) -> Result<(), Error> {
        let metadata = self.file.metadata().map_err(|source| self.io(source))?;
        self.len = metadata.len().saturating_sub(self.start);
        Ok(())
    }

    pub(super) fn io(&self, source: io::Error) -> Error {
        Error::Io { file: self.path.clone(), source }
    }

    /// Whether the piece's payload is intact.
    pub(super) fn is_intact(&self, piece: &StoredPiece) -> Result<bool, Error> {
        Ok(self.stored(piece)?.is_some())
    }

    /// Appends the piece's decoded payload to `out`, which has the earlier bytes of its group. `false`: it is damaged,
    /// and `out` is unchanged.
    pub(super) fn payload(&self, piece: &StoredPiece, out: &mut Vec<u8>) -> Result<bool, Error> {
        let before = out.len();
        let Some(stored) = self.stored(piece)? else { return Ok(false) };
        let intact = unpack(&piece.header, &stored, out);
        if !intact {
            out.truncate(before);
        }
        Ok(intact)
    }

    /// The columns that the piece is stored as; `None`: it is not, or is damaged, or they have to be joined.
    pub(super) fn columns(&self, piece: &StoredPiece) -> Result<Option<RecordColumns>, Error> {
        let header = &piece.header;
        if !matches!(header.codec, Codec::ZstdColumns | Codec::Lz4Columns) || !header.is_plausible() {
            return Ok(None);
        }
        let length = header.raw_len as usize;
        let columns = self.stored(piece)?.and_then(|stored| unpack_columns(header.codec, &stored, length));
        Ok(columns.and_then(|columns| RecordColumns::new(columns, length)))
    }

    /// The decoded payload of a piece that stands for itself; `None` where it is damaged.
    pub(super) fn whole_payload(&self, piece: &StoredPiece) -> Result<Option<Vec<u8>>, Error> {
        let mut payload = Vec::new();
        Ok(self.payload(piece, &mut payload)?.then_some(payload))
    }

    /// The payload as it is stored; `None` where it is damaged.
    fn stored(&self, piece: &StoredPiece) -> Result<Option<Vec<u8>>, Error> {
        let header = &piece.header;
        if piece.payload.saturating_add(u64::from(header.stored_len)) > self.len {
            return Ok(None);
        }
        let mut stored = vec![0; header.stored_len as usize];
        let len = self.read_at(piece.payload, &mut stored)?;
        stored.truncate(len);
        Ok(header.fits(&stored).then_some(stored))
    }
}

fn with_prefix(stored: &[u8], prefix: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut context = DCtx::try_create()?;
    context.ref_prefix(prefix).ok()?;
    context.decompress(into, stored).ok()
}

/// The columns that are stored like this, of so many bytes of records.
fn unpack_columns(codec: Codec, stored: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut columns = vec![0; length + record_columns::MAX_HEAD];
    let len = match codec {
        Codec::ZstdColumns => zstd::bulk::decompress_to_buffer(stored, &mut columns[..]).ok()?,
        _ => lz4_flex::block::decompress_into(stored, &mut columns).ok()?,
    };
    columns.truncate(len);
    Some(columns)
}

/// The records of columns that are stored like this.
fn with_columns(codec: Codec, stored: &[u8], records: &mut [u8]) -> Option<usize> {
    join(&unpack_columns(codec, stored, records.len())?, records)?;
    Some(records.len())
}

fn unpack(header: &BlockHeader, stored: &[u8], out: &mut Vec<u8>) -> bool {
    if !header.is_plausible() {
        return false;
    }
    let raw_len = header.raw_len as usize;
    if header.codec == Codec::Stored {
        out.extend_from_slice(stored);
        return stored.len() == raw_len;
    }
    let before = out.len();
    out.resize(before + raw_len, 0);
    let (before, into) = out.split_at_mut(before);
    let len = match header.codec {
        Codec::Stored => None,
        Codec::ZstdColumns | Codec::Lz4Columns => with_columns(header.codec, stored, into),
        Codec::Lz4 => lz4_flex::block::decompress_into(stored, into).ok(),
        Codec::Zstd => zstd::bulk::decompress_to_buffer(stored, into).ok(),
        Codec::ZstdPrefix => with_prefix(stored, prefix(before), into),
    };
    len == Some(raw_len)
}

/// What a file is that begins with these bytes and is no capture, and what to do.
fn foreign(bytes: &[u8]) -> (String, &'static str) {
    const PACKED: [(&[u8], &str); 4] =
        [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2")];
    match PACKED.iter().find(|(start, _)| bytes.starts_with(start)) {
        Some((_, by)) => (format!("a file compressed by {by}"), "decompress it first"),
        None => ("another kind of file".to_owned(), "name a file that `memtrack run` wrote"),
    }
}
