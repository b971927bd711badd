//! `stats` as text: figures, then tables, aligned and fitted to the terminal's width.
//!
//! Invariant: the figures equal those of `stats --json`, except that leaks exclude arenas of Python's allocators.

use std::cmp::Reverse;
use std::io::{self, Write};

use anyhow::Result;
use memtrack_reader::analysis::{FrameRow, ModuleRow, SampleWeights, Tally, Totals, View};
use memtrack_reader::native::ModuleSource;

use super::capture_info::{Capture, CaptureInfo, visible};
use super::display::DisplayOptions;
use super::estimates::{self, RangedTally, WholeFigures};
use super::leak_parts::LeakParts;
use super::own_lines::{OwnLineRow, rows_by_own_line, top_rows};
use super::stats::{StatsRows, leaks};
use super::{arenas, failed, mappings, processes};
use crate::terminal::TextFormat;
use crate::text::{Styled, TextCell, TextColumn, TextTable, column, entry, share_of};
use crate::units::{count, count_within, duration, plural, size};

/// Length of the longest bar.
const BAR: usize = 40;
/// Width of the labels.
const LABEL: usize = 17;

/// Writes the report, with at most `limit` processes, threads, frames and modules. Leaves the capture prepared for
/// display.
///
/// # Errors
/// A write error, or more call stacks than the id type can number.
pub(crate) fn write(
    capture: &mut Capture,
    display: &DisplayOptions,
    view: View,
    limit: usize,
    format: TextFormat,
    mut out: impl Write,
) -> Result<()> {
    let leaked = LeakParts::of(capture, leaks(view)).lines(display.with_imports);
    capture.exclude_imports(display);
    // Before folding: attribution to modules needs whole stacks.
    let rows = StatsRows::new(capture, view, limit);
    capture.fold(display)?;
    figures(capture, (leaks(view), leaked), format, &mut out)?;
    Ok(lists(capture, &rows, view, limit, format, &mut out)?)
}

fn lists(
    capture: &Capture,
    rows: &StatsRows,
    view: View,
    limit: usize,
    format: TextFormat,
    out: &mut impl Write,
) -> io::Result<()> {
    let of = |title: &str| format!("{title}, of {}", subject(view));
    if let Some(left_out) = capture.left_out(view) {
        write_figure("Lists below", &left_out, format, out)?;
    }
    let [by_size, by_count] = places(capture, rows, view, limit);
    section("Processes", &processes::table(&capture.info.processes, limit), format, out)?;
    section(&of("Biggest by size"), &by_size, format, out)?;
    section(&of("Biggest by number"), &by_count, format, out)?;
    section(&of("Modules by size"), &modules(rows.whole, &rows.modules_by_size), format, out)?;
    section(&of("Modules by number"), &modules(rows.whole, &rows.modules_by_count), format, out)?;
    section(&of("Allocators"), &allocators(rows), format, out)?;
    section(&of("Threads"), &threads(capture, rows).first(limit), format, out)?;
    section("Sizes, of everything ever allocated", &sizes(capture), format, out)
}

/// The top rows by size and by number: own-code lines, or innermost frames if stacks are not folded.
fn places(capture: &Capture, rows: &StatsRows, view: View, limit: usize) -> [TextTable; 2] {
    if !capture.shown.folded {
        return [&rows.top_by_size, &rows.top_by_count].map(|top| frames(capture, rows.whole, top));
    }
    let mut all = rows_by_own_line(capture, view, false, false);
    let table = |all: &[OwnLineRow]| {
        let mut table = TextTable::new(LIST);
        for row in all.iter().take(limit) {
            table.row(cells(rows.whole, row.tally, row.label(capture)));
        }
        table
    };
    let by_size = table(&all);
    all.sort_by_key(|row| Reverse((row.tally.count, row.tally.bytes)));
    [by_size, table(&all)]
}

