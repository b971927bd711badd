//! Which of a line's live bytes are not in memory: address space that allocators reserve, and blocks that nobody has touched.
//!
//! They are joined with the rows of findings by the row itself; rows without a line are one. The command names a moment at which they are
//! not in memory. Invariant: what an account has in memory, or may have been in memory between two of them, is not said to be absent.

use super::resident::at_moment;
use super::{Evidence, Finding};
use crate::reports::capture_info::Capture;
use crate::reports::own_lines::NamedLine;
use crate::reports::resident::{ResidentMoment, ResidentReport, UntouchedRow};
use crate::units::{count, size};

/// Bytes from which it is said.
const LEAST: u64 = 16 << 20;
/// What a line has in memory beside what it only reserves is told where it is at least this part of that.
pub(super) const LEAST_BESIDE: u64 = 8;

/// The lines whose blocks are not all in memory at a moment; none where that is not known.
#[derive(Debug, Default)]
pub(super) struct NotInMemory<'a> {
    moment: Option<&'a ResidentMoment>,
    rows: Vec<(Option<&'a NamedLine>, BlocksOfLine)>,
}

/// Large blocks of a line that were live at the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlocksOfLine {
    blocks: u64,
    bytes: u64,
    /// Of these, what is in memory at no account.
    pub(super) absent: u64,
    /// What is in memory at no account either, but may have been between two.
    pub(super) unseen: u64,
    /// Of blocks of the line that live to the end, what is not in memory at the last account.
    pub(super) at_last: u64,
}

impl BlocksOfLine {
    /// Whether most of what the line holds is not in memory.
    pub(super) fn is_most_of(self, held: u64) -> bool {
        is_most(self.absent, held)
    }

    /// The same of what leaked, which has its last account.
    pub(super) fn is_most_of_leaked(self, leaked: u64) -> bool {
        is_most(self.at_last, leaked)
    }

    /// Of so many live bytes, those that are in memory.
    pub(super) fn present(self, held: u64) -> u64 {
        held.saturating_sub(self.absent)
    }

    /// The same of what leaked.
    pub(super) fn present_of_leaked(self, leaked: u64) -> u64 {
        leaked.saturating_sub(self.at_last)
    }

    /// What is not in memory, as evidence; `None`: that is little.
    pub(super) fn evidence(self) -> Option<Evidence> {
        let Self { blocks, bytes, absent, unseen, .. } = self;
        let of = if blocks == 1 {
            format!("a block of {}", size(bytes))
        } else {
            format!("{} blocks of {} in all", count(blocks), size(bytes))
        };
        let at_least = if size(absent) == size(absent + unseen) { "" } else { "at least " };
        let text =
            format!("{at_least}{} of {of} was in memory at no account: never touched, or given back", size(absent));
        (absent >= LEAST).then(|| Evidence { text, tally: Evidence::exact(absent, blocks), ..Evidence::default() })
    }

    fn and(self, more: Self) -> Self {
        Self {
            blocks: self.blocks + more.blocks,
            bytes: self.bytes.saturating_add(more.bytes),
            absent: self.absent.saturating_add(more.absent),
            unseen: self.unseen.saturating_add(more.unseen),
            at_last: self.at_last.saturating_add(more.at_last),
        }
    }
}

fn is_most(absent: u64, of: u64) -> bool {
    absent >= LEAST && absent > of / 2
}

impl<'a> NotInMemory<'a> {
    /// Of the moment of this report.
    pub(super) fn of(report: Option<&'a ResidentReport<'a>>) -> Self {
        let row = |UntouchedRow { line, blocks, .. }: &'a UntouchedRow| {
            let memtrack_reader::resident::UntouchedBlocks { blocks, bytes, untouched, unseen, at_last, .. } = *blocks;
            (line.as_ref(), BlocksOfLine { blocks, bytes, absent: untouched, unseen, at_last })
        };
        Self {
            moment: report.map(ResidentReport::memory),
            rows: report.iter().flat_map(|report| report.untouched()).map(row).collect(),
        }
    }

    /// What is not in memory of this row's blocks, `None` being that of stacks without frames; nothing where it is little. What a line
    /// imports is not of the row of what it allocates itself.
    pub(super) fn of_line(&self, line: impl Fn() -> Option<NamedLine>) -> BlocksOfLine {
        if self.rows.is_empty() {
            return BlocksOfLine::default();
        }
        let line = line();
        let of_line = self.rows.iter().filter(|(other, _)| *other == line.as_ref());
        let sum = of_line.fold(BlocksOfLine::default(), |sum, (_, more)| sum.and(*more));
        if sum.absent.max(sum.at_last) >= LEAST { sum } else { BlocksOfLine::default() }
    }

    /// A finding about memory of which most was only reserved: what holds it is no culprit.
    pub(super) fn reserved(&self, finding: Finding, capture: &Capture) -> Finding {
        Finding {
            title: format!("{}, most of it not in memory", finding.title),
            meaning: "This is mostly address space that was reserved, by an allocator or for a table that is filled later. It counts as \
                      live, and takes memory only where it was touched."
                .into(),
            advice: "Look at resident memory, where what is reserved does not count; only a limit of address space (ulimit -v) does count \
                     it."
                .into(),
            command: self.moment.map_or(finding.command, |moment| at_moment(capture, moment, "")),
            ..finding
        }
    }
}
