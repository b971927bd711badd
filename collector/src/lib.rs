//! The collector: gives recorded processes their shared memory, drains it, samples resident memory, and passes all data on
//! to a [`Sink`].
//!
//! In the order of the data: [`system`] and [`program`] read what there is to know of a process; [`sink`] is what drained data is
//! passed to, a capture [`file`](mod@file) or sums. [`maps`] of code, [`resident`] memory and [`pictures`] of objects are read by threads of
//! their own, when they are needed. [`recording`] is what is known of a recording, and [`session`] drains it: one thread of it
//! alternates between rounds and sleep, another calls the sink. [`processes`] answers those that connect and gives each a
//! recording; [`collector`](mod@collector) is the interface to start it all, and [`control`] the socket for other programs. Threads communicate through
//! bounded channels and the counters of the [process tree](recording::process_tree) only. The library prints nothing; messages for
//! the user are in the [`RecordingSummary`].
//!
//! Invariant: no published record is dropped while the sink works. If the sink is slow, targets wait; if it fails, they stop
//! recording and run on.

mod collector;
pub mod control;
mod file;
pub mod maps;
mod pictures;
mod processes;
mod program;
mod recording;
mod resident;
mod session;
mod sink;
mod system;

#[cfg(test)]
mod fake_target;
#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use file::file_sink::{FileSink, capture_tail};
pub use file::pack::{Compression, Packer};
pub use memtrack_transport::area::MEMORY_LINK;
pub use pictures::{EncodePicture, PictureOptions, PictureReader, PictureRequest};
pub use processes::asked_snapshots::AskedSnapshots;
pub use processes::recording_access::RecordedProcess;
pub use processes::recording_handle::RecordingHandle;
pub use program::packages::Packages;
pub use program::root_directory::RootDirectory;
pub use program::source_recorder::SourceRecorder;
pub use recording::options::{NativeStacks, RecordingOptions};
pub use recording::summary::{ChildSummary, Error, NothingRecorded, ProcessExit, RecordingEnd, RecordingSummary};
pub use session::drain_command::{RecordingMoment, RestMoment, TicketSpan};
pub use sink::follower::Follower;
pub use sink::{NewChild, OpenSink, RecordPiece, Sink, SnapshotCopy};
pub use system::descendants::{descendants, lineage};
pub use system::limits::{explained, remedy};
pub use system::process_end::ProcessEnd;
pub use system::procfs::{ProcessorTimes, last_name, processor_ns, resident_peak, thread_processor_ns};
pub use system::task_limits::room_for_tasks;

pub use system::control_groups;

// The variables of a target's environment, for callers that start it and do not use the transport.
pub use memtrack_transport::handshake::{
    DORMANT_VARIABLE, PID_DIGITS, PID_VARIABLES, PRELOAD_VARIABLE, SOCKET_VARIABLE,
};
// What the library in a running process answers.
pub use memtrack_transport::attach::AttachStatus;
// What tells whether a shim belongs to this program.
pub use memtrack_transport::identity;

pub use memtrack_transport::clock::monotonic_ns;
