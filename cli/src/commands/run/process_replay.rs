//! Online replay of a process's records, for aggregated captures and live output.
//!
//! Invariant: the state equals that of replaying a file with the same records, up to the event whose order is already
//! certain.

use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use memtrack_collector::RecordPiece;
use memtrack_format::mapped::MappedFile;
use memtrack_format::meta::Process;
use memtrack_format::observe::ObservationReader;
use memtrack_reader::analysis::{SiteWindow, UnknownBlocks};
use memtrack_reader::source::{Online, ReadSummary};
use memtrack_reader::windows::WindowReplay;
use memtrack_reader::{Analysis, Frames, Options, Thread};

/// The replay of one process; its methods mirror those of a sink.
pub(super) struct ProcessReplay {
    /// Metadata of the process.
    pub(super) process: Process,
    online: Option<Online>,
    replay: WindowReplay,
    /// The length of windows, if there are to be any.
    window_ns: Option<u64>,
    /// The first ticket of the current image (after the last exec).
    image_ticket: u64,
}

/// The state of the replay at one moment.
pub(super) struct ReplayState<'a> {
    pub(super) process: &'a Process,
    pub(super) analysis: Analysis,
    /// What has happened in the window that has not ended.
    pub(super) open_window: Option<SiteWindow>,
    pub(super) frames: &'a Frames,
    pub(super) threads: &'a [Thread],
}

impl ProcessReplay {
    /// `window`: the length of windows, if there are to be any.
    pub(super) fn new(window: Option<Duration>) -> Self {
        let window_ns = window.map(|window| u64::try_from(window.as_nanos()).unwrap_or(u64::MAX));
        let replay = WindowReplay::new(&Options::default(), window_ns);
        Self { process: Process::default(), online: None, replay, window_ns, image_ticket: 0 }
    }

    pub(super) fn process(&mut self, process: &Process) {
        self.process.update(&process.encode());
        let start = self.process.start.monotonic_ns.unwrap_or(0);
        if self.online.is_none() {
            self.online = Some(Online::new(start));
            let unknown_blocks = UnknownBlocks::of(&self.process);
            let sample_bytes = self.process.sample_bytes.and_then(NonZeroU64::new);
            let options = Options { unknown_blocks, sample_bytes, ..Options::default() };
            self.replay = WindowReplay::new(&options, self.window_ns);
        }
    }

    pub(super) fn records(&mut self, piece: &RecordPiece<'_>) {
        if let Some(online) = &mut self.online {
            online.records(piece.stream, piece.segment, piece.offset, piece.bytes);
        }
    }

    pub(super) fn observations(&mut self, payload: &[u8]) {
        if let Some(online) = &mut self.online {
            ObservationReader::new(payload).for_each(|observation| online.observe(&observation));
        }
    }

    pub(super) fn mapped(&mut self, files: &[MappedFile]) {
        if let Some(online) = &mut self.online {
            files.iter().for_each(|file| online.mapped(self.image_ticket, file));
        }
    }

    /// # Errors
    /// More call stacks than the id type can number.
    pub(super) fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        match &mut self.online {
            Some(online) => {
                online.watermark(before_ticket, busy, &mut self.replay).map_err(io::Error::other)?;
                self.process.time_uncertainty_ns = Some(online.time_uncertainty_ns());
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn replaced(&mut self, ticket: u64) {
        self.image_ticket = ticket;
        self.process.ended_by_exec = false;
        if let Some(online) = &mut self.online {
            online.replaced(ticket);
        }
    }

    /// The current state; iterates over all live blocks. `None` before the process is known.
    pub(super) fn now(&self) -> Option<ReplayState<'_>> {
        let online = self.online.as_ref()?;
        let (frames, threads) = (online.frames(), online.threads());
        let (analysis, open_window) = (self.replay.replay().finish(), self.replay.open());
        Some(ReplayState { process: &self.process, analysis, open_window, frames, threads })
    }

    /// The windows that have ended since the last call.
    pub(super) fn take_windows(&mut self) -> Vec<SiteWindow> {
        self.replay.take()
    }

    /// The frames known so far.
    pub(super) fn frames(&self) -> Option<&Frames> {
        self.online.as_ref().map(Online::frames)
    }

    /// The final state.
    ///
    /// # Errors
    /// As [`Self::watermark`].
    pub(super) fn finish(&mut self) -> io::Result<Option<(Analysis, ReadSummary)>> {
        let Some(online) = self.online.take() else { return Ok(None) };
        let read = online.finish(&mut self.replay).map_err(io::Error::other)?;
        self.replay.end();
        Ok(Some((self.replay.replay().finish(), read)))
    }
}