fn figures(
    capture: &Capture,
    (leaks, leaked): (View, Vec<(&str, String)>),
    format: TextFormat,
    out: &mut impl Write,
) -> io::Result<()> {
    let info = &capture.info;
    let totals = &capture.analysis.totals;
    let mut line = |label: &str, text: String| write_figure(label, &text, format, out);
    line("Program", Styled::from(info.title()).cut(format.width.map(|width| width.saturating_sub(LABEL))).words())?;
    if let Some(version) = info.python_version() {
        let allocator = info.python_allocator().map(|name| format!(", allocator {name}")).unwrap_or_default();
        line("Python", format!("{version}{allocator}"))?;
    }
    if let Some(packages) = capture.own_packages() {
        line("Own code", packages)?;
    }
    if let Some(start) = info.start_time() {
        let recorder = info.recorder().map(|name| format!(", recorded by {name}")).unwrap_or_default();
        line("Started", format!("{start}{recorder}"))?;
    }
    let state = match (info.process.snapshot, info.growing) {
        (true, _) => ", up to a snapshot while the program ran",
        (false, true) => " so far",
        (false, false) => "",
    };
    line("Duration", format!("{}{state}", duration(info.duration_ns(&capture.analysis))))?;
    if let Some(reason) = info.stop_reason() {
        line("  recorded", format!("not to the end: {reason}"))?;
    }
    match (info.end_reason(), info.process.exit_status) {
        (Some(reason), _) => line("Ended", reason.trim_start_matches("ended ").to_owned())?,
        (None, Some(status)) if status > 0 => line("Ended", format!("with status {status}"))?,
        (None, _) => {}
    }
    if let Some(times) = info.times() {
        line("Times", format!("{times}; --allocation-timestamps records exact ones"))?;
    }
    if let Some(marks) = marks(info) {
        line("Marks", marks)?;
    }
    if let Some(samples) = estimates::samples(capture) {
        line("Samples", samples)?;
    }
    if let Some(unseen) = estimates::unseen(capture) {
        line("  unseen", unseen)?;
    }
    let WholeFigures { allocated, freed, live, peak: at_peak, .. } = WholeFigures::of(capture, leaks);
    line("Allocations", format!("{}, {}", allocated.number(), allocated.size()))?;
    line("  freed", format!("{}, {}", freed.number(), freed.size()))?;
    // What a killed recorder leaves does not know of the program's end.
    let goes_on = info.process.snapshot || info.process.ran_on || info.growing || !info.complete;
    line(if goes_on { "  live" } else { "  live at exit" }, format!("{}, {}", live.number(), live.size()))?;
    line("Peak", peak(capture, &at_peak))?;
    if capture.shown.folded && !capture.has_several_peaks() {
        own_line_rows(capture, View::HighWaterMark, format, out)?;
    }
    let mut line = |label: &str, text: String| write_figure(label, &text, format, out);
    if let Some(arenas) = arenas::note(capture.analysis.python_arenas(View::HighWaterMark)) {
        line("  in arenas", arenas)?;
    }
    if let Some(bytes) = info.combined_peaks.as_ref().and_then(|combined_peaks| combined_peaks.sum_of_peaks) {
        line("  sum of peaks", format!("{}, each process at its own time", size(bytes)))?;
        if capture.shown.folded && capture.has_several_peaks() {
            own_line_rows(capture, View::HighWaterMark, format, out)?;
        }
    }
    for (label, text) in leaked {
        write_figure(label, &text, format, out)?;
        if capture.shown.folded && label.trim().eq_ignore_ascii_case("leaked") {
            own_line_rows(capture, leaks, format, out)?;
        }
    }
    let mut line = |label: &str, text: String| write_figure(label, &text, format, out);
    if !capture.is_sampled() {
        line("Temporary", RangedTally::from(totals.temporary).in_words())?;
    }
    if let Some(failed) = failed::text(capture) {
        line("Failed", failed)?;
    }
    line("Resident memory", resident(totals))?;
    if let Some(sentence) = &info.resident_sentence() {
        line("  at one time", sentence.clone())?;
    }
    if let Some(combined_peaks) = info.combined_peaks.as_ref().filter(|_| totals.resident_peak().is_some()) {
        line("  sum of peaks", format!("{}, each process at its own time", size(combined_peaks.rss_sum_of_peaks)))?;
    }
    let classes = &totals.mappings;
    let [reserved, file, shared] = [classes.reserved, classes.file, classes.shared].map(|class| class.peak_bytes);
    if reserved + file + shared > 0 {
        let (what, when) = match &info.combined_peaks {
            Some(_) => ("sum of peaks", ", each process at its own time"),
            None => ("peak", ""),
        };
        let figures = format!("{} reserved, {} file-backed, {} shared", size(reserved), size(file), size(shared));
        line("Mappings", format!("{what}: {figures}{when}"))?;
        for (class, text) in mappings::texts(capture) {
            line(&format!("  {class}"), text)?;
        }
    }
    if info.process.fork_ticket.is_some() || totals.inherited_frees > 0 {
        line(
            "Inherited",
            format!("{} frees of blocks inherited from the parent process", count(totals.inherited_frees)),
        )?;
    }
    if info.process.began_late || totals.frees_of_earlier_blocks() > 0 {
        let frees = match capture.frees_of_earlier_blocks() {
            Some(number) => {
                format!("{} from before, not counted", plural(number, "free of a block", "frees of blocks"))
            }
            None => "samples do not tell frees of blocks from before".into(),
        };
        line("Began late", format!("in a running process; {frees}"))?;
    }
    let unsure = totals.unmatched_frees + totals.replaced + totals.truncated_stacks;
    if unsure > 0 {
        let (unmatched, replaced, cut) = (totals.unmatched_frees, totals.replaced, totals.truncated_stacks);
        line(
            "Not seen",
            format!(
                "{} frees without a recorded allocation, {} allocations without a recorded free, {} truncated stacks",
                count(unmatched),
                count(replaced),
                count(cut)
            ),
        )?;
    }
    Ok(())
}

