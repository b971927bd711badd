//! The moment at which live memory counts as leaked.
//!
//! Invariant: every report uses the same words for the moment.

use memtrack_reader::View;

/// The moment at which live memory counts as leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeakMoment {
    /// The end of the recording: for native programs, and if Python did not finalize.
    #[default]
    Exit,
    /// When Python began to finalize.
    Finalization,
    /// When a snapshot was taken, while the program ran.
    Snapshot,
    /// When the recording ended, while the program ran on.
    RecordingEnd,
    /// The last moment of a recording that goes on.
    SoFar,
    /// Several processes, of some the begin of finalization, of the others the exit.
    Either,
    /// Several processes with other moments, too.
    Several,
}

impl LeakMoment {
    /// The moment of a process whose Python began to finalize, or did not.
    pub(crate) fn of(finalized: bool) -> Self {
        if finalized { Self::Finalization } else { Self::Exit }
    }

    /// The moment of two processes together.
    pub(crate) fn and(self, other: Self) -> Self {
        let has_exited = |moment| matches!(moment, Self::Exit | Self::Finalization | Self::Either);
        match (self, other) {
            _ if self == other => self,
            _ if has_exited(self) && has_exited(other) => Self::Either,
            _ => Self::Several,
        }
    }

    /// The moment of a view of leaks.
    pub(crate) fn in_view(self, view: View) -> Self {
        let has_ended = matches!(self, Self::Exit | Self::Finalization | Self::Either);
        if view == View::LeaksAtExit && has_ended { Self::Exit } else { self }
    }

    /// The moment as text.
    pub(crate) fn when(self) -> &'static str {
        match self {
            Self::Exit => "at exit",
            Self::Finalization => "when Python began to finalize",
            Self::Snapshot => "when the snapshot was taken",
            Self::RecordingEnd => "when the recording ended",
            Self::SoFar => "at the last moment recorded so far",
            Self::Either => "when Python began to finalize, or at exit",
            Self::Several => "at the end of each process, or when it was last recorded",
        }
    }

    /// The moment in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Finalization => "finalization",
            Self::Snapshot => "snapshot",
            Self::RecordingEnd => "recording-end",
            Self::SoFar => "so-far",
            Self::Either => "finalization-or-exit",
            Self::Several => "several",
        }
    }
}

#[cfg(test)]
mod tests {
    use memtrack_reader::View;

    use super::LeakMoment;

    #[test]
    fn of_processes_that_have_not_all_ended_no_moment_is_told_that_none_had() {
        let all = |moments: &[LeakMoment]| moments.iter().copied().reduce(LeakMoment::and).unwrap();
        let [exit, finalization, so_far] = [LeakMoment::Exit, LeakMoment::Finalization, LeakMoment::SoFar];
        assert_eq!(all(&[exit, finalization, exit]), LeakMoment::Either);
        assert_eq!(
            [all(&[so_far, so_far]), all(&[so_far, exit]), all(&[exit, finalization, so_far])],
            [so_far, LeakMoment::Several, LeakMoment::Several]
        );
        assert_eq!(all(&[so_far, exit, exit]).name(), "several");
        assert_eq!(all(&[so_far, exit]).in_view(View::LeaksAtExit), LeakMoment::Several);
    }
}
