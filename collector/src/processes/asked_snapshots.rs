//! Snapshots of all processes of a recording that were asked for at once; each answers when its thread comes to it.
//!
//! Invariant: who waits does so until one deadline for all.

use std::io;
use std::time::Instant;

use crossbeam_channel::{Receiver, Select};

use crate::processes::recording_access::{NOT_BEGUN, RecordingAccess, cut_off, has_not_begun};
use crate::session::drain_command::{DrainCommand, NoAnswer, PATIENCE, TicketSpan};
use crate::sink::SnapshotCopy;

/// A process that has not answered yet.
#[derive(Debug)]
struct AskedProcess {
    number: u32,
    access: RecordingAccess,
    answer: Receiver<io::Result<SnapshotCopy>>,
}

/// The snapshots that were asked for.
#[derive(Debug)]
pub struct AskedSnapshots {
    asked: Vec<AskedProcess>,
    /// Those that could not be asked any more.
    ended: Vec<(u32, RecordingAccess)>,
    patience: Instant,
}

impl AskedSnapshots {
    /// Asks all of these processes, by their numbers in the tree.
    pub(crate) fn ask(all: Vec<(u32, RecordingAccess)>) -> Self {
        let patience = Instant::now() + PATIENCE;
        let (mut asked, mut ended) = (Vec::new(), Vec::new());
        for (number, access) in all {
            let command = |answer| DrainCommand::Snapshot(TicketSpan::default(), answer);
            match access.commands.begin(patience, command) {
                Some(answer) => asked.push(AskedProcess { number, access, answer }),
                None => ended.push((number, access)),
            }
        }
        Self { asked, ended, patience }
    }

    /// When those that have not answered are not waited for any more.
    #[must_use]
    pub fn patience(&self) -> Instant {
        self.patience
    }

    /// The number of a process and its answer, the next that there is; `None`: all have answered, or none until the deadline.
    ///
    /// # Errors
    /// In the answer: why there is no snapshot of it, for the user.
    pub fn next_until(&mut self, deadline: Instant) -> Option<(u32, Result<SnapshotCopy, String>)> {
        if let Some((number, access)) = self.ended.pop() {
            return Some((number, Err(why_no_snapshot(NoAnswer::Ended, &access))));
        }
        if self.asked.is_empty() {
            return None;
        }
        let mut select = Select::new();
        self.asked.iter().for_each(|process| _ = select.recv(&process.answer));
        let ready = select.select_deadline(deadline).ok()?;
        let place = ready.index();
        let answered = ready.recv(&self.asked.get(place)?.answer).map_err(|_| NoAnswer::Ended);
        let AskedProcess { number, access, .. } = self.asked.swap_remove(place);
        Some((number, snapshot_of(answered, &access)))
    }

    /// Whether all answers were given out.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.asked.is_empty() && self.ended.is_empty()
    }

    /// Those that have not answered and are not waited for any more, with the reason for the user.
    pub fn take_unanswered(&mut self) -> Vec<(u32, String)> {
        let late = |process: AskedProcess| (process.number, why_no_snapshot(NoAnswer::Late, &process.access));
        self.asked.drain(..).map(late).collect()
    }
}

/// Why there is no snapshot of a process that did not answer, for the user.
fn why_no_snapshot(none: NoAnswer, access: &RecordingAccess) -> String {
    match none {
        NoAnswer::Late => "the recording is too busy to answer: try it again".into(),
        NoAnswer::Ended if has_not_begun(std::slice::from_ref(&(0, access.clone()))) => NOT_BEGUN.into(),
        NoAnswer::Ended => "the process has ended".into(),
    }
}

/// What was answered, or why there is nothing.
///
/// # Errors
/// Why, for the user.
pub(crate) fn snapshot_of(
    answered: Result<io::Result<SnapshotCopy>, NoAnswer>,
    access: &RecordingAccess,
) -> Result<SnapshotCopy, String> {
    match answered {
        Ok(Ok(copy)) => Ok(copy),
        Ok(Err(error)) if error.kind() == io::ErrorKind::Unsupported => {
            Err("the capture of this recording is no regular file, so it cannot be copied".into())
        }
        Ok(Err(_)) if let Some(reason) = access.progress.write_error() => Err(cut_off(reason)),
        Ok(Err(error)) => Err(format!("the capture cannot be written: {error}")),
        Err(none) => Err(why_no_snapshot(none, access)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::time::Instant;

    use crossbeam_channel::Receiver;

    use super::AskedSnapshots;
    use crate::processes::recording_access::RecordingAccess;
    use crate::session::drain_command::{CommandSender, DrainCommand};
    use crate::sink::SnapshotCopy;

    fn process(number: u32) -> ((u32, RecordingAccess), Receiver<DrainCommand>) {
        let (commands, inbox) = CommandSender::new(Arc::default());
        ((number, RecordingAccess { admitted: None, commands, progress: Arc::default() }), inbox)
    }

    fn answer(inbox: &Receiver<DrainCommand>, descriptor: i32) {
        let Ok(DrainCommand::Snapshot(_, answer)) = inbox.try_recv() else { panic!("it was asked at once") };
        let file = File::open("/dev/null").unwrap();
        answer.send(Ok(SnapshotCopy { descriptor, file, length: 1, tail: Vec::new() })).unwrap();
    }

    #[test]
    fn processes_that_do_not_answer_keep_none_from_being_asked() {
        let ((first, one), (second, two), (third, three)) = (process(0), process(1), process(2));
        let mut asked = AskedSnapshots::ask(vec![first, second, third]);
        assert!(asked.next_until(Instant::now()).is_none());
        answer(&two, 7);
        let (number, copy) = asked.next_until(Instant::now()).unwrap();
        assert_eq!((number, copy.unwrap().descriptor), (1, 7));
        assert!(asked.next_until(Instant::now()).is_none());
        // Its thread ends without an answer.
        drop(three);
        let (number, copy) = asked.next_until(asked.patience()).unwrap();
        assert_eq!((number, copy.is_err()), (2, true));
        answer(&one, 9);
        let (number, copy) = asked.next_until(asked.patience()).unwrap();
        assert_eq!((number, copy.unwrap().descriptor), (0, 9));
        assert!(asked.next_until(asked.patience()).is_none(), "there are no more");
        assert!(asked.is_complete() && asked.take_unanswered().is_empty());
    }

    #[test]
    fn those_that_have_ended_and_those_that_are_late_are_told_apart() {
        let ((first, one), (second, two)) = (process(0), process(1));
        first.1.progress.set_ended(true);
        drop(one);
        let mut asked = AskedSnapshots::ask(vec![first, second]);
        let (number, why) = asked.next_until(Instant::now()).unwrap();
        assert_eq!((number, why.unwrap_err().as_str()), (0, "the process has ended"));
        assert!(asked.next_until(Instant::now()).is_none());
        assert!(!asked.is_complete());
        let [(1, why)] = &asked.take_unanswered()[..] else { panic!("one is late") };
        assert!(why.contains("too busy"), "{why}");
        drop(two);
    }
}
