//! `memtrack completions` and `memtrack man`: shell completions and manual pages.
//!
//! Invariant: both are generated from the argument parser's definition.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::Arguments;
use crate::args::shell::{CompletionsArgs, ManArgs, Shell};
use crate::message;

const NAME: &str = "memtrack";

/// Prints the completions of a shell.
///
/// # Errors
/// An output that cannot be written.
pub(crate) fn completions(options: &CompletionsArgs) -> Result<u8> {
    let mut script = Vec::new();
    let shell = match options.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(shell, &mut Arguments::command(), NAME, &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script).and_then(|()| out.flush()).context("standard output: cannot be written")?;
    Ok(0)
}

/// Writes a manual page for memtrack and for each of its commands.
///
/// # Errors
/// A directory that cannot be made or written to.
pub(crate) fn man(options: &ManArgs) -> Result<u8> {
    let directory = &options.directory;
    fs::create_dir_all(directory).with_context(|| format!("{}: cannot be created", directory.display()))?;
    let mut command = Arguments::command();
    command.build();
    let pages = write_pages(&command, directory)?;
    message::line(format_args!("{}: {pages} pages written", directory.display()));
    Ok(0)
}

/// Writes the pages of a command and its subcommands; returns their number.
fn write_pages(command: &clap::Command, directory: &Path) -> Result<usize> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(&name).render(&mut page)?;
    fs::write(&path, page).with_context(|| format!("{}: cannot be written", path.display()))?;
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    below.map(|command| write_pages(command, directory)).sum::<Result<usize>>().map(|pages| pages + 1)
}

#[cfg(test)]
mod tests {
    use super::write_pages;
    use crate::args::Arguments;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Arguments::command();
        command.build();
        let pages = write_pages(&command, directory.path()).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), pages);
        let page = std::fs::read_to_string(directory.path().join("memtrack-transform-csv.1")).unwrap();
        assert!(page.contains("min\\-bytes") && page.contains("memtrack\\-transform\\-csv"), "{page}");
    }
}