/// The first marks, with their times; all of them are in JSON.
fn marks(info: &CaptureInfo) -> Option<String> {
    const SHOWN: usize = 10;
    let number = info.marks().count();
    let shown: Vec<_> =
        info.marks().take(SHOWN).map(|(time, name)| format!("{} at {}", visible(name), duration(time))).collect();
    let more = if number > SHOWN { format!(", and {} more", count((number - SHOWN) as u64)) } else { String::new() };
    (number > 0).then(|| format!("{}{more}", shown.join(", ")))
}

/// Prints the top own-code lines below a figure.
fn own_line_rows(capture: &Capture, view: View, format: TextFormat, out: &mut impl Write) -> io::Result<()> {
    top_rows(capture, view).indented(2, format).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The name of a view within a sentence.
fn subject(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "what was live at the peak",
        View::Leaks => "what was leaked",
        View::LeaksAtExit => "what was live at exit",
        View::Temporary => "temporary allocations",
        View::Allocated => "everything ever allocated",
        View::Pinned => "pages that only one stack's blocks kept",
        View::Objects => "Python objects",
    }
}

fn peak(capture: &Capture, figures: &RangedTally) -> String {
    let peak = &capture.analysis.totals.peak;
    let combined_peaks = capture.info.combined_peaks.as_ref();
    if let Some((combined_peaks, reason)) =
        combined_peaks.and_then(|combined_peaks| Some((combined_peaks, combined_peaks.no_joint_peak?)))
    {
        return format!("at least {} at one time; exact value unknown: {reason}", size(combined_peaks.at_least));
    }
    let when = peak.at.map(|moment| format!(", after {}", duration(moment.time_ns))).unwrap_or_default();
    let whose = if combined_peaks.is_some() { ", in all processes together" } else { "" };
    let selected = if capture.info.narrowed { ", the selected part of it" } else { "" };
    format!("{}{selected}{whose}{when}", figures.in_words())
}

fn resident(totals: &Totals) -> String {
    match (totals.resident_peak(), totals.resident_last()) {
        (Some(peak), Some(last)) => format!("peak {}, {} at the end", size(peak), size(last)),
        (Some(peak), None) => format!("{} at most", size(peak)),
        (None, _) => "not sampled".into(),
    }
}

