//! Access to a running recording from other threads: for the commands of the control socket, and limits.
//!
//! Invariant: it keeps no recording alive, and no draining thread waits for its user.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use memtrack_transport::clock::monotonic_ns;

use crate::pictures::LAST_PATIENCE;
use crate::processes::asked_snapshots::{AskedSnapshots, snapshot_of};
use crate::processes::recorded_children::RecordedChildren;
use crate::processes::recording_access::{NOT_BEGUN, RecordedProcess, RecordingAccess, cut_off, has_not_begun};
use crate::session::drain_command::{
    DrainCommand, NoAnswer, PATIENCE, RecordingMoment, RestMoment, RestReply, TicketSpan,
};
use crate::sink::SnapshotCopy;

/// How long is waited until everything is written when the process rests: a slow disk is waited for, as at the end of a recording.
const WRITING_LIMIT: Duration = Duration::from_secs(3600);
/// The same for spans. The program, which waits meanwhile, gives an answer twice as long.
const SPAN_PATIENCE: Duration = Duration::from_secs(60);

/// Looks at a running recording and steers it; clones are of the same recording.
#[derive(Clone, Debug)]
pub struct RecordingHandle {
    first: RecordingAccess,
    children: RecordedChildren,
}

impl RecordingHandle {
    pub(crate) fn new(first: RecordingAccess, children: RecordedChildren) -> Self {
        Self { first, children }
    }

    /// The recorded processes, the first one first.
    #[must_use]
    pub fn processes(&self) -> Vec<RecordedProcess> {
        self.all().iter().map(|(number, access)| access.describe(*number)).collect()
    }

    /// The first process. The others are not looked at, however many there were.
    #[must_use]
    pub fn first(&self) -> RecordedProcess {
        self.first.describe(0)
    }

    /// The numbers of the processes whose captures could not be written any more, and why, for the user.
    #[must_use]
    pub fn cut_off(&self) -> Vec<(u32, String)> {
        let of = |(number, access): (u32, RecordingAccess)| Some((number, cut_off(access.progress.write_error()?)));
        self.all().into_iter().filter_map(of).collect()
    }

    /// The numbers of the processes that run on unrecorded, and that they do, for the user.
    #[must_use]
    pub fn unrecorded(&self) -> Vec<(u32, String)> {
        let text =
            |program| format!("the recording has ended: it has become {program}, which cannot load memtrack's library");
        let of = |(number, access): (u32, RecordingAccess)| Some((number, text(access.progress.unrecorded_program()?)));
        self.all().into_iter().filter_map(of).collect()
    }

    /// For this long, checkpoints come more often: somebody follows the captures while they are written.
    pub fn follow_for(&self, time: Duration) {
        let until_ns = monotonic_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.all().iter().for_each(|(_, access)| access.progress.set_followed(until_ns));
    }

    /// Writes out what every process has recorded until now, so that who follows the captures can read it. Waits until the
    /// deadline at the latest; gives the numbers of the processes of which it was written.
    #[must_use]
    pub fn write_out(&self, deadline: Instant) -> Vec<u32> {
        // All at once: each takes its time.
        let ask = |(number, access): (u32, RecordingAccess)| {
            let answer = access.commands.begin(deadline, DrainCommand::WriteOut);
            (number, access, answer)
        };
        let asked: Vec<_> = self.all().into_iter().map(ask).collect();
        let is_written = |(_, access, answer): &(u32, RecordingAccess, Option<Receiver<io::Result<()>>>)| {
            match answer.as_ref().map(|answer| answer.recv_deadline(deadline)) {
                Some(Ok(Ok(()))) => true,
                Some(Err(RecvTimeoutError::Timeout)) => false,
                // The thread of a process that has ended is gone when everything is written.
                Some(Ok(Err(_)) | Err(RecvTimeoutError::Disconnected)) | None => access.progress.has_ended(),
            }
        };
        asked.into_iter().filter(is_written).map(|(number, ..)| number).collect()
    }

