//! What is watched: a capture, and the recording that writes it, if it can be reached.
//!
//! The recording is asked for its status once a second; that also makes it write checkpoints more often. A lost connection is
//! tried again, since a recording that is busy answers late.
//!
//! Invariant: a capture counts as ended only when it says so, or when no recording answers for it and it has not grown for
//! some time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memtrack_collector::control::ControlClient;
use memtrack_collector::control::protocol::{ControlCommand, ProcessState, ProcessStatus, RecordingStatus};
use memtrack_reader::live::{FollowProgress, LiveFollower, LiveTotals};

use super::subscription::WindowSubscription;
use crate::control::recordings::{self, RunningRecording, unrecorded};
use crate::control::snapshot::cut_off;

/// How often the recording is asked for its status.
const ASKED: Duration = Duration::from_secs(1);
/// A capture without a recording that has not grown for this long has ended.
const STILL: Duration = Duration::from_secs(3);

/// A capture that is watched.
pub(crate) struct LiveSource {
    path: PathBuf,
    /// The process whose capture it is, if it was found by a recording.
    pid: Option<u32>,
    /// Which of the recordings at its socket it is.
    recording: Option<u32>,
    client: Option<ControlClient>,
    asked: Instant,
    len: u64,
    grown: Instant,
    /// Why nothing more comes, although the process runs.
    why_ended: Option<String>,
}

impl LiveSource {
    /// The capture of a recorded process, or that of the only recording, or the one with this path.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(target: Option<&Path>) -> Result<Self> {
        let pid = target.and_then(|target| target.to_str()?.parse::<u32>().ok());
        match target {
            Some(path) if pid.is_none() || path.exists() => Ok(Self::of_capture(path)),
            _ => Self::of_process(pid),
        }
    }

    fn of_process(pid: Option<u32>) -> Result<Self> {
        let recording = recordings::of(pid)?;
        let Some(process) = recording.process(pid) else { bail!("the recording does not name its process") };
        let Some(capture) = &process.capture else {
            if process.state == ProcessState::Dormant {
                bail!("process {} is dormant: begin to record it with 'memtrack start'", process.pid);
            }
            bail!("the recording of process {} has no capture yet: try again in a moment", process.pid)
        };
        let path = recordings::as_seen_here(capture, recording.status.recorder);
        let (of, why_ended) = ((process.pid, process.recording), why_ended(process));
        Ok(Self { why_ended, ..Self::new(path, Some((of, recording.client))) })
    }

    fn of_capture(path: &Path) -> Self {
        Self::new(path.to_owned(), recording_of(path))
    }

    fn new(path: PathBuf, found: Option<FoundRecording>) -> Self {
        let now = Instant::now();
        let (len, grown, asked) = (0, now, now);
        let mut made = Self { path, pid: None, recording: None, client: None, asked, len, grown, why_ended: None };
        made.set(found);
        made
    }

    fn set(&mut self, found: Option<FoundRecording>) {
        let (of, client) = found.unzip();
        (self.pid, self.recording) = (of.map(|(pid, _)| pid), of.and_then(|(_, recording)| recording));
        self.client = client;
    }

    /// The windows that the recording makes for all viewers, if it can be reached and makes them.
    pub(crate) fn subscribe(&self, every: Duration) -> Option<WindowSubscription> {
        let pid = self.pid.filter(|_| self.client.is_some())?;
        // A connection of its own, since this one is asked other things.
        let client = recordings::of(Some(pid)).ok()?.client;
        WindowSubscription::begin(client, pid, self.path.clone(), every)
    }

    /// The windows of all processes of the recording, added up.
    ///
    /// # Errors
    /// No recording writes the capture.
    pub(crate) fn subscribe_all(&self, every: Duration) -> Result<WindowSubscription> {
        let Some(pid) = self.pid.filter(|_| self.client.is_some()) else {
            bail!(
                "no recording writes {}, so it has no other processes; reports take the captures of several",
                self.path.display()
            )
        };
        let recording = (recordings::of(Some(pid))?.client, self.recording);
        Ok(WindowSubscription::of_all(recording, self.path.clone(), every))
    }

    /// The process that is watched, if it was found by a recording.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The capture.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether more may be written to it. Takes no longer than an answer of the recording.
    pub(crate) fn may_grow(&mut self) -> bool {
        let now = Instant::now();
        let len = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if len != self.len {
            (self.len, self.grown) = (len, now);
        }
        if now.duration_since(self.asked) >= ASKED {
            self.asked = now;
            self.ask();
        }
        self.client.is_some() || self.grown.elapsed() < STILL
    }

    /// Why nothing more comes, although the process runs on, for the user.
    pub(crate) fn why_ended(&self) -> Option<&str> {
        self.why_ended.as_deref()
    }

    /// Asks the recording, or connects to it again.
    fn ask(&mut self) {
        let status = match &mut self.client {
            Some(client) => client.ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }).ok(),
            None => None,
        };
        let Some(pid) = self.pid else {
            // It may have been there before its recording could be asked.
            self.set(recording_of(&self.path));
            return;
        };
        if let Some(process) = status.as_ref().and_then(|status| status.process(pid)) {
            self.why_ended = why_ended(process);
        }
        match status {
            Some(status) if is_recorded(&status, pid, self.recording) => {}
            Some(_) => self.client = None,
            None => {
                let found = recordings::of(Some(pid)).ok();
                let found = found.filter(|found| is_recorded(&found.status, pid, self.recording));
                self.client = found.map(|found| found.client);
            }
        }
    }

    /// Writes a snapshot into the working directory, as `memtrack snapshot` does; gives what that says.
    ///
    /// # Errors
    /// A text for the user.
    pub(crate) fn write_snapshot(&self) -> Result<String> {
        let Some(pid) = self.pid.filter(|_| self.client.is_some()) else {
            bail!("no recording writes this capture: it is complete as it is")
        };
        let memtrack = std::env::current_exe()?;
        let done = Command::new(memtrack).args(["snapshot", &pid.to_string()]).stdin(Stdio::null()).output()?;
        let told = String::from_utf8_lossy(if done.stderr.is_empty() { &done.stdout } else { &done.stderr });
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        if done.status.success() { Ok(told) } else { bail!("{told}") }
    }
}

