//! The terminal while the interactive tree has it.
//!
//! Invariant: however memtrack ends, by a key, an error, a panic or a signal, the terminal is as it was before.

use std::io;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::{cursor, execute};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

use super::browser::{Browser, NextAction};
use super::draw::draw;
use super::keys::press;
use crate::sys::hangup::{self, TerminalInput};

/// How long a signal may have to wait for its effect.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs the interactive tree until the user quits.
///
/// # Errors
/// What the terminal says.
pub(super) fn show(browser: &mut Browser<'_>, color: bool) -> io::Result<()> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    show_cursor_in_panic();
    // Restores the rest of the terminal in a panic, too.
    let mut terminal = ratatui::try_init()?;
    let ended = keys(&mut terminal, browser, color, &signal);
    // Only this shows the cursor again, and a signal below leaves no time for it.
    drop(terminal);
    ratatui::restore();
    match signal.load(Ordering::Relaxed) {
        // What was sent ends memtrack now that the terminal is in order, as if it had not been caught.
        0 => ended,
        number => emulate_default_handler(number as i32).and(ended),
    }
}

fn show_cursor_in_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // A terminal that has gone needs no cursor.
        let _ = execute!(io::stdout(), cursor::Show);
        before(info);
    }));
}

fn keys(
    terminal: &mut DefaultTerminal,
    browser: &mut Browser<'_>,
    color: bool,
    signal: &AtomicUsize,
) -> io::Result<()> {
    // The first look at events is what has changes of the window's size told; none may be missed while it is drawn.
    event::poll(Duration::ZERO)?;
    while signal.load(Ordering::Relaxed) == 0 {
        terminal.draw(|frame| draw(browser, color, frame))?;
        if !next_event(signal)? {
            break;
        }
        // A change of the window's size is drawn like any other event.
        let Event::Key(key) = event::read()? else { continue };
        let then = if key.kind == KeyEventKind::Release { NextAction::GoOn } else { press(browser, key) };
        match then {
            NextAction::GoOn => {}
            NextAction::Quit => break,
            NextAction::Suspend => {
                // The shell wants its cursor, too.
                terminal.show_cursor()?;
                ratatui::restore();
                emulate_default_handler(SIGTSTP)?;
                // Drawn whole: the other screen is empty when it is entered. (To clear it would ask the terminal where
                // the cursor is, and not every one answers.)
                *terminal = ratatui::try_init()?;
            }
        }
    }
    Ok(())
}

/// Waits for an event. `false`: none will come, since a signal did or the terminal is gone.
fn next_event(signal: &AtomicUsize) -> io::Result<bool> {
    loop {
        let input = hangup::wait(PATIENCE);
        if input == TerminalInput::Gone || signal.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        // Asked even where there is no input: a change of the window's size is none.
        if event::poll(Duration::ZERO)? {
            return Ok(true);
        }
    }
}
