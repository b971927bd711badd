//! State of the live view, and what keys do. Independent of the terminal and of the threads that feed it.
//!
//! Invariant: the selected line stays selected when the figures change, unless it is gone.

use std::sync::Arc;

use memtrack_reader::StackId;
use memtrack_reader::analysis::Tally;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::board::{Board, BoardRow, RowOrder};
use crate::reports::own_lines::line_of;
use crate::reports::source::Sources;
use crate::screen::NextAction;

/// Keys and what they do; the help shows the same.
pub(super) const KEYS: [(&str, &str); 15] = [
    ("1 2 3 4 Tab", "holders, growth since the mark, suspects, threads"),
    ("↑ ↓ k j", "one row up or down"),
    ("PgUp PgDn", "one page up or down; Home End g G: first, last"),
    ("Enter", "stack and source of the selected line; again: close"),
    ("r", "set the mark: growth counts from this moment on"),
    ("t", "the call tree of what is live now"),
    ("o", "own code only, or all lines"),
    ("s", "sort this view by live, growth, rate (of all lines), name: ▾"),
    ("n N a", "the next process, the previous one; all of the recording"),
    ("/", "search for a function or file"),
    ("p Space", "pause: figures stay as they are, the recording goes on"),
    ("w", "write a snapshot: a complete capture of everything up to now"),
    ("?", "this help"),
    ("Esc", "end a search, close the stacks or the help"),
    ("q", "quit; the recording goes on"),
];

/// What the help says of Python's allocator, where objects are not recorded one by one.
pub(super) const ARENAS: [&str; 2] = [
    "Python's objects lie in arenas of 1 MB or 256 kB. An arena counts to the",
    "line that needed it; --trace-python-allocators shows objects instead.",
];

/// What the rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LiveTab {
    #[default]
    Holders,
    Growth,
    Suspects,
    Threads,
}

impl LiveTab {
    pub(super) const ALL: [Self; 4] = [Self::Holders, Self::Growth, Self::Suspects, Self::Threads];

    /// The orders that its rows may have; its own is the first.
    fn orders(self) -> &'static [RowOrder] {
        match self {
            Self::Holders => &[RowOrder::Live, RowOrder::Grown, RowOrder::Rate, RowOrder::Name],
            Self::Growth => &[RowOrder::Grown, RowOrder::Rate, RowOrder::Name, RowOrder::Live],
            Self::Suspects => &[RowOrder::Risen, RowOrder::Live, RowOrder::Rate, RowOrder::Name],
            Self::Threads => &[RowOrder::Live],
        }
    }
}

/// The view.
#[derive(Default)]
pub(super) struct LiveView {
    pub(super) board: Option<Arc<Board>>,
    /// The newest one, while the view is paused.
    newest: Option<Arc<Board>>,
    pub(super) title: String,
    /// Which of several processes is shown; empty: there is one.
    pub(super) whose: String,
    pub(super) tab: LiveTab,
    /// By tab, which of its orders the rows have.
    orders: [usize; LiveTab::ALL.len()],
    pub(super) own_only: bool,
    pub(super) selected: usize,
    pub(super) page: usize,
    pub(super) top: usize,
    pub(super) search: String,
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// Whether the stacks of the selected line are shown.
    pub(super) stacks: bool,
    pub(super) sources: Option<Sources>,
    pub(super) message: String,
}

/// What a key asks of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewRequest {
    Nothing,
    Mark,
    Snapshot,
    Show(ShownProcess),
    Then(NextAction),
}

/// Whose memory is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShownProcess {
    Next,
    Previous,
    All,
}

impl LiveView {
    /// The newest figures.
    pub(super) fn update(&mut self, board: Arc<Board>) {
        if self.sources.is_none() {
            self.sources = Some(Sources::of(&board.capture.info));
        }
        self.title = board.capture.info.title();
        self.newest = Some(board);
        if !self.paused {
            self.resume();
        }
    }

    /// Another process is shown from now on.
    pub(super) fn forget(&mut self) {
        (self.board, self.newest, self.sources) = (None, None, None);
        (self.selected, self.top, self.paused) = (0, 0, false);
        self.title.clear();
    }

    /// The newest figures, shown or not.
    pub(super) fn newest(&self) -> Option<&Arc<Board>> {
        self.newest.as_ref().or(self.board.as_ref())
    }

    fn resume(&mut self) {
        let key =
            self.board.as_ref().and_then(|board| Some(self.shown(board).get(self.selected)?.label.whole().words()));
        if let Some(newest) = self.newest.take() {
            self.board = Some(newest);
        }
        let Some(board) = self.board.clone() else { return };
        if let Some(key) = key.filter(|_| self.selected > 0 || self.stacks) {
            let place = self.shown(&board).iter().position(|row| row.label.whole().words() == key);
            self.selected = place.unwrap_or(self.selected);
        }
    }

