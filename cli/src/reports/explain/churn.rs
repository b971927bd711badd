//! Memory that one line allocates and frees again and again.
//!
//! Invariant: the bytes are those of `table --allocated`.

use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, noise, size_about, size_of};
use crate::reports::source::Sources;
use crate::units::{count, duration};

/// Number of lines.
const MOST: usize = 2;
/// A line churns if it allocates this many times what it holds at the peak,
const TIMES: u64 = 20;
/// this many times the whole peak,
const MUCH: u64 = 4;
/// and at least so many bytes or blocks a second.
const LEAST_BYTES: u64 = 100_000_000;
const LEAST_BLOCKS: u64 = 100_000;
/// Least share of all that was allocated, by bytes or by number.
const LEAST_PERCENT: u64 = 20;
/// A line holds much from these bytes on, and this percentage of the peak; so does `held`.
const LEAST_HELD: u64 = 64 << 10;
const LEAST_HELD_PERCENT: u64 = 10;
/// Why that matters.
const TAKES_TIME: &str = "allocating and freeing takes time, and large blocks have their pages made new each time.";
/// One byte that is held weighs as much as so many that come and go.
const WEIGHS: u64 = 64;

/// The lines that allocate most in relation to what they hold.
pub(super) fn findings(rows: &LineRows<'_>, sources: &mut Sources) -> Vec<Finding> {
    let capture = rows.capture;
    let totals = &capture.analysis.totals;
    let span_ns = capture.info.duration_ns(&capture.analysis).max(1);
    let rate = |number: u64| (number as f64 * 1e9 / span_ns as f64) as u64;
    let is_share = |part: u64, whole: u64| part / LEAST_PERCENT.max(1) >= whole / 100 && part > 0;
    let churns = |row: &&super::rows::LineRow| {
        let (all, held) = (row.allocated.tally, row.peak.tally.bytes.max(row.leaked.tally.bytes));
        let by_bytes = rate(all.bytes) >= LEAST_BYTES && is_share(all.bytes, totals.allocations.bytes);
        let by_count = rate(all.count) >= LEAST_BLOCKS && is_share(all.count, totals.allocations.count);
        all.bytes / TIMES >= held && all.bytes / MUCH >= rows.peak.bytes && (by_bytes || by_count)
    };
    let weight = |row: &super::rows::LineRow| (row.allocated.tally.bytes / WEIGHS).max(row.allocated.tally.count);
    let mut all: Vec<_> = rows.rows.iter().filter(churns).collect();
    all.sort_by_key(|row| std::cmp::Reverse(weight(row)));
    all.truncate(MOST);
    // A line may hold much and allocate many times that: then another finding is about what it holds.
    let is_much = |held: u64| held >= LEAST_HELD && held >= rows.peak.bytes / 100 * LEAST_HELD_PERCENT;
    let holds_much = |row: &super::rows::LineRow| is_much(row.peak.tally.bytes.max(row.leaked.tally.bytes));
    let finding = |row: &super::rows::LineRow| {
        let tally = row.allocated.tally;
        let place = row.place(row.allocated, capture, sources);
        let filters = place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
        Finding {
            kind: FindingKind::Churn,
            severity: Severity::Note,
            title: format!(
                "{} allocates {} a second",
                row.name(capture),
                size_about(rate(tally.bytes), rate(noise(tally)))
            ),
            bytes: tally.bytes,
            weight: weight(row),
            evidence: vec![Evidence {
                text: format!(
                    "{} in {}, {} blocks a second; {} of it live at the peak",
                    in_blocks(tally),
                    duration(span_ns),
                    count(rate(tally.count)),
                    size_of(row.peak.tally)
                ),
                tally,
                place,
                ..Evidence::default()
            }],
            meaning: format!(
                "{} {TAKES_TIME}",
                if holds_much(row) { "Apart from what it holds," } else { "It holds little memory, but" }
            ),
            advice: "Reuse a buffer, allocate once outside of the loop, or work in place.".into(),
            command: command(capture, &format!("table --allocated{filters}")),
        }
    };
    all.into_iter().map(finding).collect()
}
