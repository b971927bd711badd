//! What a draining thread is told, and the way to tell it.
//!
//! Invariant: whoever tells does not wait for what the thread does about it.

use std::sync::Arc;

use crossbeam_channel::Sender;
use memtrack_format::meta::Process;
use memtrack_transport::Area;
use memtrack_transport::clock::StampingClock;

use crate::procfs::{ProcessHandle, ResidentMemory};
use crate::summary::{ProcessExit, RecordingEnd};
use crate::waker::Waker;

/// What a draining thread is told.
#[derive(Debug)]
pub(crate) enum DrainCommand {
    /// A process has connected, or its next image has.
    Connected(Box<Connection>),
    /// A process asked, and could not be let in.
    NoRoom(String),
    /// The first process has ended.
    ChildExited(ProcessExit),
    /// The recording shall end.
    Finish(RecordingEnd),
}

/// A process that has connected.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) area: Arc<Area>,
    pub(crate) pid: i32,
    pub(crate) handle: Arc<ProcessHandle>,
    /// Whether it uses the same process ids as this side.
    pub(crate) same_namespace: bool,
    /// Its first thread's name, read before it could be gone.
    pub(crate) name: Option<String>,
    /// Its resident memory, the same.
    pub(crate) resident: ResidentMemory,
    pub(crate) clock: StampingClock,
    pub(crate) process: Process,
    /// Stream number of slot 0: slots of an earlier image of the process come before.
    pub(crate) base: u32,
    /// The first ticket of a later image.
    pub(crate) replaces: Option<u64>,
}

/// The way to one draining thread.
#[derive(Clone, Debug)]
pub(crate) struct CommandSender {
    commands: Sender<DrainCommand>,
    waker: Arc<Waker>,
}

impl CommandSender {
    pub(crate) fn new(commands: Sender<DrainCommand>, waker: Arc<Waker>) -> Self {
        Self { commands, waker }
    }

    /// Tells it. Nothing happens when it has ended: then nobody is interested.
    pub(crate) fn send(&self, event: DrainCommand) {
        let _ = self.commands.send(event);
        self.waker.wake();
    }
}
