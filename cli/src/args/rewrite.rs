//! The options of `memtrack merge`, `strip` and `anonymize`.
//!
//! Invariant: each of them writes a capture that every command can read.

use std::path::PathBuf;

use clap::Args;
use memtrack_reader::query::units::{size, span};

use super::OutputArgs;

/// `memtrack merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Captures to merge, such as those of one process tree; each stays intact, a process is taken once, and reports cover all of them
    #[arg(value_name = "CAPTURE", required = true)]
    pub(crate) captures: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack strip`.
#[derive(Debug, Args)]
pub(crate) struct StripArgs {
    /// The capture
    #[arg(value_name = "CAPTURE")]
    pub(crate) capture: PathBuf,
    /// Drop allocations that lived less than TIME, such as 1ms or 2s
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10ms")]
    pub(crate) lived_less: u64,
    /// Drop only allocations smaller than SIZE, such as 1kB or 1MB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64KiB")]
    pub(crate) smaller: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `memtrack anonymize`.
#[derive(Debug, Args)]
pub(crate) struct AnonymizeArgs {
    /// The capture
    #[arg(value_name = "CAPTURE")]
    pub(crate) capture: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
