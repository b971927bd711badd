//! Text for people: styled pieces, labels of code, tables and paragraphs, all within the width of the terminal.
//!
//! Reports say what a piece of text is, and this says how it looks. Invariant: without colour the bytes are those of the
//! words alone, escape sequences take no width, and control characters of a capture never reach the terminal.

mod label;
mod styled;
mod table;
mod wrap;

pub(crate) use label::Label;
pub(crate) use styled::{Style, Styled, visible};
pub(crate) use table::{TextCell, TextColumn, TextTable, column, left_out, share};
pub(crate) use wrap::{entry, paragraph};
