//! The draining thread: takes what the others tell it, and gives the session its rounds and rests.
//!
//! Invariant: it never waits for anything but the bell, the target's word, and a full way to the sink.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use memtrack_format::meta::Process;

use crate::bell::Bell;
use crate::collector::Options;
use crate::output::Output;
use crate::server::Counters;
use crate::session::{Connection, Pace, Session};
use crate::summary::{Ended, Error, NothingRecorded, Summary};

/// Between rounds while events flow, and while rings fill quickly.
const STEADY: Duration = Duration::from_millis(1);
const FAST: Duration = Duration::from_micros(200);

/// What the draining thread is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// A process has connected, or its next image has.
    Connected(Box<Connection>),
    /// The shared memory could not be made.
    NoMemory(String),
    /// The child has ended, with this status as a shell gives it.
    ChildExited(u8),
    /// The recording shall end.
    Finish(Ended),
}

/// The draining thread.
#[derive(Debug)]
pub(crate) struct Collect {
    options: Options,
    events: Receiver<Event>,
    bell: Arc<Bell>,
    counters: Arc<Counters>,
    output: Output,
    session: Option<Session>,
    /// The session's process is gone, and drained.
    over: bool,
    exit_status: Option<u8>,
    no_memory: Option<String>,
    notes: Vec<String>,
}

impl Collect {
    pub(crate) fn new(
        options: Options,
        events: Receiver<Event>,
        bell: Arc<Bell>,
        counters: Arc<Counters>,
        output: Output,
    ) -> Self {
        let notes = Vec::new();
        Self {
            options,
            events,
            bell,
            counters,
            output,
            session: None,
            over: false,
            exit_status: None,
            no_memory: None,
            notes,
        }
    }

    /// Runs until told to finish.
    pub(crate) fn run(mut self) -> Result<Summary, Error> {
        loop {
            let active = self.session.is_some() && !self.over;
            let wait = || self.events.recv().map_err(|_| TryRecvError::Disconnected);
            match if active { self.events.try_recv() } else { wait() } {
                Ok(Event::Finish(ended)) => return self.finish(ended),
                Ok(event) => self.handle(event),
                Err(TryRecvError::Empty) => self.step(),
                Err(TryRecvError::Disconnected) => return self.finish(Ended::Detached),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Connected(connection) => {
                if let (Some(mut earlier), Some(_)) = (self.session.take(), connection.replaces) {
                    earlier.end(&mut self.output);
                    self.notes.extend(earlier.notes());
                }
                self.over = false;
                self.session = Some(Session::begin(*connection, &self.options, &self.output));
            }
            Event::NoMemory(reason) => self.no_memory = Some(reason),
            Event::ChildExited(status) => {
                self.exit_status = Some(status);
                self.end();
            }
            Event::Finish(_) => {}
        }
    }

    fn step(&mut self) {
        let Some(session) = &mut self.session else { return };
        match session.round(&mut self.output) {
            Pace::Fast => self.bell.nap(FAST),
            Pace::Steady => self.bell.nap(STEADY),
            Pace::Idle => session.rest(&mut self.output, || !self.events.is_empty()),
            Pace::Over => self.end(),
        }
    }

    fn end(&mut self) {
        self.over = true;
        if let Some(session) = &mut self.session {
            session.end(&mut self.output);
        }
    }

    fn finish(mut self, ended: Ended) -> Result<Summary, Error> {
        self.end();
        let exit_status = self.exit_status.map(u64::from);
        if let (Some(session), Some(_)) = (&mut self.session, exit_status) {
            session.learn(Process { exit_status, ..Process::default() }, &self.output);
        }
        self.notes.extend(self.session.as_ref().map(Session::notes).unwrap_or_default());
        let complete = ended == Ended::Exited && self.notes.is_empty();
        let summary = self.summary(complete);
        self.output.finish(complete).map_err(Error::Sink)?;
        Ok(summary)
    }

    fn summary(&self, complete: bool) -> Summary {
        let process = self.session.as_ref().map(|session| session.process().clone());
        let time = |pick: fn(&Process) -> Option<u64>| process.as_ref().and_then(pick).unwrap_or(0);
        let duration = time(|known| known.end_monotonic_ns).saturating_sub(time(|known| known.start_monotonic_ns));
        Summary {
            record_bytes: self.output.record_bytes,
            pieces: self.output.pieces,
            duration: Duration::from_nanos(duration),
            complete,
            nothing: (self.output.record_bytes == 0).then(|| self.why_nothing()),
            refused: self.counters.refused.load(Relaxed),
            notes: self.notes.clone(),
            process,
        }
    }

    fn why_nothing(&self) -> NothingRecorded {
        match (&self.session, &self.no_memory) {
            (None, Some(reason)) => NothingRecorded::NoMemory(reason.clone()),
            (None, None) => NothingRecorded::NotLoaded,
            (Some(session), _) if !session.has_begun() => NothingRecorded::NotBegun,
            (Some(_), _) => NothingRecorded::NoEvents,
        }
    }
}
