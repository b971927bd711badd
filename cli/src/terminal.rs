//! What is known of the terminal: whether there is one, its width, and whether colours are wanted.
//!
//! Invariant: bars and colours appear on a terminal only, unless colours were asked for.

use std::env;
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

/// How a text report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Columns; `None` where lines may be as long as they are, as in files and pipes.
    pub(crate) width: Option<usize>,
    /// Whether headings are highlighted.
    pub(crate) color: bool,
}

impl Look {
    /// The look of a report on standard output, or in a file.
    pub(crate) fn new(color: Color, to_stdout: bool) -> Self {
        let terminal = to_stdout && io::stdout().is_terminal();
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        Self { width: width(terminal), color }
    }

    /// A heading.
    pub(crate) fn heading(&self, text: &str) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.into() }
    }
}

fn width(terminal: bool) -> Option<usize> {
    let columns = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.or_else(|| terminal.then(sys::terminal_width).flatten()).filter(|columns| *columns > 0)
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
