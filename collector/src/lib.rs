//! The collector: gives recorded processes their shared memory, drains it, samples resident memory, and passes all data on
//! to a [`Sink`].
//!
//! One thread answers processes that connect ([`server`], [`admission`]). Each admitted process has a
//! [`process_recording`] of two threads: [`drain_thread`] drains ([`session`], [`slot_reader`], [`observer`],
//! [`slot_owners`]), [`sink_queue`] calls the sink. With native stacks a third thread reads the process's mappings
//! ([`maps`]); those for [`resident`] memory and for [`pictures`] of objects are started when they are needed. Threads communicate through bounded channels and the counters of the [`process_tree`] only. The library
//! prints nothing; messages for the user are in the [`RecordingSummary`].
//!
//! Invariant: no published record is dropped while the sink works. If the sink is slow, targets wait; if it fails, they stop
//! recording and run on.

mod account_group;
mod active_threads;
mod admission;
mod allocation_counts;
mod busy_writers;
mod collector;
mod column_frames;
pub mod control;
pub mod control_groups;
mod describe;
mod directories;
mod drain_command;
mod drain_thread;
mod file_sink;
mod frozen;
mod installations;
mod installed_files;
mod library_allocators;
mod limits;
mod line_table_filter;
pub mod maps;
mod memory_limit;
mod memory_offer;
mod observer;
mod options;
mod own_malloc;
mod own_paths;
mod pack;
mod packages;
mod pictures;
mod pidfd_exit;
mod process_end;
mod process_files;
mod process_handle;
mod process_recording;
mod process_tree;
mod procfs;
mod recorded_children;
mod recording_access;
mod recording_handle;
mod recording_progress;
mod resident;
mod root_directory;
mod sample_rate;
mod segment_group;
mod server;
mod session;
mod sink;
mod sink_queue;
mod slot_owners;
mod slot_reader;
mod source_recorder;
mod started_package;
mod started_thread;
mod summary;
mod task_limits;
mod touched_pages;
mod waker;
mod worker_pool;

#[cfg(test)]
mod fake_target;
#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use drain_command::{RecordingMoment, TicketSpan};
pub use file_sink::{FileSink, capture_tail};
pub use limits::{explained, remedy};
pub use memtrack_transport::area::MEMORY_LINK;
pub use options::{NativeStacks, RecordingOptions};
pub use pack::{Compression, Packer};
pub use packages::Packages;
pub use pictures::{EncodePicture, PictureOptions, PictureReader, PictureRequest};
pub use process_end::ProcessEnd;
pub use procfs::{ProcessorTimes, last_name, processor_ns, resident_peak, thread_processor_ns};
pub use recording_access::RecordedProcess;
pub use recording_handle::RecordingHandle;
pub use root_directory::RootDirectory;
pub use sink::{NewChild, OpenSink, RecordPiece, Sink, SnapshotCopy};
pub use source_recorder::SourceRecorder;
pub use summary::{ChildSummary, Error, NothingRecorded, ProcessExit, RecordingEnd, RecordingSummary};
pub use task_limits::room_for_tasks;

// The variables of a target's environment, for callers that start it and do not use the transport.
pub use memtrack_transport::handshake::{
    DORMANT_VARIABLE, PID_DIGITS, PID_VARIABLES, PRELOAD_VARIABLE, SOCKET_VARIABLE,
};
// What the library in a running process answers.
pub use memtrack_transport::attach::AttachStatus;
// What tells whether a shim belongs to this program.
pub use memtrack_transport::identity;

pub use memtrack_transport::clock::monotonic_ns;
