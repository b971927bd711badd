//! Which of a line's live bytes are not in memory: address space that allocators reserve, and blocks that nobody has touched.
//!
//! They are joined with the rows of findings by the row itself. The command names a moment at which they are not in memory. Invariant:
//! what an account has in memory, or may have been in memory between two of them, is not said to be absent.

use super::Evidence;
use super::resident::at_moment;
use crate::reports::capture_info::Capture;
use crate::reports::own_lines::NamedLine;
use crate::reports::resident::{ResidentMoment, ResidentReport, UntouchedRow};
use crate::units::{count, size};

/// Bytes from which it is said.
const LEAST: u64 = 16 << 20;

/// The lines whose blocks are not all in memory at a moment; none where that is not known.
#[derive(Debug, Default)]
pub(super) struct NotInMemory<'a> {
    moment: Option<&'a ResidentMoment>,
    rows: Vec<(&'a NamedLine, BlocksOfLine)>,
}

/// Large blocks of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlocksOfLine {
    blocks: u64,
    bytes: u64,
    /// Of these, what is in memory at no account.
    pub(super) absent: u64,
}

impl BlocksOfLine {
    /// Whether most of what the line holds is not in memory.
    pub(super) fn is_most_of(self, held: u64) -> bool {
        self.absent >= LEAST && self.absent > held.min(self.bytes) / 2
    }
}

impl<'a> NotInMemory<'a> {
    /// Of the moment of this report.
    pub(super) fn of(report: Option<&'a ResidentReport<'a>>) -> Self {
        let Some(report) = report else { return Self::default() };
        let row = |UntouchedRow { line, blocks, .. }: &'a UntouchedRow| {
            let memtrack_reader::resident::UntouchedBlocks { blocks, bytes, untouched, .. } = *blocks;
            Some((line.as_ref()?, BlocksOfLine { blocks, bytes, absent: untouched }))
        };
        Self { moment: Some(report.memory()), rows: report.untouched().iter().filter_map(row).collect() }
    }

    /// What is not in memory of this row's blocks; `None`: that is little. What a line imports is not of the row of what it
    /// allocates itself.
    pub(super) fn of_line(&self, line: Option<&NamedLine>) -> Option<BlocksOfLine> {
        let line = line?;
        let of_line = self.rows.iter().filter(|(other, _)| *other == line);
        let sum = of_line.fold(BlocksOfLine::default(), |sum, (_, more)| BlocksOfLine {
            blocks: sum.blocks + more.blocks,
            bytes: sum.bytes.saturating_add(more.bytes),
            absent: sum.absent.saturating_add(more.absent),
        });
        (sum.absent >= LEAST).then_some(sum)
    }

    /// Bytes that are not in memory, of all lines.
    pub(super) fn sum(&self) -> u64 {
        self.rows.iter().map(|(_, row)| row.absent).sum()
    }

    /// What is not in memory of a line, as evidence.
    pub(super) fn evidence(&self, line: Option<&NamedLine>) -> Option<Evidence> {
        let BlocksOfLine { blocks, bytes, absent } = self.of_line(line)?;
        let of = if blocks == 1 {
            format!("a block of {}", size(bytes))
        } else {
            format!("{} blocks of {} in all", count(blocks), size(bytes))
        };
        let text = format!("{} of {of} was in memory at no account: never touched, or given back", size(absent));
        Some(Evidence { text, tally: Evidence::exact(absent, blocks), ..Evidence::default() })
    }

    /// The command that lists what is live and not in memory.
    pub(super) fn command(&self, capture: &Capture) -> Option<String> {
        self.moment.map(|moment| at_moment(capture, moment, ""))
    }
}
