//! The collector as its caller sees it: start it, start the program, tell it how that ended, take the summary.
//!
//! Invariant: once started it serves its target until finished or dropped, whatever the caller does meanwhile.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use crate::bell::Bell;
use crate::collect::{Collect, Event};
use crate::output::Output;
use crate::server::{Counters, Server};
use crate::sink::Sink;
use crate::summary::{Ended, Error, Summary};

/// Events that may wait for the draining thread.
const EVENTS: usize = 64;

/// How to record.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Every event carries its time.
    pub timestamps: bool,
    /// Blocks of Python's own allocators are recorded, and not what those take from the system.
    pub python_allocators: bool,
    /// Frames of the interpreter may be marked, so that deep Python stacks need not be compared whole.
    pub frame_marks: bool,
    /// Between memory snapshots; 1 ms at the least.
    pub snapshot_interval: Duration,
    /// How often unfinished segments are saved, so that a capture can be read while it is written.
    pub checkpoint: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timestamps: false,
            python_allocators: false,
            frame_marks: true,
            snapshot_interval: Duration::from_millis(10),
            checkpoint: Duration::from_millis(500),
        }
    }
}

/// A running recording.
#[derive(Debug)]
pub struct Collector {
    server: Server,
    events: Sender<Event>,
    bell: Arc<Bell>,
    counters: Arc<Counters>,
    thread: JoinHandle<Result<Summary, Error>>,
}

impl Collector {
    /// Starts to listen in `private_dir`, which only this user may be able to enter; it is made (with mode 0700) if it does not exist.
    ///
    /// # Errors
    /// When the socket cannot be made or a thread cannot be started.
    pub fn start(private_dir: &Path, options: Options, sink: Box<dyn Sink>) -> Result<Self, Error> {
        let (events, inbox) = bounded(EVENTS);
        let (bell, counters) = (Arc::new(Bell::default()), Arc::new(Counters::default()));
        let server = Server::start(private_dir, options, events.clone(), Arc::clone(&bell), Arc::clone(&counters))?;
        let output = Output::start(sink).map_err(Error::Thread)?;
        let collect = Collect::new(options, inbox, Arc::clone(&bell), Arc::clone(&counters), output);
        let thread = std::thread::Builder::new()
            .name("memtrack-drain".into())
            .spawn(move || collect.run())
            .map_err(Error::Thread)?;
        Ok(Self { server, events, bell, counters, thread })
    }

    /// What the target's environment is to name in [`memtrack_transport::handshake::SOCKET_VARIABLE`].
    #[must_use]
    pub fn socket_path(&self) -> &Path {
        self.server.path()
    }

    /// Only this process is recorded (and not whichever connects first, if none has).
    pub fn expect_child(&self, pid: u32) {
        self.counters.expected.store(pid.cast_signed(), Release);
    }

    /// The child has ended and was waited for: what it left is drained at once.
    pub fn child_exited(&self, status: ExitStatus) {
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(0);
        self.tell(Event::ChildExited(code as u8));
    }

    /// Drains and writes what is left, and ends the recording. A target that still runs records nothing any longer.
    ///
    /// # Errors
    /// [`Error::Sink`] when writing failed, now or before.
    pub fn finish(self, ended: Ended) -> Result<Summary, Error> {
        self.tell(Event::Finish(ended));
        let result = self.thread.join().unwrap_or(Err(Error::Panicked));
        self.server.stop();
        result
    }

    fn tell(&self, event: Event) {
        // Fails only when the draining thread has panicked, which finish() reports.
        let _ = self.events.send(event);
        self.bell.ring();
    }
}
