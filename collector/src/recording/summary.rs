//! The summary of a finished recording, and the errors of a recording.
//!
//! Invariant: a recording without records has a reason for it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use memtrack_format::meta::Process;

use crate::system::limits;
use crate::system::procfs::ProcessorTimes;

/// How the recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// The process has ended.
    Exited,
    /// The process runs on, without being recorded: records of what it does meanwhile may be missing.
    Detached,
    /// The process has stopped recording before, as it was asked to, and runs on.
    Stopped,
}

/// What the system reported when the first process was waited for.
#[derive(Clone, Debug, Default)]
pub struct ProcessExit {
    /// Its exit status as a shell gives it: 128+N for signal N.
    pub status: u8,
    /// What ended it, if a signal did; in words.
    pub reason: Option<String>,
    /// Its processor time in nanoseconds, as [`processor_ns`](crate::processor_ns) gave it before it was waited for.
    pub cpu_ns: Option<u64>,
    /// Its peak of resident memory in bytes, if that is known to be its own.
    pub resident_peak: Option<u64>,
    /// The name that the system had for its first thread, as [`last_name`](crate::last_name) gave it.
    pub name: Option<String>,
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct RecordingSummary {
    /// Metadata of the process; `None` if none connected.
    pub process: Option<Process>,
    /// Record bytes, before compression.
    pub record_bytes: u64,
    /// Pieces that the records came in.
    pub pieces: u64,
    /// Time from the connection to the end.
    pub duration: Duration,
    /// Processor time that the process had taken when its last image began: its earlier images', and their children's.
    pub before: ProcessorTimes,
    /// Whether everything that was recorded was handed over, up to the end of the process.
    pub complete: bool,
    /// Why nothing was recorded, if nothing was.
    pub nothing: Option<NothingRecorded>,
    /// Number of processes that connected and were refused.
    pub refused: u32,
    /// The recorded children.
    pub followed: Vec<ChildSummary>,
    /// Number of children that were announced and did not connect.
    pub missing: u32,
    /// Other messages for the user.
    pub notes: Vec<String>,
}

/// A child that was recorded.
#[derive(Clone, Debug)]
pub struct ChildSummary {
    /// Its process id.
    pub pid: i32,
    /// Its number in the tree, from 1.
    pub number: u32,
    /// The summary of its recording, or why that failed.
    pub summary: Result<Box<RecordingSummary>, String>,
}

/// Why nothing was recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingRecorded {
    /// No process connected.
    #[error(
        "the program did not load memtrack's library: it is statically linked, set-user-ID, built for another \
         architecture, or was started with a cleared environment"
    )]
    NotLoaded,
    /// A process connected and could not be admitted.
    #[error("the program could not be admitted to the recording: {0}")]
    NoRoom(String),
    /// A process connected and did not begin.
    #[error("the program exited immediately, or could not map the shared memory (check ulimit -v and ulimit -n)")]
    NotBegun,
    /// It began, and recorded nothing.
    #[error("the program made no allocation that memtrack can record")]
    NoEvents,
}

/// Why a recording failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path of the socket does not fit the system's limit.
    #[error("{path}: the path of the socket has {len} bytes, the maximum is 107: set TMPDIR to a shorter path")]
    LongPath {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
    },
    /// The socket cannot be made.
    #[error(
        "{path}: cannot create the socket by which the program connects to memtrack: {reason}{}", other_directory(.reason)
    )]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// Writing failed; what was written before is readable. The program runs on, unrecorded.
    #[error("writing the capture failed: {0}; data written before the error is kept")]
    Sink(io::Error),
    /// A thread of the collector panicked.
    #[error("internal error: the draining thread panicked")]
    Panicked,
}

/// What helps where no limit of the system is the reason, whose remedy is another.
fn other_directory(reason: &io::Error) -> &'static str {
    if limits::remedy(reason).is_some() { "" } else { "; set TMPDIR to another directory" }
}

impl Error {
    /// The system's error, if that is the reason.
    #[must_use]
    pub fn reason(&self) -> Option<&io::Error> {
        match self {
            Self::Socket { reason, .. } | Self::Thread(reason) | Self::Sink(reason) => Some(reason),
            Self::LongPath { .. } | Self::Panicked => None,
        }
    }
}
