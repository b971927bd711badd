//! What holds the peak, and what only reserves it.
//!
//! Invariant: bytes are those of `table`, and so are shares but for what is not in memory.

use memtrack_reader::View;
use memtrack_reader::origin::Whose;

use super::leaked::Leaks;
use super::not_in_memory::LEAST_BESIDE;
use super::rows::LineRow;
use super::{Evidence, Finding, FindingKind, LineRows, Place, Severity, command, in_blocks};
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
    objects: &LineObjects,
    others: &[Finding],
) -> Vec<Finding> {
    let capture = rows.capture;
    let of_row = |row| Holder::of(row, rows, sources);
    let mut holders: Vec<Holder<'_>> = rows.rows.iter().filter_map(of_row).collect();
    // Own code first: what the program can change.
    let much = |holder: &Holder<'_>| if holder.reserves { holder.row.peak.tally.bytes } else { holder.row.present() };
    holders.sort_by_key(|holder| std::cmp::Reverse((holder.row.whose() == Whose::Own, much(holder))));
    holders.retain(|holder| !holder.row.is_named_by(capture, others));
    let (reserving, holding): (Vec<_>, Vec<_>) = holders.into_iter().partition(|holder| holder.reserves);
    let held = [holding, reserving].into_iter().filter(|holders| !holders.is_empty());
    held.map(|holders| finding((rows, leaks), &holders, objects)).collect()
}

/// A line that holds much at the peak.
struct Holder<'a> {
    row: &'a LineRow,
    /// Most of it is not in memory, and the rest is little.
    reserves: bool,
    place: Option<Place>,
}

impl<'a> Holder<'a> {
    fn of(row: &'a LineRow, rows: &LineRows<'_>, sources: &mut Sources) -> Option<Self> {
        let tally = row.peak.tally;
        let least = LEAST.max(rows.in_memory / (100 / LEAST_PERCENT));
        let reserves = row.is_mostly_absent() && row.present() < least.max(row.absent.absent / LEAST_BESIDE);
        let held = if reserves { tally.bytes } else { row.present() };
        // Memory without a stack is the interpreter's own, from before any code ran.
        // What samples leave open is not named.
        if row.whose() == Whose::Imports || held < least || tally.bytes_range().0 == 0 || !row.has_line() {
            return None;
        }
        Some(Self { row, reserves, place: row.place(row.peak, rows.capture, sources) })
    }

    /// `67.1 % of the peak`. Of what was only reserved it is its share of all.
    fn share(&self, rows: &LineRows<'_>) -> String {
        match self.reserves {
            true => format!("{} of {}", percent(self.row.peak.tally.bytes, rows.peak.bytes), rows.name_of_peak()),
            false => rows.share_of_peak(self.row),
        }
    }

    fn evidence(&self, (rows, leaks): (&LineRows<'_>, Option<&Leaks<'_>>), objects: &LineObjects) -> Vec<Evidence> {
        let tally = self.row.peak.tally;
        let name = self.row.name(rows.capture);
        let held = Evidence {
            text: format!("{}, {}: {name}", in_blocks(tally), self.share(rows)),
            tally,
            place: self.place.clone(),
            ..Evidence::default()
        };
        [
            vec![held],
            self.row.absent.evidence().into_iter().collect(),
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
) -> Finding {
    let (capture, first) = (rows.capture, &holders[0]);
    let at = capture.analysis.totals.peak.at.filter(|_| !capture.has_several_peaks());
    let after = at.map_or_else(String::new, |at| format!(", after {}", duration(at.time_ns)));
    let filters = first.place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
    let bytes = first.row.peak.tally.bytes;
    let is_kept = leaks.is_some_and(|leaks| leaks.evidence(first.row).is_some());
    let finding = Finding {
        kind: FindingKind::Held,
        severity: Severity::Note,
        title: format!(
            "{} holds {} of {}{after}",
            first.row.name(capture),
            first.share(rows),
            estimates::whole(capture, View::HighWaterMark, rows.peak).size()
        ),
        bytes,
        weight: first.row.present(),
        evidence: holders.iter().take(MOST).flat_map(|holder| holder.evidence((rows, leaks), objects)).collect(),
        meaning: if is_kept { KEPT } else { HELD }.into(),
        advice: if is_kept { LET_GO } else { LESS }.into(),
        command: command(capture, &format!("tree --text{filters}")),
    };
    if first.reserves { rows.absent.reserved(finding, capture) } else { finding }
}
