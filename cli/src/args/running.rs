//! The options of commands that reach recordings while they run.
//!
//! Invariant: each takes the PID of a recorded process, and none where only one program is recorded.

use clap::Args;

/// `memtrack mark`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct MarkArgs {
    /// A recorded process [default: that of the only recording]
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The name of the moment; several moments may have the same
    #[arg(value_name = "NAME", required = true)]
    pub(crate) name: String,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `memtrack ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) colors: super::Colors,
}
