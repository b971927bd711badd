//! `diff`: what changed between two captures, function by function, as text, JSON or Markdown.
//!
//! JSON contains all changes; text omits functions that differ between any two runs of a program and small changes (see
//! [`DiffRows`]), and states how many. Invariant: every figure of text is that of JSON; the baseline is not scaled unless
//! requested, and then the scale is printed; a function is new or vanished only if one capture has no allocations of it.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{self, Write};

use memtrack_reader::analysis::diff::{DiffRow, Difference, FigurePair, MergedTree, SharedFunction, SharedFunctions};
use memtrack_reader::analysis::{CallTree, Tally};
use memtrack_reader::origin::{Origin, origins};
use memtrack_reader::{FrameId, View, paths};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::NO_STACK;
use super::capture_info::{Capture, title_of_both, visible};
use super::diff_callers::{OwnCaller, own_callers};
use super::diff_noise::DiffSide;
use super::diff_rows::{DiffRows, Measure, Status};
use super::scale::{ComparedMetric, Scale};
use crate::terminal::TextFormat;
use crate::text::{Label, Style, Styled, TextCell, TextColumn, TextTable, column, left_out, paragraph};
use crate::units::count;

/// Two captures, compared.
#[derive(Debug)]
pub(crate) struct Diff {
    measure: Measure,
    functions: SharedFunctions,
    /// Name and short path of functions that are own code in either capture.
    own: HashSet<(String, String)>,
    /// The own code that other functions were called by.
    callers: FxHashMap<u32, OwnCaller>,
    rows: DiffRows,
    /// Of what the programs had allocated before they were recorded.
    earlier_frees: [u64; 2],
    /// The scale of the baseline, if any.
    scale: Option<Scale>,
    /// Warnings about comparability.
    notes: Vec<String>,
    title: &'static str,
}

impl Diff {
    pub(crate) fn new(base: &Capture, new: &Capture, metric: ComparedMetric, by_total: bool) -> Self {
        let mut merged = MergedTree::default();
        let mut rows = DiffRows::of([base, new], metric, by_total, &mut merged);
        let own: HashSet<_> = [base, new].into_iter().flat_map(own_functions).collect();
        let measure = rows.measure;
        let figures = [base, new].map(|capture| merged.own(&capture.frames, &capture.analysis.view(metric.view)));
        let is_own: Vec<bool> =
            merged.functions.list().iter().map(|one| own.contains(&(one.name.clone(), one.short.clone()))).collect();
        let is_own = |function: u32| is_own.get(function as usize).copied().unwrap_or(false);
        let callers = own_callers(&merged, figures, (&rows.shown, &measure), is_own);
        let change = |pair: &FigurePair| measure.change(pair).unsigned_abs();
        rows.all.rows.sort_by_cached_key(|row| Reverse((change(&row.own), change(&row.total))));
        let earlier_frees = [base, new].map(|capture| capture.analysis.totals.frees_of_earlier_blocks());
        let title = title_of_both([base, new], metric.view);
        let (scale, notes) = (None, Vec::new());
        Self { measure, functions: merged.functions, own, callers, rows, earlier_frees, scale, notes, title }
    }

    /// Adds how the baseline was scaled, and why the captures may not be comparable.
    pub(crate) fn with_notes(self, scale: Option<Scale>, notes: Vec<String>) -> Self {
        Self { scale, notes, ..self }
    }

    /// The least growth of the whole that its interval has; what has grown by no more than chance has none.
    pub(crate) fn least_growth(&self) -> i128 {
        self.measure.noise.range(&self.rows.all.whole).0
    }

    /// Totals of the baseline and of the new capture.
    pub(crate) fn whole(&self) -> [u64; 2] {
        self.measure.whole()
    }