    /// The rows of the tab, in their order.
    pub(super) fn shown<'b>(&self, board: &'b Board) -> Vec<&'b BoardRow> {
        let wanted = self.search.to_lowercase();
        let is_shown = |row: &&BoardRow| {
            let fits = match self.tab {
                // By rate, lines count that hold nothing.
                LiveTab::Holders => row.live.bytes > 0 || self.order() == RowOrder::Rate && row.allocated.bytes > 0,
                LiveTab::Growth => row.grown != 0,
                LiveTab::Suspects => row.is_suspect(board.totals.live.bytes),
                LiveTab::Threads => false,
            };
            let is_owned = row.is_own || !self.own_only;
            fits && is_owned && (wanted.is_empty() || row.label.whole().words().to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<&BoardRow> = board.rows.iter().filter(is_shown).collect();
        self.order().sort(&mut rows);
        rows
    }

    /// The order of the rows of the tab.
    pub(super) fn order(&self) -> RowOrder {
        let orders = self.tab.orders();
        orders[self.orders[self.tab as usize] % orders.len()]
    }

    /// The number of rows of the tab.
    pub(super) fn len(&self) -> usize {
        let Some(board) = &self.board else { return 0 };
        if self.tab == LiveTab::Threads { board.threads.len() } else { self.shown(board).len() }
    }

    /// The stacks of a line that hold most, largest first; of one that holds nothing those that allocated most.
    pub(super) fn stacks_of(board: &Board, row: &BoardRow) -> Vec<(StackId, Tally)> {
        let mut stacks: std::collections::HashMap<StackId, Tally> = std::collections::HashMap::new();
        for group in board.capture.analysis.view(row.blocks()) {
            if line_of(&board.capture, group.stack) == row.key {
                *stacks.entry(group.stack).or_default() += group.tally();
            }
        }
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        stacks.sort_by_key(|(stack, tally)| (std::cmp::Reverse(tally.bytes), *stack));
        stacks
    }

    /// What a key does.
    pub(super) fn press(&mut self, key: KeyEvent) -> ViewRequest {
        let then = ViewRequest::Then;
        self.message.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => then(NextAction::Quit),
                KeyCode::Char('z') => then(NextAction::Suspend),
                _ => ViewRequest::Nothing,
            };
        }
        if self.typing {
            self.type_search(key.code);
            return ViewRequest::Nothing;
        }
        if self.help && key.code != KeyCode::Char('q') {
            self.help = false;
            return ViewRequest::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return then(NextAction::Quit),
            KeyCode::Char('t') if self.board.is_some() => return then(NextAction::Tree),
            KeyCode::Char('r') => return ViewRequest::Mark,
            KeyCode::Char('n') => return ViewRequest::Show(ShownProcess::Next),
            KeyCode::Char('N') => return ViewRequest::Show(ShownProcess::Previous),
            KeyCode::Char('a') => return ViewRequest::Show(ShownProcess::All),
            KeyCode::Char('w') => return ViewRequest::Snapshot,
            KeyCode::Char('?') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('/') => (self.typing, self.search, self.selected) = (true, String::new(), 0),
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                if !self.paused {
                    self.resume();
                }
            }
            KeyCode::Char('s') => self.orders[self.tab as usize] += 1,
            KeyCode::Char('o') => (self.own_only, self.selected) = (!self.own_only, 0),
            KeyCode::Enter => self.stacks = !self.stacks,
            KeyCode::Esc if self.stacks => self.stacks = false,
            KeyCode::Esc => self.search.clear(),
            KeyCode::Tab => self.show_tab((self.tab as usize + 1) % LiveTab::ALL.len()),
            KeyCode::Char(digit @ '1'..='4') => self.show_tab(digit as usize - '1' as usize),
            code => self.go(code),
        }
        ViewRequest::Nothing
    }

    fn show_tab(&mut self, number: usize) {
        (self.tab, self.selected, self.top) = (LiveTab::ALL[number], 0, 0);
    }

    fn go(&mut self, code: KeyCode) {
        let last = self.len().saturating_sub(1);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected + 1,
            KeyCode::PageUp => self.selected.saturating_sub(self.page),
            KeyCode::PageDown => self.selected + self.page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => self.selected,
        };
        self.selected = to.min(last);
    }

    fn type_search(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(char) => self.search.push(char),
            KeyCode::Backspace => _ = self.search.pop(),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.search) = (false, String::new()),
            _ => {}
        }
        self.selected = 0;
    }
}
