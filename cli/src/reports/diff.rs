//! `diff`: what changed between two captures, function by function, as text, JSON or Markdown.
//!
//! JSON contains all changes; text omits differences between any two runs of a program (see [`ReducedRows`]) and small
//! changes, and states how much. Invariant: the baseline is not scaled unless requested, and then the scale is
//! printed; a function is new or vanished only if one capture has no allocations of it.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{self, Write};

use memtrack_reader::analysis::diff::{DiffRow, Difference, FigurePair, MergedTree, SharedFunction, SharedFunctions};
use memtrack_reader::analysis::{CallTree, CaptureRows, ReducedRows, Tally};
use memtrack_reader::origin::{Origin, origins};
use memtrack_reader::{FrameId, paths};
use serde_json::{Value, json};

use super::capture_info::{Capture, visible};
use super::diff_noise::{DiffNoise, DiffSide};
use super::scale::{ComparedMetric, Scale};
use super::{NO_STACK, view};
use crate::terminal::TextFormat;
use crate::text::{Label, Style, Styled, TextCell, TextColumn, TextTable, column, left_out, paragraph};
use crate::units::{count, plural, size};

/// Two captures, compared.
#[derive(Debug)]
pub(crate) struct Diff {
    metric: ComparedMetric,
    /// Compare functions by total instead of self figures.
    by_total: bool,
    functions: SharedFunctions,
    /// Name and short path of functions that are own code in either capture.
    own: HashSet<(String, String)>,
    /// All changes.
    difference: Difference,
    /// Changes without those between any two runs of a program, for text.
    quiet: Difference,
    arenas: FigurePair,
    imports: FigurePair,
    /// The scale of the baseline, if any.
    scale: Option<Scale>,
    /// Warnings about comparability.
    notes: Vec<String>,
    noise: DiffNoise,
}

/// How a function changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Grown,
    Shrunk,
    Unchanged,
    New,
    Vanished,
}

impl Diff {
    pub(crate) fn new(base: &Capture, new: &Capture, metric: ComparedMetric, by_total: bool) -> Self {
        let mut merged = MergedTree::default();
        let [base_rows, new_rows] = [base, new].map(|capture| capture.analysis.view(metric.view));
        let exact = [(base, &base_rows), (new, &new_rows)].map(|(capture, rows)| merged.own(&capture.frames, rows));
        let quiet = ReducedRows::of(
            CaptureRows { frames: &base.frames, rows: base_rows },
            CaptureRows { frames: &new.frames, rows: new_rows },
        );
        let (arenas, imports) = (quiet.arenas, quiet.imports);
        let noise = DiffNoise::of([base, new], metric);
        let quiet = [(base, &quiet.base), (new, &quiet.new)].map(|(side, rows)| merged.own(&side.frames, rows));
        let own = [base, new].into_iter().flat_map(own_functions).collect();
        let ([base, new], [quiet_base, quiet_new]) = (exact, quiet);
        let difference = merged.compare(&base, &new);
        let quiet = merged.compare(&quiet_base, &quiet_new);
        let functions = merged.functions;
        let (scale, notes) = (None, Vec::new());
        let mut diff =
            Self { metric, by_total, functions, own, difference, quiet, arenas, imports, scale, notes, noise };
        let mut rows = std::mem::take(&mut diff.difference.rows);
        let change = |pair: &FigurePair| diff.change(pair).unsigned_abs();
        rows.sort_by_cached_key(|row| Reverse((change(&row.own), change(&row.total))));
        diff.difference.rows = rows;
        diff
    }

    /// Adds how the baseline was scaled, and why the captures may not be comparable.
    pub(crate) fn with_notes(self, scale: Option<Scale>, notes: Vec<String>) -> Self {
        Self { scale, notes, ..self }
    }

    /// The least growth of the whole that its interval has; what has grown by no more than chance has none.
    pub(crate) fn least_growth(&self) -> i128 {
        self.noise.range(&self.difference.whole).0
    }

