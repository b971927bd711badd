//! Access to the recording of one process, for threads that do not drain it.
//!
//! Invariant: it keeps no recording alive, and no draining thread waits for its user.

use std::sync::Arc;

use memtrack_format::meta::Process;

use crate::recording::recording_progress::RecordingProgress;
use crate::session::drain_command::CommandSender;
use crate::system::procfs;

/// Why nothing is done before a process has connected.
pub(crate) const NOT_BEGUN: &str = "the program has not begun to record yet: try it again in a moment";

/// That a recording has ended because its capture could not be written, for the user.
pub(crate) fn cut_off(reason: &str) -> String {
    format!("the recording has ended: its capture could not be written any more: {reason}")
}

/// Whether none of these processes has connected yet.
pub(crate) fn has_not_begun(all: &[(u32, RecordingAccess)]) -> bool {
    all.iter().all(|(_, access)| !access.progress.has_ended() && access.progress.process().is_none())
}

/// Access to the recording of one process.
#[derive(Clone, Debug)]
pub(crate) struct RecordingAccess {
    /// The process id of a child, which is known before the child has [metadata](RecordingProgress::process).
    pub(crate) admitted: Option<i32>,
    pub(crate) commands: CommandSender,
    pub(crate) progress: Arc<RecordingProgress>,
}

/// A process that is recorded, or was.
#[derive(Clone, Debug)]
pub struct RecordedProcess {
    /// Its number in the tree; the first process has 0.
    pub number: u32,
    /// Its process id, for the collector; `None` before it has connected.
    pub pid: Option<i32>,
    /// Its metadata so far; `None` before it has connected.
    pub process: Option<Process>,
    /// Whether it has ended.
    pub ended: bool,
    /// Why its capture could not be written, so that it is not recorded any more.
    pub write_error: Option<String>,
    /// The program as which it runs on unrecorded, since that cannot load the library: it counts as ended.
    pub unrecorded_program: Option<String>,
    /// Why its library has stopped recording, while the program runs on.
    pub stop_reason: Option<&'static str>,
    /// Whether it has called `exit` or the like, or sent itself a signal: then no other process ended it.
    pub ends_itself: bool,
    /// Bytes of records so far, before compression.
    pub record_bytes: u64,
    /// Resident memory in bytes at the last sample, without memtrack's own.
    pub resident_bytes: Option<u64>,
}

impl RecordedProcess {
    /// What it shows as its command line now, if it runs and that is not what it was recorded with: forked children have that of their
    /// parent first, and workers of a server give themselves a title.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        let (pid, process) = (self.pid.filter(|_| !self.ended)?, self.process.as_ref()?);
        let words = procfs::command_line(pid);
        let is_other = !words.is_empty() && words != process.command_line;
        is_other.then(|| String::from_utf8_lossy(&words.join(&b' ')).into_owned())
    }
}

impl RecordingAccess {
    /// What is known of the process, which has this number in the tree.
    pub(crate) fn describe(&self, number: u32) -> RecordedProcess {
        let Self { progress, .. } = self;
        let process = progress.process();
        let told = || process.as_ref()?.pid.map(u32::cast_signed);
        let (ended, unrecorded_program) = progress.end_state();
        RecordedProcess {
            number,
            pid: self.admitted.or_else(told),
            process,
            ended,
            write_error: progress.write_error().map(str::to_owned),
            unrecorded_program,
            stop_reason: progress.stop_reason(),
            ends_itself: progress.ends_itself(),
            record_bytes: progress.record_bytes(),
            resident_bytes: progress.resident_bytes(),
        }
    }
}
