//! The options of `memtrack symbolize`.
//!
//! Invariant: without `-o` the capture itself is replaced, which requires `--force`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;
use super::input::SymbolArgs;

/// `memtrack symbolize`.
#[derive(Debug, Args)]
pub(crate) struct SymbolizeArgs {
    /// The capture; it is replaced with --force, unless -o names another file
    #[arg(value_name = "CAPTURE")]
    pub(crate) capture: PathBuf,
    #[command(flatten)]
    pub(crate) names: SymbolArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
