//! Terminal handling of the interactive tree.
//!
//! Invariant: the terminal is restored whether memtrack ends by a key, an error, a panic or a signal.

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

/// Polling interval for signals.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs the interactive tree until the user quits.
///
/// # Errors
/// A terminal error.
pub(super) fn show(browser: &mut Browser<'_>, color: bool) -> io::Result<()> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    show_cursor_in_panic();
    // Installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let ended = keys(&mut terminal, browser, color, &signal);
    // Dropping it shows the cursor; the signal raised below would end the process before.
    drop(terminal);
    ratatui::restore();
    match signal.load(Ordering::Relaxed) {
        // Raises the caught signal with its default action, now that the terminal is restored.
        0 => ended,
        number => emulate_default_handler(number as i32).and(ended),
    }
}

fn show_cursor_in_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // An error means that the terminal is gone.
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
    // The first poll installs the SIGWINCH handler; a resize during the first drawing must not be missed.
    event::poll(Duration::ZERO)?;
    while signal.load(Ordering::Relaxed) == 0 {
        terminal.draw(|frame| draw(browser, color, frame))?;
        if !next_event(signal)? {
            break;
        }
        // Other events, such as a resize, only cause a redraw.
        let Event::Key(key) = event::read()? else { continue };
        let then = if key.kind == KeyEventKind::Release { NextAction::GoOn } else { press(browser, key) };
        match then {
            NextAction::GoOn => {}
            NextAction::Quit => break,
            NextAction::Suspend => {
                // Show the cursor for the shell.
                terminal.show_cursor()?;
                ratatui::restore();
                emulate_default_handler(SIGTSTP)?;
                // A new terminal is drawn completely: the alternate screen is empty. (`clear` would query the cursor
                // position, which not every terminal answers.)
                *terminal = ratatui::try_init()?;
            }
        }
    }
    Ok(())
}

/// Waits for an event. `false`: a signal arrived, or the terminal is gone.
fn next_event(signal: &AtomicUsize) -> io::Result<bool> {
    loop {
        let input = hangup::wait(PATIENCE);
        if input == TerminalInput::Gone || signal.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        // Polled even without input: a resize event is not input.
        if event::poll(Duration::ZERO)? {
            return Ok(true);
        }
    }
}
