//! The options of `memtrack query`.
//!
//! Invariant: an expression is checked before any capture is opened.

use std::path::PathBuf;

use clap::Args;
use memtrack_reader::query::Expr;

use super::input::FilterArgs;
use super::{OutputArgs, TextArgs};
use crate::reports::query::GroupBy;

/// `memtrack query`.
#[derive(Debug, Args)]
#[command(after_long_help = LANGUAGE)]
pub(crate) struct QueryArgs {
    /// Which allocations, such as 'function ~ "json.*" and bytes > 1MB and lifetime > 2s'
    #[arg(value_name = "EXPRESSION", value_parser = expression)]
    pub(crate) expression: ParsedExpression,
    /// The capture, or captures [default: the newest in the working directory]
    #[arg(value_name = "CAPTURE")]
    pub(crate) captures: Vec<PathBuf>,
    /// Group allocations by this attribute instead of listing them
    #[arg(long, value_name = "WHAT")]
    pub(crate) by: Option<GroupBy>,
    /// With --by: show a lifetime histogram
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
    pub(crate) output: OutputArgs,
}

/// A parsed expression and its source text.
#[derive(Clone, Debug)]
pub(crate) struct ParsedExpression {
    pub(crate) text: String,
    pub(crate) expr: Expr,
}

const LANGUAGE: &str = "\
The expression:
  function, file      of any frame of the call stack           ~ !~ = !=  TEXT
  module              that the stack is attributed to          ~ !~ = !=  TEXT
  thread, freed_by    that allocated, that freed: name or id   ~ !~ = !=  TEXT
  allocator           such as malloc or mmap                   ~ !~ = !=  TEXT
  bytes, size         requested, such as 512, 10kB, 1MiB       < <= = != >= >
  lifetime            until the free, or the end: 2s, 5ms      < <= = != >= >
  time                of the allocation: 1.5s, 50%             < <= = != >= >
  live, freed         at the end of recording
  leaked              live when Python began to finalize, or at the end
  temporary           freed by its thread after at most one further allocation
  peak                live at the high-water mark
  cross_thread        freed by another thread than the one that made it

  ~ matches a regular expression anywhere in the text (anchor it with ^ and $); = compares the whole
  text. Put text with special characters in quotation marks. not binds tightest, then and, then or;
  parentheses group. A function matches by its name, such as JSONDecoder.decode, or by its name with
  the Python module, json.decoder.JSONDecoder.decode; to match a whole module, use file ~ json.";

/// Parses an expression; an error points to the column.
fn expression(text: &str) -> Result<ParsedExpression, String> {
    let expr = text.parse::<Expr>().map_err(|error| {
        let line = text.replace(char::is_control, " ");
        format!("{}\n  {line}\n  {:>column$}", error, "^", column = error.column)
    })?;
    Ok(ParsedExpression { text: text.into(), expr })
}

#[cfg(test)]
mod tests {
    use super::expression;

    #[test]
    fn errors_point_at_the_column() {
        let error = expression("live and bytes > 1 apple").unwrap_err();
        assert!(error.starts_with("column 18: unknown size unit apple"), "{error}");
        assert!(error.ends_with("\n  live and bytes > 1 apple\n                   ^"), "{error}");
    }
}
