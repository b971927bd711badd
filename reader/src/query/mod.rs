//! Queries on single allocations.
//!
//! The parser turns `function ~ "json.*" and bytes > 1MB and lifetime > 2s` into an [`Expr`]; the
//! [filters](crate::Filter) of reports become the same form. A [`Matcher`] evaluates it for an allocation or for a
//! group. [`AllocationScan`] joins events to whole allocations.
//!
//! `~` is a regular expression that may match anywhere in the text (`^` and `$` anchor it), `=` compares the whole
//! text. Invariant: filters and expressions share one implementation.

mod allocation_scan;
mod expr;
mod key_moments;
mod lexer;
mod matcher;
mod parse;
pub mod units;

pub use crate::allocation_record::{AllocationOutcome, AllocationRecord};
pub use allocation_scan::AllocationScan;
pub use expr::{Amount, Comparison, Expr, Flag, Number, Test, TextField};
pub use key_moments::KeyMoments;
pub use matcher::{MatchContext, Matcher};
pub use parse::field_names;

/// A syntax error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}")]
pub struct QueryError {
    /// The column of the error in characters, from 1; one more than the length for the end.
    pub column: usize,
    /// What is wrong, and what is expected.
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
