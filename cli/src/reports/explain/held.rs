//! What holds the peak.
//!
//! Invariant: bytes and shares are those of `table`.

use memtrack_reader::origin::Whose;

use super::rows::LineRow;
use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, size_of};
use crate::reports::line_objects::LineObjects;
use crate::reports::source::Sources;
use crate::units::{duration, percent};

/// Number of lines.
const MOST: usize = 3;
/// A line is named if it holds at least this many bytes, and this percentage of the peak.
const LEAST: u64 = 64 << 10;
const LEAST_PERCENT: u64 = 10;

/// One finding: the lines that hold most at the peak, without those that another finding is about.
pub(super) fn findings(
    rows: &LineRows<'_>,
    sources: &mut Sources,
    objects: &LineObjects,
    others: &[Finding],
) -> Vec<Finding> {
    let capture = rows.capture;
    let least = LEAST.max(rows.peak.bytes / (100 / LEAST_PERCENT));
    let mut holders: Vec<_> = rows.rows.iter().filter(|row| row.whose() != Whose::Imports).collect();
    // Own code first: what the program can change.
    holders.sort_by_key(|row| std::cmp::Reverse((row.whose() == Whose::Own, row.peak.tally.bytes)));
    // Memory without a stack is the interpreter's own, from before any code ran.
    // What samples leave open is not named.
    holders.retain(|row| row.peak.tally.bytes >= least && row.peak.tally.bytes_range().0 > 0 && row.has_line());
    let named = |row: &LineRow| {
        let name = row.name(capture);
        others.iter().any(|finding| finding.title.starts_with(&name))
    };
    let Some(first) = holders.first().copied().filter(|row| !named(row)) else { return Vec::new() };
    let mut evidence_of = |row: &LineRow| {
        let tally = row.peak.tally;
        let name = row.name(capture);
        let held = Evidence {
            text: format!("{}, {} of the peak: {name}", in_blocks(tally), percent(tally.bytes, rows.peak.bytes)),
            tally,
            place: row.peak.place(capture, sources),
        };
        [vec![held], row.objects(objects)].concat()
    };
    let evidence: Vec<Evidence> = holders.iter().take(MOST).flat_map(|row| evidence_of(row)).collect();
    let at = capture.analysis.totals.peak.at.filter(|_| !capture.has_several_peaks());
    let after = at.map_or_else(String::new, |at| format!(", after {}", duration(at.time_ns)));
    let filters = evidence[0].place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
    vec![Finding {
        kind: FindingKind::Held,
        severity: Severity::Note,
        title: format!(
            "{} holds {} of {} of {}{after}",
            first.name(capture),
            percent(first.peak.tally.bytes, rows.peak.bytes),
            if capture.has_several_peaks() { "the sum of all processes' peaks" } else { "the peak" },
            size_of(rows.peak)
        ),
        bytes: first.peak.tally.bytes,
        weight: first.peak.tally.bytes,
        evidence,
        meaning: "This memory was live when the program's heap was largest; less of it lowers the peak.".into(),
        advice: "Process the data in parts, drop it before the next step, or use a denser type for it.".into(),
        command: command(capture, &format!("tree --text{filters}")),
    }]
}
