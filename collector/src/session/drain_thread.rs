//! The draining thread of a recording: executes commands and alternates between draining rounds and sleeping.
//!
//! Invariant: it waits for nothing but the waker, the target's `sleeping` word, a full sink queue, and a process that
//! does not read the answer to its rest.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use memtrack_format::meta::Process;

use crate::recording::options::RecordingOptions;
use crate::recording::process_tree::ProcessTree;
use crate::recording::recording_progress::RecordingProgress;
use crate::recording::summary::{Error, NothingRecorded, ProcessExit, RecordingEnd, RecordingSummary};
use crate::session::drain_command::{Connection, DrainCommand, RestReply};
use crate::session::waker::Waker;
use crate::session::{DrainPace, Session};
use crate::sink::sink_queue::SinkQueue;

/// Time between rounds while events flow, and while rings fill quickly.
const STEADY: Duration = Duration::from_millis(1);
const FAST: Duration = Duration::from_micros(200);
/// How often is looked whether a process has ended that runs on unrecorded.
const EXEC_LOOK: Duration = Duration::from_secs(1);

/// The draining thread.
#[derive(Debug)]
pub(crate) struct DrainThread {
    options: RecordingOptions,
    commands: Receiver<DrainCommand>,
    waker: Arc<Waker>,
    tree: Arc<ProcessTree>,
    progress: Arc<RecordingProgress>,
    queue: SinkQueue,
    /// Whether the recording ends with its process, without a command.
    by_itself: bool,
    session: Option<Session>,
    /// The session's process has ended and is drained.
    over: bool,
    /// It does not count as [living](ProcessTree::living) any more.
    left_tree: bool,
    exited: Option<ProcessExit>,
    no_room: Option<String>,
    notes: Vec<String>,
}

impl DrainThread {
    pub(crate) fn new(
        options: RecordingOptions,
        commands: Receiver<DrainCommand>,
        waker: Arc<Waker>,
        (tree, progress): (Arc<ProcessTree>, Arc<RecordingProgress>),
        queue: SinkQueue,
        by_itself: bool,
    ) -> Self {
        let notes = Vec::new();
        Self {
            options,
            commands,
            waker,
            tree,
            progress,
            queue,
            by_itself,
            session: None,
            over: false,
            left_tree: false,
            exited: None,
            no_room: None,
            notes,
        }
    }

    /// Runs until the Finish command, or until the process has ended.
    pub(crate) fn run(mut self) -> Result<RecordingSummary, Error> {
        self.queue.begin_draining();
        loop {
            if self.over && self.by_itself && !self.runs_on() {
                return self.finish(RecordingEnd::Exited);
            }
            let active = self.session.is_some() && !self.over;
            let wait = || self.commands.recv().map_err(|_| TryRecvError::Disconnected);
            let watch = || {
                self.commands.recv_timeout(EXEC_LOOK).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            };
            let next = if active {
                self.commands.try_recv()
            } else if self.runs_on() {
                watch()
            } else {
                wait()
            };
            match next {
                Ok(DrainCommand::Finish(ended)) => return self.finish(ended),
                Ok(event) => self.handle(event),
                Err(TryRecvError::Empty) if active => self.step(),
                Err(TryRecvError::Empty) => self.look_at_unrecorded(),
                Err(TryRecvError::Disconnected) => return self.finish(RecordingEnd::Detached),
            }
        }
    }

    /// Whether the process runs on as a program that cannot be recorded: it may still connect, as where that starts another.
    fn runs_on(&self) -> bool {
        self.over && self.progress.unrecorded_program().is_some()
    }

    /// Whether such a process has ended.
    fn look_at_unrecorded(&mut self) {
        if self.session.as_ref().is_none_or(Session::process_has_ended) {
            self.progress.set_unrecorded_program(None);
            self.leave_tree();
        }
    }

    /// The process lives no more, or is not known to.
    fn leave_tree(&mut self) {
        if self.session.is_some() && !std::mem::replace(&mut self.left_tree, true) {
            self.tree.process_ended();
        }
    }

    fn handle(&mut self, event: DrainCommand) {
        match event {
            DrainCommand::Connected(connection) => self.connected(*connection),
            DrainCommand::NoRoom(reason) => self.no_room = Some(reason),
            DrainCommand::ChildExited(exited) => {
                self.exited = Some(exited);
                self.progress.set_unrecorded_program(None);
                self.end();
                self.leave_tree();
            }
            DrainCommand::Mark(name, answer) => {
                match self.session.as_mut().filter(|_| !self.over) {
                    Some(session) => session.mark(name, answer, &self.queue),
                    // The one who asked may have lost patience.
                    None => _ = answer.send(None),
                }
            }
            DrainCommand::Position(answer) => {
                let session = self.session.as_mut().filter(|_| !self.over);
                // As above.
                let _ = answer.send(session.map(|session| session.position(&self.queue)));
            }
            DrainCommand::Rest(RestReply(tell)) => {
                let session = self.session.as_mut().filter(|_| !self.over && !self.queue.failed());
                // The process waits for the answer, and not for the sink.
                self.queue.hold();
                tell(session.map(|session| session.rest(&mut self.queue)));
                self.queue.release();
            }
            DrainCommand::PictureOfEnd(answer) => {
                if let Some(session) = self.session.as_mut().filter(|_| !self.over) {
                    session.picture_of_end(answer);
                }
            }
            DrainCommand::Snapshot(span, answer) => {
                if let Some(session) = &mut self.session {
                    session.snapshot(span, answer, &mut self.queue);
                }
            }
            DrainCommand::WriteOut(answer) => match &mut self.session {
                Some(session) => session.write_out(answer, &mut self.queue),
                // Nothing was recorded.
                None => _ = answer.send(Ok(())),
            },
            DrainCommand::Finish(_) => {}
        }
    }

