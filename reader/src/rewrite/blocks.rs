//! The bytes of a capture that is written anew: header and blocks, compressed.
//!
//! Invariant: what is written is a valid capture at every moment, as far as it goes.

use std::io::{self, Write};

use memtrack_format::aggregate::PART;
use memtrack_format::block::{Codec, Header, Kind};
use memtrack_format::checksum::crc32;
use memtrack_format::header;
use memtrack_format::meta::Process;

/// Writes blocks.
#[derive(Debug)]
pub struct Blocks<W> {
    out: W,
}

impl<W: Write> Blocks<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// What the writer says; so below.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&header::encode())?;
        Ok(Self { out })
    }

    /// Goes on with a capture whose header was written.
    pub fn after(out: W) -> Self {
        Self { out }
    }

    /// Writes a block with this payload; the header's lengths, codec and checksum are made here.
    pub fn block(&mut self, header: Header, payload: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let compressed = lz4_flex::block::compress(payload);
        let smaller = compressed.len() < payload.len();
        let (codec, stored) = if smaller { (Codec::Lz4, &*compressed) } else { (Codec::Stored, payload) };
        let header = Header {
            codec,
            raw_len: u32::try_from(payload.len()).map_err(too_large)?,
            stored_len: u32::try_from(stored.len()).map_err(too_large)?,
            payload_crc: crc32(stored),
            ..header
        };
        self.out.write_all(&header.encode())?;
        self.out.write_all(stored)
    }

    /// Describes the process, from the run with this ticket on.
    pub fn process(&mut self, process: &Process, ticket: u64) -> io::Result<()> {
        let header = Header { first_ticket: ticket, last_ticket: ticket, ..Header::plain(Kind::Process) };
        self.block(header, &process.encode())
    }

    /// Ends the capture, as a whole one or as one that was cut; the writer.
    pub fn finish(mut self, complete: bool) -> io::Result<W> {
        if complete {
            self.block(Header::plain(Kind::End), &[])?;
        }
        Ok(self.out)
    }
}

/// Writes an aggregated capture with this payload; the writer.
///
/// # Errors
/// What the writer says.
pub fn write_aggregate<W: Write>(out: W, process: &Process, payload: &[u8], complete: bool) -> io::Result<W> {
    let mut blocks = Blocks::new(out)?;
    blocks.process(process, 0)?;
    let mut offset = 0;
    loop {
        let part = payload.get(offset..payload.len().min(offset + PART)).unwrap_or_default();
        let place = u32::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        blocks.block(Header { offset: place, ..Header::plain(Kind::Aggregate) }, part)?;
        offset += part.len();
        // The last part is the one that is not full.
        if part.len() < PART {
            return blocks.finish(complete);
        }
    }
}
