//! Copies a capture with its payloads compressed further, and the addresses of its records written by the model of their
//! group ([`GroupEncoder`]), for which there is no time while the program runs.
//!
//! Invariant: every block of the copy has the same records, or the same payload, as in the original; blocks that are not
//! understood are copied unchanged, damage included.

use std::io::Write;

use crc32fast::hash as crc32;
use memtrack_format::block::{BlockError, BlockHeader, BlockKind, Codec, HEADER_LEN};
use memtrack_format::header;
use memtrack_format::record::GroupEncoder;
use rustc_hash::FxHashMap;

use super::file::{OpenCaptureFile, StoredPiece};
use crate::error::Error;

/// Bytes of groups that are kept for what follows in them.
const MOST_KEPT: usize = 64 << 20;
/// The first version in which addresses may be written by a group's model.
const FIRST_WITH_GROUP_MODEL: u32 = 4;
/// Groups that are written by their models at a time; a model takes about 2 MiB.
const MOST_MODELS: usize = 32;
/// The largest first piece of such a group. The collector's are smaller; so no group grows beyond what readers take.
const LARGEST_PIECE: u32 = 4 << 20;

/// Compresses a payload of this kind, given the earlier bytes of its group, into the buffer; returns the codec.
pub type Pack<'a> = dyn FnMut(BlockKind, &[u8], &[u8], &mut Vec<u8>) -> Codec + 'a;

/// Copies the capture. `go_on` is called with the number of bytes processed; `Ok(false)`: it returned `false`.
pub(super) fn repack(
    file: &OpenCaptureFile,
    out: &mut dyn Write,
    pack: &mut Pack<'_>,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, Error> {
    let mut copy = Copy { file, out, at: 0, groups: FxHashMap::default(), kept: 0, rewritten: FxHashMap::default() };
    copy.verbatim(header::LEN as u64)?;
    loop {
        let before = copy.at;
        if !copy.block(pack)? {
            break;
        }
        if !go_on(copy.at - before) {
            return Ok(false);
        }
    }
    copy.verbatim(file.len())?;
    Ok(true)
}

struct Copy<'a> {
    file: &'a OpenCaptureFile,
    out: &'a mut dyn Write,
    at: u64,
    /// Of each stream, the first segment of its present group and the group's bytes.
    groups: FxHashMap<u32, (u32, Vec<u8>)>,
    kept: usize,
    /// Of each stream, its present group if that is written by its model.
    rewritten: FxHashMap<u32, RewrittenGroup>,
}

/// A group of segments that is written by its model.
struct RewrittenGroup {
    segment: u32,
    encoder: GroupEncoder,
    /// Bytes of the original so far.
    read: u32,
    /// What they have become.
    bytes: Vec<u8>,
}