    fn connected(&mut self, connection: Connection) {
        let mut known = Process::default();
        if let (Some(mut earlier), Some(_)) = (self.session.take(), connection.replaces) {
            self.tree.add_announced(earlier.end(&mut self.queue));
            std::iter::from_fn(|| earlier.take_warning()).for_each(|warning| self.tree.note(warning));
            self.notes.extend(earlier.notes());
            known = earlier.process().clone();
        }
        self.over = false;
        if std::mem::take(&mut self.left_tree) {
            self.tree.process_returned();
        }
        // In this order: see `RecordingProgress::end_state`.
        self.progress.set_ended(false);
        self.progress.set_unrecorded_program(None);
        self.progress.set_stop_reason(None);
        self.waker.watch(Arc::clone(&connection.area));
        self.session = Some(Session::begin(connection, known, &self.options, &self.queue, &self.progress));
    }

    fn step(&mut self) {
        let Some(session) = &mut self.session else { return };
        let pace = session.round(&mut self.queue);
        self.progress.set_counts(self.queue.record_bytes, session.resident_bytes());
        match pace {
            DrainPace::Fast => self.waker.sleep(FAST),
            DrainPace::Steady => self.waker.sleep(STEADY),
            DrainPace::Idle => session.sleep(&mut self.queue, || !self.commands.is_empty()),
            DrainPace::Over => self.end(),
        }
    }

    fn end(&mut self) {
        let was_over = std::mem::replace(&mut self.over, true);
        if let Some(session) = self.session.as_mut().filter(|_| !was_over) {
            self.tree.add_announced(session.end(&mut self.queue));
            std::iter::from_fn(|| session.take_warning()).for_each(|warning| self.tree.note(warning));
            self.progress.set_counts(self.queue.record_bytes, session.resident_bytes());
            self.progress.set_ended(true);
        }
        // One that runs on unrecorded is waited for: it may connect again.
        if !self.runs_on() {
            self.leave_tree();
        }
    }

    fn finish(mut self, ended: RecordingEnd) -> Result<RecordingSummary, Error> {
        self.end();
        let ended = self.end_of_unrecorded().unwrap_or(ended);
        if let (Some(session), Some(exited)) = (&mut self.session, &self.exited) {
            session.has_exited(exited, &self.queue);
        }
        if let (Some(session), RecordingEnd::Stopped) = (&mut self.session, ended) {
            session.update_process(Process { ran_on: true, ..Process::default() }, &self.queue);
        }
        let missing = self.tree.missing();
        if let (Some(session), false, 1..) = (&mut self.session, self.by_itself, missing) {
            let news = Process { unrecorded_children: Some(missing.into()), ..Process::default() };
            session.update_process(news, &self.queue);
        }
        self.notes.extend(self.session.as_ref().map(Session::notes).unwrap_or_default());
        let complete = ended != RecordingEnd::Detached && self.notes.is_empty();
        let summary = self.summary(complete);
        self.queue.finish(complete).map_err(Error::Sink)?;
        Ok(summary)
    }

    /// How the recording has ended of a process that runs on unrecorded, whatever else is said: it has everything before that.
    fn end_of_unrecorded(&self) -> Option<RecordingEnd> {
        let session = self.session.as_ref().filter(|_| self.runs_on())?;
        Some(if session.process_has_ended() { RecordingEnd::Exited } else { RecordingEnd::Stopped })
    }

    fn summary(&self, complete: bool) -> RecordingSummary {
        let process = self.session.as_ref().map(|session| session.process().clone());
        let time = |pick: fn(&Process) -> Option<u64>| process.as_ref().and_then(pick).unwrap_or(0);
        let duration = time(|known| known.end.monotonic_ns).saturating_sub(time(|known| known.start.monotonic_ns));
        RecordingSummary {
            record_bytes: self.queue.record_bytes,
            pieces: self.queue.pieces,
            duration: Duration::from_nanos(duration),
            before: self.session.as_ref().map(Session::before).unwrap_or_default(),
            complete,
            nothing: (self.queue.record_bytes == 0).then(|| self.reason_for_no_records()),
            notes: self.notes.clone(),
            process,
            ..RecordingSummary::default()
        }
    }

    fn reason_for_no_records(&self) -> NothingRecorded {
        match (&self.session, &self.no_room) {
            (None, Some(reason)) => NothingRecorded::NoRoom(reason.clone()),
            (None, None) => NothingRecorded::NotLoaded,
            (Some(session), _) if !session.has_begun() => NothingRecorded::NotBegun,
            (Some(_), _) => NothingRecorded::NoEvents,
        }
    }
}
