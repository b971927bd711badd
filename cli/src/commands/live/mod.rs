//! `memtrack live`: who holds the memory of a program that runs, as a view or as JSON lines.
//!
//! Invariant: what is shown is exact up to the moment that is shown with it.

pub(crate) mod beside_program;
mod board;
mod columns;
mod draw;
mod feed;
mod lines;
mod metrics;
mod processes;
mod program_output;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use ratatui::Frame;
use ratatui::crossterm::event::KeyEvent;

use self::board::Board;
use self::feed::{FeedRequest, LiveFeed};
use self::processes::ProcessFeeds;
use self::view::{LiveView, ViewRequest};
use crate::args::running::LiveArgs;
use crate::commands::tree;
use crate::failure::Failure;
use crate::live::source::LiveSource;
use crate::screen::{NextAction, Screen, ScreenContent};
use crate::terminal::TextFormat;

/// Watches a recording, or a capture.
///
/// # Errors
/// There is no recording or capture, or it cannot be read.
pub(crate) fn run(options: &LiveArgs) -> Result<u8> {
    if !options.jsonl && options.metrics.is_none() && !tree::can_be_interactive() {
        return Err(Failure::usage("the view needs a terminal; --jsonl prints JSON lines for other programs").into());
    }
    // The program comes first, also where processors are scarce.
    crate::sys::yield_in_part();
    let mut source = LiveSource::find(options.target.as_deref())?;
    if options.jsonl {
        lines::run(&mut source, options.every, options.all)?;
        return Ok(0);
    }
    if let Some(address) = options.metrics {
        metrics::serve(&LiveFeed::start(source, options.every, options.all)?, address)?;
        return Ok(0);
    }
    let feeds = ProcessFeeds::start(source, options.every, options.all)?;
    let color = TextFormat::new(options.colors.color, true).color;
    let shown = show(LiveScreen { feeds, view: LiveView::default(), color });
    shown.context("the terminal cannot be used; --jsonl prints JSON lines")?;
    Ok(0)
}

/// Shows the view until the user quits.
fn show(mut content: LiveScreen) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let ended = loop {
        let shown = match screen.show(&mut content) {
            Ok(NextAction::Tree) => match content.view.board.clone() {
                Some(board) => tree::show_live(&board.capture, &mut screen, content.color),
                None => Ok(()),
            },
            Ok(_) => break Ok(()),
            Err(error) => Err(error),
        };
        if shown.is_err() {
            break shown;
        }
    };
    screen.close().and(ended)
}

/// The view as the content of a screen.
struct LiveScreen {
    feeds: ProcessFeeds,
    view: LiveView,
    color: bool,
}

impl LiveScreen {
    /// Does what a key asks for.
    fn act(feeds: &mut ProcessFeeds, view: &mut LiveView, key: KeyEvent) -> NextAction {
        match view.press(key) {
            ViewRequest::Nothing => NextAction::GoOn,
            ViewRequest::Then(then) => then,
            ViewRequest::Show(shown) => {
                if let Err(error) = feeds.show(shown, view) {
                    view.message = format!("{error:#}");
                }
                NextAction::GoOn
            }
            ViewRequest::Mark => {
                // Which moment that is says the feed.
                feeds.shown().ask(FeedRequest::Mark(Instant::now()));
                NextAction::GoOn
            }
            ViewRequest::Snapshot => {
                feeds.shown().ask(FeedRequest::Snapshot);
                view.message = "writing a snapshot …".into();
                NextAction::GoOn
            }
        }
    }

    /// Shows what is new; whether something is.
    fn take_news(feeds: &ProcessFeeds, view: &mut LiveView) -> bool {
        let feed = feeds.shown();
        let message = feed.take_message();
        let whose = feeds.name();
        let told = message.is_some() || whose != view.whose;
        view.whose = whose;
        if let Some(message) = message {
            view.message = message;
        }
        let newest = feed.board();
        let is_known = |board: &Arc<Board>| view.newest().is_some_and(|known| Arc::ptr_eq(known, board));
        match newest.filter(|board| !is_known(board)) {
            Some(board) => view.update(board),
            None => return told,
        }
        true
    }
}

impl ScreenContent for LiveScreen {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw::draw(&mut self.view, self.color, frame, frame.area());
    }

    fn press(&mut self, key: KeyEvent) -> NextAction {
        Self::act(&mut self.feeds, &mut self.view, key)
    }

    fn has_changed(&mut self) -> bool {
        Self::take_news(&self.feeds, &mut self.view)
    }
}
