//! Text output: styled text, labels of code, tables and paragraphs, fitted to the terminal's width.
//!
//! Reports mark the role of a piece of text; this module determines its appearance. Invariant: without colours there
//! are no escape sequences; these never count as width; and control characters of a capture never reach the terminal.

mod label;
mod shell_words;
mod styled;
mod table;
mod wrap;

pub(crate) use label::Label;
pub(crate) use shell_words::{quoted, quoted_path};
pub(crate) use styled::{Style, Styled, visible};
pub(crate) use table::{TextCell, TextColumn, TextTable, column, left_out, share, share_of, sized};
pub(crate) use wrap::{entry, paragraph};
