//! Which functions of a difference have a row in text, and what the others are left out for.
//!
//! Two runs of one program differ in arenas, in what imports hold, and in which function a few blocks are of (see
//! [`ReducedRows`]); functions that differ in nothing else have no row. Invariant: a row has all the figures of its
//! function, and of blocks that cancel out either both functions have a row or neither.

use memtrack_reader::analysis::diff::{DiffRow, Difference, FigurePair, MergedTree};
use memtrack_reader::analysis::{CallTree, CaptureRows, FunctionKey, GroupRow, MovedBlocks, ReducedRows, Tally};
use rustc_hash::{FxHashMap, FxHashSet};

use super::capture_info::{Capture, visible};
use super::diff_noise::DiffNoise;
use super::scale::ComparedMetric;
use crate::units::{count, plural, size};

/// So many times functions are taken out of what cancels out, until nothing cancels out.
const MOST_ROUNDS: usize = 8;

/// How a function changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Grown,
    Shrunk,
    Unchanged,
    New,
    Vanished,
}

/// What is compared, and how much of it is more than chance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) metric: ComparedMetric,
    /// Compare functions by total instead of self figures.
    pub(super) by_total: bool,
    pub(super) noise: DiffNoise,
    whole: FigurePair,
}

/// The functions of two captures, and those that have a row.
#[derive(Debug)]
pub(super) struct DiffRows {
    pub(super) measure: Measure,
    /// All changes.
    pub(super) all: Difference,
    /// The functions that have a row.
    pub(super) shown: Vec<DiffRow>,
    pub(super) arenas: FigurePair,
    pub(super) imports: FigurePair,
    /// The cancelled part of each group of the view, of the base and of the new capture.
    pub(super) set_off: [Vec<Tally>; 2],
    /// The blocks that cancel out.
    moved: Vec<MovedBlocks>,
    omitted: OmittedFunctions,
}

/// The numbers of functions that changed and have no row, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OmittedFunctions {
    /// They changed little.
    little: u64,
    /// They changed by blocks that cancel out.
    moved: u64,
    /// They changed by arenas and what imports hold.
    apart: u64,
}

impl DiffRows {
    /// Compares a base with a new capture.
    pub(super) fn of(captures: [&Capture; 2], metric: ComparedMetric, by_total: bool, merged: &mut MergedTree) -> Self {
        let rows = || captures.map(|capture| capture.analysis.view(metric.view));
        let noise = DiffNoise::of(captures, metric);
        let mut all = compared(captures, &rows(), merged, noise);
        let noise = noise.among(all.rows.len());
        if !noise.is_exact() {
            all = compared(captures, &rows(), merged, noise);
        }
        let measure = Measure { metric, by_total, noise, whole: all.whole };
        let (mut kept, mut round) = (FxHashSet::default(), 0);
        loop {
            let [base, new] = captures;
            let [base_rows, new_rows] = rows();
            let base = CaptureRows { frames: &base.frames, rows: base_rows };
            let reduced = ReducedRows::of(base, CaptureRows { frames: &new.frames, rows: new_rows }, &kept);
            let ReducedRows { base, new, arenas, imports, set_off, moved } = reduced;
            let quiet = by_function(compared(captures, &[base, new], merged, noise));
            let is_shown = |row: &&DiffRow| measure.is_news(row, quiet.get(&row.function));
            let shown: Vec<DiffRow> = all.rows.iter().filter(is_shown).copied().collect();
            let with_row: FxHashSet<_> = shown.iter().map(|row| function_key(merged, row)).collect();
            let ends = moved.iter().flat_map(|moved| [&moved.from, &moved.to]);
            let with_both: Vec<_> =
                ends.filter(|end| round >= MOST_ROUNDS || with_row.contains(*end)).cloned().collect();
            if with_both.is_empty() {
                let mut found =
                    Self { measure, all, shown, arenas, imports, set_off, moved, omitted: OmittedFunctions::default() };
                found.count_omitted(captures, &quiet, merged);
                return found;
            }
            kept.extend(with_both);
            round += 1;
        }
    }