    /// Totals of the baseline and of the new capture.
    pub(crate) fn whole(&self) -> [u64; 2] {
        [self.figure(self.difference.whole.base), self.figure(self.difference.whole.new)]
    }

    /// Everything as `memtrack-diff`, version 1.
    ///
    /// # Errors
    /// A write error; likewise below.
    pub(crate) fn json(&self, mut out: impl Write) -> io::Result<()> {
        let ([base, new], metric) = (self.whole(), self.metric.name);
        let Difference { new_stacks, vanished_stacks, .. } = self.difference;
        write!(out, "{{\"schema\":\"memtrack-diff\",\"version\":1,\"metric\":\"{metric}\",\"base_total\":{base},")?;
        self.noise.write_whole(&self.difference.whole, &mut out)?;
        write!(out, "\"new_total\":{new},\"new_stacks\":{new_stacks},\"vanished_stacks\":{vanished_stacks},")?;
        if let Some(scale) = &self.scale {
            write!(out, "\"normalized\":{},", json!({"to": scale.to(), "factor": scale.factor()}))?;
        }
        write!(out, "\"notes\":{},\"rows\":[", json!(self.notes))?;
        for (number, row) in self.difference.rows.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(out, "{comma}\n{}", self.object(row))?;
        }
        writeln!(out, "\n]}}")
    }

    /// Writes a section each for grown, new, shrunk and vanished functions, with at most `limit` functions each.
    pub(crate) fn text(&self, limit: usize, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{}", format.heading(&self.headline()))?;
        let scaled = self.scale.iter().map(|scale| format!("Scaled: {scale}"));
        for text in std::iter::once(self.stacks()).chain(self.excluded_lines()).chain(scaled) {
            paragraph(&text, format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        for (title, status, rows) in self.sections() {
            let shown = limit.min(rows.len());
            let heading = format!("{title} ({}, by {} figures)", count(rows.len() as u64), self.by(status));
            writeln!(out, "\n{}", format.heading(&heading))?;
            let mut table = TextTable::new(FIGURES);
            rows[..shown].iter().for_each(|row| table.row(self.text_cells(row)));
            table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            if rows.len() > shown {
                writeln!(out, "{}", left_out((rows.len() - shown) as u64))?;
            }
        }
        let Some(text) = self.below_floor() else { return Ok(()) };
        writeln!(out)?;
        paragraph(&text, format).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The same as Markdown, for a review comment.
    pub(crate) fn markdown(&self, limit: usize, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "**{}**\n\n{}", self.headline(), self.stacks())?;
        let scaled = self.scale.iter().map(|scale| format!("Scaled: {scale}"));
        self.excluded_lines().iter().try_for_each(|line| writeln!(out, "\n{line}"))?;
        for note in scaled.chain(self.notes.iter().cloned()) {
            writeln!(out, "\n> {}", visible(&note))?;
        }
        for (title, _, rows) in self.sections() {
            let shown = limit.min(rows.len());
            writeln!(out, "\n### {title}\n")?;
            writeln!(out, "| change | percent | base | new | function |\n|---:|---:|---:|---:|:---|")?;
            for row in &rows[..shown] {
                let [change, percent, base, _, new] = self.cells(row);
                let name = self.label(row).whole().words();
                writeln!(out, "| {change} | {percent} | {base} | {new} | {} |", code(&name))?;
            }
            if rows.len() > shown {
                writeln!(out, "\nand {} more", count((rows.len() - shown) as u64))?;
            }
        }
        self.below_floor().map_or(Ok(()), |line| writeln!(out, "\n{line}"))
    }

    /// Minimum change that text shows.
    fn floor(&self) -> u64 {
        let [base, new] = self.whole();
        self.metric.floor(base.max(new))
    }

    /// Whether a change is larger than the difference between any two runs of a program.
    fn is_significant(&self, pair: &FigurePair) -> bool {
        let [base, new] = self.whole();
        let largest = self.figure(pair.base).max(self.figure(pair.new));
        !self.noise.hides(pair)
            && self.change(pair).unsigned_abs() >= u128::from(self.metric.significance_floor(base.max(new), largest))
    }

    /// Changes of arenas and imports, which have no rows.
    fn excluded_lines(&self) -> Vec<String> {
        let parts = [("Python allocator arenas (used and unused)", &self.arenas), ("Held by imports", &self.imports)];
        let changed = parts.into_iter().filter(|(_, pair)| self.is_significant(pair));
        changed.map(|(what, pair)| format!("{what}: {}", self.before_and_after(pair))).collect()
    }

    /// Number of functions that text omits because they changed little.
    fn below_floor(&self) -> Option<String> {
        let is_below = |row: &&DiffRow| self.changed(row) != 0 && !self.is_significant(self.chosen(row));
        let number = self.quiet.rows.iter().filter(is_below).count() as u64;
        let functions = plural(number, "function", "functions");
        (number > 0).then(|| {
            format!(
                "{functions} omitted: changed by less than {} or 0.5 % (use --json for all)",
                self.amount(self.floor())
            )
        })
    }

    fn by(&self, status: Status) -> &'static str {
        if self.by_total || status.is_one_sided() { "total" } else { "self" }
    }

    fn figure(&self, tally: Tally) -> u64 {
        if self.metric.counts { tally.count } else { tally.bytes }
    }

    /// 128 bits: sums of a forged capture can have any value.
    fn change(&self, pair: &FigurePair) -> i128 {
        i128::from(self.figure(pair.new)) - i128::from(self.figure(pair.base))
    }

    fn status(&self, row: &DiffRow) -> Status {
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
    fn direction(&self, pair: &FigurePair) -> Status {
        if self.noise.hides(pair) { Status::Unchanged } else { direction(self.change(pair)) }
    }

    /// The non-empty sections: growth first, and of that the section with the largest change.
    fn sections(&self) -> Vec<(&'static str, Status, Vec<&DiffRow>)> {
        let mut sections = SECTIONS.map(|(title, status)| (title, status, self.section(status))).to_vec();
        sections.retain(|(_, _, rows)| !rows.is_empty());
        let largest = |rows: &[&DiffRow]| rows.first().map(|row| self.rank(row));
        sections.sort_by_key(|(_, status, rows)| (status.is_less(), Reverse(largest(rows))));
        sections
    }

    /// The functions of a section whose figure changed; allocating functions before their callers.
    fn section(&self, status: Status) -> Vec<&DiffRow> {
        let rows = self.quiet.rows.iter();
        let is_shown = |row: &&DiffRow| self.section_of(row) == status && self.is_significant(self.chosen(row));
        let mut rows: Vec<_> = rows.filter(is_shown).collect();
        rows.sort_by_key(|row| Reverse(self.rank(row)));
        rows
    }

    /// Sort key of rows: change of the self figure, then of the total; with `--by total` the total first. Allocations
    /// without a known function come last.
    fn rank(&self, row: &DiffRow) -> (bool, u128, u128) {
        let is_function = row.function != CallTree::NO_FRAME;
        let [own, total] = [&row.own, &row.total].map(|pair| self.change(pair).unsigned_abs());
        if self.by_total { (is_function, total, own) } else { (is_function, own, total) }
    }

    fn section_of(&self, row: &DiffRow) -> Status {
        match self.status(row) {
            known @ (Status::New | Status::Vanished) => known,
            _ => self.direction(self.chosen(row)),
        }
    }

    fn changed(&self, row: &DiffRow) -> i128 {
        self.change(self.chosen(row))
    }

    /// The compared figure: for new and vanished functions always the total.
    fn chosen<'a>(&self, row: &'a DiffRow) -> &'a FigurePair {
        if self.by_total || self.status(row).is_one_sided() { &row.total } else { &row.own }
    }

    fn headline(&self) -> String {
        let title = if self.metric.counts { "Number of allocations" } else { view::title(self.metric.view) };
        format!("{title}: {}", self.before_and_after(&self.difference.whole))
    }

    fn before_and_after(&self, pair: &FigurePair) -> String {
        let [base, new] = [pair.base, pair.new].map(|tally| self.amount(self.figure(tally)));
        let percent = Some(self.percent(pair)).filter(|percent| !percent.is_empty());
        let percent = percent.map(|percent| format!(" ({percent})")).unwrap_or_default();
        format!("{base} -> {new}, {}{percent}", self.signed_within(pair))
    }

    fn stacks(&self) -> String {
        let Difference { new_stacks, vanished_stacks, .. } = self.quiet;
        format!("Call stacks: {} new, {} vanished", count(new_stacks), count(vanished_stacks))
    }

    fn cells(&self, row: &DiffRow) -> [String; 5] {
        let pair = self.chosen(row);
        let [base, new] = [pair.base, pair.new].map(|tally| self.amount(self.figure(tally)));
        [self.signed_within(pair), self.percent(pair), base, "->".into(), new]
    }

    fn text_cells(&self, row: &DiffRow) -> impl Iterator<Item = TextCell> {
        let style = if self.changed(row) < 0 { Style::Shrunk } else { Style::Grown };
        let [change, percent, base, arrow, new] = self.cells(row);
        let change = [change, percent].map(|text| Styled::new(style, text));
        let figures = [base, arrow, new].map(Styled::from);
        change.into_iter().chain(figures).map(TextCell::from).chain([self.label(row).into()])
    }

    fn label(&self, row: &DiffRow) -> Label {
        let Some(SharedFunction { name, short, .. }) = self.functions.get(row.function) else {
            return Label::new(NO_STACK, "", false);
        };
        Label::new(name, short, self.own.contains(&(name.clone(), short.clone())))
    }

    fn amount(&self, figure: u64) -> String {
        if self.metric.counts { count(figure) } else { size(figure) }
    }

    /// The change, with its interval if it is estimated. Its larger half may be more than a change that is none by chance: then both
    /// ends are told.
    fn signed_within(&self, pair: &FigurePair) -> String {
        let change = self.signed(self.change(pair));
        match self.noise.half(pair) {
            0 => change,
            half if u128::from(half) >= self.change(pair).unsigned_abs() && !self.noise.hides(pair) => {
                let (low, high) = self.noise.range(pair);
                format!("{change} ({} to {})", self.signed(low), self.signed(high))
            }
            half => format!("{change} ± {}", self.amount(half)),
        }
    }

    fn signed(&self, change: i128) -> String {
        let sign = if change < 0 { "-" } else { "+" };
        format!("{sign}{}", self.amount(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX)))
    }

    fn percent(&self, pair: &FigurePair) -> String {
        match self.figure(pair.base) {
            0 if pair.in_new() => "new".into(),
            0 => "0 %".into(),
            base => {
                let percent = self.change(pair) as f64 * 100.0 / base as f64;
                if percent < MOST_PERCENT { format!("{percent:+.1} %") } else { String::new() }
            }
        }
    }

    fn object(&self, row: &DiffRow) -> Value {
        let (function, file) =
            self.functions.get(row.function).map_or((NO_STACK, ""), |known| (&*known.name, &*known.file));
        let side = |own: Tally, total: Tally, side: DiffSide| {
            let mut value = json!({
                "own_bytes": own.bytes, "total_bytes": total.bytes, "own_count": own.count, "total_count": total.count,
            });
            self.noise.put_ranges(&mut value, "own_", &row.own, side);
            self.noise.put_ranges(&mut value, "total_", &row.total, side);
            value
        };
        json!({
            "function": function,
            "file": Some(file).filter(|file| !file.is_empty()),
            "status": self.status(row).name(),
            "base": side(row.own.base, row.total.base, DiffSide::Base),
            "new": side(row.own.new, row.total.new, DiffSide::New),
        })
    }
}

