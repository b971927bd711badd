//! What holds the peak, and what only reserves it.
//!
//! Invariant: bytes and shares are those of `table`.

use memtrack_reader::View;
use memtrack_reader::origin::Whose;

use super::leaked::Leaks;
use super::rows::LineRow;
use super::{Evidence, Finding, FindingKind, LineRows, NotInMemory, Place, Severity, command, in_blocks};
use crate::reports::capture_info::Capture;
use crate::reports::estimates;
use crate::reports::line_objects::LineObjects;
use crate::reports::source::Sources;
use crate::units::{duration, percent};

/// Number of lines.
const MOST: usize = 3;
/// A line is named if it holds at least this many bytes, and this percentage of the peak.
const LEAST: u64 = 64 << 10;
const LEAST_PERCENT: u64 = 10;

/// What it means that a line holds much, and what may be done; and the same where most of it was not given back.
const HELD: &str = "This memory was live when the program's heap was largest; less of it lowers the peak.";
const LESS: &str = "Process the data in parts, drop it before the next step, or use a denser type for it.";
const KEPT: &str = "This memory was live when the program's heap was largest, and most of it was not given back: a leak, or data that the program \
                    uses to its end.";
const LET_GO: &str = "If it was not needed any more, find out who keeps it: a module-level collection, a cache without a size limit, registered \
                      callbacks. Else process the data in parts, or use a denser type for it.";

/// The lines that hold most at the peak, without those that another finding is about; and apart from them those that hold mostly
/// what is not in memory.
pub(super) fn findings(
    (rows, leaks): (&LineRows<'_>, Option<&Leaks<'_>>),
    sources: &mut Sources,
    (objects, absent): (&LineObjects, &NotInMemory<'_>),
    others: &[Finding],
) -> Vec<Finding> {
    let capture = rows.capture;
    // Beside a gigabyte that was only reserved, no line would hold much of the peak.
    let least = LEAST.max(rows.peak.bytes.saturating_sub(absent.sum()) / (100 / LEAST_PERCENT));
    let of_row = |row| Holder::of(row, capture, sources, (least, absent));
    let mut holders: Vec<Holder<'_>> = rows.rows.iter().filter_map(of_row).collect();
    // Own code first: what the program can change.
    holders.sort_by_key(|holder| std::cmp::Reverse((holder.row.whose() == Whose::Own, holder.row.peak.tally.bytes)));
    holders.retain(|holder| !holder.row.is_named_by(capture, others));
    let (reserving, holding): (Vec<_>, Vec<_>) = holders.into_iter().partition(|holder| holder.is_mostly_absent);
    let held = [holding, reserving].into_iter().filter(|holders| !holders.is_empty());
    held.map(|holders| finding((rows, leaks), &holders, objects, absent)).collect()
}

/// A line that holds much at the peak.
struct Holder<'a> {
    row: &'a LineRow,
    place: Option<Place>,
    /// Bytes of it that are not in memory, if that is known and much.
    absent: u64,
    is_mostly_absent: bool,
}

impl<'a> Holder<'a> {
    fn of(
        row: &'a LineRow,
        capture: &Capture,
        sources: &mut Sources,
        (least, absent): (u64, &NotInMemory<'_>),
    ) -> Option<Self> {
        let tally = row.peak.tally;
        // Memory without a stack is the interpreter's own, from before any code ran.
        // What samples leave open is not named.
        if row.whose() == Whose::Imports || tally.bytes < least || tally.bytes_range().0 == 0 || !row.has_line() {
            return None;
        }
        let place = row.place(row.peak, capture, sources);
        let found = absent.of_line(row.named(capture).as_ref()).unwrap_or_default();
        Some(Self { row, place, absent: found.absent, is_mostly_absent: found.is_most_of(tally.bytes) })
    }

    fn evidence(
        &self,
        (rows, leaks): (&LineRows<'_>, Option<&Leaks<'_>>),
        objects: &LineObjects,
        absent: &NotInMemory<'_>,
    ) -> Vec<Evidence> {
        let tally = self.row.peak.tally;
        let name = self.row.name(rows.capture);
        let held = Evidence {
            text: format!(
                "{}, {} of {}: {name}",
                in_blocks(tally),
                percent(tally.bytes, rows.peak.bytes),
                rows.name_of_peak()
            ),
            tally,
            place: self.place.clone(),
            ..Evidence::default()
        };
        [
            vec![held],
            absent.evidence(self.row.named(rows.capture).as_ref()).into_iter().collect(),
            self.row.objects(objects),
            leaks.and_then(|leaks| leaks.evidence(self.row)).into_iter().collect(),
        ]
        .concat()
    }
}

fn finding(
    (rows, leaks): (&LineRows<'_>, Option<&Leaks<'_>>),
    holders: &[Holder<'_>],
    objects: &LineObjects,
    absent: &NotInMemory<'_>,
) -> Finding {
    let (capture, first) = (rows.capture, &holders[0]);
    let at = capture.analysis.totals.peak.at.filter(|_| !capture.has_several_peaks());
    let after = at.map_or_else(String::new, |at| format!(", after {}", duration(at.time_ns)));
    let filters = first.place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
    let bytes = first.row.peak.tally.bytes;
    let mostly_absent = if first.is_mostly_absent { ", most of it not in memory" } else { "" };
    let is_kept = leaks.is_some_and(|leaks| leaks.evidence(first.row).is_some());
    let finding = Finding {
        kind: FindingKind::Held,
        severity: Severity::Note,
        title: format!(
            "{} holds {} of {} of {}{after}{mostly_absent}",
            first.row.name(capture),
            percent(bytes, rows.peak.bytes),
            rows.name_of_peak(),
            estimates::whole(capture, View::HighWaterMark, rows.peak).size()
        ),
        bytes,
        weight: bytes.saturating_sub(first.absent),
        evidence: holders
            .iter()
            .take(MOST)
            .flat_map(|holder| holder.evidence((rows, leaks), objects, absent))
            .collect(),
        meaning: if is_kept { KEPT } else { HELD }.into(),
        advice: if is_kept { LET_GO } else { LESS }.into(),
        command: command(capture, &format!("tree --text{filters}")),
    };
    if !first.is_mostly_absent {
        return finding;
    }
    Finding {
        meaning: "This is mostly address space that was reserved, by an allocator or for a table that is filled later. It counts as \
                  live, and takes memory only where it was touched."
            .into(),
        advice: "Look at resident memory, where what is reserved does not count; only a limit of address space (ulimit -v) does count it."
            .into(),
        command: absent.command(capture).unwrap_or(finding.command),
        ..finding
    }
}
