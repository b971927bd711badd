//! `memtrack run --live` on a terminal: the live view above, the program's output below.
//!
//! memtrack starts itself once more, without `--live`, in a pseudo-terminal: that process records as ever, and its program
//! has a terminal. This one is its terminal emulator, and a viewer like any other. A program that reads keys or draws a whole
//! screen gets the real terminal; Ctrl-] leads back to the view.
//!
//! Invariant: the recording does not depend on this process's view: if that fails, the program gets the terminal; and signals
//! that are sent to this process are passed on, so that the capture is completed.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::layout::{Constraint, Layout};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use super::processes::ProcessFeeds;
use super::program_output::{OutputPane, ProgramOutput, read_all};
use super::view::LiveView;
use super::{LiveScreen, draw};
use crate::commands::tree;
use crate::control::recordings;
use crate::live::source::LiveSource;
use crate::screen::{NextAction, Screen, ScreenContent};
use crate::sys::hangup::{self, TerminalInput};
use crate::sys::{PseudoTerminal, send_signal, shell_status};

/// The length of a window of the view.
const EVERY: Duration = Duration::from_secs(1);
/// How often what may have changed is looked at.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long output that is still on its way is waited for after the recording has ended.
const LAST_OUTPUT: Duration = Duration::from_millis(200);
/// Ctrl-].
const BACK: u8 = 0x1d;
/// Ctrl-C, as a terminal sends it.
const INTERRUPT: u8 = 0x03;

/// Runs memtrack with these arguments beside the view; returns its exit status.
///
/// # Errors
/// There is no pseudo-terminal, or the real one cannot be used.
pub(crate) fn run(arguments: &[OsString], color: bool) -> Result<u8> {
    let (columns, rows) = terminal::size().context("the terminal has no size")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    let (terminal, child) = PseudoTerminal::start(command, pane_rows(rows), columns).context("no pseudo-terminal")?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    // The program comes first, also where processors are scarce; it runs already.
    crate::sys::yield_to_others();
    let output = Arc::new(Mutex::new(ProgramOutput::new(pane_rows(rows), columns)?));
    let (emulator, taken) = (terminal.emulator()?, Arc::clone(&output));
    let reader = thread::Builder::new().name("memtrack-output".into());
    reader.spawn(move || read_all(emulator, |bytes| lock(&taken).take(bytes).is_ok()))?;
    let mut beside = BesideProgram {
        live: WatchedRecording::Starting,
        view: LiveView::default(),
        terminal,
        output,
        child,
        signal,
        ended: None,
        size: (rows, columns),
        drawn: 0,
        had_terminal: false,
        gives_terminal: false,
        color,
    };
    let status = beside.until_end()?;
    Ok(shell_status(status))
}

/// Rows of the program's pane: a third of the screen.
fn pane_rows(rows: u16) -> u16 {
    (rows / 3).clamp(3, 20)
}

fn lock(output: &Mutex<ProgramOutput>) -> MutexGuard<'_, ProgramOutput> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the view knows of the recording.
enum WatchedRecording {
    /// It is looked for.
    Starting,
    Watching(Box<ProcessFeeds>),
    /// It cannot be watched, for this reason.
    Failed(String),
}

/// The view, and the program below it.
struct BesideProgram {
    live: WatchedRecording,
    view: LiveView,
    terminal: PseudoTerminal,
    output: Arc<Mutex<ProgramOutput>>,
    /// The process that records.
    child: Child,
    /// A signal that this process has got and not passed on; 0: none.
    signal: Arc<AtomicUsize>,
    ended: Option<ExitStatus>,
    /// Rows and columns of the real terminal.
    size: (u16, u16),
    /// Bytes of output that the pane shows.
    drawn: u64,
    /// Whether the program wanted the terminal when that was last looked at: it gets it when it begins to.
    had_terminal: bool,
    /// Whether the program is to have the terminal.
    gives_terminal: bool,
    color: bool,
}

impl BesideProgram {
    /// Shows the view, or gives the program the terminal, until the recording has ended.
    fn until_end(&mut self) -> Result<ExitStatus> {
        let status = loop {
            let shown = self.show();
            if let Some(status) = self.ended {
                break status;
            }
            if let Err(error) = shown {
                self.live = WatchedRecording::Failed(error.to_string());
            }
            self.gives_terminal = false;
            self.give_terminal()?;
            if let Some(status) = self.ended {
                break status;
            }
        };
        // What the program has written last may still be on its way.
        let (begun, mut known) = (Instant::now(), None);
        while begun.elapsed() < LAST_OUTPUT
            && (self.terminal.has_output(PATIENCE) || known != Some(lock(&self.output).bytes))
        {
            known = Some(lock(&self.output).bytes);
        }
        // Line ends are those of the program's terminal already.
        let raw = terminal::enable_raw_mode();
        let written = lock(&self.output).begin_direct();
        if raw.is_ok() {
            terminal::disable_raw_mode()?;
        }
        written?;
        Ok(status)
    }