/// The columns of a section; narrow terminals omit the base and new figures.
const FIGURES: [TextColumn; 6] =
    [column(""), column(""), column("").optional(1), column("").optional(1), column("").optional(1), column("")];

/// Percentages from this on are not printed.
const MOST_PERCENT: f64 = 1000.0;

const SECTIONS: [(&str, Status); 4] =
    [("Grown", Status::Grown), ("New", Status::New), ("Shrunk", Status::Shrunk), ("Vanished", Status::Vanished)];

impl Status {
    fn is_one_sided(self) -> bool {
        matches!(self, Self::New | Self::Vanished)
    }

    fn is_less(self) -> bool {
        matches!(self, Self::Shrunk | Self::Vanished)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Grown => "grown",
            Self::Shrunk => "shrunk",
            Self::Unchanged => "unchanged",
            Self::New => "new",
            Self::Vanished => "vanished",
        }
    }
}

/// Name and shortened path of functions that are own code.
fn own_functions(capture: &Capture) -> Vec<(String, String)> {
    let frames = &capture.frames;
    let all = (0..).map(FrameId).zip(origins(frames)).filter(|(_, origin)| *origin == Origin::Own);
    all.map(|(id, _)| (frames.function(id).into(), paths::short(frames, frames.file(id)).into())).collect()
}

