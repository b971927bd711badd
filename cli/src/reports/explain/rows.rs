//! The lines of own code of a capture, each with all its sums: what most findings are made of.
//!
//! Arenas of Python's allocators count for the line that made Python ask for them. Invariant: the sums of a line are those
//! of `table` in the same view, with arenas.

use memtrack_reader::analysis::{LiveSeries, Sum, Tally};
use memtrack_reader::origin::Whose;
use memtrack_reader::{StackId, View};

use super::{Evidence, Finding};
use crate::reports::capture_info::Capture;
use crate::reports::display::place;
use crate::reports::line_objects::{LineObjects, ObjectsOfLine};
use crate::reports::own_lines::{NamedLine, OwnLineKey, rows_of_groups};
use crate::reports::place::Place;
use crate::reports::source::Sources;
use crate::reports::{NO_STACK, display};
use crate::units::{plural, size};

/// The sums of one view, and the stack with most of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ViewSum {
    pub(super) tally: Tally,
    heaviest: Option<(Tally, StackId)>,
}

impl ViewSum {
    fn add(&mut self, tally: Tally, stack: StackId) {
        self.tally += tally;
        if self.heaviest.is_none_or(|(most, _)| (tally.bytes, tally.count) > (most.bytes, most.count)) {
            self.heaviest = Some((tally, stack));
        }
    }
}

/// A line of own code, or the innermost frame of stacks without own code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRow {
    key: OwnLineKey,
    pub(super) peak: ViewSum,
    pub(super) leaked: ViewSum,
    pub(super) allocated: ViewSum,
    /// Of what leaked, arenas of Python's allocators.
    pub(super) arenas: Tally,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct LineRows<'a> {
    pub(super) capture: &'a Capture,
    pub(super) rows: Vec<LineRow>,
    /// Live bytes of each row over time, if known.
    pub(super) series: Option<LiveSeries>,
    /// Live at the peak.
    pub(super) peak: Tally,
}

impl<'a> LineRows<'a> {
    /// What the sums at the peak are parts of, in words.
    pub(super) fn name_of_peak(&self) -> &'static str {
        match (self.capture.info.narrowed, self.capture.has_several_peaks()) {
            (false, false) => "the peak",
            (false, true) => "the sum of all processes' peaks",
            (true, false) => "the peak's selected part",
            (true, true) => "the selected part of the sum of all processes' peaks",
        }
    }

    pub(super) fn of(capture: &'a Capture) -> Self {
        let (keys, of_group) = rows_of_groups(capture);
        let new = |key| LineRow {
            key,
            peak: ViewSum::default(),
            leaked: ViewSum::default(),
            allocated: ViewSum::default(),
            arenas: Tally::default(),
        };
        let mut rows: Vec<LineRow> = keys.into_iter().map(new).collect();
        for (number, (group, row)) in capture.analysis.groups.iter().zip(&of_group).enumerate() {
            let row = &mut rows[*row as usize];
            // What had no sample in a view is not part of the line's interval there, as in `table`.
            let tally = |sum: Sum, view| match sum.tally() {
                none @ Tally { bytes: 0, count: 0, .. } => none,
                some => Tally { variance: capture.analysis.variance(number, view), ..some },
            };
            let leaked = tally(group.leaked, View::Leaks);
            if group.allocator.is_python_arena() {
                row.arenas += leaked;
            }
            row.peak.add(tally(group.peak, View::HighWaterMark), group.stack);
            row.leaked.add(leaked, group.stack);
            row.allocated.add(tally(group.allocated, View::Allocated), group.stack);
        }
        let series = capture.analysis.live_series(&of_group, rows.len());
        let peak = capture.analysis.rows(View::HighWaterMark).map(|row| row.tally()).sum();
        Self { capture, rows, series, peak }
    }
}

impl LineRow {
    pub(super) fn whose(&self) -> Whose {
        self.key.whose()
    }

    /// The line in the stack that has most bytes of one of its sums.
    pub(super) fn place(&self, sum: ViewSum, capture: &Capture, sources: &mut Sources) -> Option<Place> {
        let (_, stack) = sum.heaviest?;
        Place::of_line(capture, stack, self.key.line()?, sources)
    }

    /// Whether its stacks have frames.
    pub(super) fn has_line(&self) -> bool {
        self.key.line().is_some()
    }

    /// The objects in its blocks, and who holds them.
    pub(super) fn objects(&self, objects: &LineObjects) -> Vec<Evidence> {
        let text = |of: &ObjectsOfLine| {
            let name = of.name.strip_prefix("builtins.").unwrap_or(&of.name);
            let told = plural(of.count, &format!("{name} object"), &format!("{name} objects"));
            format!("in its blocks {}: {} in {told}, held by {}", objects.when, size(of.own_bytes), of.holder)
        };
        let evidence = |of: &ObjectsOfLine| Evidence {
            text: text(of),
            tally: Evidence::exact(of.own_bytes, of.count),
            ..Evidence::default()
        };
        objects.of_line(self.key).iter().map(evidence).collect()
    }

    /// The row by its names.
    pub(super) fn named(&self, capture: &Capture) -> Option<NamedLine> {
        self.key.named(capture)
    }

    pub(super) fn is(&self, key: OwnLineKey) -> bool {
        self.key == key
    }

    /// Whether one of these findings has the line as evidence.
    pub(super) fn is_evidence_of(&self, capture: &Capture, findings: &[Finding]) -> bool {
        let end = format!(": {}", self.name(capture));
        findings.iter().any(|finding| finding.evidence.iter().any(|evidence| evidence.text.ends_with(&end)))
    }

    /// Whether one of these findings is about the line.
    pub(super) fn is_named_by(&self, capture: &Capture, findings: &[Finding]) -> bool {
        let name = format!("{} ", self.name(capture));
        findings.iter().any(|finding| finding.title.starts_with(&name))
    }

    /// What leaked of it: arenas of Python's allocators do not count.
    pub(super) fn leaked(&self) -> Tally {
        self.leaked.tally.less(self.arenas)
    }

    /// The line as text.
    pub(super) fn name(&self, capture: &Capture) -> String {
        let Some(frame) = self.key.line() else { return NO_STACK.into() };
        let path = capture.path(capture.frames.name(frame.file));
        display::joined(capture.frames.name(frame.function), &place(frame, &path))
    }
}
