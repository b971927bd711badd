//! The options of `memtrack mcp`.
//!
//! Invariant: the directory is given once, at the start; no request can name another.

use std::path::PathBuf;

use clap::Args;

/// `memtrack mcp`.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Captures below this directory are offered
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
}