    /// Everything as `memtrack-diff`, version 1.
    ///
    /// # Errors
    /// A write error; likewise below.
    pub(crate) fn json(&self, mut out: impl Write) -> io::Result<()> {
        let ([base, new], metric) = (self.whole(), self.measure.metric.name);
        let Difference { new_stacks, vanished_stacks, .. } = self.rows.all;
        write!(out, "{{\"schema\":\"memtrack-diff\",\"version\":1,\"metric\":\"{metric}\",\"base_total\":{base},")?;
        self.measure.noise.write_whole(&self.rows.all.whole, &mut out)?;
        write!(out, "\"new_total\":{new},\"new_stacks\":{new_stacks},\"vanished_stacks\":{vanished_stacks},")?;
        if let Some(scale) = &self.scale {
            write!(out, "\"normalized\":{},", json!({"to": scale.to(), "factor": scale.factor()}))?;
        }
        write!(out, "\"notes\":{},\"rows\":[", json!(self.notes))?;
        for (number, row) in self.rows.all.rows.iter().enumerate() {
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
            let heading = format!("{title} ({}, {})", count(rows.len() as u64), self.figures(status));
            writeln!(out, "\n{}", format.heading(&heading))?;
            let mut table = TextTable::new(FIGURES);
            rows[..shown].iter().for_each(|row| table.row(self.text_cells(row)));
            table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            if rows.len() > shown {
                writeln!(out, "{}", left_out((rows.len() - shown) as u64))?;
            }
        }
        let omitted = self.rows.omitted();
        if !omitted.is_empty() {
            writeln!(out)?;
        }
        let mut lines = omitted.iter().flat_map(|text| paragraph(text, format));
        lines.try_for_each(|line| writeln!(out, "{line}"))
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
        self.rows.omitted().iter().try_for_each(|line| writeln!(out, "\n{}", visible(line)))
    }

    /// Changes of arenas and imports, which have no rows of their own. They do not count as leaked elsewhere, so that of leaks they are
    /// told in any case, and what is left.
    fn excluded_lines(&self) -> Vec<String> {
        let DiffRows { arenas, imports, all, .. } = &self.rows;
        let rest = |whole: Tally, arenas, imports| whole.less(arenas).less(imports);
        let rest = FigurePair {
            base: rest(all.whole.base, arenas.base, imports.base),
            new: rest(all.whole.new, arenas.new, imports.new),
        };
        let are_leaks = matches!(self.measure.metric.view, View::Leaks | View::LeaksAtExit) && rest != all.whole;
        let parts = [("Python allocator arenas (used and unused)", arenas), ("Held by imports", imports)];
        let is_told =
            |pair: &FigurePair| are_leaks && (pair.in_base() || pair.in_new()) || self.measure.is_significant(pair);
        let told = parts.into_iter().filter(|(_, pair)| is_told(pair));
        let told = told.chain(are_leaks.then_some(("Leaked without these", &rest)));
        let changed = told.map(|(what, pair)| format!("{what}: {}", self.before_and_after(pair))).collect::<Vec<_>>();
        let [base, new] = self.earlier_frees;
        let frees =
            format!("Frees of blocks from before the recording, not counted: {} -> {}", count(base), count(new));
        changed.into_iter().chain((base + new > 0).then_some(frees)).collect()
    }

