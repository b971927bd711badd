//! Follows a capture while it is written: reads the blocks that are new, and emits the events whose order is certain.
//!
//! The collector writes a [watermark] behind the records of each checkpoint; the events up to it
//! are merged by [`Online`]. What stands behind the last watermark waits in the file for the next one.
//!
//! Invariant: each block is read and decoded once; the events come in the order in which [`CaptureReader`](super::CaptureReader)
//! reads them from the whole file; and memory is bounded by a batch and a group's end of each stream, and by the tables.

use std::path::Path;

use memtrack_format::block::{BlockError, BlockHeader, BlockKind, HEADER_LEN, SYNC};
use memtrack_format::meta::Process;
use memtrack_format::observe::ObservationReader;
use memtrack_format::sources::{self, FileLines};
use memtrack_format::symbols::{self, ModuleSymbols};
use memtrack_format::{header, mapped, watermark};

use super::file::{OpenCaptureFile, StoredPiece};
use super::{Consumer, DataLoss, Online, members};
use crate::error::Error;
use crate::event::Thread;
use crate::frames::Frames;

/// Size of the buffer for the search after damage, in bytes.
const WINDOW: usize = 1 << 20;

/// What a call of [`FollowedCapture::step`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowStep {
    /// A block was read, or some of its events were emitted.
    Block,
    /// There is no further block yet.
    Waiting,
    /// The capture is complete, and all its events were emitted.
    Ended,
}

/// A capture that is being written.
#[derive(Debug)]
pub(crate) struct FollowedCapture {
    file: OpenCaptureFile,
    /// Where the next block begins.
    at: u64,
    process: Process,
    /// `None` before the process is known, and at the end.
    online: Option<Online>,
    image_ticket: u64,
    symbols: Vec<ModuleSymbols>,
    sources: Vec<FileLines>,
    lost: DataLoss,
    ended: bool,
    /// What was found, once the capture has ended.
    found: (Frames, Vec<Thread>),
}