    fn count_omitted(&mut self, captures: [&Capture; 2], quiet: &FxHashMap<u32, DiffRow>, merged: &mut MergedTree) {
        let taken = |(capture, set_off): (&Capture, &Vec<Tally>)| {
            let rows = capture.analysis.rows(self.measure.metric.view).zip(set_off);
            let taken = rows.filter(|(_, taken)| taken.count > 0);
            let taken = taken.map(|(row, Tally { bytes, count, .. })| GroupRow { bytes: *bytes, count: *count, ..row });
            taken.collect::<Vec<_>>()
        };
        let [base, new] = &self.set_off;
        let taken = [(captures[0], base), (captures[1], new)].map(taken);
        let taken = by_function(compared(captures, &taken, merged, self.measure.noise));
        let Self { measure, all, omitted, .. } = self;
        for row in &all.rows {
            if measure.changed(row) == 0 || measure.is_news(row, quiet.get(&row.function)) {
                continue;
            }
            let is_moved = taken.get(&row.function).is_some_and(|taken| measure.change(measure.part(row, taken)) != 0);
            match measure.is_significant(measure.chosen(row)) {
                false => omitted.little += 1,
                true if is_moved => omitted.moved += 1,
                true => omitted.apart += 1,
            }
        }
    }

    /// A sentence for each reason why functions are left out.
    pub(super) fn omitted(&self) -> Vec<String> {
        let OmittedFunctions { little, apart, .. } = self.omitted;
        let functions = |number| plural(number, "function", "functions");
        let floor = self.measure.amount(self.measure.floor());
        let chance = if self.measure.noise.is_exact() { "" } else { ", or by no more than chance" };
        let apart = (apart > 0).then(|| {
            format!(
                "{} omitted: changed by less than {floor} or 0.5 %{chance} without arenas of Python's allocators and what imports \
                 hold (use --json for all)",
                functions(apart)
            )
        });
        let little = (little > 0).then(|| {
            format!("{} omitted: changed by less than {floor} or 0.5 %{chance} (use --json for all)", functions(little))
        });
        let moved = self.moved().map(|text| format!("{text} (use --json for all)"));
        [moved, apart, little].into_iter().flatten().collect()
    }

    /// The same of functions whose changes cancel out.
    pub(super) fn moved(&self) -> Option<String> {
        let most = self.moved.iter().max_by_key(|moved| moved.bytes[1])?;
        let mut sums = [0_u64; 2];
        for (sum, side) in sums.iter_mut().zip(0..) {
            *sum = self.moved.iter().fold(0, |sum, moved| sum.saturating_add(moved.bytes[side]));
        }
        let blocks: u64 = self.moved.iter().map(|moved| moved.blocks).sum();
        let now = |[base, new]: [String; 2]| if base == new { base } else { format!("{base}, now {new}") };
        let name = |(function, _): &FunctionKey| match &**function {
            "" => super::NO_STACK.into(),
            function => visible(function),
        };
        let [from_bytes, to_bytes] = most.bytes.map(size);
        let most = format!("{from_bytes} of {}, now {to_bytes} of {}", name(&most.from), name(&most.to));
        let blocks = format!("{} {} now of another function", plural(blocks, "block", "blocks"), are(blocks));
        let which = if self.moved.len() > 1 {
            format!("{blocks} ({}); the most: {most}", now(sums.map(size)))
        } else {
            format!("{blocks}: {most}")
        };
        let functions = self.omitted.moved;
        let omitted = plural(functions, "function", "functions");
        (functions > 0).then(|| format!("{omitted} omitted, whose changes cancel out: {which}"))
    }
}