/// Whether this recording has the process, and goes on.
fn is_recorded(status: &RecordingStatus, pid: u32, recording: Option<u32>) -> bool {
    let mut processes = status.of_recording(recording);
    processes.any(|process| process.pid == pid && process.state == ProcessState::Recording)
}

/// Why a process is recorded no more that runs on, for the user.
fn why_ended(process: &ProcessStatus) -> Option<String> {
    let unwritten = process.write_error.as_ref().map(|reason| cut_off(process.capture.as_deref(), reason));
    let became = || Some(format!("the recording has ended: {}", unrecorded(process.unrecorded_program.as_deref()?)));
    let stopped = || Some(format!("the recording has ended: {}", process.stop_reason.as_deref()?));
    unwritten.or_else(became).or_else(stopped)
}

/// A process with the number of its recording, and the recording process.
type FoundRecording = ((u32, Option<u32>), ControlClient);

/// The process whose capture this is, and its recording.
fn recording_of(path: &Path) -> Option<FoundRecording> {
    let wanted = fs::canonicalize(path).ok()?;
    let process_of = |recording: &RunningRecording| {
        let RecordingStatus { recorder, processes } = &recording.status;
        let is_wanted = |capture: &PathBuf| {
            fs::canonicalize(recordings::as_seen_here(capture, *recorder)).is_ok_and(|found| found == wanted)
        };
        let found = processes.iter().find(|process| process.capture.as_ref().is_some_and(is_wanted));
        found.map(|process| (process.pid, process.recording))
    };
    recordings::all().into_iter().find_map(|one| process_of(&one).map(|of| (of, one.client)))
}

/// What has been recorded of a process so far, by its capture; `None`: that is not read before the deadline.
pub(crate) fn totals(capture: &Path, recorder: u32, deadline: Instant) -> Option<LiveTotals> {
    let mut follower = LiveFollower::open(recordings::as_seen_here(capture, recorder), None).ok()?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match follower.poll(left).ok()? {
            FollowProgress::Behind if !left.is_zero() => {}
            FollowProgress::Behind => return None,
            FollowProgress::CaughtUp | FollowProgress::Ended => return Some(follower.state().totals()),
        }
    }
}
