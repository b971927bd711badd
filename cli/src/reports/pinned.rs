//! The texts of the view of pinned pages: resident pages that blocks of one stack alone keep.
//!
//! Invariant: the figures are those of `resident --pinned` at the same moment.

use memtrack_reader::analysis::Tally;

use super::capture_info::Capture;
use super::resident_moment::ResidentMoment;
use crate::units::{count, duration, size};

/// Where there is no such moment.
const NONE: &str =
    "at no moment had much of resident memory no live block ('memtrack resident --pinned' shows any moment)";

impl ResidentMoment {
    /// Bytes of the blocks in pinned pages, and how old these are: the last one, and the first.
    fn pinned_blocks(&self) -> Option<(u64, [u64; 2])> {
        let rows = &self.breakdown.pinned;
        let ages = rows.iter().map(|row| row.allocated_ns);
        let (first, last) = ages.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))?;
        let live = rows.iter().map(|row| row.live_bytes).sum();
        Some((live, [last, first].map(|time_ns| self.time_ns.saturating_sub(time_ns))))
    }
}

impl Capture {
    /// The line above the rows.
    pub(super) fn pinned_headline(&self, whole: Tally) -> String {
        let title = self.title(memtrack_reader::View::Pinned);
        if self.info.resident.is_none() {
            return format!("{title}: {NONE}");
        }
        let (bytes, blocks) = (size(whole.bytes), count(whole.count));
        format!("{title}: {bytes} kept by {blocks} blocks {}", self.pinned_qualifier())
    }

    /// What its rows have in common.
    pub(super) fn pinned_qualifier(&self) -> String {
        let memory = self.info.resident.as_ref();
        let Some((memory, (live, [youngest, oldest]))) =
            memory.and_then(|memory| Some((memory, memory.pinned_blocks()?)))
        else {
            return NONE.into();
        };
        format!(
            "of one stack each, {} in all and {} to {} old, {} after the start",
            size(live),
            duration(youngest),
            duration(oldest),
            duration(memory.time_ns)
        )
    }

    /// A sentence about the view, for pages.
    pub(super) fn pinned_description(&self) -> String {
        format!("Resident pages that the blocks of one stack alone keep. Blocks {}.", self.pinned_qualifier())
    }
}
