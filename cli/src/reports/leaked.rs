//! What "leaked" says: what was live at which moment.
//!
//! Invariant: every report names the moment in the same words.

use memtrack_reader::View;

/// The moment whose live memory is called leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeakMoment {
    /// The end of the recording: of native programs, and where Python did not come to its end.
    #[default]
    Exit,
    /// Python began to finalize, and held what the program had not freed.
    Finalization,
    /// Of several processes, each at its own of the two.
    Either,
}

impl LeakMoment {
    /// Of a process whose Python began to finalize, or did not.
    pub(crate) fn of(finalized: bool) -> Self {
        if finalized { Self::Finalization } else { Self::Exit }
    }

    /// Of two processes together.
    pub(crate) fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Either }
    }

    /// The moment of a view of leaks.
    pub(crate) fn in_view(self, view: View) -> Self {
        if view == View::LeaksAtExit { Self::Exit } else { self }
    }

    /// For people.
    pub(crate) fn when(self) -> &'static str {
        match self {
            Self::Exit => "at exit",
            Self::Finalization => "when Python began to finalize",
            Self::Either => "when Python began to finalize, or at exit",
        }
    }

    /// The word in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Finalization => "finalization",
            Self::Either => "finalization-or-exit",
        }
    }
}
