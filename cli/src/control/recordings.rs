//! Finds the recordings of this user, and chooses the one that a command is for.
//!
//! Invariant: a recording that gives no answer is left out, and never waited for longer than the client's patience.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use memtrack_collector::control::protocol::{ControlCommand, ProcessStatus, RecordingStatus};
use memtrack_collector::control::{ControlClient, ControlError, directory};

use crate::reports::capture_info::visible;

/// A recording that has answered.
pub(crate) struct RunningRecording {
    /// The connection to its recording process.
    pub(crate) client: ControlClient,
    /// What it has answered.
    pub(crate) status: RecordingStatus,
}

impl RunningRecording {
    /// Whether it is the recording of this process.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.client.pid() == pid || self.status.process(pid).is_some()
    }

    /// The process that a command is for: the one with this id, else the first.
    pub(crate) fn process(&self, pid: Option<u32>) -> Option<&ProcessStatus> {
        self.status.process(pid.unwrap_or(self.client.pid()))
    }
}

/// That a process has become a program that cannot be recorded, for the user.
pub(crate) fn unrecorded(program: &str) -> String {
    format!("it has become {}, which cannot load memtrack's library", visible(program))
}

/// All recordings that this user can reach, by the pid of their first processes.
pub(crate) fn all() -> Vec<RunningRecording> {
    all_that_answer(|_| ControlCommand::Status { within_ms: None })
}

/// The same when their captures have what was recorded until now. Those that are not so far at the deadline say so; each has its
/// share of the time that is left, so that a busy one keeps no other from its figures.
pub(crate) fn all_of_now(deadline: Instant) -> Vec<RunningRecording> {
    let share = |later: usize| {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        u64::try_from(left).unwrap_or(0) / (later as u64 + 1)
    };
    all_that_answer(|later| ControlCommand::Status { within_ms: Some(share(later)) })
}

/// Asks each for its status; `status` makes the command for one after which so many others are asked.
fn all_that_answer(status: impl Fn(usize) -> ControlCommand) -> Vec<RunningRecording> {
    let clients = directory::sockets().into_iter().filter_map(|socket| ControlClient::connect(&socket).ok());
    let clients: Vec<_> = clients.collect();
    let count = clients.len();
    let ask = |(number, mut client): (usize, ControlClient)| {
        let status = client.ask(status(count - 1 - number)).ok()?;
        Some(RunningRecording { client, status })
    };
    let mut all: Vec<_> = clients.into_iter().enumerate().filter_map(ask).collect();
    all.sort_by_key(|recording| recording.client.pid());
    all
}

/// The recording of this process; without one, the only recording.
///
/// # Errors
/// There is none, or several to choose from.
pub(crate) fn of(pid: Option<u32>) -> Result<RunningRecording> {
    if let Some(pid) = pid {
        return of_process(pid);
    }
    let mut all = all();
    match all.len() {
        0 => bail!("nothing is being recorded by this user"),
        1 => all.pop().ok_or_else(|| anyhow::anyhow!("nothing is being recorded by this user")),
        number => {
            let named = all.iter().take(LISTED).map(|recording| recording.client.pid().to_string());
            let named = named.collect::<Vec<_>>().join(", ");
            let more = if number > LISTED { ", …" } else { "" };
            bail!("{number} programs are being recorded ({named}{more}): name one by its PID; 'memtrack ps' lists them")
        }
    }
}

/// The recording of this process. The one of which it is the first is asked first, also where several namespaces use its id:
/// another one that does not answer delays nothing.
fn of_process(pid: u32) -> Result<RunningRecording> {
    let mut sockets = directory::sockets();
    sockets.sort_by_key(|socket| socket.file_stem() != Some(OsStr::new(&pid.to_string())));
    let mut silent = None;
    for socket in sockets {
        match asked(&socket) {
            Ok(recording) if recording.has(pid) => return Ok(recording),
            Err(ControlError::Io(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                silent = Some(socket);
            }
            _ => {}
        }
    }
    match silent {
        Some(socket) => bail!(
            "no recording that answers has process {pid}, and the one at {} does not answer: try it again",
            socket.display()
        ),
        None => bail!("process {pid} is not being recorded by this user; 'memtrack ps' lists what is"),
    }
}

fn asked(socket: &Path) -> Result<RunningRecording, ControlError> {
    let mut client = ControlClient::connect(socket)?;
    let status = client.ask(ControlCommand::Status { within_ms: None })?;
    Ok(RunningRecording { client, status })
}

/// A path of the recording process, which may have another working directory.
pub(crate) fn as_seen_here(path: &Path, recorder: u32) -> PathBuf {
    let directory = fs::read_link(format!("/proc/{recorder}/cwd")).unwrap_or_default();
    directory.join(path)
}

/// Recordings that an error lists.
const LISTED: usize = 10;
