//! What is known of the terminal: whether there is one, its width, and whether colours are wanted.
//!
//! Invariant: bars and colours appear on a terminal only, unless colours were asked for, and only there lines are fitted.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::sys;

/// What takes less time has no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// How text looks where it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextFormat {
    /// Columns; `None` where lines may be as long as they are, as in files and pipes.
    pub(crate) width: Option<usize>,
    /// Whether there are colours.
    pub(crate) color: bool,
}

impl TextFormat {
    /// The look of a report on standard output, or in a file.
    pub(crate) fn new(color: Color, to_stdout: bool) -> Self {
        Self::of(color, (to_stdout && io::stdout().is_terminal()).then(|| sys::terminal_width(io::stdout())))
    }

    /// The look of messages on standard error.
    pub(crate) fn of_messages(color: Color) -> Self {
        Self::of(color, io::stderr().is_terminal().then(|| sys::terminal_width(io::stderr())))
    }

    /// `terminal`: the width that the system knows of it, where it is one.
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

/// Whether there are colours where nobody has said so: <https://no-color.org>, <https://bixense.com/clicolors>.
fn is_colored(terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_forced = variable("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let is_dumb = variable("TERM").is_some_and(|value| value == "dumb");
    variable("NO_COLOR").is_none() && (is_forced || terminal && !is_dumb)
}

/// A bar on standard error, where that is a terminal and what is done takes long enough to be waited for.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    begun: Instant,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing of `total` steps is done.
    pub(crate) fn new(total: u64, what: &'static str) -> Self {
        Self { what, begun: Instant::now(), total, done: 0, bar: None }
    }

    /// Some more steps are done.
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
    // Drawn to standard error, and not at all where that is no terminal.
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
