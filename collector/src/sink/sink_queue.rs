//! The queue from the draining thread to the sink: a bounded channel and the thread that calls the sink.
//!
//! Invariant: at most [`QUEUE`] pieces of at most a segment each wait here, 64 MiB; then the draining thread waits. While
//! a rest is answered, what was drained for it is held back, which is at most what the rings hold.
//! After an error of the sink all messages are discarded, so that no thread waits for a medium that has failed.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded};
use memtrack_format::mapped::MappedFile;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;

use crate::sink::follower::Followed;
use crate::sink::{RecordPiece, Sink, SnapshotCopy};
use crate::system::procfs;
use crate::system::started_thread::BeginningThread;
use crate::system::worker_pool::{RunningWork, WorkerPool};

static WRITING: WorkerPool = WorkerPool::new("memtrack-write");

/// Capacity of the queue in messages: with pieces of 128 KiB at most, 64 MiB.
const QUEUE: usize = 512;
/// Capacity of the pool of buffers.
const SPARE: usize = 32;

/// One call of the sink.
#[derive(Debug)]
enum SinkMessage {
    Process(Box<Process>),
    Records { place: PieceHead, bytes: Vec<u8> },
    Observations { payload: Vec<u8>, first: u64, last: u64 },
    Mapped(Vec<MappedFile>),
    Mark { mark: Mark, ticket: u64 },
    Resident { payload: Vec<u8>, ticket: u64 },
    Objects { payload: Vec<u8>, ticket: u64 },
    Watermark { ticket: u64, busy: Vec<u32> },
    Replaced { ticket: u64 },
    Checkpoint,
    WriteOut(Sender<io::Result<()>>),
    Snapshot { process: Box<Process>, answer: Sender<io::Result<SnapshotCopy>> },
    Finish { complete: bool },
}

/// A [`RecordPiece`] without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceHead {
    pub(crate) stream: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) first_ticket: u64,
    pub(crate) last_ticket: u64,
    pub(crate) has_code: bool,
}

impl PieceHead {
    fn of(self, bytes: &[u8]) -> RecordPiece<'_> {
        let Self { stream, segment, offset, first_ticket, last_ticket, has_code } = self;
        RecordPiece { stream, segment, offset, first_ticket, last_ticket, has_code, bytes }
    }
}

/// The draining thread's end.
#[derive(Debug)]
pub(crate) struct SinkQueue {
    messages: Sender<SinkMessage>,
    spare: Receiver<Vec<u8>>,
    /// Why the sink has failed.
    failure: Arc<OnceLock<String>>,
    /// Somebody waits for what is in the queue.
    hurry: Arc<AtomicBool>,
    work: RunningWork<io::Result<()>>,
    /// Processor time of the draining thread before it drained.
    drained_from_ns: u64,
    wants_watermarks: bool,
    follower: Followed,
    /// What is handed over later: to wake the sink's thread takes time.
    held: RefCell<Option<Vec<SinkMessage>>>,
    pub(crate) record_bytes: u64,
    pub(crate) pieces: u64,
}

impl SinkQueue {
    /// Creates the thread that calls the sink.
    pub(crate) fn start(mut sink: Box<dyn Sink>) -> io::Result<(Self, BeginningThread)> {
        let (messages, inbox) = bounded(QUEUE);
        let (give_back, spare) = bounded(SPARE);
        let failure = Arc::<OnceLock<String>>::default();
        let told = Arc::clone(&failure);
        let hurry = Arc::new(AtomicBool::new(false));
        let hurried = Arc::clone(&hurry);
        let (wants_watermarks, follower) = (sink.wants_watermarks(), sink.follower());
        let work = move || feed(sink.as_mut(), &inbox, &give_back, (&told, &hurried));
        let (work, begins) = WRITING.execute(work)?;
        let (held, drained_from_ns, record_bytes, pieces) = (RefCell::default(), 0, 0, 0);
        let queue = Self {
            messages,
            spare,
            failure,
            hurry,
            work,
            drained_from_ns,
            wants_watermarks,
            follower,
            held,
            record_bytes,
            pieces,
        };
        Ok((queue, begins))
    }

    /// The calling thread drains, from now on.
    pub(crate) fn begin_draining(&mut self) {
        self.drained_from_ns = procfs::thread_processor_ns();
    }

    /// Whether the sink has failed; messages are discarded then.
    pub(crate) fn failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Why the sink has failed, for the user.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// See [`Sink::wants_watermarks`].
    pub(crate) fn wants_watermarks(&self) -> bool {
        self.wants_watermarks
    }

    /// An empty buffer, from the pool if it has one.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }

    pub(crate) fn process(&self, process: Process) {
        self.follower.iter().for_each(|follower| follower.process(&process));
        self.send(SinkMessage::Process(Box::new(process)));
    }

    pub(crate) fn records(&mut self, place: PieceHead, bytes: Vec<u8>) {
        self.record_bytes += bytes.len() as u64;
        self.pieces += 1;
        self.follower.iter().for_each(|follower| follower.records(&place.of(&bytes)));
        self.send(SinkMessage::Records { place, bytes });
    }

    /// Sends the result of [`memtrack_format::observe::ObservationWriter::take`].
    pub(crate) fn observations(&self, (payload, first, last): (Vec<u8>, u64, u64)) {
        self.follower.iter().for_each(|follower| follower.observations(&payload));
        self.send(SinkMessage::Observations { payload, first, last });
    }

    pub(crate) fn mapped(&self, files: Vec<MappedFile>) {
        self.send(SinkMessage::Mapped(files));
    }

    pub(crate) fn mark(&self, mark: Mark, ticket: u64) {
        self.send(SinkMessage::Mark { mark, ticket });
    }

