//! Questions about single allocations: which of them an expression means, and what became of them.
//!
//! `function ~ "json.*" and bytes > 1MB and lifetime > 2s` is taken apart into an [`Expr`], the same form that the
//! [filters](crate::Filter) of reports become, and a [`Matcher`] says of an allocation, or of a group of them, whether it
//! is meant. [`AllocationScan`] makes whole allocations of events: made here and then, ended there and then.
//!
//! `~` is a regular expression that may match anywhere in the text (`^` and `$` bind it to its ends), `=` the whole text.
//! Invariant: one implementation judges for filters and expressions alike.

mod allocation_scan;
mod expr;
mod lexer;
mod matcher;
mod parse;
pub mod units;

pub use crate::allocation_record::{AllocationRecord, Fate};
pub use allocation_scan::{AllocationScan, KeyMoments};
pub use expr::{Amount, Comparison, Expr, Flag, Number, Test, TextField};
pub use matcher::{MatchContext, Matcher};

/// Why an expression is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}")]
pub struct QueryError {
    /// The character of the expression where it goes wrong, from 1; one more than there are for its end.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl QueryError {
    fn at(column: usize, what: impl Into<String>) -> Self {
        Self { column, what: what.into() }
    }
}

impl std::str::FromStr for Expr {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        parse::parse(text)
    }
}

#[cfg(test)]
mod tests;
