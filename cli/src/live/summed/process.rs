//! One process among those that are added up: a thread receives its windows, or reads its capture.
//!
//! Invariant: the last thing that a thread sends is that it has ended, however it ends.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
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
/// The same of a process that runs: there may be hundreds.
const RUNNING_PAUSE: Duration = Duration::from_millis(200);
/// How often a capture that does not grow is looked at before it counts as all that there is.
const STILL: u32 = 60;

/// A group of all processes: the threads are numbered anew.
pub(super) type SummedGroupKey = (StackId, ThreadId, Allocator);

/// How the windows of a process come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProcessWay {
    /// From the recording, which makes them once for all viewers.
    #[default]
    Received,
    /// From its capture, which is read here.
    Read,
}

/// What is known of a process.
#[derive(Default)]
pub(super) struct SummedProcess {
    /// Its newest window, without tables, while it runs.
    pub(super) newest: Option<Box<WindowMessage>>,
    pub(super) live: Vec<(SummedGroupKey, Tally)>,
    /// When its recording began.
    pub(super) start_ns: u64,
    pub(super) way: ProcessWay,
    /// Whether the recording says that it runs.
    pub(super) runs: Arc<AtomicBool>,
    /// A window has come, and more will, or it has ended.
    pub(super) seen: bool,
    /// No thread could be started that would read it, to the end.
    pub(super) is_given_up: bool,
}

impl SummedProcess {
    /// Whether it runs and is in no sum, since it waits, is new, or cannot be read; or was never read.
    pub(super) fn is_missing(&self) -> bool {
        self.is_given_up || !self.seen && self.runs.load(Relaxed)
    }
}

/// What comes from the thread of a process.
pub(super) struct ProcessNews {
    pub(super) number: u32,
    /// Without a window, the process is over.
    pub(super) line: Option<Box<WindowLine>>,
    /// Whether that is because of an error.
    pub(super) failed: bool,
}

/// Starts to receive the windows of a process.
///
/// # Errors
/// No thread can be started.
pub(super) fn start(
    process: ProcessStatus,
    known: &SummedProcess,
    every: Duration,
    sender: SyncSender<ProcessNews>,
) -> io::Result<()> {
    let name = format!("memtrack-{}", process.pid);
    let (way, runs) = (known.way, Arc::clone(&known.runs));
    thread::Builder::new().name(name).spawn(move || {
        let receiving = ReceivedProcess { process, every, runs, sender };
        // What cannot be read is not in the sum, and counted.
        let failed = receiving.run(way).is_err();
        let _ = receiving.sender.send(ProcessNews { number: receiving.process.number, line: None, failed });
    })?;
    Ok(())
}

struct ReceivedProcess {
    process: ProcessStatus,
    every: Duration,
    runs: Arc<AtomicBool>,
    sender: SyncSender<ProcessNews>,
}

impl ReceivedProcess {
    fn run(&self, way: ProcessWay) -> Result<()> {
        let from_ns = match way {
            ProcessWay::Received => self.receive()?,
            ProcessWay::Read => Some(0),
        };
        from_ns.map_or(Ok(()), |from_ns| self.read(from_ns))
    }

    fn send(&self, line: WindowLine) -> Result<()> {
        let line = Some(Box::new(line));
        Ok(self.sender.send(ProcessNews { number: self.process.number, line, failed: false })?)
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

    /// Of a process that has just begun, there may be nothing in it yet.
    fn open(&self, capture: &Path) -> Result<LiveFollower> {
        loop {
            match LiveFollower::open(capture, Some(self.every)) {
                Err(_) if self.runs.load(Relaxed) => thread::sleep(RUNNING_PAUSE),
                opened => return Ok(opened?),
            }
        }
    }

    /// The rest of the capture. If the process has ended, or its recording has, what is there is all, once it does not grow any more.
    fn read(&self, from_ns: u64) -> Result<()> {
        let Some(capture) = &self.process.capture else { return Ok(()) };
        let mut follower = self.open(capture)?;
        if from_ns > 0 {
            follower.end_first_at(0, from_ns);
        }
        let mut still = 0;
        while !follower.has_ended() {
            match follower.poll(BUDGET)? {
                FollowProgress::CaughtUp if self.runs.load(Relaxed) => {
                    still = 0;
                    thread::sleep(RUNNING_PAUSE);
                }
                FollowProgress::CaughtUp if still >= STILL => follower.finish()?,
                FollowProgress::CaughtUp => {
                    still += 1;
                    thread::sleep(PAUSE);
                }
                FollowProgress::Behind | FollowProgress::Ended => still = 0,
            }
            while let Some(window) = follower.take_window() {
                // What was received is not sent again, nor sums that reach back to the beginning and hold it, too.
                let reaches_back = window.from_ns < from_ns;
                if window.to_ns > from_ns && (window.last || !reaches_back) {
                    let window = if reaches_back { window.levels_from(from_ns) } else { window };
                    self.send(WindowLine::of(&window, &mut follower)?)?;
                }
            }
        }
        Ok(())
    }
}
