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
use super::received_window::{NextWindow, ReceivedWindow};
use super::summed::SummedProcesses;
use crate::live_windows::message::{WindowLine, WindowSums};

/// A connection over which windows come.
pub(crate) struct WindowSubscription {
    origin: WindowOrigin,
    path: PathBuf,
    /// The tables of all windows so far, so that groups keep their ids.
    frames: Frames,
}

/// Where windows come from.
enum WindowOrigin {
    Process(ControlClient),
    All(Box<SummedProcesses>),
}

impl WindowSubscription {
    /// Asks for windows of a process; `None`: the recording has none, and the capture is to be read.
    pub(crate) fn begin(mut client: ControlClient, pid: u32, path: PathBuf, every: Duration) -> Option<Self> {
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        client.ask::<Value>(ControlCommand::Live { every_ms, pid: Some(pid) }).ok()?;
        Some(Self { origin: WindowOrigin::Process(client), path, frames: Frames::new() })
    }

    /// The windows of all processes of a recording, added up: of the one with this number at its socket.
    pub(crate) fn of_all(recording: (ControlClient, Option<u32>), path: PathBuf, every: Duration) -> Self {
        let origin = WindowOrigin::All(Box::new(SummedProcesses::begin(recording, every)));
        Self { origin, path, frames: Frames::new() }
    }

    /// Whether they are the sum of several processes.
    pub(crate) fn is_sum(&self) -> bool {
        matches!(self.origin, WindowOrigin::All(_))
    }

    /// Waits for the next window.
    ///
    /// # Errors
    /// Something else came.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<NextWindow> {
        let client = match &mut self.origin {
            WindowOrigin::Process(client) => client,
            WindowOrigin::All(processes) => return processes.next(&mut self.frames, limit),
        };
        let line = match client.next_line(Some(limit)) {
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
        LivePicture::received(of, tables, &window.message)
    }
}
