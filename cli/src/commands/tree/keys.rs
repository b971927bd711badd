//! Key bindings of the interactive tree. The help text is generated from the same table.
//!
//! Invariant: every key binding is in the help.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::browser::{Action, Browser};
use crate::screen::NextAction;

/// Keys and actions, and the two columns of the help.
type Binding = (&'static [(KeyCode, Action)], &'static str, &'static str);

/// All keys but those with Ctrl.
pub(super) const BINDINGS: [Binding; 16] = [
    (
        &[
            (KeyCode::Up, Action::Up),
            (KeyCode::Down, Action::Down),
            (KeyCode::Char('k'), Action::Up),
            (KeyCode::Char('j'), Action::Down),
        ],
        "↑ ↓ k j",
        "one row up or down",
    ),
    (&[(KeyCode::PageUp, Action::PageUp), (KeyCode::PageDown, Action::PageDown)], "PgUp PgDn", "one page up or down"),
    (
        &[
            (KeyCode::Home, Action::First),
            (KeyCode::End, Action::Last),
            (KeyCode::Char('g'), Action::First),
            (KeyCode::Char('G'), Action::Last),
        ],
        "Home End g G",
        "to the first or last row",
    ),
    (
        &[(KeyCode::Right, Action::Open), (KeyCode::Char('l'), Action::Open)],
        "→ l",
        "open a call and its single callees; again: go to it",
    ),
    (
        &[(KeyCode::Left, Action::Close), (KeyCode::Char('h'), Action::Close)],
        "← h",
        "collapse a call; again: move to its caller",
    ),
    (&[(KeyCode::Enter, Action::Toggle), (KeyCode::Char(' '), Action::Toggle)], "Enter Space", "open or close"),
    (
        &[(KeyCode::Char('e'), Action::OpenAll), (KeyCode::Char('c'), Action::CloseAll)],
        "e c",
        "open or close everything below",
    ),
    (
        &[
            (KeyCode::Tab, Action::NextView),
            (KeyCode::Char('v'), Action::NextView),
            (KeyCode::Char('1'), Action::View(0)),
            (KeyCode::Char('2'), Action::View(1)),
            (KeyCode::Char('3'), Action::View(2)),
            (KeyCode::Char('4'), Action::View(3)),
        ],
        "1 2 3 4 Tab",
        "peak, leaks, temporary, all allocated; the next of them",
    ),
    (&[(KeyCode::Char('i'), Action::Invert)], "i", "callers below callees, or the other way round"),
    (&[(KeyCode::Char('s'), Action::Sort)], "s", "sort by total, self, count, name"),
    (&[(KeyCode::Char('a'), Action::AllCalls)], "a", "all calls, or without those of libraries in between"),
    (&[(KeyCode::Char('/'), Action::Search)], "/", "search for a function or file, also in collapsed calls"),
    (
        &[(KeyCode::Char('n'), Action::Next), (KeyCode::Char('N'), Action::Previous)],
        "n N",
        "to the next or previous match",
    ),
    (&[(KeyCode::Char('p'), Action::Source)], "p", "source lines and allocators of the selected call"),
    (&[(KeyCode::Char('?'), Action::Help), (KeyCode::F(1), Action::Help)], "?", "this help"),
    (
        &[(KeyCode::Esc, Action::Escape), (KeyCode::Char('q'), Action::Quit)],
        "q Esc",
        "quit; Esc first cancels a search",
    ),
];

/// Executes the action of a key.
pub(super) fn press(browser: &mut Browser<'_>, key: KeyEvent) -> NextAction {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => browser.act(Action::Quit),
            KeyCode::Char('z') => browser.act(Action::Suspend),
            _ => NextAction::GoOn,
        };
    }
    if browser.search.typing {
        type_search(browser, key.code);
        return NextAction::GoOn;
    }
    if browser.help {
        return match key.code {
            KeyCode::Char('q') => browser.act(Action::Quit),
            _ => browser.act(Action::Help),
        };
    }
    let known = BINDINGS.iter().flat_map(|binding| binding.0).find(|(code, _)| *code == key.code);
    known.map_or(NextAction::GoOn, |(_, action)| browser.act(*action))
}

fn type_search(browser: &mut Browser<'_>, key: KeyCode) {
    match key {
        KeyCode::Char(char) => browser.typed(char),
        KeyCode::Backspace if browser.search.text.is_empty() => browser.searched(false),
        KeyCode::Backspace => browser.erased(),
        KeyCode::Enter => browser.searched(true),
        KeyCode::Esc => browser.searched(false),
        _ => {}
    }
}
