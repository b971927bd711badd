//! The sink that writes a capture: the file header, then blocks.
//!
//! Records wait in the group of their stream until it is full or until the next checkpoint. So a collector that is killed
//! loses the records since the last checkpoint, no more than it would without groups.
//!
//! Invariant: what has been written is always a readable capture, but for a last block that may be incomplete.

use std::io::{self, BufWriter, Write};
use std::os::fd::RawFd;
use std::sync::Arc;

use crc32fast::hash as crc32;
use memtrack_format::block::{BlockHeader, BlockKind, Codec, HEADER_LEN};
use memtrack_format::header;
use memtrack_format::mapped::{self, MappedFile};
use memtrack_format::marks::{self, Mark};
use memtrack_format::meta::Process;
use memtrack_format::record_columns::SplitPieces;
use memtrack_format::watermark;
use rustc_hash::FxHashMap;

use crate::file::account_group::AccountGroup;
use crate::file::pack::{Compression, Packer};
use crate::file::segment_group::SegmentGroup;
use crate::program::packages::Packages;
use crate::program::source_recorder::SourceRecorder;
use crate::sink::follower::{Followed, Follower};
use crate::sink::{RecordPiece, Sink, SnapshotCopy};

const BUFFER: usize = 256 * 1024;
/// Bytes that may wait in all groups together.
const MOST_WAITING: usize = 16 << 20;
/// Up to this number of streams, each group keeps its bytes as a dictionary.
const FEW: usize = 8;

/// Writes a capture file.
pub struct FileSink<W: Write + Send> {
    out: BufWriter<W>,
    /// Bytes written so far.
    written: u64,
    /// The file, if the capture is one.
    descriptor: Option<RawFd>,
    packer: Packer,
    groups: FxHashMap<u32, SegmentGroup>,
    waiting: usize,
    image_ticket: u64,
    /// The last watermark and its busy streams, if it was not written.
    watermark: Option<(u64, Vec<u32>)>,
    packages: Packages,
    sources: Option<SourceRecorder>,
    accounts: AccountGroup,
    follower: Followed,
}

impl<W: Write + Send> std::fmt::Debug for FileSink<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSink").field("image_ticket", &self.image_ticket).finish_non_exhaustive()
    }
}

impl<W: Write + Send> FileSink<W> {
    /// Begins a capture by writing its header, so that an unwritable file is detected at once.
    ///
    /// # Errors
    /// A write error.
    pub fn new(out: W) -> io::Result<Self> {
        Self::compressed(out, Compression::default())
    }

    /// The same, with this compression.
    ///
    /// # Errors
    /// A write error.
    pub fn compressed(out: W, compression: Compression) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        out.write_all(&header::encode())?;
        out.flush()?;
        let (packer, packages) = (Packer::new(compression)?, Packages::default());
        Ok(Self {
            out,
            written: header::LEN as u64,
            descriptor: None,
            packer,
            groups: FxHashMap::default(),
            waiting: 0,
            image_ticket: 0,
            watermark: None,
            packages,
            sources: None,
            accounts: AccountGroup::default(),
            follower: None,
        })
    }

    /// The capture will have the source lines of Python's frames.
    #[must_use]
    pub fn with_sources(mut self) -> Self {
        self.sources = Some(SourceRecorder::default());
        self
    }

    /// Something looks at the data on the draining thread, too.
    #[must_use]
    pub fn with_follower(mut self, follower: Arc<dyn Follower>) -> Self {
        self.follower = Some(follower);
        self
    }

    /// The capture is the open file with this descriptor, from its beginning on: snapshots can be copied from it.
    #[must_use]
    pub fn with_descriptor(mut self, descriptor: RawFd) -> Self {
        self.descriptor = Some(descriptor);
        self
    }

    /// Writes one block, behind `before` in its group; the lengths, codec and checksum of `header` are filled in here.
    fn block(&mut self, header: BlockHeader, payload: &[u8], before: &[u8]) -> io::Result<()> {
        self.block_split(header, payload, before, None).map(drop)
    }

    /// The same of records whose columns are known, if they are; returns the codec.
    fn block_split(
        &mut self,
        header: BlockHeader,
        payload: &[u8],
        before: &[u8],
        split: Option<&SplitPieces>,
    ) -> io::Result<Codec> {
        let (codec, stored) = self.packer.pack_split(header.kind, payload, before, split);
        let (raw_len, stored_len) = (length(payload)?, length(stored)?);
        let header = BlockHeader { codec, raw_len, stored_len, payload_crc: crc32(stored), ..header };
        self.out.write_all(&header.encode())?;
        self.out.write_all(stored)?;
        self.written += (HEADER_LEN + stored.len()) as u64;
        Ok(codec)
    }

    /// Writes the waiting bytes of one stream.
    fn write_group(&mut self, stream: u32, group: &mut SegmentGroup) -> io::Result<()> {
        let Some((piece, before)) = group.piece(stream) else { return Ok(()) };
        let header = BlockHeader {
            stream,
            segment: piece.segment,
            offset: piece.offset,
            first_ticket: piece.first_ticket,
            last_ticket: piece.last_ticket,
            ..BlockHeader::plain(BlockKind::Records)
        };
        self.waiting = self.waiting.saturating_sub(piece.bytes.len());
        let codec = self.block_split(header, piece.bytes, before, group.columns())?;
        group.note_codec(codec);
        Ok(())
    }

    /// Writes the package directories, if there are new ones.
    fn write_packages(&mut self) -> io::Result<()> {
        match self.packages.take_changed() {
            Some(packages) => self.process(&Process { packages, ..Process::default() }),
            None => Ok(()),
        }
    }

    /// Writes the source lines of frames that are new since the last call.
    fn write_sources(&mut self) -> io::Result<()> {
        let payloads = self.sources.as_mut().map(SourceRecorder::take).unwrap_or_default();
        payloads.iter().try_for_each(|payload| self.block(BlockHeader::plain(BlockKind::Sources), payload, &[]))
    }

    /// Writes the last watermark: behind the records that it is of.
    fn write_watermark(&mut self) -> io::Result<()> {
        let Some((ticket, busy)) = self.watermark.take() else { return Ok(()) };
        let header =
            BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Watermark) };
        self.block(header, &watermark::encode(&busy), &[])
    }

    fn write_all_groups(&mut self) -> io::Result<()> {
        let mut groups = std::mem::take(&mut self.groups);
        let few = groups.len() <= FEW;
        let mut result = Ok(());
        for (&stream, group) in &mut groups {
            result = result.and_then(|()| self.write_group(stream, group));
            group.written(few);
        }
        self.groups = groups;
        result
    }
}

