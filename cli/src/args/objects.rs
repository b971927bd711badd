//! The options of `memtrack objects`.
//!
//! Invariant: a process is named by its number.

use clap::Args;

use super::TextArgs;

/// `memtrack objects`.
#[derive(Debug, Args)]
pub(crate) struct ObjectsArgs {
    /// The Python program, as 'ps' shows it here; it need not be recorded. It is stopped and copied for a moment, and the copy
    /// is read: that takes a process and the page tables of the program
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: i32,
    /// Stop the program for as long as it is read, instead of copying it: where it may not start processes, or memory is
    /// committed strictly
    #[arg(long)]
    pub(crate) hold: bool,
    /// Also show what each type retains: the bytes that would go if all its objects went
    #[arg(long)]
    pub(crate) retained: bool,
    /// Show instead who keeps objects alive: the shortest paths from modules and threads to those of a type (with or without
    /// its module), or to the object at an address (0x7f…)
    #[arg(long, value_name = "TYPE|ADDRESS")]
    pub(crate) why: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs<30>,
}
