//! Writes the blocks of a rewritten capture, compressed.
//!
//! Invariant: what was written is always a valid capture, if an incomplete one.

use std::fmt;
use std::io::{self, Write};

use crc32fast::hash as crc32;
use memtrack_format::aggregate::PART;
use memtrack_format::block::{BlockHeader, BlockKind, Codec, MAX_RATIO};
use memtrack_format::header;
use memtrack_format::marks::{self, Mark};
use memtrack_format::meta::Process;
use memtrack_format::sources::{self, FileLines};
use memtrack_format::symbols::{self, ModuleSymbols};
use zstd::bulk::Compressor;

/// As captures are recorded with.
const LEVEL: i32 = 3;

/// Writes blocks.
pub struct CaptureBlocks<W> {
    out: W,
    /// `None` in captures of versions that know only LZ4.
    zstd: Option<Compressor<'static>>,
}

impl<W: fmt::Debug> fmt::Debug for CaptureBlocks<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("out", &self.out).field("zstd", &self.zstd.is_some()).finish()
    }
}

impl<W: Write> CaptureBlocks<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// What the writer says; so below.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&header::encode())?;
        Ok(Self { out, zstd: Some(Compressor::new(LEVEL)?) })
    }

    /// Continues a capture whose header was written, of any version.
    pub fn after(out: W) -> Self {
        Self { out, zstd: None }
    }

    /// Writes a block with this payload; the header's lengths, codec and checksum are made here.
    pub fn block(&mut self, header: BlockHeader, payload: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let compressed = self.compress(payload)?;
        let (codec, stored) = compressed.as_ref().map_or((Codec::Stored, payload), |(codec, bytes)| (*codec, bytes));
        let header = BlockHeader {
            codec,
            raw_len: u32::try_from(payload.len()).map_err(too_large)?,
            stored_len: u32::try_from(stored.len()).map_err(too_large)?,
            payload_crc: crc32(stored),
            ..header
        };
        self.out.write_all(&header.encode())?;
        self.out.write_all(stored)
    }

    /// The payload made smaller; `None` where that cannot be done.
    fn compress(&mut self, payload: &[u8]) -> io::Result<Option<(Codec, Vec<u8>)>> {
        if let Some(zstd) = &mut self.zstd {
            let bytes = zstd.compress(payload)?;
            // If Zstandard exceeds the ratio that readers accept, LZ4 is used.
            if bytes.len() < payload.len() && payload.len() <= bytes.len().saturating_mul(MAX_RATIO as usize) {
                return Ok(Some((Codec::Zstd, bytes)));
            }
        }
        let bytes = lz4_flex::block::compress(payload);
        Ok((bytes.len() < payload.len()).then_some((Codec::Lz4, bytes)))
    }

    /// Writes names of native code.
    pub fn symbols(&mut self, names: &[ModuleSymbols]) -> io::Result<()> {
        symbols::encode(names)
            .iter()
            .try_for_each(|payload| self.block(BlockHeader::plain(BlockKind::Symbols), payload))
    }

    /// Writes source lines of frames.
    pub fn sources(&mut self, files: &[FileLines]) -> io::Result<()> {
        sources::encode(files)
            .iter()
            .try_for_each(|payload| self.block(BlockHeader::plain(BlockKind::Sources), payload))
    }

    /// Writes marks.
    pub fn marks(&mut self, marks: &[Mark]) -> io::Result<()> {
        if marks.is_empty() {
            return Ok(());
        }
        self.block(BlockHeader::plain(BlockKind::Marks), &marks::encode(marks))
    }

    /// Describes the process, from the run with this ticket on.
    pub fn process(&mut self, process: &Process, ticket: u64) -> io::Result<()> {
        let header =
            BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Process) };
        self.block(header, &process.encode())
    }

    /// Ends the capture, as complete or truncated; returns the writer.
    pub fn finish(mut self, complete: bool) -> io::Result<W> {
        if complete {
            self.block(BlockHeader::plain(BlockKind::End), &[])?;
        }
        Ok(self.out)
    }
}

/// Writes an aggregated capture with this payload; the writer.
///
/// # Errors
/// What the writer says.
pub fn write_aggregate<W: Write>(
    out: W,
    (process, marks): (&Process, &[Mark]),
    symbols: &[ModuleSymbols],
    payload: &[u8],
    complete: bool,
) -> io::Result<W> {
    let mut blocks = CaptureBlocks::new(out)?;
    blocks.symbols(symbols)?;
    blocks.process(process, 0)?;
    blocks.marks(marks)?;
    let mut offset = 0;
    loop {
        let part = payload.get(offset..payload.len().min(offset + PART)).unwrap_or_default();
        let place = u32::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        blocks.block(BlockHeader { offset: place, ..BlockHeader::plain(BlockKind::Aggregate) }, part)?;
        offset += part.len();
        // The last part is the one that is not full.
        if part.len() < PART {
            return blocks.finish(complete);
        }
    }
}
