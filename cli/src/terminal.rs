//! The terminal: whether output goes to one, its width, and whether to use colours.
//!
//! Invariant: progress bars and wrapped lines appear on terminals only, and so do colours unless they are requested.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::sys;

/// Operations shorter than this have no progress bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// Width and colours of text output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextFormat {
    /// Columns; `None` for unlimited, as in files and pipes.
    pub(crate) width: Option<usize>,
    /// Whether to use colours.
    pub(crate) color: bool,
}

impl TextFormat {
    /// The format of a report on standard output, or in a file.
    pub(crate) fn new(color: Color, to_stdout: bool) -> Self {
        Self::of(color, (to_stdout && io::stdout().is_terminal()).then(|| sys::terminal_width(io::stdout())))
    }

    /// The format of messages on standard error.
    pub(crate) fn of_messages(color: Color) -> Self {
        Self::of(color, io::stderr().is_terminal().then(|| sys::terminal_width(io::stderr())))
    }

    /// `terminal`: `Some` if output goes to a terminal, with the width that the system reports.
    fn of(color: Color, terminal: Option<Option<usize>>) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_colored(terminal.is_some(), |name| env::var_os(name).filter(|value| !value.is_empty())),
        };
        let columns = || env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = terminal.and_then(|width| columns().or(width)).filter(|columns| *columns > 0);
        Self { width, color }
    }
}

/// Whether to use colours by default: <https://no-color.org>, <https://bixense.com/clicolors>.
fn is_colored(terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_forced = variable("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let is_dumb = variable("TERM").is_some_and(|value| value == "dumb");
    variable("NO_COLOR").is_none() && (is_forced || terminal && !is_dumb)
}

/// A progress bar on standard error, shown on a terminal if the operation takes long enough.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    begun: Instant,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts at 0 of `total` steps.
    pub(crate) fn new(total: u64, what: &'static str) -> Self {
        Self { what, begun: Instant::now(), total, done: 0, bar: None }
    }

    /// Advances by some steps.
    pub(crate) fn add(&mut self, steps: u64) {
        self.done = self.done.saturating_add(steps);
        if self.begun.elapsed() >= PATIENCE {
            let (total, what) = (self.total, self.what);
            self.bar.get_or_insert_with(|| bar(total, what)).set_position(self.done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: u64, what: &'static str) -> ProgressBar {
    // indicatif draws nothing if standard error is not a terminal.
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %  {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_message(what)
}

#[cfg(test)]
mod tests {
    use super::is_colored;

    fn colored(terminal: bool, environment: &[(&str, &str)]) -> bool {
        let value = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        is_colored(terminal, value)
    }

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        assert!(colored(true, &[]) && colored(true, &[("TERM", "xterm")]));
        assert!(!colored(false, &[]));
        assert!(!colored(true, &[("TERM", "dumb")]));
        assert!(!colored(true, &[("NO_COLOR", "1")]));
        assert!(colored(false, &[("CLICOLOR_FORCE", "1")]) && !colored(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!colored(false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    }
}