fn are(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

impl Measure {
    /// Totals of the baseline and of the new capture.
    pub(super) fn whole(&self) -> [u64; 2] {
        [self.figure(self.whole.base), self.figure(self.whole.new)]
    }

    pub(super) fn figure(&self, tally: Tally) -> u64 {
        if self.metric.counts { tally.count } else { tally.bytes }
    }

    pub(super) fn amount(&self, figure: u64) -> String {
        if self.metric.counts { count(figure) } else { size(figure) }
    }

    /// 128 bits: sums of a forged capture can have any value.
    pub(super) fn change(&self, pair: &FigurePair) -> i128 {
        i128::from(self.figure(pair.new)) - i128::from(self.figure(pair.base))
    }

    pub(super) fn changed(&self, row: &DiffRow) -> i128 {
        self.change(self.chosen(row))
    }

    /// Minimum change that text shows.
    fn floor(&self) -> u64 {
        let [base, new] = self.whole();
        self.metric.floor(base.max(new))
    }

    /// Whether a change is larger than the difference between any two runs of a program.
    pub(super) fn is_significant(&self, pair: &FigurePair) -> bool {
        let [base, new] = self.whole();
        let largest = self.figure(pair.base).max(self.figure(pair.new));
        !self.noise.hides(pair)
            && self.change(pair).unsigned_abs() >= u128::from(self.metric.significance_floor(base.max(new), largest))
    }

    /// Whether a function's change is significant, also without what two runs of a program differ in: `quiet`.
    fn is_news(&self, row: &DiffRow, quiet: Option<&DiffRow>) -> bool {
        self.is_significant(self.chosen(row)) && quiet.is_some_and(|quiet| self.is_significant(self.part(row, quiet)))
    }

    pub(super) fn status(&self, row: &DiffRow) -> Status {
        match (row.total.in_base(), row.total.in_new()) {
            _ if self.noise.hides(&row.total) && self.noise.hides(&row.own) => Status::Unchanged,
            (false, _) => Status::New,
            (_, false) => Status::Vanished,
            _ => match self.direction(&row.own) {
                Status::Unchanged => self.direction(&row.total),
                own => own,
            },
        }
    }

    /// Where the figure went; nowhere, if the change lies within its interval.
    pub(super) fn direction(&self, pair: &FigurePair) -> Status {
        match self.change(pair) {
            _ if self.noise.hides(pair) => Status::Unchanged,
            0 => Status::Unchanged,
            1.. => Status::Grown,
            _ => Status::Shrunk,
        }
    }

    /// The compared figure: for new and vanished functions always the total.
    pub(super) fn chosen<'a>(&self, row: &'a DiffRow) -> &'a FigurePair {
        self.part(row, row)
    }

    /// Whether that is the total.
    pub(super) fn is_by_total(&self, row: &DiffRow) -> bool {
        self.by_total || self.status(row).is_one_sided()
    }

    /// The same figure of a part of the function's memory.
    fn part<'a>(&self, row: &DiffRow, part: &'a DiffRow) -> &'a FigurePair {
        if self.is_by_total(row) { &part.total } else { &part.own }
    }
}

impl Status {
    pub(super) fn is_one_sided(self) -> bool {
        matches!(self, Self::New | Self::Vanished)
    }

    pub(super) fn is_less(self) -> bool {
        matches!(self, Self::Shrunk | Self::Vanished)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Grown => "grown",
            Self::Shrunk => "shrunk",
            Self::Unchanged => "unchanged",
            Self::New => "new",
            Self::Vanished => "vanished",
        }
    }
}

/// Compares rows of a base with rows of a new capture.
fn compared(
    captures: [&Capture; 2],
    [base, new]: &[Vec<GroupRow>; 2],
    merged: &mut MergedTree,
    noise: DiffNoise,
) -> Difference {
    let [base, new] =
        [(captures[0], base), (captures[1], new)].map(|(capture, rows)| merged.own(&capture.frames, rows));
    merged.compare(&base, &new, |pair| noise.hides(pair))
}

fn by_function(difference: Difference) -> FxHashMap<u32, DiffRow> {
    difference.rows.into_iter().map(|row| (row.function, row)).collect()
}

/// The function of a row; that of [`CallTree::NO_FRAME`] has no name.
fn function_key(merged: &MergedTree, row: &DiffRow) -> FunctionKey {
    debug_assert!(row.function == CallTree::NO_FRAME || merged.functions.get(row.function).is_some());
    let function = merged.functions.get(row.function);
    function.map_or_else(FunctionKey::default, |function| (function.name.clone(), function.short.clone()))
}
