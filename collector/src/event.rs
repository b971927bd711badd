//! What a draining thread is told, and the way to tell it.
//!
//! Invariant: whoever tells does not wait for what the thread does about it.

use std::sync::Arc;

use crossbeam_channel::Sender;
use memtrack_format::meta::Process;
use memtrack_transport::Area;
use memtrack_transport::clock::StampingClock;

use crate::bell::Bell;
use crate::proc::{Life, Resident};
use crate::summary::{Ended, Exited};

/// What a draining thread is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// A process has connected, or its next image has.
    Connected(Box<Connection>),
    /// A process asked, and could not be let in.
    NoRoom(String),
    /// The first process has ended.
    ChildExited(Exited),
    /// The recording shall end.
    Finish(Ended),
}

/// A process that has connected.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) area: Arc<Area>,
    pub(crate) pid: i32,
    pub(crate) life: Arc<Life>,
    /// Whether it uses the same process ids as this side.
    pub(crate) same_namespace: bool,
    /// Its first thread's name, read before it could be gone.
    pub(crate) name: Option<String>,
    /// Its resident memory, the same.
    pub(crate) resident: Resident,
    pub(crate) clock: StampingClock,
    pub(crate) process: Process,
    /// Stream number of slot 0: slots of an earlier image of the process come before.
    pub(crate) base: u32,
    /// The first ticket of a later image.
    pub(crate) replaces: Option<u64>,
}

/// The way to one draining thread.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    events: Sender<Event>,
    bell: Arc<Bell>,
}

impl Line {
    pub(crate) fn new(events: Sender<Event>, bell: Arc<Bell>) -> Self {
        Self { events, bell }
    }

    /// Tells it. Nothing happens when it has ended: then nobody is interested.
    pub(crate) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
        self.bell.ring();
    }
}
