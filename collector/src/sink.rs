//! Where drained data goes: the seam between draining, and what is made of it (a capture file, or sums kept online).
//!
//! Invariant: a sink is called from one thread; after an error it is not called again.

use std::io;

use memtrack_format::mapped::MappedFile;
use memtrack_format::meta::Process;

/// Records of one stream that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct RecordPiece<'a> {
    /// The slot of the writing thread, counted over all images of the process.
    pub stream: u32,
    /// Number of the segment in the stream, from 0.
    pub segment: u32,
    /// Where in the segment these bytes stand.
    pub offset: u32,
    /// The bytes hold nothing of an earlier ticket sequence.
    pub first_ticket: u64,
    /// The bytes hold nothing of a later ticket sequence.
    pub last_ticket: u64,
    /// The records. Pieces of a segment come in order and without gaps.
    pub bytes: &'a [u8],
}

/// Where drained data goes. Every method may report an error, which ends the recording.
pub trait Sink: Send {
    /// What is known of the process: the whole of it first, then what was learnt since.
    ///
    /// # Errors
    /// What the medium says.
    fn process(&mut self, process: &Process) -> io::Result<()>;

    /// Records. Those of one stream come in order.
    ///
    /// # Errors
    /// What the medium says.
    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()>;

    /// The payload of an observations block, with the first and last ticket in it.
    ///
    /// # Errors
    /// What the medium says.
    fn observations(&mut self, payload: &[u8], first_ticket: u64, last_ticket: u64) -> io::Result<()>;

    /// Files that code of the process's present image was found to be of: code that it has described as being in none.
    ///
    /// # Errors
    /// What the medium says.
    fn mapped(&mut self, files: &[MappedFile]) -> io::Result<()> {
        let _ = files;
        Ok(())
    }

    /// Whether [`Sink::watermark`] is wanted; asked once, at the start. It makes every round hand over all new records.
    fn wants_watermarks(&self) -> bool {
        false
    }

    /// Every record with a ticket up to `before_ticket` has been handed over, but for those that the streams in `busy`
    /// (ascending) may still add before they reach a later ticket.
    ///
    /// # Errors
    /// What the medium says.
    fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        let _ = (before_ticket, busy);
        Ok(())
    }

    /// The process replaced itself by exec and is recorded again: later tickets belong to an image with an empty heap.
    ///
    /// # Errors
    /// What the medium says.
    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        let _ = ticket;
        Ok(())
    }

    /// All that is known by now was handed over: a moment to make it durable against the end of this process.
    ///
    /// # Errors
    /// What the medium says.
    fn checkpoint(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The last call. `complete`: everything that was recorded has been handed over, up to the end of the process.
    ///
    /// # Errors
    /// What the medium says.
    fn finish(&mut self, complete: bool) -> io::Result<()>;
}

/// A child that is about to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewChild {
    /// Its process id.
    pub pid: i32,
    /// Its number in the tree, from 1: unlike a process id it is never used again.
    pub number: u32,
}

/// Makes the sink of each child.
pub type OpenSink = Box<dyn FnMut(NewChild) -> io::Result<Box<dyn Sink>> + Send>;
