//! User-visible reasons why an interpreter's frames are not read.
//!
//! Invariant: each reason has a number of its own, which is never 0.

use super::layout::supported_versions;
use crate::platform::environment;
use crate::platform::symbol_tables::is_defined;

/// Why an interpreter's frames are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Unsupported {
    /// An unsupported version, or a pre-release before the release candidates.
    Version = 1,
    /// Built with the interpreter's own debugging aids, which change its objects.
    DebugBuild = 2,
    /// Its data structures contradict the layout of its version.
    Contradiction = 3,
    /// A symbol that every build exports is missing.
    MissingSymbol = 4,
    /// Not CPython at all.
    PyPy = 5,
    /// A program named python that exports no symbol of CPython.
    Hidden = 6,
}

impl Unsupported {
    pub(super) const ALL: [Self; 6] =
        [Self::Version, Self::DebugBuild, Self::Contradiction, Self::MissingSymbol, Self::PyPy, Self::Hidden];

    /// The reason as text for messages.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Version => concat!(
                "unsupported Python version (supported: ",
                supported_versions!(),
                ", release candidates included)"
            ),
            Self::DebugBuild => "debug builds of Python are not supported",
            Self::Contradiction => "the interpreter's data structures do not match its version",
            Self::MissingSymbol => "the interpreter does not export the required symbols",
            Self::PyPy => "PyPy is not supported, only CPython",
            Self::Hidden => "the program is named python but exports no CPython symbols",
        }
    }

    /// The reason to report if no interpreter was found.
    pub(super) fn without_interpreter() -> Option<Self> {
        if is_defined(c"pypy_main_startup") {
            return Some(Self::PyPy);
        }
        environment::program_name().starts_with(b"python").then_some(Self::Hidden)
    }
}