    pub(crate) fn resident(&self, payload: Vec<u8>, ticket: u64) {
        self.send(SinkMessage::Resident { payload, ticket });
    }

    pub(crate) fn objects(&self, payload: Vec<u8>, ticket: u64) {
        self.send(SinkMessage::Objects { payload, ticket });
    }

    pub(crate) fn watermark(&self, ticket: u64, busy: Vec<u32>) {
        self.send(SinkMessage::Watermark { ticket, busy });
    }

    pub(crate) fn replaced(&self, ticket: u64) {
        self.follower.iter().for_each(|follower| follower.replaced(ticket));
        self.send(SinkMessage::Replaced { ticket });
    }

    pub(crate) fn checkpoint(&self) {
        self.send(SinkMessage::Checkpoint);
    }

    /// Asks the sink to write out everything that was handed over, and to answer then, or why it cannot.
    pub(crate) fn write_out(&self, answer: Sender<io::Result<()>>) {
        self.hurry.store(true, Relaxed);
        self.send(SinkMessage::WriteOut(answer));
    }

    /// Asks the sink for a snapshot that ends with this metadata; the answer goes to the one who wants it.
    pub(crate) fn snapshot(&self, process: Process, answer: Sender<io::Result<SnapshotCopy>>) {
        self.hurry.store(true, Relaxed);
        self.send(SinkMessage::Snapshot { process: Box::new(process), answer });
    }

    /// Processor time of the calling thread, which drains, and of the one that writes.
    pub(crate) fn processor_ns(&self) -> Option<u64> {
        let draining = procfs::thread_processor_ns().saturating_sub(self.drained_from_ns);
        Some(draining.saturating_add(self.work.processor_ns()?))
    }

    /// Finishes the sink and waits for it.
    pub(crate) fn finish(self, complete: bool) -> io::Result<()> {
        self.send(SinkMessage::Finish { complete });
        drop(self.messages);
        self.work.join().unwrap_or_else(|| Err(io::Error::other("the writing thread panicked")))
    }

    /// From now on the sink gets nothing, until [`Self::release`]; the follower does.
    pub(crate) fn hold(&mut self) {
        self.held.get_mut().get_or_insert_default();
    }

    /// Hands over what was held.
    pub(crate) fn release(&self) {
        self.held.take().unwrap_or_default().into_iter().for_each(|message| self.send(message));
    }

    fn send(&self, message: SinkMessage) {
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.push(message);
            return;
        }
        if self.messages.send(message).is_err() {
            // Nobody replaces what the sink itself has said.
            let _ = self.failure.set("the writing thread has ended".into());
        }
    }
}

fn feed(
    sink: &mut dyn Sink,
    inbox: &Receiver<SinkMessage>,
    give_back: &Sender<Vec<u8>>,
    (failure, hurry): (&OnceLock<String>, &AtomicBool),
) -> io::Result<()> {
    let (mut result, mut is_hurried): (io::Result<()>, bool) = (Ok(()), false);
    for message in inbox {
        if hurry.load(Relaxed) != is_hurried {
            is_hurried = !is_hurried;
            sink.hurry(is_hurried);
        }
        if matches!(message, SinkMessage::Snapshot { .. } | SinkMessage::WriteOut(_)) {
            hurry.store(false, Relaxed);
        }
        match (&result, &message) {
            (Ok(()), _) => {
                result = call(sink, &message);
                if let Err(error) = &result {
                    // The first one stays.
                    let _ = failure.set(error.to_string());
                }
            }
            // The one who asked may have lost patience.
            (Err(error), SinkMessage::Snapshot { answer, .. }) => _ = answer.send(Err(copy_of(error))),
            (Err(error), SinkMessage::WriteOut(answer)) => _ = answer.send(Err(copy_of(error))),
            (Err(_), _) => {}
        }
        if let SinkMessage::Records { mut bytes, .. } = message {
            bytes.clear();
            // A full pool is no loss: the buffer is freed.
            let _ = give_back.try_send(bytes);
        }
    }
    result
}

/// The same error, for one more who asks.
fn copy_of(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

fn call(sink: &mut dyn Sink, message: &SinkMessage) -> io::Result<()> {
    match message {
        SinkMessage::Process(process) => sink.process(process),
        SinkMessage::Records { place, bytes } => sink.records(&place.of(bytes)),
        SinkMessage::Observations { payload, first, last } => sink.observations(payload, *first, *last),
        SinkMessage::Mapped(files) => sink.mapped(files),
        SinkMessage::Mark { mark, ticket } => sink.mark(mark, *ticket),
        SinkMessage::Resident { payload, ticket } => sink.resident(payload, *ticket),
        SinkMessage::Objects { payload, ticket } => sink.objects(payload, *ticket),
        SinkMessage::Watermark { ticket, busy } => sink.watermark(*ticket, busy),
        SinkMessage::Replaced { ticket } => sink.replaced(*ticket),
        SinkMessage::Checkpoint => sink.checkpoint(),
        SinkMessage::WriteOut(answer) => {
            let written = sink.write_out();
            // The one who asked may have lost patience.
            let _ = answer.send(written.as_ref().map_err(copy_of).copied());
            written
        }
        SinkMessage::Snapshot { process, answer } => {
            // Behind a block that was written in part nothing can be read.
            let written = sink.checkpoint();
            let copy = match &written {
                Ok(()) => sink.snapshot(process),
                Err(error) => Err(copy_of(error)),
            };
            // The one who asked may have lost patience.
            let _ = answer.send(copy);
            written
        }
        SinkMessage::Finish { complete } => sink.finish(*complete),
    }
}
