//! Many small blocks of one line: bookkeeping of the allocator takes as much as the data.
//!
//! Invariant: only lines whose blocks were live at the peak.

use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, size_of};
use crate::reports::estimates::RangedTally;
use crate::reports::source::Sources;
use crate::units::count;

/// Number of lines.
const MOST: usize = 2;
/// Mean size up to which blocks are small, in bytes.
const SMALL: u64 = 96;
/// Least number of live blocks.
const LEAST: u64 = 100_000;
/// Least percentage of the peak.
const LEAST_PERCENT: u64 = 10;

/// The lines with most small blocks at the peak.
pub(super) fn findings(rows: &LineRows<'_>, sources: &mut Sources) -> Vec<Finding> {
    let capture = rows.capture;
    let is_tiny = |row: &&super::rows::LineRow| {
        let tally = row.peak.tally;
        tally.count_range().0 >= LEAST
            && tally.bytes / tally.count <= SMALL
            && tally.bytes >= rows.in_memory / (100 / LEAST_PERCENT)
    };
    let mut tiny: Vec<_> = rows.rows.iter().filter(is_tiny).collect();
    tiny.sort_by_key(|row| std::cmp::Reverse(row.peak.tally.count));
    tiny.truncate(MOST);
    let finding = |row: &super::rows::LineRow| {
        let tally = row.peak.tally;
        let place = row.place(row.peak, capture, sources);
        let filters = place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
        Finding {
            kind: FindingKind::Tiny,
            severity: Severity::Note,
            title: format!("{} holds {} small blocks", row.name(capture), count(tally.count)),
            bytes: tally.bytes,
            weight: tally.bytes.saturating_mul(2),
            evidence: vec![Evidence {
                text: format!(
                    "{} in {} blocks of {} bytes on average, {}",
                    size_of(tally),
                    RangedTally::from(tally).number(),
                    tally.bytes / tally.count.max(1),
                    rows.share_of_peak(row)
                ),
                tally,
                place,
                ..Evidence::default()
            }],
            meaning: "Each block takes up to 16 bytes more than was asked for, and in Python a reference and often a \
                      header beside."
                .into(),
            advice:
                "Keep the data in arrays (array, numpy, bytes; in C and Rust a vector of values), use __slots__ or \
                     tuples, or share equal values."
                    .into(),
            command: command(capture, &format!("table{filters}")),
        }
    };
    tiny.into_iter().map(finding).collect()
}
