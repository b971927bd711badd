//! The options of `memtrack completions`, `memtrack man` and `memtrack help`.
//!
//! Invariant: completions exist only for shells for which they are tested.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `memtrack completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// A shell that completes arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// For ~/.local/share/bash-completion/completions/memtrack
    Bash,
    /// For _memtrack in a directory of fpath
    Zsh,
    /// For ~/.config/fish/completions/memtrack.fish
    Fish,
}

/// `memtrack man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where the pages are written
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

/// `memtrack help`.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A document or a command; without it, all are listed
    #[arg(value_name = "TOPIC")]
    pub(crate) topic: Vec<String>,
}
