//! One process among those that are added up: a thread receives its windows, or reads its capture.
//!
//! Invariant: the last thing that a thread sends is that it has ended, however it ends.

use std::io;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use memtrack_collector::control::ControlError;
use memtrack_collector::control::protocol::{ControlCommand, ProcessState, ProcessStatus};
use memtrack_format::Allocator;
use memtrack_reader::analysis::Tally;
use memtrack_reader::live::{FollowProgress, LiveFollower};
use memtrack_reader::{StackId, ThreadId};
use serde_json::Value;

use crate::control::recordings;
use crate::live_windows::message::{WindowLine, WindowMessage};

/// How long is read at a time.
const BUDGET: Duration = Duration::from_millis(100);
/// How often the file is looked at while nothing is new.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a capture that does not grow is looked at before it counts as all that there is.
const STILL: u32 = 60;

/// A group of all processes: the threads are numbered anew.
pub(super) type SummedGroupKey = (StackId, ThreadId, Allocator);

/// What is known of a process.
#[derive(Default)]
pub(super) struct SummedProcess {
    /// Its newest window, without tables.
    pub(super) newest: Option<WindowMessage>,
    pub(super) live: Vec<(SummedGroupKey, Tally)>,
    /// When its recording began.
    pub(super) start_ns: u64,
    /// Nothing more comes.
    pub(super) over: bool,
}

impl SummedProcess {
    /// Whether it has memory.
    pub(super) fn runs(&self) -> bool {
        !self.over && self.newest.as_ref().is_some_and(|newest| !newest.last)
    }
}

/// A window of a process; without one, the process is over.
pub(super) struct ProcessWindow {
    pub(super) number: u32,
    pub(super) line: Option<Box<WindowLine>>,
}

/// Starts to receive the windows of a process.
///
/// # Errors
/// No thread can be started.
pub(super) fn start(process: ProcessStatus, every: Duration, sender: SyncSender<ProcessWindow>) -> io::Result<()> {
    let name = format!("memtrack-{}", process.pid);
    thread::Builder::new().name(name).spawn(move || {
        let receiving = ReceivedProcess { process, every, sender };
        // What cannot be read is not in the sum.
        let _ = receiving.run();
        let _ = receiving.sender.send(ProcessWindow { number: receiving.process.number, line: None });
    })?;
    Ok(())
}

struct ReceivedProcess {
    process: ProcessStatus,
    every: Duration,
    sender: SyncSender<ProcessWindow>,
}

impl ReceivedProcess {
    fn run(&self) -> Result<()> {
        match self.receive()? {
            Some(from_ns) => self.read(from_ns),
            None => Ok(()),
        }
    }

    fn send(&self, line: WindowLine) -> Result<()> {
        Ok(self.sender.send(ProcessWindow { number: self.process.number, line: Some(Box::new(line)) })?)
    }

    /// The windows that the recording makes; returns where they end, if more is in the capture.
    fn receive(&self) -> Result<Option<u64>> {
        let pid = self.process.pid;
        if self.process.state == ProcessState::Ended {
            return Ok(Some(0));
        }
        let Ok(mut client) = recordings::of(Some(pid)).map(|found| found.client) else { return Ok(Some(0)) };
        let every_ms = u64::try_from(self.every.as_millis()).unwrap_or(u64::MAX);
        if client.ask::<Value>(ControlCommand::Live { every_ms, pid: Some(pid) }).is_err() {
            return Ok(Some(0));
        }
        let mut end_ns = 0;
        loop {
            let line = match client.next_line(None) {
                Ok(Some(line)) => line,
                Err(ControlError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(None) | Err(_) => return Ok(Some(end_ns)),
            };
            let Ok(line) = WindowLine::decode(&line) else { return Ok(Some(end_ns)) };
            end_ns = line.window.t1_ns;
            let last = line.window.last;
            self.send(line)?;
            if last {
                return Ok(None);
            }
        }
    }

    /// The rest of the capture of a process that has ended, or whose recording has.
    fn read(&self, from_ns: u64) -> Result<()> {
        let Some(capture) = &self.process.capture else { return Ok(()) };
        let mut follower = LiveFollower::open(capture, Some(self.every))?;
        if from_ns > 0 {
            follower.end_first_at(0, from_ns);
        }
        let mut still = 0;
        while !follower.has_ended() {
            match follower.poll(BUDGET)? {
                FollowProgress::CaughtUp if still >= STILL => follower.finish()?,
                FollowProgress::CaughtUp => {
                    still += 1;
                    thread::sleep(PAUSE);
                }
                FollowProgress::Behind | FollowProgress::Ended => still = 0,
            }
            while let Some(window) = follower.take_window() {
                // What was received is not sent again.
                if window.to_ns > from_ns {
                    self.send(WindowLine::of(&window, &mut follower)?)?;
                }
            }
        }
        Ok(())
    }
}
