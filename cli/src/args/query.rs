//! The options of `memtrack query`.
//!
//! Invariant: an expression is checked before any capture is opened.

use std::path::PathBuf;

use clap::Args;
use memtrack_reader::query::Expr;

use super::input::FilterArgs;
use super::{Output, TextArgs};
use crate::reports::query::GroupBy;

/// `memtrack query`.
#[derive(Debug, Args)]
#[command(after_long_help = LANGUAGE)]
pub(crate) struct QueryArgs {
    /// Which allocations, such as 'function ~ "json.*" and bytes > 1MB and lifetime > 2s'
    #[arg(value_name = "EXPRESSION", value_parser = expression)]
    pub(crate) expression: Typed,
    /// The capture, or captures [default: the newest in the working directory]
    #[arg(value_name = "CAPTURE")]
    pub(crate) captures: Vec<PathBuf>,
    /// Put allocations together that have this in common, instead of listing them
    #[arg(long, value_name = "WHAT")]
    pub(crate) by: Option<GroupBy>,
    /// With --by: show how many lived how long
    #[arg(long, requires = "by")]
    pub(crate) lifetimes: bool,
    /// Print JSON, with all rows
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<30>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// An expression with its text.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    pub(crate) text: String,
    pub(crate) expr: Expr,
}

const LANGUAGE: &str = "\
The expression:
  function, file      of one of the frames of the call stack    ~ !~ = !=  TEXT
  module              that the stack is put down to             ~ !~ = !=  TEXT
  thread, freed_by    that made it, that freed it: name or id   ~ !~ = !=  TEXT
  allocator           such as malloc or mmap                    ~ !~ = !=  TEXT
  bytes, size         requested, such as 512, 10kB, 1MiB        < <= = != >= >
  lifetime            to its end or that of recording: 2s, 5ms  < <= = != >= >
  time                when it was made: 1.5s, 50%               < <= = != >= >
  live, freed         at the end of recording
  leaked              live when Python began to finalize, or at the end
  temporary           freed by its thread after at most one further allocation
  peak                live at the high-water mark
  cross_thread        freed by another thread than the one that made it

  ~ is a regular expression that may match anywhere (^ and $ bind it), = the whole text. Texts with
  signs stand in quotation marks. not binds tightest, then and, then or; there are parentheses.
  A function is meant by its name, such as JSONDecoder.decode, or by that with its Python module,
  json.decoder.JSONDecoder.decode; to mean a whole module, say file ~ json.";

/// Takes an expression apart; an error shows where it goes wrong.
fn expression(text: &str) -> Result<Typed, String> {
    let expr = text.parse::<Expr>().map_err(|error| {
        let line = text.replace(char::is_control, " ");
        format!("{}\n  {line}\n  {:>column$}", error, "^", column = error.column)
    })?;
    Ok(Typed { text: text.into(), expr })
}

#[cfg(test)]
mod tests {
    use super::expression;

    #[test]
    fn errors_point_at_the_column() {
        let error = expression("live and bytes > 1 apple").unwrap_err();
        assert!(error.starts_with("column 18: apple is not a unit"), "{error}");
        assert!(error.ends_with("\n  live and bytes > 1 apple\n                   ^"), "{error}");
    }
}
