//! Why the frames of an interpreter are not read, as the person who runs memtrack is told.
//!
//! Invariant: each reason has a number of its own, which is never 0.

use crate::platform::environment;
use crate::platform::symbol_tables::is_defined;

/// Why an interpreter's frames are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Unsupported {
    /// Not one of the versions 3.8 to 3.15, or a pre-release before the release candidates.
    Version = 1,
    /// Built with the interpreter's own debugging aids, which change its objects.
    DebugBuild = 2,
    /// Its structures are not those of its version.
    Contradiction = 3,
    /// A symbol that every build exports is missing.
    MissingSymbol = 4,
    /// Not CPython at all.
    PyPy = 5,
    /// A program called python that exports nothing of an interpreter.
    Hidden = 6,
}

impl Unsupported {
    pub(super) const ALL: [Self; 6] =
        [Self::Version, Self::DebugBuild, Self::Contradiction, Self::MissingSymbol, Self::PyPy, Self::Hidden];

    /// A sentence for the person who runs memtrack.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Version => "this version of Python is not known (known: 3.8 to 3.15)",
            Self::DebugBuild => "debug builds of Python are not supported",
            Self::Contradiction => "the interpreter's structures are not those of its version",
            Self::MissingSymbol => "the interpreter does not export the symbols that are needed",
            Self::PyPy => "this is PyPy; only the frames of CPython can be read",
            Self::Hidden => "the program is called python, but exports no CPython interpreter",
        }
    }

    /// What speaks against Python frames in a program in which no interpreter was found.
    pub(super) fn without_interpreter() -> Option<Self> {
        if is_defined(c"pypy_main_startup") {
            return Some(Self::PyPy);
        }
        environment::program_name().starts_with(b"python").then_some(Self::Hidden)
    }
}