    /// Shows the view until something else is to have the terminal.
    fn show(&mut self) -> io::Result<()> {
        let mut screen = Screen::open()?;
        let shown = loop {
            match screen.show(self) {
                Ok(NextAction::Tree) => {
                    let board = self.view.board.clone();
                    if let Some(Err(error)) =
                        board.map(|board| tree::show_live(&board.capture, &mut screen, self.color))
                    {
                        break Err(error);
                    }
                }
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        screen.give_back();
        self.pass_on_signal();
        shown
    }

    /// The program has the real terminal until it ends, or until Ctrl-].
    fn give_terminal(&mut self) -> Result<()> {
        terminal::enable_raw_mode().context("the terminal cannot be used")?;
        let (rows, columns) = self.size;
        self.resize(rows, columns);
        let given = lock(&self.output).begin_direct();
        let relayed = given.and_then(|()| self.relay());
        lock(&self.output).end_direct();
        terminal::disable_raw_mode()?;
        let (rows, columns) = self.size;
        self.resize(pane_rows(rows), columns);
        Ok(relayed?)
    }

    /// Passes keys on to the program.
    fn relay(&mut self) -> io::Result<()> {
        let mut emulator = self.terminal.emulator()?;
        let mut keys = [0; 1024];
        while !self.has_ended() {
            self.pass_on_signal();
            match hangup::wait(PATIENCE) {
                TerminalInput::Gone => {
                    // The program's terminal is gone, too.
                    send_signal(&self.child, SIGHUP);
                    self.ended = self.child.wait().ok();
                }
                TerminalInput::None => {}
                TerminalInput::Some => {
                    let length = io::Read::read(&mut io::stdin().lock(), &mut keys)?;
                    let typed = keys.get(..length).unwrap_or_default();
                    let back = typed.iter().position(|key| *key == BACK);
                    emulator.write_all(typed.get(..back.unwrap_or(length)).unwrap_or_default())?;
                    if back.is_some() {
                        return Ok(());
                    }
                }
            }
            if let Ok((columns, rows)) = terminal::size()
                && (rows, columns) != self.size
            {
                self.size = (rows, columns);
                self.resize(rows, columns);
            }
        }
        Ok(())
    }

    /// The process that records decides what a signal means, as if it had been sent there.
    fn pass_on_signal(&mut self) {
        let signal = self.signal.swap(0, Relaxed);
        if signal != 0 && !self.has_ended() {
            send_signal(&self.child, signal as i32);
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        lock(&self.output).resize(rows, columns);
        // It fails where the program has ended.
        let _ = self.terminal.resize(rows, columns);
    }

    fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// Begins to watch the recording as soon as it can be reached.
    fn watch(&mut self) {
        if !matches!(self.live, WatchedRecording::Starting) {
            return;
        }
        let recorder = self.child.id();
        let Some(found) = recordings::all().into_iter().find(|recording| recording.status.recorder == recorder) else {
            return;
        };
        let pid = found.client.pid().to_string();
        self.live = match LiveSource::find(Some(Path::new(&pid))) {
            Ok(source) => match ProcessFeeds::start(source, EVERY, false) {
                Ok(feeds) => WatchedRecording::Watching(Box::new(feeds)),
                Err(error) => WatchedRecording::Failed(format!("{error:#}")),
            },
            // It has no capture yet.
            Err(_) => WatchedRecording::Starting,
        };
    }
}

impl ScreenContent for BesideProgram {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        if (area.height, area.width) != self.size {
            self.size = (area.height, area.width);
            self.resize(pane_rows(area.height), area.width);
        }
        let heights = [Constraint::Min(1), Constraint::Length(1), Constraint::Length(pane_rows(area.height))];
        let [above, line, below] = Layout::vertical(heights).areas(area);
        match &self.live {
            WatchedRecording::Failed(reason) => {
                frame.render_widget(Paragraph::new(format!("  no live view: {reason}")), above);
            }
            _ => draw::draw(&mut self.view, self.color, frame, above),
        }
        let title = "─ the program's output ── i gives it the terminal, Ctrl-] leads back here ";
        let line_text: String = title.chars().chain(std::iter::repeat('─')).take(usize::from(line.width)).collect();
        frame.render_widget(Line::raw(line_text), line);
        let output = lock(&self.output);
        self.drawn = output.bytes;
        frame.render_widget(OutputPane { output: &output, color: self.color }, below);
    }

    fn press(&mut self, key: KeyEvent) -> NextAction {
        if key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL {
            // The program decides what it means, as if memtrack were not there.
            let _ = self.terminal.emulator().and_then(|mut emulator| emulator.write_all(&[INTERRUPT]));
            return NextAction::GoOn;
        }
        if key.code == KeyCode::Char('i') && key.modifiers.is_empty() && !self.view.typing {
            return NextAction::Quit;
        }
        match &mut self.live {
            WatchedRecording::Watching(feeds) => LiveScreen::act(feeds, &mut self.view, key),
            _ if key.code == KeyCode::Char('q') => NextAction::Quit,
            _ => NextAction::GoOn,
        }
    }

    fn has_changed(&mut self) -> bool {
        self.watch();
        let is_new = match &self.live {
            WatchedRecording::Watching(feeds) => LiveScreen::take_news(feeds, &mut self.view),
            _ => false,
        };
        is_new || lock(&self.output).bytes != self.drawn
    }

    fn is_over(&mut self) -> bool {
        let wants_terminal = self.terminal.reads_keys() || lock(&self.output).has_own_screen();
        self.gives_terminal |= wants_terminal && !self.had_terminal;
        self.had_terminal = wants_terminal;
        self.has_ended() || self.gives_terminal
    }
}