/// Prints a label and its figures.
fn write_figure(label: &str, text: &str, format: TextFormat, out: &mut impl Write) -> io::Result<()> {
    entry(label, LABEL, text, format).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn section(title: &str, table: &TextTable, format: TextFormat, out: &mut impl Write) -> io::Result<()> {
    if table.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", format.heading(title))?;
    table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn sizes(capture: &Capture) -> TextTable {
    let bins = capture.analysis.totals.size_histogram.bins();
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let mut table = TextTable::new([column(""); 3]);
    for bin in bins {
        // 128 bits: counts of a forged capture can have any value.
        let bar = (u128::from(bin.count) * BAR as u128).div_ceil(u128::from(most)) as usize;
        let range =
            capture.sample_bytes().map_or((bin.count, bin.count), |bytes| bin.count_range(SampleWeights::new(bytes)));
        let number = count_within(bin.count, range);
        table.row([format!("<= {}", size(bin.max_bytes)), number, "▇".repeat(bar)].map(Into::into));
    }
    table
}

/// Bytes, share of the total, and number.
fn cells(whole: Tally, tally: Tally, name: impl Into<TextCell>) -> [TextCell; 4] {
    let [bytes, part] = share_of(tally, whole.bytes);
    [bytes, part, count_within(tally.count, tally.count_range()).into(), name.into()]
}

/// The columns of lists.
const LIST: [TextColumn; 4] = [column(""); 4];

fn allocators(rows: &StatsRows) -> TextTable {
    let mut table = TextTable::new(LIST);
    for row in &rows.domains {
        let name = match row.allocator.python_domain() {
            Some(domain) => format!("{} ({})", row.allocator.name(), domain.name()),
            None => row.allocator.name().into(),
        };
        table.row(cells(rows.whole, row.tally, name));
    }
    table
}

fn threads(capture: &Capture, rows: &StatsRows) -> TextTable {
    let mut table = TextTable::new(LIST);
    // Their sum, which the shares are of, is exact where that of call stacks is estimated.
    let bytes = rows.threads.iter().fold(0_u64, |sum, row| sum.saturating_add(row.tally.bytes));
    let whole = Tally { bytes, ..rows.whole };
    for row in &rows.threads {
        let (tid, name) = capture.thread(row.thread);
        let tid = tid.map_or("?".into(), |tid| tid.to_string());
        table.row(cells(whole, row.tally, format!("{tid} {name}")));
    }
    table
}

fn frames(capture: &Capture, whole: Tally, rows: &[FrameRow]) -> TextTable {
    let mut table = TextTable::new(LIST);
    for row in rows {
        table.row(cells(whole, row.tally, capture.frame_label(row.frame)));
    }
    table
}

fn modules(whole: Tally, rows: &[ModuleRow]) -> TextTable {
    let mut table = TextTable::new(LIST);
    for row in rows {
        let known = if row.source == Some(ModuleSource::Maps) { "  (not loaded by the dynamic loader)" } else { "" };
        table.row(cells(whole, row.tally, format!("{}{known}", row.module)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{Tally, View, write};
    use crate::reports::display::DisplayOptions;
    use crate::reports::fixture;
    use crate::terminal::TextFormat;

    #[test]
    fn golden() {
        let mut text = Vec::new();
        write(
            &mut fixture::leaking(),
            &DisplayOptions::default(),
            View::Allocated,
            5,
            TextFormat { width: Some(80), color: false },
            &mut text,
        )
        .unwrap();
        fixture::compare("stats.txt", &text);
    }

    #[test]
    fn tables_list_what_was_asked_for() {
        let mut capture = fixture::capture();
        capture.analysis.totals.leaked_at_exit = Tally { bytes: 77_000, count: 7, ..Tally::default() };
        capture.analysis.groups.change(0, |group| group.leaked_at_exit = group.allocated);
        let mut text = Vec::new();
        write(
            &mut capture,
            &DisplayOptions::default(),
            View::LeaksAtExit,
            5,
            TextFormat { width: Some(80), color: false },
            &mut text,
        )
        .unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("\nLeaked           1.50 MB in 3 allocations, live at exit; all by own code\n"),
            "{text}"
        );
        let listed = text
            .split("\nAllocators, of what was live at exit\n")
            .nth(1)
            .and_then(|tables| tables.split("\n\n").next())
            .unwrap();
        let sum = capture.analysis.groups.get(0).unwrap().allocated;
        assert_eq!(listed.lines().count(), 1, "{listed}");
        assert!(listed.contains(&super::size(sum.bytes)) && listed.contains("100"), "{listed}");
    }

    #[test]
    fn what_is_selected_of_the_peak_is_not_called_the_peak() {
        let told = |narrowed| {
            let mut capture = fixture::capture();
            capture.info.narrowed = narrowed;
            super::peak(&capture, &super::WholeFigures::of(&capture, View::Leaks).peak)
        };
        assert_eq!(told(true), "1.51 MB in 96 allocations, the selected part of it, after 3.00 s");
        assert_eq!(told(false), "1.51 MB in 96 allocations, after 3.00 s");
    }

    #[test]
    fn an_empty_capture_has_figures_and_no_tables() {
        let mut text = Vec::new();
        write(
            &mut fixture::empty(),
            &DisplayOptions::default(),
            View::Allocated,
            5,
            TextFormat { width: None, color: false },
            &mut text,
        )
        .unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("Peak             0 B in 0 allocations\n") && !text.contains("Sizes"), "{text}");
        assert!(text.contains("\nResident memory  not sampled\n"), "{text}");
    }
}