/// What ends the copy of a capture: this metadata of the image with this first ticket, and the end.
///
/// # Errors
/// The metadata is too long.
pub fn capture_tail(process: &Process, ticket: u64) -> io::Result<Vec<u8>> {
    let payload = process.encode();
    let of_image = BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Process) };
    let raw_len = length(&payload)?;
    let header = BlockHeader { raw_len, stored_len: raw_len, payload_crc: crc32(&payload), ..of_image };
    Ok([&header.encode()[..], &payload, &BlockHeader::plain(BlockKind::End).encode()].concat())
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl<W: Write + Send> Sink for FileSink<W> {
    fn follower(&self) -> Followed {
        self.follower.clone()
    }

    fn process(&mut self, process: &Process) -> io::Result<()> {
        self.sources.iter_mut().for_each(|sources| sources.process(process));
        let ticket = self.image_ticket;
        self.block(
            BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Process) },
            &process.encode(),
            &[],
        )
    }

    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()> {
        let mut group = self.groups.remove(&piece.stream).unwrap_or_default();
        if group.must_write_before(piece) {
            self.write_group(piece.stream, &mut group)?;
            group.written(true);
        }
        self.waiting += group.add(piece, self.packer.splitter());
        group.take_files().iter().for_each(|file| self.packages.check_file(file));
        let lines = group.take_lines();
        if let Some(sources) = &mut self.sources {
            lines.iter().for_each(|(file, line)| sources.add(file, *line));
        }
        self.groups.insert(piece.stream, group);
        if self.waiting > MOST_WAITING { self.write_all_groups() } else { Ok(()) }
    }

    fn observations(&mut self, payload: &[u8], first_ticket: u64, last_ticket: u64) -> io::Result<()> {
        self.block(
            BlockHeader { first_ticket, last_ticket, ..BlockHeader::plain(BlockKind::Observations) },
            payload,
            &[],
        )
    }

    fn mapped(&mut self, files: &[MappedFile]) -> io::Result<()> {
        let ticket = self.image_ticket;
        let header = BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Mapped) };
        self.block(header, &mapped::encode(files), &[])
    }

    fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        self.watermark = Some((before_ticket, busy.to_vec()));
        Ok(())
    }

    fn mark(&mut self, mark: &Mark, ticket: u64) -> io::Result<()> {
        let header = BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Marks) };
        self.block(header, &marks::encode(std::slice::from_ref(mark)), &[])
    }

    fn resident(&mut self, payload: &[u8], ticket: u64) -> io::Result<()> {
        let mut accounts = std::mem::take(&mut self.accounts);
        let ((segment, offset), plain) = (accounts.place(), BlockHeader::plain(BlockKind::Resident));
        let header = BlockHeader { first_ticket: ticket, last_ticket: ticket, segment, offset, ..plain };
        let result = self.block(header, payload, accounts.before());
        accounts.add(payload);
        self.accounts = accounts;
        result
    }

    fn objects(&mut self, payload: &[u8], ticket: u64) -> io::Result<()> {
        let header =
            BlockHeader { first_ticket: ticket, last_ticket: ticket, ..BlockHeader::plain(BlockKind::Objects) };
        self.block(header, payload, &[])
    }

    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        self.image_ticket = ticket;
        Ok(())
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        self.write_all_groups()?;
        self.write_watermark()?;
        self.write_packages()?;
        self.write_sources()?;
        self.out.flush()
    }

    fn hurry(&mut self, hurry: bool) {
        self.packer.hurry(hurry);
    }

    fn snapshot(&mut self, process: &Process) -> io::Result<SnapshotCopy> {
        let descriptor = self.descriptor.ok_or(io::ErrorKind::Unsupported)?;
        // The start of a span is its own, that of a later image of the process is the first one's.
        let ticket = if process.span_ticket.is_some() { 0 } else { self.image_ticket };
        SnapshotCopy::of(descriptor, self.written, capture_tail(process, ticket)?)
    }

    fn finish(&mut self, complete: bool) -> io::Result<()> {
        self.write_all_groups()?;
        self.write_watermark()?;
        self.write_packages()?;
        self.write_sources()?;
        if complete {
            self.block(BlockHeader::plain(BlockKind::End), &[], &[])?;
        }
        self.out.flush()
    }
}
