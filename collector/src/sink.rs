//! The consumer of drained data: a capture file, or sums that are computed while the program runs.
//!
//! Invariant: a sink is called from one thread; after an error it is not called again.

pub(crate) mod follower;
pub(crate) mod sink_queue;

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use memtrack_format::mapped::MappedFile;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;

use follower::Follower;

/// Consecutive records of one stream.
#[derive(Clone, Copy, Debug)]
pub struct RecordPiece<'a> {
    /// The slot of the writing thread, counted over all images of the process.
    pub stream: u32,
    /// Number of the segment in the stream, from 0.
    pub segment: u32,
    /// Offset of these bytes in the segment.
    pub offset: u32,
    /// No record in the bytes has an earlier ticket.
    pub first_ticket: u64,
    /// No record in the bytes has a later ticket.
    pub last_ticket: u64,
    /// A code object may be described in the segment, up to the end of these bytes; never `false` if one is.
    pub has_code: bool,
    /// The records. Pieces of a segment come in order and without gaps.
    pub bytes: &'a [u8],
}

/// A capture of everything up to now: the beginning of a file, and what follows it.
#[derive(Debug)]
pub struct SnapshotCopy {
    /// A descriptor of this process, of the file: open as long as the recording is.
    pub descriptor: RawFd,
    /// The file, opened anew to be read: it stays open when the recording has ended.
    pub file: File,
    /// Bytes of the file.
    pub length: u64,
    /// Bytes that follow them.
    pub tail: Vec<u8>,
}

impl SnapshotCopy {
    /// Of this open file, which may be open for writing only.
    ///
    /// # Errors
    /// It cannot be opened anew.
    pub fn of(descriptor: RawFd, length: u64, tail: Vec<u8>) -> io::Result<Self> {
        let file = File::open(format!("/proc/self/fd/{descriptor}"))?;
        Ok(Self { descriptor, file, length, tail })
    }
}

/// A consumer of drained data. An error of any method ends the recording.
pub trait Sink: Send {
    /// Metadata of the process: all known fields first, then those that have changed.
    ///
    /// # Errors
    /// A write error.
    fn process(&mut self, process: &Process) -> io::Result<()>;

    /// Records. Those of one stream come in order.
    ///
    /// # Errors
    /// A write error.
    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()>;

    /// The payload of an observations block, with the first and last ticket in it.
    ///
    /// # Errors
    /// A write error.
    fn observations(&mut self, payload: &[u8], first_ticket: u64, last_ticket: u64) -> io::Result<()>;

    /// Files that the collector found for code outside loaded objects, of the process's current image.
    ///
    /// # Errors
    /// A write error.
    fn mapped(&mut self, files: &[MappedFile]) -> io::Result<()> {
        let _ = files;
        Ok(())
    }

    /// A moment that was named; its tick, which has this ticket, was handed over before.
    ///
    /// # Errors
    /// A write error.
    fn mark(&mut self, mark: &Mark, ticket: u64) -> io::Result<()> {
        let _ = (mark, ticket);
        Ok(())
    }

    /// An account of resident memory, or a part of it: a payload of [`memtrack_format::resident`]; its tick, which has this
    /// ticket, was handed over before or follows.
    ///
    /// # Errors
    /// A write error.
    fn resident(&mut self, payload: &[u8], ticket: u64) -> io::Result<()> {
        let _ = (payload, ticket);
        Ok(())
    }

    /// A picture of the process's objects, or a part of it: a payload of [`memtrack_format::objects`]; its tick, which has this
    /// ticket, was handed over before or follows.
    ///
    /// # Errors
    /// A write error.
    fn objects(&mut self, payload: &[u8], ticket: u64) -> io::Result<()> {
        let _ = (payload, ticket);
        Ok(())
    }

    /// Whether the sink needs [`Sink::watermark`] after each round; asked once, at the start. If so, each round hands over all
    /// new records. Else there is one before each checkpoint that follows new records.
    fn wants_watermarks(&self) -> bool {
        false
    }

    /// What looks at the data on the draining thread, too; asked once, at the start.
    fn follower(&self) -> Option<Arc<dyn Follower>> {
        None
    }

    /// Every record with a ticket up to `before_ticket` has been handed over, except that the streams in `busy` (ascending)
    /// may still add such records before their first one with a later ticket.
    ///
    /// # Errors
    /// A write error.
    fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        let _ = (before_ticket, busy);
        Ok(())
    }

    /// The process replaced itself by exec and is recorded again: tickets from this one on belong to a new image, with an
    /// empty heap.
    ///
    /// # Errors
    /// A write error.
    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        let _ = ticket;
        Ok(())
    }

    /// All drained data was handed over: the sink writes it out, so that it survives the end of the collector.
    ///
    /// # Errors
    /// A write error.
    fn checkpoint(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The same, at once: somebody waits for it who follows what is written.
    ///
    /// # Errors
    /// A write error.
    fn write_out(&mut self) -> io::Result<()> {
        self.checkpoint()
    }

    /// Whether time matters more than size until further notice: somebody waits for what is to be written.
    fn hurry(&mut self, hurry: bool) {
        let _ = hurry;
    }

    /// Says where all data is that was handed over: there was just a [checkpoint](Self::checkpoint). `process`: the metadata that
    /// the copy ends with. An error does not end the recording.
    ///
    /// # Errors
    /// That the sink cannot be copied.
    fn snapshot(&mut self, process: &Process) -> io::Result<SnapshotCopy> {
        let _ = process;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The last call. `complete`: everything that was recorded has been handed over, up to the end of the process.
    ///
    /// # Errors
    /// A write error.
    fn finish(&mut self, complete: bool) -> io::Result<()>;
}

/// A child that is about to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewChild {
    /// Its process id.
    pub pid: i32,
    /// Its number in the tree, from 1; unlike a process id it is never reused.
    pub number: u32,
}

/// Makes the sink of each child.
pub type OpenSink = Box<dyn FnMut(NewChild) -> io::Result<Box<dyn Sink>> + Send>;
