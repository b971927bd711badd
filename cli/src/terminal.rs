//! What is known of the terminal: whether there is one, its width, and whether colours are wanted.
//!
//! Invariant: bars and colours appear on a terminal only, unless colours were asked for.

use std::env;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Color;
use crate::sys;

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

/// A bar on standard error for `total` steps; invisible where that is no terminal.
pub(crate) fn progress(total: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %  {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
