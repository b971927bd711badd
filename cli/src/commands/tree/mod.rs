//! `memtrack tree`: the call tree, interactive on a terminal and as text everywhere else.
//!
//! Invariant: the interactive mode is used only if standard input and output are terminals and no file is named.

mod browser;
mod draw;
mod forest;
mod keys;
mod rows;
#[cfg(test)]
mod tests;

use std::env;
use std::io::{self, IsTerminal};

use anyhow::{Context, Result};
use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use crate::args;
use crate::load::{Request, load};
use crate::output::ReportOutput;
use crate::reports::tree::TextTree;
use crate::reports::tree_json;
use crate::terminal::TextFormat;
use browser::{Browser, BrowserStart};
use ratatui::Frame;
use ratatui::crossterm::event::KeyEvent;

use crate::reports::capture_info::Capture;
use crate::screen::{NextAction, Screen, ScreenContent};

/// Shows or prints the call tree.
///
/// # Errors
/// A capture that cannot be read, an output that cannot be written, or a terminal that cannot be used.
pub(crate) fn run(options: &args::TreeArgs) -> Result<u8> {
    let request = Request::from((&options.input, &options.view));
    let mut capture = load(if options.json { request } else { request.for_people() }, &options.view.reading())?;
    let (view, inverted, least) = (options.view.wanted(), options.inverted, options.least);
    if options.json {
        let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
        tree_json::tree(&capture, tree_json::TreeShape { view, inverted, split_threads: false }, &mut out)?;
        out.finish()?;
        return Ok(0);
    }
    if !options.text && options.output.output.is_none() && can_be_interactive() {
        let color = TextFormat::new(options.colors.color, true).color;
        let arenas = capture.analysis.take_arenas_out_of_leaks(BrowserStart::leaks(view));
        let mut browser = Browser::new(&capture, BrowserStart { view, inverted, least, arenas });
        show(&mut browser, color).context("the terminal cannot be used; --text prints the tree")?;
        capture.info.note_missing_stacks();
        return Ok(0);
    }
    let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
    let format = options.colors.text_format(&out);
    let held = capture.analysis.take_arenas_out_of_leaks(view);
    TextTree::new(&capture, view, inverted).text(least, format, &mut out)?;
    super::views::write_note(&capture, view, held, format, &mut out)?;
    out.finish()?;
    capture.info.note_missing_stacks();
    Ok(0)
}

/// Shows the tree until the user quits.
fn show(browser: &mut Browser<'_>, color: bool) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let ended = screen.show(&mut TreeScreen { browser, color });
    screen.close().and(ended.map(|_| ()))
}

/// Shows the call tree of a capture's first view on a screen, under this name.
///
/// # Errors
/// A terminal error.
pub(crate) fn show_live(capture: &Capture, screen: &mut Screen, color: bool) -> io::Result<()> {
    let start = BrowserStart { view: View::HighWaterMark, inverted: false, least: 1.0, arenas: Tally::default() };
    let mut browser = Browser::new(capture, start);
    browser.is_live = true;
    screen.show(&mut TreeScreen { browser: &mut browser, color }).map(|_| ())
}

/// The tree as the content of a screen.
struct TreeScreen<'b, 'c> {
    browser: &'b mut Browser<'c>,
    color: bool,
}

impl ScreenContent for TreeScreen<'_, '_> {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw::draw(self.browser, self.color, frame);
    }

    fn press(&mut self, key: KeyEvent) -> NextAction {
        keys::press(self.browser, key)
    }
}

/// Whether input and output are terminals that can address the cursor.
pub(crate) fn can_be_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb")
}