    /// Resident memory of the living processes in bytes at their last samples, without memtrack's own.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let living = self.all().into_iter().filter(|(_, access)| !access.progress.has_ended());
        living.filter_map(|(_, access)| access.progress.resident_bytes()).sum()
    }

    /// Names the present moment in every capture of the recording; the time in the first process, in nanoseconds since its
    /// recording began, and the number of captures.
    ///
    /// # Errors
    /// Why no capture has it, for the user.
    pub fn mark(&self, name: &str) -> Result<(u64, u64), String> {
        let mark = |answer| DrainCommand::Mark(name.to_owned(), answer);
        let all = self.all();
        let living: Vec<_> = all.iter().filter(|(_, access)| !access.progress.has_ended()).collect();
        let answers: Vec<_> = living.iter().map(|(_, access)| access.commands.ask(mark)).collect();
        let times: Vec<u64> = answers.iter().filter_map(|answer| answer.ok().flatten()).collect();
        let write_error = || living.iter().find_map(|(_, access)| access.progress.write_error());
        match times.first() {
            Some(first) => Ok((*first, times.len() as u64)),
            None if answers.contains(&Err(NoAnswer::Late)) => {
                Err("the recording is too busy to answer; the mark is set when it comes to it".into())
            }
            None if let Some(reason) = write_error() => Err(cut_off(reason)),
            None if has_not_begun(&all) => Err(NOT_BEGUN.into()),
            None => Err("no recorded process is running any more".into()),
        }
    }

    /// Sends SIGTERM to every recorded process but the first one that was not sent one before; returns how many got it.
    #[must_use]
    pub fn terminate_children(&self) -> usize {
        self.children.access().iter().filter(|(_, access)| access.progress.terminate()).count()
    }

    /// Before the recording ends while the processes run on: reads their objects, if they are to be read at its end.
    pub fn take_pictures_of_end(&self) {
        for (_, access) in self.all().iter().filter(|(_, access)| !access.progress.has_ended()) {
            // Its sender is dropped where the process ends meanwhile.
            let _ = access.commands.ask_for(LAST_PATIENCE, DrainCommand::PictureOfEnd);
        }
    }

    /// The present moment of the process with this number in the tree, for a [`TicketSpan`]. `None`: it does not record. Where the
    /// disk holds up the recording, it is waited for.
    ///
    /// # Errors
    /// There was no answer in all that time, in words for the user.
    pub fn position(&self, number: u32) -> Result<Option<RecordingMoment>, String> {
        let Some((_, access)) = self.all().into_iter().find(|(known, _)| *known == number) else { return Ok(None) };
        match access.commands.ask_for(SPAN_PATIENCE, DrainCommand::Position) {
            Ok(moment) => Ok(moment),
            Err(NoAnswer::Ended) => Ok(None),
            Err(NoAnswer::Late) => Err("the recording is too busy to answer: try it again".into()),
        }
    }

    /// Takes the present moment of the first process, of which no thread records, and tells it on the draining thread, when the
    /// recording's follower has everything before it. `tell` is dropped where that thread has ended.
    pub fn rest(&self, tell: impl FnOnce(Option<RestMoment>) + Send + 'static) {
        self.first.commands.send(DrainCommand::Rest(RestReply(Box::new(tell))));
    }

    /// Takes the present moment of the first process, of which no thread records, and writes out what it has recorded until now, so
    /// that who follows its capture can read it.
    ///
    /// # Errors
    /// Why that cannot be done, for the user.
    pub fn written_position(&self) -> Result<RecordingMoment, String> {
        const ENDED: &str = "the recording has ended";
        let (deadline, commands) = (Instant::now() + WRITING_LIMIT, &self.first.commands);
        let moment = commands.begin(deadline, DrainCommand::Position).ok_or(ENDED)?;
        let written = commands.begin(deadline, DrainCommand::WriteOut).ok_or(ENDED)?;
        match written.recv_deadline(deadline) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("the capture cannot be written: {error}")),
            Err(RecvTimeoutError::Timeout) => return Err("the recording is too busy to answer".into()),
            Err(RecvTimeoutError::Disconnected) => return Err(ENDED.into()),
        }
        moment.recv_deadline(deadline).ok().flatten().ok_or_else(|| ENDED.into())
    }

    /// Makes everything up to now readable in the capture of the process with this number in the tree, and says where it is.
    ///
    /// # Errors
    /// Why it cannot be done, for the user.
    pub fn snapshot(&self, number: u32) -> Result<SnapshotCopy, String> {
        self.snapshot_within(PATIENCE, number, TicketSpan::default())
    }

    /// The same of a span, which the process waits for: a slow disk is, too.
    ///
    /// # Errors
    /// As for [`RecordingHandle::snapshot`].
    pub fn span(&self, number: u32, span: TicketSpan) -> Result<SnapshotCopy, String> {
        self.snapshot_within(SPAN_PATIENCE, number, span)
    }

    fn snapshot_within(&self, patience: Duration, number: u32, span: TicketSpan) -> Result<SnapshotCopy, String> {
        let found = self.all().into_iter().find(|(known, _)| *known == number);
        let (_, access) = found.ok_or("the process is not recorded any more")?;
        let answered = access.commands.ask_for(patience, |answer| DrainCommand::Snapshot(span, answer));
        snapshot_of(answered, &access)
    }

    /// Asks every process for the same of all that it has recorded, and waits for none.
    #[must_use]
    pub fn ask_for_snapshots(&self) -> AskedSnapshots {
        AskedSnapshots::ask(self.all())
    }

    /// All recordings, with their numbers.
    fn all(&self) -> Vec<(u32, RecordingAccess)> {
        [(0, self.first.clone())].into_iter().chain(self.children.access()).collect()
    }
}
