//! The sink that writes a capture: the file header, then a block for each call.
//!
//! Invariant: what has been written is always a readable capture, but for a last block that may be cut.

use std::io::{self, BufWriter, Write};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use memtrack_format::block::{Codec, Header, Kind};
use memtrack_format::checksum::crc32;
use memtrack_format::header;
use memtrack_format::meta::Process;

use crate::sink::{Piece, Sink};

const BUFFER: usize = 256 * 1024;

/// Writes a capture file.
pub struct FileSink<W: Write + Send> {
    out: BufWriter<W>,
    table: CompressTable,
    compressed: Vec<u8>,
    image_ticket: u64,
}

impl<W: Write + Send> std::fmt::Debug for FileSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSink").field("image_ticket", &self.image_ticket).finish_non_exhaustive()
    }
}

impl<W: Write + Send> FileSink<W> {
    /// Begins a capture with its header, so that a medium that cannot be written to is found at once.
    ///
    /// # Errors
    /// What the medium says.
    pub fn new(out: W) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        out.write_all(&header::encode())?;
        out.flush()?;
        Ok(Self { out, table: CompressTable::large(), compressed: Vec::new(), image_ticket: 0 })
    }

    /// Writes one block; the lengths, codec and checksum of `header` are filled in here.
    fn block(&mut self, header: Header, payload: &[u8]) -> io::Result<()> {
        self.compressed.resize(get_maximum_output_size(payload.len()), 0);
        let shrunk = compress_into_with_table(payload, &mut self.compressed, &mut self.table)
            .ok()
            .filter(|&len| len < payload.len())
            .and_then(|len| self.compressed.get(..len));
        let (codec, stored) = shrunk.map_or((Codec::Stored, payload), |bytes| (Codec::Lz4, bytes));
        let header = Header {
            codec,
            raw_len: length(payload)?,
            stored_len: length(stored)?,
            payload_crc: crc32(stored),
            ..header
        };
        self.out.write_all(&header.encode())?;
        self.out.write_all(stored)
    }
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl<W: Write + Send> Sink for FileSink<W> {
    fn process(&mut self, process: &Process) -> io::Result<()> {
        let ticket = self.image_ticket;
        self.block(
            Header { first_ticket: ticket, last_ticket: ticket, ..Header::plain(Kind::Process) },
            &process.encode(),
        )
    }

    fn records(&mut self, piece: &Piece<'_>) -> io::Result<()> {
        let header = Header {
            stream: piece.stream,
            segment: piece.segment,
            offset: piece.offset,
            first_ticket: piece.first_ticket,
            last_ticket: piece.last_ticket,
            ..Header::plain(Kind::Records)
        };
        self.block(header, piece.bytes)
    }

    fn observations(&mut self, payload: &[u8], first_ticket: u64, last_ticket: u64) -> io::Result<()> {
        self.block(Header { first_ticket, last_ticket, ..Header::plain(Kind::Observations) }, payload)
    }

    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        self.image_ticket = ticket;
        Ok(())
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self, complete: bool) -> io::Result<()> {
        if complete {
            self.block(Header::plain(Kind::End), &[])?;
        }
        self.out.flush()
    }
}
