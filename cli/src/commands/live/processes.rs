//! The processes of a recording, one of which is shown, or all added up.
//!
//! A feed that was shown once goes on, so that a mark and growth are still there when it is shown again.
//!
//! Invariant: the recording is asked on a thread of its own: the view never waits for it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use memtrack_collector::control::protocol::{ControlCommand, ProcessState, RecordingStatus};

use super::feed::LiveFeed;
use super::view::{LiveView, ShownProcess};
use crate::control::recordings;
use crate::live::source::LiveSource;
use crate::live_windows::message::SummedCounts;

/// How often the recording is asked for its processes.
const ASKED: Duration = Duration::from_secs(1);
/// Feeds that go on: each is a viewer of the recording.
const MOST_FEEDS: usize = 8;

/// The feeds of a recording.
pub(super) struct ProcessFeeds {
    every: Duration,
    /// The processes that run, in the order in which they began.
    running: Arc<Mutex<Vec<u32>>>,
    /// By process, `None` for all; the one that is shown is the last.
    feeds: Vec<(Option<u32>, LiveFeed)>,
    /// The recording's first process, if it was found by one.
    first: Option<u32>,
}

impl ProcessFeeds {
    /// Shows a process, or all of its recording.
    ///
    /// # Errors
    /// It cannot be followed.
    pub(super) fn start(source: LiveSource, every: Duration, all: bool) -> Result<Self> {
        let pid = source.pid();
        let running = Arc::<Mutex<Vec<u32>>>::default();
        if let Some(pid) = pid {
            let shared = Arc::downgrade(&running);
            thread::Builder::new().name("memtrack-processes".into()).spawn(move || ask(pid, &shared))?;
        }
        let feed = LiveFeed::start(source, every, all)?;
        let shown = pid.filter(|_| !all);
        Ok(Self { every, running, feeds: vec![(shown, feed)], first: pid })
    }

    /// The feed that is shown.
    pub(super) fn shown(&self) -> &LiveFeed {
        // There is always one.
        &self.feeds[self.feeds.len() - 1].1
    }

    /// Which of several processes is shown.
    pub(super) fn name(&self) -> String {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let board = self.shown().board();
        match self.feeds.last() {
            Some((None, _)) if self.first.is_some() => {
                let is_all = SummedCounts { running: running.len() as u64, missing: 0 };
                all_processes(board.and_then(|board| board.processes).unwrap_or(is_all))
            }
            Some((Some(pid), _)) if running.len() > 1 || running.first().is_some_and(|first| first != pid) => {
                match running.iter().position(|known| known == pid) {
                    Some(at) => format!("process {pid}, {} of {}", at + 1, running.len()),
                    None => format!("process {pid}, {} others run", running.len()),
                }
            }
            _ => String::new(),
        }
    }

    /// Shows another process.
    ///
    /// # Errors
    /// There is none, or it cannot be followed.
    pub(super) fn show(&mut self, shown: ShownProcess, view: &mut LiveView) -> Result<()> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(first) = self.first else { bail!("no recording writes this capture: it is of one process") };
        let current = self.feeds.last().and_then(|(pid, _)| *pid);
        let at = running.iter().position(|pid| Some(*pid) == current);
        let count = running.len();
        let next = match (shown, at) {
            (ShownProcess::All, _) => None,
            (_, _) if count == 0 => bail!("no process of the recording runs any more"),
            (ShownProcess::Next, at) => Some(running[at.map_or(0, |at| at + 1) % count]),
            (ShownProcess::Previous, at) => Some(running[(at.unwrap_or(0) + count - 1) % count]),
        };
        if next == current {
            bail!("{}", if next.is_some() { "the recording has no other process" } else { "all processes are shown" });
        }
        let known = self.feeds.iter().position(|(pid, _)| *pid == next);
        let feed = match known {
            Some(known) => self.feeds.remove(known),
            None => {
                let target = PathBuf::from(next.or(running.first().copied()).unwrap_or(first).to_string());
                (next, LiveFeed::start(LiveSource::find(Some(&target))?, self.every, next.is_none())?)
            }
        };
        if self.feeds.len() >= MOST_FEEDS {
            self.feeds.remove(0);
        }
        self.feeds.push(feed);
        view.forget();
        Ok(())
    }
}

/// The name of the sum, with how many are not in it.
fn all_processes(SummedCounts { running, missing }: SummedCounts) -> String {
    match missing {
        0 => format!("all processes ({running})"),
        _ => format!("all processes ({running} of {})", running + missing),
    }
}

/// Asks until the view has gone. Of a program whose processes were started one by one, each has a recording of its own.
fn ask(pid: u32, running: &Weak<Mutex<Vec<u32>>>) {
    let mut client = None;
    let mut recording = None;
    while running.strong_count() > 0 {
        let known = client.take().or_else(|| recordings::of(Some(pid)).ok().map(|found| found.client));
        if let Some(mut known) = known
            && let Ok(status) = known.ask::<RecordingStatus>(ControlCommand::Status { within_ms: None })
        {
            let of_pid = || status.process(pid).and_then(|process| process.recording);
            recording = recording.or_else(of_pid);
            let runs = status.of_recording(recording).filter(|process| process.state == ProcessState::Recording);
            let pids = runs.filter(|process| process.capture.is_some()).map(|process| process.pid).collect();
            let Some(running) = running.upgrade() else { return };
            *running.lock().unwrap_or_else(PoisonError::into_inner) = pids;
            client = Some(known);
        }
        thread::sleep(ASKED);
    }
}