fn direction(change: i128) -> Status {
    match change {
        0 => Status::Unchanged,
        1.. => Status::Grown,
        _ => Status::Shrunk,
    }
}

/// A name as Markdown code; escapes backticks and bars.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::{ComparedMetric, Diff, code};
    use crate::reports::capture_info::Capture;
    use crate::reports::comparability::comparability_warnings;
    use crate::reports::fixture;
    use crate::terminal::TextFormat;
    use memtrack_reader::View;

    const ALLOCATED: ComparedMetric = ComparedMetric { name: "allocated", view: View::Allocated, counts: false };

    /// The fixture with one stack grown tenfold, one halved, and one gone.
    fn changed() -> Capture {
        let mut capture = fixture::capture();
        let groups = &mut capture.analysis.groups;
        groups.change(0, |group| group.allocated.bytes *= 10);
        groups.change(1, |group| group.allocated.bytes /= 2);
        *groups = groups.iter().enumerate().filter(|(number, _)| *number != 2).map(|(_, group)| group).collect();
        capture
    }

    fn golden(name: &str, by_total: bool, write: impl Fn(&Diff, &mut Vec<u8>) -> std::io::Result<()>) {
        let mut text = Vec::new();
        write(&Diff::new(&fixture::capture(), &changed(), ALLOCATED, by_total), &mut text).unwrap();
        fixture::compare(name, &text);
    }

    #[test]
    fn golden_files() {
        let format = TextFormat { width: Some(80), color: false };
        golden("diff.txt", false, |diff, out| diff.text(10, format, out));
        golden("diff-total.txt", true, |diff, out| diff.text(1, format, out));
        golden("diff.json", false, |diff, out| diff.json(out));
        golden("diff.md", false, |diff, out| diff.markdown(10, out));
    }

    #[test]
    fn equal_captures_are_unchanged() {
        let capture = fixture::capture();
        let diff = Diff::new(&capture, &capture, ALLOCATED, false);
        let mut text = Vec::new();
        diff.json(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert!(value["rows"].as_array().unwrap().iter().all(|row| row["status"] == "unchanged"), "{value}");
        assert_eq!((&value["new_stacks"], &value["base_total"]), (&0.into(), &value["new_total"]));
        assert!(comparability_warnings(&capture, &capture).is_empty());
    }

    #[test]
    fn an_empty_base_makes_everything_new() {
        let counts = ComparedMetric { name: "count", view: View::Allocated, counts: true };
        let diff = Diff::new(&fixture::empty(), &fixture::capture(), counts, false);
        assert_eq!(diff.whole(), [0, 96]);
        let mut text = Vec::new();
        diff.text(usize::MAX, TextFormat { width: None, color: false }, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("Number of allocations: 0 -> 96, +96 (new)\nCall stacks: 4 new, 0"), "{text}");
        assert!(!text.contains("Grown") && text.contains("\nNew (4, by total figures)\n"), "{text}");
    }

    #[test]
    fn names_cannot_break_a_markdown_table() {
        assert_eq!(code("a|b`c"), "`a\\|b'c`");
    }
}