impl Copy<'_> {
    /// Copies one block; `false`: there is none here.
    fn block(&mut self, pack: &mut Pack<'_>) -> Result<bool, Error> {
        let mut bytes = [0; HEADER_LEN];
        let len = self.file.read_at(self.at, &mut bytes)?;
        let payload = self.at + HEADER_LEN as u64;
        let header = match BlockHeader::decode(&bytes[..len]) {
            Ok(header) => header,
            Err(BlockError::Unknown { stored_len }) => {
                self.verbatim(payload.saturating_add(stored_len.into()).min(self.file.len()))?;
                return Ok(true);
            }
            Err(_) => return Ok(false),
        };
        let piece = StoredPiece { payload, header };
        let end = self.at.saturating_add(piece.stored_bytes());
        if end > self.file.len() {
            return Ok(false);
        }
        let mut stored = Vec::new();
        match self.unpacked(&piece)? {
            Some((raw, from)) if self.by_model(&header, raw.get(from..).unwrap_or_default(), pack)? => {
                self.keep(&header, raw);
                self.at = end;
            }
            Some((raw, from)) => {
                let codec = pack(header.kind, &raw[from..], &raw[..from], &mut stored);
                self.keep(&header, raw);
                if stored.len() < header.stored_len as usize && codec.since() <= self.file.version() {
                    self.write(&packed(header, codec, &stored).encode())?;
                    self.write(&stored)?;
                    self.at = end;
                }
            }
            None if header.kind == BlockKind::Records => self.forget(header.stream),
            None => {}
        }
        // Nothing, where it was written smaller.
        self.verbatim(end)?;
        Ok(true)
    }

    /// Writes this piece by the model of its group; `false`: it is to be copied as it is.
    fn by_model(&mut self, header: &BlockHeader, raw: &[u8], pack: &mut Pack<'_>) -> Result<bool, Error> {
        if header.kind != BlockKind::Records || self.file.version() < FIRST_WITH_GROUP_MODEL {
            return Ok(false);
        }
        let group = self.rewritten.remove(&header.stream);
        let group = if header.offset == 0 {
            let fits = self.rewritten.len() < MOST_MODELS && header.raw_len <= LARGEST_PIECE;
            fits.then(|| RewrittenGroup {
                segment: header.segment,
                encoder: GroupEncoder::default(),
                read: 0,
                bytes: Vec::new(),
            })
        } else {
            group.filter(|group| (group.segment, group.read) == (header.segment, header.offset))
        };
        let Some(mut group) = group else { return Ok(false) };
        let offset = group.bytes.len();
        group.encoder.pass_on(raw, &mut group.bytes);
        group.read += header.raw_len;
        let (before, payload) = group.bytes.split_at(offset);
        let mut stored = Vec::new();
        let codec = pack(header.kind, payload, before, &mut stored);
        // What follows in a group that is written so must be written so, too.
        if offset == 0 && stored.len() >= header.stored_len as usize {
            return Ok(false);
        }
        let header = BlockHeader { offset: offset as u32, raw_len: payload.len() as u32, ..*header };
        self.write(&packed(header, codec, &stored).encode())?;
        self.write(&stored)?;
        self.rewritten.insert(header.stream, group);
        Ok(true)
    }

    /// The earlier bytes of the group and the payload; `None`: it is damaged, or those bytes are not known.
    fn unpacked(&mut self, piece: &StoredPiece) -> Result<Option<(Vec<u8>, usize)>, Error> {
        let header = &piece.header;
        // Accounts refer to accounts before them.
        if header.kind != BlockKind::Records && header.codec == Codec::ZstdPrefix {
            return Ok(None);
        }
        let mut raw = match self.groups.remove(&header.stream) {
            Some((segment, bytes)) if header.kind == BlockKind::Records => {
                self.kept -= bytes.len();
                let follows = segment == header.segment && bytes.len() == header.offset as usize;
                if follows && header.offset > 0 { bytes } else { Vec::new() }
            }
            Some(other) => {
                self.groups.insert(header.stream, other);
                Vec::new()
            }
            None => Vec::new(),
        };
        let from = raw.len();
        let is_behind = header.kind == BlockKind::Records && header.offset as usize != from;
        if is_behind && header.codec == Codec::ZstdPrefix {
            return Ok(None);
        }
        Ok(self.file.payload(piece, &mut raw)?.then_some((raw, from)))
    }

    fn keep(&mut self, header: &BlockHeader, raw: Vec<u8>) {
        let is_whole = header.offset as usize + header.raw_len as usize == raw.len();
        if header.kind != BlockKind::Records || !is_whole {
            return;
        }
        if self.kept + raw.len() > MOST_KEPT {
            self.groups.clear();
            self.kept = 0;
        }
        self.kept += raw.len();
        self.groups.insert(header.stream, (header.segment, raw));
    }

    fn forget(&mut self, stream: u32) {
        if let Some((_, bytes)) = self.groups.remove(&stream) {
            self.kept -= bytes.len();
        }
    }

    /// Copies the bytes up to here.
    fn verbatim(&mut self, end: u64) -> Result<(), Error> {
        let Self { file, out, at, .. } = self;
        file.copy(*at..end, *out, &mut |copied| *at += copied)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(|source| self.file.io(source))
    }
}

/// The header of a payload that is stored like this.
fn packed(header: BlockHeader, codec: Codec, stored: &[u8]) -> BlockHeader {
    BlockHeader { codec, stored_len: stored.len() as u32, payload_crc: crc32(stored), ..header }
}