    /// Which figures a section has, and what its order is if that is another.
    fn figures(&self, status: Status) -> &'static str {
        match (self.measure.by_total, status.is_one_sided()) {
            (true, _) => "by total figures",
            (false, false) => "by self figures",
            (false, true) => "total figures, what allocated most itself first",
        }
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
        let rows = self.rows.shown.iter();
        let mut rows: Vec<_> = rows.filter(|row| self.section_of(row) == status).collect();
        rows.sort_by_key(|row| Reverse(self.rank(row)));
        rows
    }

    /// Sort key of rows: change of the self figure, then of the total; with `--by total` the total first. Allocations
    /// without a known function come last.
    fn rank(&self, row: &DiffRow) -> (bool, u128, u128) {
        let is_function = row.function != CallTree::NO_FRAME;
        let [own, total] = [&row.own, &row.total].map(|pair| self.measure.change(pair).unsigned_abs());
        if self.measure.by_total { (is_function, total, own) } else { (is_function, own, total) }
    }

    fn section_of(&self, row: &DiffRow) -> Status {
        match self.measure.status(row) {
            known @ (Status::New | Status::Vanished) => known,
            _ => self.measure.direction(self.measure.chosen(row)),
        }
    }

    fn headline(&self) -> String {
        let metric = self.measure.metric;
        let title = if metric.counts { "Number of allocations" } else { self.title };
        format!("{title}: {}", self.before_and_after(&self.rows.all.whole))
    }

    fn before_and_after(&self, pair: &FigurePair) -> String {
        let [base, new] = [pair.base, pair.new].map(|tally| self.measure.amount(self.measure.figure(tally)));
        let percent = Some(self.percent(pair)).filter(|percent| !percent.is_empty());
        let percent = percent.map(|percent| format!(" ({percent})")).unwrap_or_default();
        format!("{base} -> {new}, {}{percent}", self.signed_within(pair))
    }

    fn stacks(&self) -> String {
        let Difference { new_stacks, vanished_stacks, .. } = self.rows.all;
        let chance = if self.measure.noise.is_exact() { "" } else { ", by more than chance" };
        format!("Call stacks: {} new, {} vanished{chance}", count(new_stacks), count(vanished_stacks))
    }

    fn cells(&self, row: &DiffRow) -> [String; 5] {
        let pair = self.measure.chosen(row);
        let [base, new] = [pair.base, pair.new].map(|tally| self.measure.amount(self.measure.figure(tally)));
        [self.signed_within(pair), self.percent(pair), base, "->".into(), new]
    }

    fn text_cells(&self, row: &DiffRow) -> impl Iterator<Item = TextCell> {
        let style = if self.measure.changed(row) < 0 { Style::Shrunk } else { Style::Grown };
        let [change, percent, base, arrow, new] = self.cells(row);
        let change = [change, percent].map(|text| Styled::new(style, text));
        let figures = [base, arrow, new].map(Styled::from);
        change.into_iter().chain(figures).map(TextCell::from).chain([self.label(row).into()])
    }

    fn label(&self, row: &DiffRow) -> Label {
        let Some(SharedFunction { name, short, .. }) = self.functions.get(row.function) else {
            return Label::new(NO_STACK, "", false);
        };
        let caller = self.callers.get(&row.function);
        match caller.and_then(|caller| Some((self.functions.get(caller.function)?, caller.more))) {
            None => Label::new(name, short, self.own.contains(&(name.clone(), short.clone()))),
            Some((own, more)) => {
                let more = if more == 0 { String::new() } else { format!(", and by {} more", count(more)) };
                Label::new(&own.name, &own.short, true).via(name, short, more)
            }
        }
    }

    /// The change, with its interval if it is estimated. Its larger half may be more than a change that is none by chance: then both
    /// ends are told.
    fn signed_within(&self, pair: &FigurePair) -> String {
        let change = self.signed(self.measure.change(pair));
        let (low, high) = self.measure.noise.range(pair);
        match self.measure.noise.half(pair) {
            0 => change,
            half if u128::from(half) >= self.measure.change(pair).unsigned_abs() && (low > 0 || high < 0) => {
                format!("{change} ({} to {})", self.signed(low), self.signed(high))
            }
            half => format!("{change} ± {}", self.measure.amount(half)),
        }
    }

    fn signed(&self, change: i128) -> String {
        let sign = if change < 0 { "-" } else { "+" };
        format!("{sign}{}", self.measure.amount(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX)))
    }

    fn percent(&self, pair: &FigurePair) -> String {
        match self.measure.figure(pair.base) {
            0 if pair.in_new() => "new".into(),
            0 => "0 %".into(),
            base => {
                let percent = self.measure.change(pair) as f64 * 100.0 / base as f64;
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
            self.measure.noise.put_ranges(&mut value, "own_", &row.own, side);
            self.measure.noise.put_ranges(&mut value, "total_", &row.total, side);
            value
        };
        json!({
            "function": function,
            "file": Some(file).filter(|file| !file.is_empty()),
            "status": self.measure.status(row).name(),
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

/// Name and shortened path of functions that are own code.
fn own_functions(capture: &Capture) -> Vec<(String, String)> {
    let frames = &capture.frames;
    let all = (0..).map(FrameId).zip(origins(frames)).filter(|(_, origin)| *origin == Origin::Own);
    all.map(|(id, _)| (frames.function(id).into(), paths::short(frames, frames.file(id)).into())).collect()
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
    fn a_sum_of_peaks_is_not_called_a_peak() {
        let peak = ComparedMetric { name: "high-water-mark", view: View::HighWaterMark, counts: false };
        let (one, several) = (fixture::capture(), fixture::of_several_peaks());
        for [base, new] in [[&one, &several], [&several, &one]] {
            let headline = Diff::new(base, new, peak, false).headline();
            assert!(headline.starts_with("Per-process high-water marks (not simultaneous): "), "{headline}");
        }
        assert!(Diff::new(&one, &one, peak, false).headline().starts_with("High-water mark: "));
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
        assert!(
            !text.contains("Grown") && text.contains("\nNew (4, total figures, what allocated most itself first)\n"),
            "{text}"
        );
    }

    #[test]
    fn rows_of_libraries_begin_with_the_own_code_that_called_them() {
        const ALLOCATE: (&str, &str) = ("allocate", "/v/site-packages/vendor/new.py");
        let [main, load, keep] = ["main", "load", "keep"].map(|name| (name, "/srv/app.py"));
        let capture = |bytes: [u64; 3]| {
            let stacks: [&[_]; 3] = [&[main, load, ALLOCATE], &[main, keep, ALLOCATE], &[ALLOCATE]];
            fixture::of_stacks(&stacks.into_iter().zip(bytes).collect::<Vec<_>>())
        };
        let leaks = ComparedMetric { name: "leaks", view: View::Leaks, counts: false };
        let told = |bytes| {
            let mut text = Vec::new();
            let diff = Diff::new(&capture([1_000_000; 3]), &capture(bytes), leaks, false);
            diff.text(10, TextFormat { width: None, color: false }, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let of_load = told([9_000_000, 2_000_000, 1_000_000]);
        assert!(of_load.contains("  load at /srv/app.py, via allocate at vendor/new.py, and by 1 more\n"), "{of_load}");
        let of_nobody = told([1_000_000, 1_000_000, 9_000_000]);
        assert!(of_nobody.contains("  allocate at vendor/new.py\n"), "{of_nobody}");
    }

    /// The headline has more than other reports of leaks.
    #[test]
    fn leaks_that_do_not_count_elsewhere_are_told_apart() {
        let main = ("<module>", "/srv/app.py");
        let import = ("_find_and_load", "<frozen importlib._bootstrap>");
        let capture = |own| {
            fixture::of_stacks(&[(&[main], own), (&[main, import, ("<module>", "/v/site-packages/lazy.py")], 500_000)])
        };
        let told = |view| {
            let metric = ComparedMetric { name: "compared", view, counts: false };
            Diff::new(&capture(1_000_000), &capture(4_000_000), metric, false).excluded_lines()
        };
        assert_eq!(
            told(View::Leaks),
            [
                "Held by imports: 500 kB -> 500 kB, +0 B (+0.0 %)",
                "Leaked without these: 1.00 MB -> 4.00 MB, +3.00 MB (+300.0 %)"
            ]
        );
        assert!(told(View::Allocated).is_empty());
    }

    #[test]
    fn names_cannot_break_a_markdown_table() {
        assert_eq!(code("a|b`c"), "`a\\|b'c`");
    }
}
