//! The lines of own code of a capture, each with all its sums: what most findings are made of.
//!
//! Arenas of Python's allocators count for the line that made Python ask for them. Invariant: the sums of a line are those
//! of `table` in the same view, with arenas.

use memtrack_reader::analysis::{LiveSeries, Sum, Tally, UnendingGrowth};
use memtrack_reader::origin::Whose;
use memtrack_reader::{StackId, View};

use super::not_in_memory::BlocksOfLine;
use super::{Evidence, Finding, NotInMemory, noise};
use crate::reports::capture_info::Capture;
use crate::reports::display::place;
use crate::reports::line_objects::{LineObjects, ObjectsOfLine};
use crate::reports::own_lines::{OwnLineKey, rows_of_groups};
use crate::reports::place::Place;
use crate::reports::source::Sources;
use crate::reports::{NO_STACK, display};
use crate::units::{percent, plural, size};

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
    /// What of its blocks is not in memory.
    pub(super) absent: BlocksOfLine,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct LineRows<'a> {
    pub(super) capture: &'a Capture,
    pub(super) rows: Vec<LineRow>,
    /// Live bytes of each row over time, if known.
    pub(super) series: Option<LiveSeries>,
    /// The row of each group.
    of_group: Vec<u32>,
    /// Live at the peak.
    pub(super) peak: Tally,
    /// Bytes of it that are in memory: what lines are judged by. Beside a gigabyte that was only reserved, none would hold much.
    pub(super) in_memory: u64,
    pub(super) absent: NotInMemory<'a>,
}

/// What is not in memory counts in shares from this percentage of the peak on.
const LEAST_ABSENT_PERCENT: u64 = 5;

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

    /// `67.1 % of the peak`, or of what is in memory of it, if that is much less.
    pub(super) fn share_of_peak(&self, row: &LineRow) -> String {
        self.share(row.peak.tally.bytes, row.present())
    }

    /// The same of so many bytes, of which these are in memory.
    pub(super) fn share(&self, bytes: u64, present: u64) -> String {
        let (peak, name) = (self.peak.bytes, self.name_of_peak());
        if peak - self.in_memory < peak / (100 / LEAST_ABSENT_PERCENT) {
            return format!("{} of {name}", percent(bytes, peak));
        }
        format!("{} of what is in memory of {name}", percent(present.min(self.in_memory), self.in_memory))
    }

    /// `absent`: what is known not to be in memory.
    pub(super) fn of(capture: &'a Capture, absent: NotInMemory<'a>) -> Self {
        let (keys, of_group) = rows_of_groups(capture);
        let new = |key: OwnLineKey| LineRow {
            key,
            peak: ViewSum::default(),
            leaked: ViewSum::default(),
            allocated: ViewSum::default(),
            arenas: Tally::default(),
            absent: absent.of_line(|| key.named(capture)),
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
        let peak: Tally = capture.analysis.rows(View::HighWaterMark).map(|row| row.tally()).sum();
        // What may have been in memory between accounts may be of each line, but is of all together.
        let unseen = rows.iter().map(LineRow::unseen);
        let known = rows.iter().map(|row| row.present() - row.unseen()).sum::<u64>();
        let in_memory = (known + unseen.max().unwrap_or(0)).min(peak.bytes);
        Self { capture, rows, series, of_group, peak, in_memory, absent }
    }

    /// How many bytes more or less than these a row may have grown by since this moment, where there are samples only.
    pub(super) fn noise_of_growth(&self, row: usize, growth: UnendingGrowth) -> u64 {
        if !self.capture.is_sampled() {
            return 0;
        }
        let is_of_row = |group: usize| self.of_group.get(group).is_some_and(|of| *of as usize == row);
        let variance = self.capture.analysis.growth_variance(growth.from_ns, is_of_row);
        let live = self.rows.get(row).map_or_else(Tally::default, |row| row.leaked.tally);
        noise(Tally { variance, ..live })
    }
}

impl LineRow {
    pub(super) fn whose(&self) -> Whose {
        self.key.whose()
    }

    /// Bytes at the peak that are in memory.
    pub(super) fn present(&self) -> u64 {
        self.absent.present(self.peak.tally.bytes)
    }

    /// Of these, what no account has in memory.
    fn unseen(&self) -> u64 {
        self.absent.unseen.min(self.present())
    }

    /// Whether most of what it holds at the peak is not in memory.
    pub(super) fn is_mostly_absent(&self) -> bool {
        self.absent.is_most_of(self.peak.tally.bytes)
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
            format!("in its blocks {}: {} in {told}, held by {}", objects.when, size(of.bytes), of.holder)
        };
        let evidence = |of: &ObjectsOfLine| Evidence {
            text: text(of),
            tally: Evidence::exact(of.bytes, of.count),
            ..Evidence::default()
        };
        objects.of_line(self.key).iter().map(evidence).collect()
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
