//! The recording of one process: its draining thread, with the thread that feeds its sink.
//!
//! Every process has threads of its own while it lives, so that a busy one does not delay the others.
//!
//! Invariant: a recording that has ended has handed over all its records.

use std::sync::Arc;

use crate::processes::recording_access::RecordingAccess;
use crate::recording::options::RecordingOptions;
use crate::recording::process_tree::ProcessTree;
use crate::recording::recording_progress::RecordingProgress;
use crate::recording::summary::{Error, RecordingEnd, RecordingSummary};
use crate::session::drain_command::{CommandSender, DrainCommand};
use crate::session::drain_thread::DrainThread;
use crate::session::waker::Waker;
use crate::sink::Sink;
use crate::sink::sink_queue::SinkQueue;
use crate::system::started_thread::BeginningThread;
use crate::system::worker_pool::{RunningWork, WorkerPool};

static DRAINING: WorkerPool = WorkerPool::new("memtrack-drain");

/// The threads of a recording that was just started.
#[derive(Debug)]
pub(crate) struct BeginningThreads([BeginningThread; 2]);

impl BeginningThreads {
    /// Waits until they have begun.
    pub(crate) fn wait(self) {
        self.0.into_iter().for_each(BeginningThread::wait);
    }
}

/// A running recording.
#[derive(Debug)]
pub(crate) struct ProcessRecording {
    commands: CommandSender,
    progress: Arc<RecordingProgress>,
    work: RunningWork<Result<RecordingSummary, Error>>,
}

impl ProcessRecording {
    /// Starts a recording. With `by_itself` it ends with its process, otherwise by a Finish command. Its process may not write
    /// before its [threads](BeginningThreads) have begun.
    pub(crate) fn start(
        options: RecordingOptions,
        sink: Box<dyn Sink>,
        tree: Arc<ProcessTree>,
        by_itself: bool,
    ) -> Result<(Self, BeginningThreads), Error> {
        let waker = Arc::new(Waker::default());
        let (commands, inbox) = CommandSender::new(Arc::clone(&waker));
        let (queue, writes) = SinkQueue::start(sink).map_err(Error::Thread)?;
        let progress = Arc::<RecordingProgress>::default();
        let collect =
            DrainThread::new(options, inbox, Arc::clone(&waker), (tree, Arc::clone(&progress)), queue, by_itself);
        let (work, drains) = DRAINING.execute(move || collect.run()).map_err(Error::Thread)?;
        Ok((Self { commands, progress, work }, BeginningThreads([writes, drains])))
    }

    pub(crate) fn commands(&self) -> &CommandSender {
        &self.commands
    }

    /// Access for other threads.
    pub(crate) fn access(&self) -> RecordingAccess {
        RecordingAccess { admitted: None, commands: self.commands.clone(), progress: Arc::clone(&self.progress) }
    }

    /// Ends the recording if it still runs, and waits for it.
    pub(crate) fn finish(self, ended: RecordingEnd) -> Result<RecordingSummary, Error> {
        self.commands.send(DrainCommand::Finish(ended));
        self.work.join().unwrap_or(Err(Error::Panicked))
    }
}
