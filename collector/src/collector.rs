//! The public interface: start the collector, start the program, report its exit status, take the summary.
//!
//! Invariant: a started collector serves its targets until it is finished or dropped, whatever the caller does meanwhile.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::processes::admission::RecordingOpeners;
use crate::processes::process_recording::ProcessRecording;
use crate::processes::recorded_children::{RecordedChild, RecordedChildren};
use crate::processes::recording_handle::RecordingHandle;
use crate::processes::server::Server;
use crate::recording::options::RecordingOptions;
use crate::recording::process_tree::ProcessTree;
use crate::recording::summary::{ChildSummary, Error, ProcessExit, RecordingEnd, RecordingSummary};
use crate::session::drain_command::DrainCommand;
use crate::sink::{OpenSink, Sink};

/// How long to wait for an announced child to connect after all other processes have ended.
const GRACE: Duration = Duration::from_millis(250);
/// Polling interval for the end of all processes.
const LOOK: Duration = Duration::from_millis(5);

/// A running recording.
#[derive(Debug)]
pub struct Collector {
    server: Server,
    first: ProcessRecording,
    tree: Arc<ProcessTree>,
    children: RecordedChildren,
}

impl Collector {
    /// Starts to listen in `private_dir`, which must be accessible to this user only; it is created (with mode 0700) if it
    /// does not exist.
    ///
    /// # Errors
    /// When the socket cannot be made or a thread cannot be started.
    pub fn start(private_dir: &Path, options: RecordingOptions, sink: Box<dyn Sink>) -> Result<Self, Error> {
        Self::start_tree(private_dir, options, sink, None)
    }

    /// As [`Collector::start`], and records the program's descendants, too.
    ///
    /// # Errors
    /// As [`Collector::start`].
    pub fn start_following(
        private_dir: &Path,
        options: RecordingOptions,
        sink: Box<dyn Sink>,
        open: OpenSink,
    ) -> Result<Self, Error> {
        Self::start_tree(private_dir, options, sink, Some(open))
    }

    fn start_tree(
        private_dir: &Path,
        options: RecordingOptions,
        sink: Box<dyn Sink>,
        open: Option<OpenSink>,
    ) -> Result<Self, Error> {
        let tree = Arc::new(ProcessTree::default());
        let (first, threads) = ProcessRecording::start(options.clone(), sink, Arc::clone(&tree), false)?;
        let children = RecordedChildren::default();
        let openers = RecordingOpeners { first: first.commands().clone(), open, children: children.clone() };
        let server = Server::start(private_dir, options, openers, Arc::clone(&tree))?;
        threads.wait();
        Ok(Self { server, first, tree, children })
    }

    /// The path of the socket, for [`memtrack_transport::handshake::SOCKET_VARIABLE`] in the target's environment.
    #[must_use]
    pub fn socket_path(&self) -> &Path {
        self.server.path()
    }

    /// Access to the recording for other threads.
    #[must_use]
    pub fn handle(&self) -> RecordingHandle {
        RecordingHandle::new(self.first.access(), self.children.clone())
    }

    /// Sets the process that must be the first to be recorded; it is running. Without this call it is the first that connects.
    pub fn expect_child(&self, pid: u32) {
        self.tree.expect_first(pid.cast_signed());
        self.server.expect();
    }

    /// Sets the process that must be the first to be recorded, and that does not connect by itself: it is
    /// [given](Collector::give) memory.
    pub fn expect_given(&self, pid: i32) {
        self.tree.expect_first(pid);
    }

    /// Begins to record a process in a memory file that it shares, which is empty. Returns the number of slots to tell it;
    /// `None`: after so many attempts with other numbers there is no further one. `ready` is called with that number as soon
    /// as the process may write into the memory, before the rest is done, for which it need not wait.
    ///
    /// # Errors
    /// The file cannot be sized or mapped.
    pub fn give(
        &self,
        pid: i32,
        file: BorrowedFd<'_>,
        attempt: usize,
        ready: &mut dyn FnMut(u32),
    ) -> io::Result<Option<u32>> {
        self.server.give(pid, file, attempt, ready)
    }

    /// Reports that the child has ended and was waited for; the rest of its records is drained at once.
    pub fn child_exited(&self, exited: ProcessExit) {
        self.first.commands().send(DrainCommand::ChildExited(exited));
    }

    /// Admits no further process: a child that connects later runs unrecorded. Those that have connected are among the
    /// [processes](RecordingHandle::processes) when this returns.
    pub fn stop_admitting(&mut self) {
        self.server.stop_listening();
    }

    /// Waits until every recorded process has ended, or `go_on`, called with the number of living ones, returns `false`.
    pub fn wait_for_all(&self, mut go_on: impl FnMut(u32) -> bool) {
        let mut quiet = Instant::now();
        while go_on(self.tree.living()) {
            if self.tree.living() > 0 {
                quiet = Instant::now();
            } else if self.tree.missing() == 0 || quiet.elapsed() > GRACE {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Drains and writes the remaining records, and ends the recording. A target that still runs stops recording. Children that
    /// still record have been stopped, too, if the first process was, or are left without a collector.
    ///
    /// # Errors
    /// [`Error::Sink`] when writing failed, now or before.
    pub fn finish(self, ended: RecordingEnd) -> Result<RecordingSummary, Error> {
        let of_children = if ended == RecordingEnd::Stopped { ended } else { RecordingEnd::Detached };
        self.finish_each(ended, |_| of_children)
    }

    /// As [`Collector::finish`]. `of_child`: how the recording of the child with this number has ended, if it is not over by itself.
    ///
    /// # Errors
    /// As [`Collector::finish`].
    pub fn finish_each(
        self,
        ended: RecordingEnd,
        of_child: impl Fn(u32) -> RecordingEnd,
    ) -> Result<RecordingSummary, Error> {
        let _socket = self.server.stop();
        let followed = |RecordedChild { pid, number, recording }| {
            let summary = recording.finish(of_child(number));
            ChildSummary { pid, number, summary: summary.map_err(|error| error.to_string()).map(Box::new) }
        };
        let followed: Vec<ChildSummary> = self.children.take().into_iter().map(followed).collect();
        // Last: its capture has the number of children that are not known of.
        let mut summary = self.first.finish(ended)?;
        summary.refused = self.tree.refused();
        summary.missing = self.tree.missing();
        summary.followed = followed;
        summary.notes.extend(self.tree.take_notes());
        Ok(summary)
    }
}
