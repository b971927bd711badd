//! What an expression says, taken apart: the one form of predicate, of expressions and of filters alike.
//!
//! Invariant: a tree of this kind can be judged; whatever could not be has been refused when it was made.

use memtrack_format::Allocator;
use regex::Regex;

use super::units::Time;
use crate::origin::Whose;

/// A predicate on an allocation.
#[derive(Clone, Debug)]
pub enum Expr {
    /// All of these; none is true.
    And(Vec<Self>),
    /// One of these; none is false.
    Or(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// A text is as the test says.
    Text(TextField, Test),
    /// By this function.
    Allocator(Allocator),
    /// Its memory is theirs.
    Whose(Whose),
    /// A number compares to this one as said.
    Number(Number, Comparison, Amount),
    /// What became of it.
    Flag(Flag),
}

/// What has a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextField {
    /// The functions of the stack: one of them.
    Function,
    /// The source files of the stack: one of them.
    File,
    /// The module that the stack is put down to.
    Module,
    /// The allocating thread: its name or its number.
    Thread,
    /// The thread that freed it: its name or its number.
    FreedBy,
}

/// How a text should be.
#[derive(Clone, Debug)]
pub enum Test {
    /// This one.
    Is(String),
    /// It contains this.
    Contains(String),
    /// It contains what this describes.
    Matches(Regex),
}

/// What has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Bytes requested.
    Bytes,
    /// Nanoseconds from its making to its end, or to the end of recording.
    Lifetime,
    /// When it was made, in nanoseconds since recording began.
    Time,
}

/// How two numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum Comparison {
    Less,
    AtMost,
    Equal,
    Unequal,
    AtLeast,
    More,
}

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, or nanoseconds.
    Plain(u64),
    /// A moment.
    Moment(Time),
}

/// What became of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Live at the end of recording.
    Live,
    /// Freed by the program.
    Freed,
    /// Live when Python began to finalize, or at the end where that was not seen.
    Leaked,
    /// Freed at once by the thread that made it.
    Temporary,
    /// Live at the high-water mark.
    Peak,
    /// Freed by another thread than the one that made it.
    CrossThread,
}

impl Expr {
    /// Whether everything satisfies it.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::And(all) if all.iter().all(Self::is_everything))
    }

    /// Whether sums over groups of allocations are enough to judge it.
    #[must_use]
    pub fn is_of_groups(&self) -> bool {
        match self {
            Self::And(all) | Self::Or(all) => all.iter().all(Self::is_of_groups),
            Self::Not(one) => one.is_of_groups(),
            Self::Text(TextField::FreedBy, _) | Self::Number(..) | Self::Flag(_) => false,
            Self::Text(..) | Self::Allocator(_) | Self::Whose(_) => true,
        }
    }

    /// One of these texts, in the way that a test is made of each; true where there are none.
    pub(crate) fn any_of(text: TextField, wanted: &[String], test: fn(String) -> Test) -> Self {
        let tests: Vec<_> = wanted.iter().map(|wanted| Self::Text(text, test(wanted.clone()))).collect();
        if tests.is_empty() { Self::And(tests) } else { Self::Or(tests) }
    }
}

impl Test {
    /// Whether this text is so.
    #[must_use]
    pub fn takes(&self, text: &str) -> bool {
        match self {
            Self::Is(wanted) => text == wanted,
            Self::Contains(wanted) => text.contains(&**wanted),
            Self::Matches(regex) => regex.is_match(text),
        }
    }

    /// Whether a module of this dotted name, or one that it lies below, is so.
    #[must_use]
    pub fn takes_module(&self, name: &str) -> bool {
        let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
        ends.into_iter().any(|end| self.takes(name.get(..end).unwrap_or(name)))
    }

    /// Whether a function of this module is as wanted by its full name, `module.function`. What is found in that has to
    /// have something of the function's own name: to say `main` does not mean everything in `main.py`.
    #[must_use]
    pub fn takes_in(&self, module: &str, function: &str) -> bool {
        let (text, own) = (format!("{module}.{function}"), module.len() + 1);
        match self {
            Self::Is(wanted) => text == *wanted,
            Self::Contains(wanted) => text.rfind(&**wanted).is_some_and(|at| at + wanted.len() > own),
            Self::Matches(regex) => regex.find_iter(&text).any(|found| found.end() > own),
        }
    }
}

impl Comparison {
    /// Whether the numbers compare so.
    #[must_use]
    pub fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Equal => left == right,
            Self::Unequal => left != right,
            Self::AtLeast => left >= right,
            Self::More => left > right,
        }
    }
}
