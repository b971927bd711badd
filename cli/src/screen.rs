//! A screen that takes the whole terminal: of the interactive tree, and of the live view.
//!
//! Invariant: the terminal is restored whether memtrack ends by a key, an error, a panic or a signal.

use std::io;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::{cursor, execute};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

use crate::sys::hangup::{self, TerminalInput};

/// Polling interval for signals.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the event loop does after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Wait for the next key.
    GoOn,
    /// Suspend (Ctrl-Z).
    Suspend,
    /// Show the call tree of what is shown now.
    Tree,
    /// End this screen.
    Quit,
}

/// What is shown.
pub(crate) trait ScreenContent {
    /// Draws it.
    fn draw(&mut self, frame: &mut Frame<'_>);
    /// A key was pressed.
    fn press(&mut self, key: KeyEvent) -> NextAction;
    /// Whether it has changed without a key; asked several times a second.
    fn has_changed(&mut self) -> bool {
        false
    }
    /// Whether something else is to have the terminal; asked several times a second.
    fn is_over(&mut self) -> bool {
        false
    }
}

/// The terminal, while memtrack has it.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    signal: Arc<AtomicUsize>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// A terminal error.
    pub(crate) fn open() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        show_cursor_in_panic();
        // Installs a panic hook that restores the terminal.
        let terminal = ratatui::try_init()?;
        // The first poll installs the SIGWINCH handler; a resize during the first drawing must not be missed.
        event::poll(Duration::ZERO)?;
        Ok(Self { terminal, signal })
    }

    /// Shows this until a key ends it; a signal ends it like [`NextAction::Quit`].
    ///
    /// # Errors
    /// A terminal error.
    pub(crate) fn show(&mut self, content: &mut dyn ScreenContent) -> io::Result<NextAction> {
        while self.signal.load(Ordering::Relaxed) == 0 {
            self.terminal.draw(|frame| content.draw(frame))?;
            let then = match next_event(&self.signal, content)? {
                WaitEnd::Over => break,
                WaitEnd::Redraw => NextAction::GoOn,
                // Other events, such as a resize, only cause a redraw.
                WaitEnd::Input => match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => content.press(key),
                    _ => NextAction::GoOn,
                },
            };
            match then {
                NextAction::GoOn => {}
                NextAction::Quit | NextAction::Tree => return Ok(then),
                NextAction::Suspend => {
                    // Show the cursor for the shell.
                    self.terminal.show_cursor()?;
                    ratatui::restore();
                    emulate_default_handler(SIGTSTP)?;
                    // A new terminal is drawn completely: the alternate screen is empty. (`clear` would query the cursor
                    // position, which not every terminal answers.)
                    self.terminal = ratatui::try_init()?;
                }
            }
        }
        Ok(NextAction::Quit)
    }

    /// Gives the terminal back; if a signal came, with its default action.
    ///
    /// # Errors
    /// A terminal error.
    pub(crate) fn close(self) -> io::Result<()> {
        match self.give_back() {
            0 => Ok(()),
            number => emulate_default_handler(number),
        }
    }

    /// Gives the terminal back; gives the number of the signal that came, or 0.
    pub(crate) fn give_back(self) -> i32 {
        let Self { terminal, signal } = self;
        // Dropping it shows the cursor; a signal that ends the process would come before.
        drop(terminal);
        ratatui::restore();
        signal.load(Ordering::Relaxed) as i32
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

/// Why a wait has ended.
enum WaitEnd {
    /// There is an event.
    Input,
    /// The content has changed.
    Redraw,
    /// A signal arrived, the terminal is gone, or something else is to have it.
    Over,
}

fn next_event(signal: &AtomicUsize, content: &mut dyn ScreenContent) -> io::Result<WaitEnd> {
    loop {
        let input = hangup::wait(PATIENCE);
        if input == TerminalInput::Gone || signal.load(Ordering::Relaxed) != 0 {
            return Ok(WaitEnd::Over);
        }
        // Polled even without input: a resize event is not input.
        if event::poll(Duration::ZERO)? {
            return Ok(WaitEnd::Input);
        }
        if content.is_over() {
            return Ok(WaitEnd::Over);
        }
        if content.has_changed() {
            return Ok(WaitEnd::Redraw);
        }
    }
}
