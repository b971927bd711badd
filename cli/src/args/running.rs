//! The options of commands that reach recordings while they run.
//!
//! Invariant: each takes the PID of a recorded process, and none where only one program is recorded.

use clap::Args;

/// `memtrack ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) colors: super::Colors,
}
