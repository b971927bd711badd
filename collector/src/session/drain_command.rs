//! Commands to a draining thread, and their sender.
//!
//! Invariant: a sender does not wait for the execution of its command.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use memtrack_format::meta::{EndTimes, Process, StartTimes};
use memtrack_transport::Area;
use memtrack_transport::clock::StampingClock;

use crate::recording::summary::{ProcessExit, RecordingEnd};
use crate::session::waker::Waker;
use crate::sink::SnapshotCopy;
use crate::system::process_handle::ProcessHandle;
use crate::system::procfs::ResidentMemory;

/// How long an answer is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A command to a draining thread.
#[derive(Debug)]
pub(crate) enum DrainCommand {
    /// A process has connected, or its next image after an exec.
    Connected(Box<Connection>),
    /// A process connected and could not be admitted, for this reason.
    NoRoom(String),
    /// The first process has ended.
    ChildExited(ProcessExit),
    /// Name the present moment; the answer is its time since the recording began, `None` without a living process.
    Mark(String, Sender<Option<u64>>),
    /// Take the ticket of the present moment.
    Position(Sender<Option<RecordingMoment>>),
    /// Take the present moment, at which no thread of the process records, and tell it.
    Rest(RestReply),
    /// Read the objects of the process, if they are to be read at the end of the recording, which comes although it runs on. The
    /// sender is dropped when it is done.
    PictureOfEnd(Sender<()>),
    /// Write out everything up to now, of which this span is wanted; the answer says where it is.
    Snapshot(TicketSpan, Sender<io::Result<SnapshotCopy>>),
    /// Write out everything up to now; the answer comes when who follows the capture can read it, or says why it cannot be written.
    WriteOut(Sender<io::Result<()>>),
    /// End the recording.
    Finish(RecordingEnd),
}

/// A moment of the recording of a process: what comes before it has earlier tickets, what comes after it later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingMoment {
    /// The ticket that was taken for it.
    pub ticket: u64,
    /// The stamping clock at it.
    pub ticks: u64,
    /// CLOCK_MONOTONIC at it, in nanoseconds.
    pub monotonic_ns: u64,
}

/// The moment of a rest, of which the follower has everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestMoment {
    /// The moment itself.
    pub moment: RecordingMoment,
    /// The streams (ascending) that may still add records with earlier tickets.
    pub busy: Vec<u32>,
}

/// Who is told the moment of a rest, on the draining thread; `None`: it can write no more, or the process has ended. It is dropped
/// where the thread has ended.
pub(crate) struct RestReply(pub(crate) Box<dyn FnOnce(Option<RestMoment>) + Send>);

impl fmt::Debug for RestReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RestReply")
    }
}

/// The part of a recording between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TicketSpan {
    /// `None`: it begins with the recording.
    pub begin: Option<RecordingMoment>,
    /// `None`: everything up to now belongs to it.
    pub end: Option<RecordingMoment>,
}

impl TicketSpan {
    /// What a capture of this span says otherwise than that of the whole recording, which says `known`: time counts from the
    /// begin of the span, and ends with it.
    #[must_use]
    pub fn metadata(&self, known: &Process) -> Process {
        let start = self.begin.map_or_else(Default::default, |begin| {
            let since = begin.monotonic_ns.saturating_sub(known.start.monotonic_ns.unwrap_or(begin.monotonic_ns));
            StartTimes {
                ticks: Some(begin.ticks),
                monotonic_ns: Some(begin.monotonic_ns),
                realtime_ns: known.start.realtime_ns.map(|start| start.saturating_add(since)),
                ..StartTimes::default()
            }
        });
        let end = |of: fn(&RecordingMoment) -> u64| self.end.as_ref().map(of);
        Process {
            start,
            end: EndTimes { ticks: end(|end| end.ticks), monotonic_ns: end(|end| end.monotonic_ns), alive_ns: None },
            span_ticket: self.begin.map(|begin| begin.ticket),
            snapshot_ticket: end(|end| end.ticket),
            began_late: self.begin.is_some(),
            ran_on: self.end.is_some(),
            ..Process::default()
        }
    }
}

