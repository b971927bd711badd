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
    /// Several processes with different moments.
    Either,
}

impl LeakMoment {
    /// The moment of a process whose Python began to finalize, or did not.
    pub(crate) fn of(finalized: bool) -> Self {
        if finalized { Self::Finalization } else { Self::Exit }
    }

    /// The moment of two processes together.
    pub(crate) fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Either }
    }

    /// The moment of a view of leaks.
    pub(crate) fn in_view(self, view: View) -> Self {
        let has_ended = !matches!(self, Self::Snapshot | Self::RecordingEnd | Self::SoFar);
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
        }
    }
}
