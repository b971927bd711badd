//! Recording sums instead of events: the collector's sink that replays while the program runs.
//!
//! It joins the collector, which knows no analysis, with the reader, which knows no live process: records are merged,
//! replayed and summed by the code that does it for files. The capture is written anew, beside the old one, every few
//! seconds, and takes its place by a rename; so whoever is killed, a readable capture is left.
//!
//! Invariant: the file at the capture's path is always whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtrack_collector::{FileSink, Piece, Sink};
use memtrack_format::meta::Process;
use memtrack_format::observe;
use memtrack_reader::event::Thread;
use memtrack_reader::source::Online;
use memtrack_reader::{Frames, Options, Replay, aggregate};

/// Between two checkpoints, at the least.
const CHECKPOINT: Duration = Duration::from_secs(2);
/// A checkpoint may take this part of the time: a large capture is written less often.
const CHECKPOINT_SHARE: u32 = 20;

/// Sums what is recorded.
#[derive(Debug)]
pub(crate) struct AggregateSink {
    path: PathBuf,
    process: Process,
    online: Option<Online>,
    replay: Replay,
    next_checkpoint: Instant,
}

impl AggregateSink {
    /// Begins an aggregated capture at `path`, which exists when this returns.
    ///
    /// # Errors
    /// What the medium says.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let mut sink = Self {
            path: path.to_owned(),
            process: Process::default(),
            online: None,
            replay: Replay::new(&Options::default()),
            next_checkpoint: Instant::now() + CHECKPOINT,
        };
        sink.save(&Frames::new(), &[], false)?;
        Ok(sink)
    }

    /// Writes the sums as they are now, and puts them in the place of the last ones.
    fn save(&mut self, frames: &Frames, threads: &[Thread], complete: bool) -> io::Result<()> {
        let begun = Instant::now();
        let unfinished = unfinished(&self.path);
        let written = self.write(&unfinished, frames, threads, complete).and_then(|()| fs::rename(&unfinished, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        self.next_checkpoint = Instant::now() + CHECKPOINT.max(begun.elapsed() * CHECKPOINT_SHARE);
        written
    }

    fn write(&self, to: &Path, frames: &Frames, threads: &[Thread], complete: bool) -> io::Result<()> {
        let mut file = FileSink::new(File::create(to)?)?;
        file.process(&self.process)?;
        file.aggregate(&aggregate::save(&self.replay.finish(), frames, threads).encode())?;
        file.finish(complete)
    }
}

impl Sink for AggregateSink {
    fn process(&mut self, process: &Process) -> io::Result<()> {
        self.process.update(&process.encode());
        if self.online.is_none() {
            self.online = process.start_monotonic_ns.map(Online::new);
        }
        Ok(())
    }

    fn records(&mut self, piece: &Piece<'_>) -> io::Result<()> {
        if let Some(online) = &mut self.online {
            online.records(piece.stream, piece.segment, piece.offset, piece.bytes);
        }
        Ok(())
    }

    fn observations(&mut self, payload: &[u8], _first_ticket: u64, _last_ticket: u64) -> io::Result<()> {
        if let Some(online) = &mut self.online {
            observe::Reader::new(payload).for_each(|observation| online.observe(&observation));
        }
        Ok(())
    }

    fn wants_quiet(&self) -> bool {
        true
    }

    fn quiet(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        match &mut self.online {
            Some(online) => online.quiet(before_ticket, busy, &mut self.replay).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        if let Some(online) = &mut self.online {
            online.replaced(ticket);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        if Instant::now() < self.next_checkpoint {
            return Ok(());
        }
        let Some(online) = self.online.take() else { return Ok(()) };
        let saved = self.save(online.frames(), online.threads(), false);
        self.online = Some(online);
        saved
    }

    fn finish(&mut self, complete: bool) -> io::Result<()> {
        let Some(online) = self.online.take() else { return self.save(&Frames::new(), &[], complete) };
        let summary = online.finish(&mut self.replay).map_err(io::Error::other)?;
        self.save(&summary.frames, &summary.threads, complete)
    }
}

/// Where a capture is written before it takes its place.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    path.with_file_name(name)
}