/// A process that was admitted.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) area: Arc<Area>,
    pub(crate) pid: i32,
    pub(crate) handle: Arc<ProcessHandle>,
    /// Its process id in its own namespace.
    pub(crate) own_pid: i32,
    /// Its first thread's name, read at once, since the thread may end soon.
    pub(crate) name: Option<String>,
    /// Its resident memory, read at once for the same reason.
    pub(crate) resident: ResidentMemory,
    pub(crate) clock: StampingClock,
    pub(crate) process: Process,
    /// Stream number of slot 0; lower numbers are those of the process's earlier images.
    pub(crate) base: u32,
    /// For an image after an exec: its first ticket.
    pub(crate) replaces: Option<u64>,
}

/// Why a command was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The thread has ended, or cannot execute it.
    Ended,
    /// It has not come to it yet, as where the disk is slow; it will.
    Late,
}

/// Sends commands to one draining thread.
#[derive(Clone, Debug)]
pub(crate) struct CommandSender {
    commands: Sender<DrainCommand>,
    waker: Arc<Waker>,
}

impl CommandSender {
    /// A sender, and where its commands come out. The channel has no bound: one that has keeps what a thread had not taken when it
    /// ended, so that whoever asked would wait for an answer for as long as it has patience.
    pub(crate) fn new(waker: Arc<Waker>) -> (Self, Receiver<DrainCommand>) {
        let (commands, inbox) = unbounded();
        (Self { commands, waker }, inbox)
    }

    /// Sends a command whose answer is waited for, but not for long.
    pub(crate) fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> DrainCommand) -> Result<T, NoAnswer> {
        self.ask_for(PATIENCE, command)
    }

    /// The same, and so long is waited for the answer.
    pub(crate) fn ask_for<T>(
        &self,
        patience: Duration,
        command: impl FnOnce(Sender<T>) -> DrainCommand,
    ) -> Result<T, NoAnswer> {
        let (answer, answered) = bounded(1);
        self.commands.send(command(answer)).map_err(|_| NoAnswer::Ended)?;
        self.waker.wake();
        answered.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Late,
            RecvTimeoutError::Disconnected => NoAnswer::Ended,
        })
    }

    /// Sends a command whose answer the caller waits for, at the latest at the deadline. `None`: the thread has ended or is too busy.
    pub(crate) fn begin<T>(
        &self,
        deadline: Instant,
        command: impl FnOnce(Sender<T>) -> DrainCommand,
    ) -> Option<Receiver<T>> {
        let (answer, answered) = bounded(1);
        self.commands.send_deadline(command(answer), deadline).ok()?;
        self.waker.wake();
        Some(answered)
    }

    /// Sends a command; without effect if the thread has ended.
    pub(crate) fn send(&self, event: DrainCommand) {
        let _ = self.commands.send(event);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use crossbeam_channel::RecvTimeoutError;

    use super::{CommandSender, DrainCommand, NoAnswer};

    #[test]
    fn what_a_thread_had_not_taken_when_it_ended_is_not_waited_for() {
        let (commands, inbox) = CommandSender::new(Arc::default());
        let patience = Duration::from_secs(60);
        let answered = commands.begin(Instant::now() + patience, DrainCommand::Position).unwrap();
        drop(inbox);
        assert_eq!(answered.recv_timeout(patience), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_thread_that_is_late_is_told_from_one_that_has_ended() {
        let (commands, inbox) = CommandSender::new(Arc::default());
        assert_eq!(commands.ask_for(Duration::ZERO, DrainCommand::Position), Err(NoAnswer::Late));
        drop(inbox);
        assert_eq!(commands.ask(DrainCommand::Position), Err(NoAnswer::Ended));
    }
}