impl FollowedCapture {
    /// Opens the capture; nothing but its header needs to be written.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            file: members::open(path)?,
            at: header::LEN as u64,
            process: Process::default(),
            online: None,
            image_ticket: 0,
            symbols: Vec::new(),
            sources: Vec::new(),
            lost: DataLoss::default(),
            ended: false,
            found: Default::default(),
        })
    }

    /// The metadata of the process so far.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// A moment on the stamping clock and on CLOCK_MONOTONIC, after everything that is read next: with it the times of these events
    /// are exact, where they were recorded. It needs the process's block.
    pub(crate) fn measure(&mut self, now: (u64, u64)) {
        if let Some(online) = &mut self.online {
            online.measure(&self.process, now);
        }
    }

    /// What the stacks of the events so far are.
    pub(crate) fn frames(&self) -> &Frames {
        self.online.as_ref().map_or(&self.found.0, Online::frames)
    }

    /// The threads of the events so far.
    pub(crate) fn threads(&self) -> &[Thread] {
        self.online.as_ref().map_or(&self.found.1, Online::threads)
    }

    /// Names of native code that stand in the capture.
    pub(crate) fn symbols(&self) -> &[ModuleSymbols] {
        &self.symbols
    }

    /// Source lines that stand in the capture.
    pub(crate) fn sources(&self) -> &[FileLines] {
        &self.sources
    }

    /// What could not be read.
    pub(crate) fn lost(&self) -> DataLoss {
        let mut lost = self.lost;
        if let Some(of_records) = self.online.as_ref().map(Online::lost) {
            lost.add(of_records.blocks, of_records.bytes);
        }
        lost
    }

    /// Bytes of the file that were not read yet.
    pub(crate) fn unread(&mut self) -> Result<u64, Error> {
        self.file.grow()?;
        Ok(self.file.len().saturating_sub(self.read_bytes()))
    }

    /// Events that are decoded, and were not all emitted.
    #[cfg(test)]
    pub(super) fn decoded_events(&self) -> usize {
        self.online.as_ref().map_or(0, Online::decoded_events)
    }

    /// Bytes of the file that were read, or wait for what is written next.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.at.saturating_sub(self.online.as_ref().map_or(0, Online::waiting_bytes))
    }

    /// Reads the next block, if it is there.
    pub(crate) fn step<C: Consumer>(&mut self, consumer: &mut C) -> Result<FollowStep, Error> {
        if self.ended {
            return Ok(FollowStep::Ended);
        }
        if let Some(online) = &mut self.online
            && online.give_on(Some(&self.file), consumer)?
        {
            return Ok(FollowStep::Block);
        }
        let mut bytes = [0; HEADER_LEN];
        let mut len = self.file.read_at(self.at, &mut bytes)?;
        if len < HEADER_LEN {
            self.file.grow()?;
            len = self.file.read_at(self.at, &mut bytes)?;
        }
        let (stored_len, header) = match BlockHeader::decode(&bytes[..len]) {
            Ok(header) => (header.stored_len, Some(header)),
            Err(BlockError::Unknown { stored_len }) => (stored_len, None),
            Err(BlockError::Short) => return Ok(FollowStep::Waiting),
            Err(BlockError::Damaged) => return self.skip_damage(),
        };
        let (payload, end) = (self.at + HEADER_LEN as u64, self.at + HEADER_LEN as u64 + u64::from(stored_len));
        if end > self.file.len() {
            self.file.grow()?;
            if end > self.file.len() {
                return Ok(FollowStep::Waiting);
            }
        }
        self.at = end;
        if let Some(header) = header {
            self.block(&StoredPiece { payload, header }, consumer)?;
        }
        Ok(if self.ended { FollowStep::Ended } else { FollowStep::Block })
    }

    /// Nobody writes the capture any more: emits what waits for a watermark.
    pub(crate) fn finish<C: Consumer>(&mut self, consumer: &mut C) -> Result<(), Error> {
        self.ended = true;
        if let Some(online) = self.online.take() {
            let read = online.finish_in(Some(&self.file), consumer)?;
            self.lost.add(read.lost.blocks, read.lost.bytes);
            self.found = (read.frames, read.threads);
        }
        Ok(())
    }

    /// Goes on at the next intact header; if there is none yet, the search goes on when the file has grown.
    fn skip_damage(&mut self) -> Result<FollowStep, Error> {
        let mut window = vec![0; WINDOW];
        let from = self.at + 1;
        let len = self.file.read_at(from, &mut window)?;
        let places = window[..len].windows(HEADER_LEN).enumerate().filter(|(_, bytes)| bytes.starts_with(&SYNC));
        let is_header = |bytes: &[u8]| matches!(BlockHeader::decode(bytes), Ok(_) | Err(BlockError::Unknown { .. }));
        let found = places.into_iter().find(|(_, bytes)| is_header(bytes)).map(|(place, _)| place);
        let Some(skipped) = found.or_else(|| (len == WINDOW).then(|| len - HEADER_LEN)) else {
            self.file.grow()?;
            return Ok(FollowStep::Waiting);
        };
        self.lost.add(u64::from(found.is_some()), skipped as u64 + 1);
        self.at = from + skipped as u64;
        Ok(FollowStep::Block)
    }

    fn block<C: Consumer>(&mut self, piece: &StoredPiece, consumer: &mut C) -> Result<(), Error> {
        match piece.header.kind {
            BlockKind::Records => {
                self.online.iter_mut().for_each(|online| online.stored(*piece));
                return Ok(());
            }
            BlockKind::Aggregate | BlockKind::Members => return Ok(()),
            // Of reports only, and it may refer to earlier ones.
            BlockKind::Resident => {
                if !self.file.is_intact(piece)? {
                    self.lost.add(1, piece.stored_bytes());
                }
                return Ok(());
            }
            BlockKind::End => return self.finish(consumer),
            _ => {}
        }
        let Some(payload) = self.file.whole_payload(piece)? else {
            self.lost.add(1, piece.stored_bytes());
            return Ok(());
        };
        let intact = match piece.header.kind {
            BlockKind::Process => self.update_process(piece.header.first_ticket, &payload, consumer),
            BlockKind::Observations => {
                let mut reader = ObservationReader::new(&payload);
                if let Some(online) = &mut self.online {
                    reader.by_ref().for_each(|observation| online.observe(&observation));
                }
                !reader.failed()
            }
            BlockKind::Mapped => match (mapped::decode(&payload), &mut self.online) {
                (Some(files), Some(online)) => {
                    files.iter().for_each(|file| online.mapped(piece.header.first_ticket, file));
                    true
                }
                (files, _) => files.is_some(),
            },
            BlockKind::Symbols => extend(&mut self.symbols, symbols::decode(&payload)),
            BlockKind::Sources => extend(&mut self.sources, sources::decode(&payload)),
            BlockKind::Watermark => match (watermark::decode(&payload), &mut self.online) {
                (Some(busy), Some(online)) => {
                    online.begin_watermark(piece.header.first_ticket, &busy, Some(&self.file), consumer)?;
                    true
                }
                (busy, _) => busy.is_some(),
            },
            // Dealt with above, or of reports only.
            BlockKind::Records
            | BlockKind::Aggregate
            | BlockKind::Members
            | BlockKind::Marks
            | BlockKind::Resident
            | BlockKind::Objects
            | BlockKind::End => true,
        };
        if !intact {
            self.lost.add(1, piece.stored_bytes());
        }
        Ok(())
    }

    fn update_process<C: Consumer>(&mut self, first_ticket: u64, payload: &[u8], consumer: &mut C) -> bool {
        let before = self.process.start;
        let intact = self.process.update(payload);
        match &mut self.online {
            None => {
                let online = Online::new(self.process.start.monotonic_ns.unwrap_or(0));
                consumer.process(&self.process);
                self.online = Some(online);
            }
            Some(online) if first_ticket > self.image_ticket => online.replaced(first_ticket),
            Some(_) => {}
        }
        if first_ticket > 0 {
            // Time counts from the first image.
            self.process.start = before;
        }
        if first_ticket > self.image_ticket {
            (self.image_ticket, self.process.ended_by_exec) = (first_ticket, false);
        }
        intact
    }
}

/// Appends what was decoded; `false`: nothing was.
fn extend<T>(all: &mut Vec<T>, decoded: Option<Vec<T>>) -> bool {
    let intact = decoded.is_some();
    all.extend(decoded.unwrap_or_default());
    intact
}
