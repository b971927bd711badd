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
    /// Several processes, of some the begin of finalization, of others one that is not their end.
    Several,
    /// Several processes, each as it was last seen.
    LastSeen,
}

impl LeakMoment {
    /// The moment of a process whose Python began to finalize, or did not.
    pub(crate) fn of(finalized: bool) -> Self {
        if finalized { Self::Finalization } else { Self::Exit }
    }

    /// The moment of two processes together.
    pub(crate) fn and(self, other: Self) -> Self {
        let has_exited = |moment| matches!(moment, Self::Exit | Self::Finalization | Self::Either);
        let has_finalized = |moment| matches!(moment, Self::Finalization | Self::Either | Self::Several);
        match (self, other) {
            _ if self == other => self,
            _ if has_exited(self) && has_exited(other) => Self::Either,
            _ if has_finalized(self) || has_finalized(other) => Self::Several,
            _ => Self::LastSeen,
        }
    }

    /// The moment of a view of leaks.
    pub(crate) fn in_view(self, view: View) -> Self {
        match self {
            Self::Exit | Self::Finalization | Self::Either if view == View::LeaksAtExit => Self::Exit,
            Self::Several if view == View::LeaksAtExit => Self::LastSeen,
            other => other,
        }
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
            Self::Several => "when Python began to finalize, at exit, or when it was last recorded, of each process",
            Self::LastSeen => "at the end of each process, or when it was last recorded",
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
            Self::Several | Self::LastSeen => "several",
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
            [so_far, LeakMoment::LastSeen, LeakMoment::Several]
        );
        assert_eq!(all(&[so_far, exit, exit]).name(), "several");
        assert_eq!(all(&[so_far, exit, finalization]), LeakMoment::Several);
        for several in [all(&[so_far, exit]), all(&[so_far, finalization])] {
            assert_eq!(several.in_view(View::LeaksAtExit), LeakMoment::LastSeen);
        }
    }
}
