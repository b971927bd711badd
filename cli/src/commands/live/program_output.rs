//! What a program writes to its pseudo-terminal: as a pane beside the live view, and whole on the real terminal.
//!
//! Every byte is drawn by an emulator for the pane, and either kept in a temporary file or written to the real terminal
//! at once. Invariant: each byte reaches the real terminal once, in order.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::Widget;
use std::num::NonZeroU16;

/// The output of a program.
pub(super) struct ProgramOutput {
    emulator: vt100::Parser,
    /// What the real terminal has not got yet.
    kept: File,
    /// Whether the program has the real terminal.
    is_direct: bool,
    /// Counts what was read, to tell whether something has changed.
    pub(super) bytes: u64,
}

impl ProgramOutput {
    /// Nothing so far, for a pane of this size.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub(super) fn new(rows: u16, columns: u16) -> io::Result<Self> {
        let (rows, columns) = (at_least_one(rows), at_least_one(columns));
        let emulator = vt100::Parser::new(rows, columns, 0);
        Ok(Self { emulator, kept: tempfile::tempfile()?, is_direct: false, bytes: 0 })
    }

    /// The program has written this.
    ///
    /// # Errors
    /// The terminal, or the temporary file, cannot be written.
    pub(super) fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.emulator.process(bytes);
        if !self.is_direct {
            return self.kept.write_all(bytes);
        }
        let mut terminal = io::stdout().lock();
        terminal.write_all(bytes)?;
        terminal.flush()
    }

    /// The size of the terminal that the program has.
    pub(super) fn resize(&mut self, rows: u16, columns: u16) {
        self.emulator.screen_mut().set_size(at_least_one(rows), at_least_one(columns));
    }

    /// Whether the program draws a whole screen.
    pub(super) fn has_own_screen(&self) -> bool {
        self.emulator.screen().alternate_screen()
    }

    /// Gives the program the real terminal, which first gets what it has not got yet.
    ///
    /// # Errors
    /// The terminal cannot be written, or the temporary file not read.
    pub(super) fn begin_direct(&mut self) -> io::Result<()> {
        self.kept.rewind()?;
        let mut terminal = io::stdout().lock();
        io::copy(&mut self.kept, &mut terminal)?;
        terminal.flush()?;
        self.kept.set_len(0)?;
        self.kept.rewind()?;
        self.is_direct = true;
        Ok(())
    }

    /// From now on what the program writes is kept.
    pub(super) fn end_direct(&mut self) {
        self.is_direct = false;
    }
}

fn at_least_one(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN)
}

/// The program's screen.
pub(super) struct OutputPane<'a> {
    pub(super) output: &'a ProgramOutput,
    pub(super) color: bool,
}

impl Widget for OutputPane<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let screen = self.output.emulator.screen();
        for row in 0..area.height {
            for column in 0..area.width {
                let Some(cell) = screen.cell(row, column).filter(|cell| !cell.is_wide_continuation()) else { continue };
                let Some(drawn) = buffer.cell_mut((area.x + column, area.y + row)) else { continue };
                if cell.has_contents() {
                    drawn.set_symbol(cell.contents());
                }
                drawn.set_style(style(cell, self.color));
            }
        }
    }
}

fn style(cell: &vt100::Cell, with_color: bool) -> Style {
    let color = |color: vt100::Color| match color {
        vt100::Color::Default => Color::Reset,
        vt100::Color::Idx(number) => Color::Indexed(number),
        vt100::Color::Rgb(red, green, blue) => Color::Rgb(red, green, blue),
    };
    let style =
        if with_color { Style::new().fg(color(cell.fgcolor())).bg(color(cell.bgcolor())) } else { Style::new() };
    let modifiers = [
        (cell.bold(), Modifier::BOLD),
        (cell.dim(), Modifier::DIM),
        (cell.italic(), Modifier::ITALIC),
        (cell.underline(), Modifier::UNDERLINED),
        (cell.inverse(), Modifier::REVERSED),
    ];
    modifiers.into_iter().filter(|(is_set, _)| *is_set).fold(style, |style, (_, modifier)| style.add_modifier(modifier))
}

/// Reads what the program writes until its side of the terminal is closed; `take` says whether to go on.
pub(super) fn read_all(mut emulator: File, mut take: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match emulator.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) if take(buffer.get(..length).unwrap_or_default()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // EIO: nobody has the other side any more.
            _ => return,
        }
    }
}
