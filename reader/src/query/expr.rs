//! The syntax tree of expressions and filters.
//!
//! Invariant: every tree can be evaluated; invalid expressions are rejected by the parser.

use memtrack_format::Allocator;
use regex::Regex;

use super::units::Time;
use crate::origin::Whose;

/// A predicate on an allocation.
#[derive(Clone, Debug)]
pub enum Expr {
    /// All of these; an empty list is true.
    And(Vec<Self>),
    /// One of these; an empty list is false.
    Or(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// A text field passes the test.
    Text(TextField, Test),
    /// The allocating function is this one.
    Allocator(Allocator),
    /// The memory belongs to these.
    Whose(Whose),
    /// A number compares like this with the amount.
    Number(Number, Comparison, Amount),
    /// The allocation has this property.
    Flag(Flag),
}

/// The fields that are texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextField {
    /// The functions of the stack: one of them.
    Function,
    /// The source files of the stack: one of them.
    File,
    /// The module that the stack is attributed to.
    Module,
    /// The allocating thread: its name or its number.
    Thread,
    /// The thread that freed it: its name or its number.
    FreedBy,
}

/// A test of a text.
#[derive(Clone, Debug)]
pub enum Test {
    /// It is equal to this.
    Is(String),
    /// It contains this.
    Contains(String),
    /// It has a match of this regular expression.
    Matches(Regex),
}

/// The fields that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Bytes requested.
    Bytes,
    /// Nanoseconds from its allocation to its end, or to the end of the recording.
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

/// A number in an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, or nanoseconds.
    Plain(u64),
    /// A time.
    Moment(Time),
}

/// Properties of an allocation.
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
    /// Whether it can be evaluated for groups instead of single allocations.
    #[must_use]
    pub fn is_of_groups(&self) -> bool {
        match self {
            Self::And(all) | Self::Or(all) => all.iter().all(Self::is_of_groups),
            Self::Not(one) => one.is_of_groups(),
            Self::Text(TextField::FreedBy, _) | Self::Number(..) | Self::Flag(_) => false,
            Self::Text(..) | Self::Allocator(_) | Self::Whose(_) => true,
        }
    }

    /// Whether the result may depend on this property.
    #[must_use]
    pub fn mentions(&self, flag: Flag) -> bool {
        match self {
            Self::And(all) | Self::Or(all) => all.iter().any(|one| one.mentions(flag)),
            Self::Not(one) => one.mentions(flag),
            Self::Flag(own) => *own == flag,
            Self::Text(..) | Self::Allocator(_) | Self::Whose(_) | Self::Number(..) => false,
        }
    }

    /// Tests for one of these texts, each made by `test`; true if there are none.
    pub(crate) fn any_of(text: TextField, wanted: &[String], test: fn(String) -> Test) -> Self {
        let tests: Vec<_> = wanted.iter().map(|wanted| Self::Text(text, test(wanted.clone()))).collect();
        if tests.is_empty() { Self::And(tests) } else { Self::Or(tests) }
    }
}

impl Test {
    /// What a filter by a function's name asks: `=NAME` for the whole name, anything else for a part of it.
    pub(crate) fn is_or_contains(wanted: String) -> Self {
        match wanted.strip_prefix('=').filter(|name| !name.is_empty()) {
            Some(name) => Self::Is(name.to_owned()),
            None => Self::Contains(wanted),
        }
    }

    /// Whether this text passes.
    #[must_use]
    pub fn takes(&self, text: &str) -> bool {
        match self {
            Self::Is(wanted) => text == wanted,
            Self::Contains(wanted) => text.contains(&**wanted),
            Self::Matches(regex) => regex.is_match(text),
        }
    }

    /// Whether this dotted module name or one of its parents passes.
    #[must_use]
    pub fn takes_module(&self, name: &str) -> bool {
        let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
        ends.into_iter().any(|end| self.takes(name.get(..end).unwrap_or(name)))
    }

    /// Whether a function passes by its full name, `module.function`. A match must include a part of the function's own
    /// name: `main` does not match everything in `main.py`.
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
    /// Whether the numbers compare like this.
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
