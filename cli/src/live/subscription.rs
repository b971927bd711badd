//! The windows that a recording sends to a viewer.
//!
//! Invariant: windows follow one another in time; the first one is from the beginning of the recording.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use memtrack_collector::control::protocol::ControlCommand;
use memtrack_collector::control::{ControlClient, ControlError};
use memtrack_reader::Frames;
use serde_json::Value;

use super::picture::LivePicture;
use crate::live_windows::message::{WindowLine, WindowMessage, WindowSums};

/// A connection over which windows come.
pub(crate) struct WindowSubscription {
    client: ControlClient,
    path: PathBuf,
    /// The tables of all windows so far, so that groups keep their ids.
    frames: Frames,
}

/// What comes next.
pub(crate) enum NextWindow {
    /// A window, and the groups in it.
    Window(Box<ReceivedWindow>),
    /// Nothing within the time.
    Nothing,
    /// The recording sends no more, though it may have recorded more.
    Lost,
}

/// A window that has come.
pub(crate) struct ReceivedWindow {
    pub(crate) skipped: u64,
    pub(crate) message: WindowMessage,
    pub(crate) sums: WindowSums,
    threads: Vec<memtrack_reader::Thread>,
    process: memtrack_format::meta::Process,
}

impl WindowSubscription {
    /// Asks for windows of a process; `None`: the recording has none, and the capture is to be read.
    pub(crate) fn begin(mut client: ControlClient, pid: u32, path: PathBuf, every: Duration) -> Option<Self> {
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        client.ask::<Value>(ControlCommand::Live { every_ms, pid: Some(pid) }).ok()?;
        Some(Self { client, path, frames: Frames::new() })
    }

    /// Waits for the next window.
    ///
    /// # Errors
    /// Something else came.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<NextWindow> {
        let line = match self.client.next_line(Some(limit)) {
            Ok(Some(line)) => line,
            Err(ControlError::Io(error))
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                return Ok(NextWindow::Nothing);
            }
            Ok(None) | Err(_) => return Ok(NextWindow::Lost),
        };
        let Ok(WindowLine { skipped, window: message }) = WindowLine::decode(&line) else {
            // The last words of the server, before it closes the connection.
            return Ok(NextWindow::Lost);
        };
        let (sums, threads, process) = message.groups(&mut self.frames)?;
        Ok(NextWindow::Window(Box::new(ReceivedWindow { skipped, message, sums, threads, process })))
    }

    /// A picture of a window with these sums.
    pub(crate) fn picture(&self, window: &ReceivedWindow, sums: WindowSums) -> LivePicture {
        let of = (self.path.clone(), window.process.clone());
        let tables = (sums, &self.frames, window.threads.clone());
        LivePicture::received(of, tables, window.message.totals(), window.message.last)
    }
}
