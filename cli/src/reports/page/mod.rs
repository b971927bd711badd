//! `flamegraph` and `diff --html`: one HTML file that shows a capture, or two, and needs nothing but a browser.
//!
//! The file consists of an HTML template, the scripts and styles under `assets/`, and the data: columns of numbers as
//! JSON, deflated and base64-encoded. Invariant: the page makes no requests (its content security policy forbids them),
//! contains source lines only if requested, and its sums equal those of the other reports; if small call sites were
//! merged into their callers to limit its size, it says so.

mod about;
mod columns;
mod document;
mod heaviest;
mod names;
mod side;
mod sites;
mod time;

use std::io::{self, Write};

use memtrack_reader::analysis::Tally;
use memtrack_reader::analysis::diff::{FigurePair, MergedTree};
use memtrack_reader::plumbing::Plumbing;
use memtrack_reader::{Options, View};

use super::capture_info::{Capture, title_of_both, visible};
use super::diff_rows::DiffRows;
use super::display::DisplayOptions;
use super::frameless::FramelessMemory;
use super::scale::ComparedMetric;
use super::source::Sources;
use super::{arenas, failed};
use about::{generic_view_description, info_pairs, peak, view_description};
use columns::{PackedColumns, PackedObject};
use document::StaticPage;
use heaviest::Heaviest;
use names::KeyNames;
use side::PageSide;
use sites::Sites;

/// Maximum number of call sites, and of entries in the table of live intervals, so that the page stays responsive.
const MOST_SITES: usize = 250_000;
/// Minimum number of call sites.
const FEWEST_SITES: usize = 10_000;
/// Maximum size of the data in characters, so that a page with its scripts is below 5 MB.
const MOST_BYTES: usize = 4_800_000;

/// The views of the page, in the order of its switch.
const VIEWS: [View; 7] = [
    View::HighWaterMark,
    View::Leaks,
    View::LeaksAtExit,
    View::Temporary,
    View::Allocated,
    View::Pinned,
    View::Objects,
];

/// Initial state of the page. The user can change everything except the skipped functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageStart {
    /// The view.
    pub(crate) view: View,
    /// Show callers above callees.
    pub(crate) inverted: bool,
    /// Separate threads.
    pub(crate) split_threads: bool,
    /// Show numbers of allocations instead of bytes.
    pub(crate) counts: bool,
    /// Frames and imports.
    pub(crate) display: DisplayOptions,
}

impl PageStart {
    /// The functions that are skipped.
    fn plumbing(&self) -> Plumbing {
        Plumbing::with(self.display.skip.clone())
    }
}

/// The options with which captures must be read for a page.
pub(crate) fn reading(options: Options) -> Options {
    Options { moments: time::MOST_MOMENTS as u32, ..options }
}

/// Writes the page of one capture, with notes; with source lines if `sources` is given. Merges groups of the capture
/// that the page does not distinguish: there may be many millions, and the page is built several times.
///
/// # Errors
/// A write error.
pub(crate) fn flamegraph(
    capture: &mut Capture,
    start: PageStart,
    notes: Vec<String>,
    sources: Option<Sources>,
    out: impl Write,
) -> io::Result<()> {
    let frameless = frameless_titles(&[capture]);
    let (tree, PageSide { places, owners, .. }) = Heaviest::of_stacks(capture, MOST_SITES);
    let (places, owners) = side::merge(capture, &places, &owners);
    let (capture, frames) = (&*capture, &capture.frames);
    let sides = [PageSide { capture, places, owners, matched_elsewhere: Vec::new() }];
    let facts = info_pairs(&sides[0], start.display.with_imports);
    let mut names = KeyNames::of_frames(frames, start.plumbing(), sources);
    let title = capture.info.title();
    let notes = [capture.info.warnings(), notes, arena_notes(capture)].concat();
    let failed = failed::page(capture);
    let data = bounded(MOST_BYTES, |most| {
        let sites = Sites::new(&tree, &sides, most);
        let mut data = PackedColumns::new();
        head(&mut data, "capture", (&title, &VIEWS.map(|view| capture.title(view))), &start)?;
        data.json("meanings", &VIEWS.map(|view| view_description(view, capture)).to_vec().into())?;
        data.json("frameless", &frameless.clone().into())?;
        data.json("facts", &facts.clone().into())?;
        data.json("peak", &peak(capture))?;
        data.json("failed", &failed.clone())?;
        sites.write(&mut data, &mut names)?;
        let time = time::write(capture, &sites, most, &mut data)?;
        let notes: Vec<_> = notes.iter().cloned().chain(sites.note()).chain(names.note()).chain(time).collect();
        data.json("notes", &notes.into())?;
        data.finish()
    })?;
    let title = format!("{} - memtrack", capture.info.program());
    let heading = [capture.info.program(), capture.info.title()];
    document::write(&StaticPage { title, heading, info: facts }, &data, out)
}

/// What arenas of Python's allocators are of the views that include them, where they are a large part.
fn arena_notes(capture: &Capture) -> Vec<String> {
    let (analysis, totals) = (&capture.analysis, &capture.analysis.totals);
    let [at_peak, held] = [View::HighWaterMark, View::Leaks].map(|view| analysis.python_arenas(view));
    let peak = Tally { bytes: totals.peak.bytes, count: totals.peak.allocations, ..Tally::default() };
    let leaks = arenas::warning(held, arenas::subtract(totals.leaked, held));
    let leaks = leaks.map(|text| format!("included in leaks: {text}"));
    arenas::included(at_peak, peak).into_iter().chain(leaks).collect()
}

/// Writes the page of a difference. `scale` describes the scale of the baseline, if any; `notes` are warnings about
/// comparability.
///
/// # Errors
/// A write error.
pub(crate) fn difference(
    base: &Capture,
    new: &Capture,
    start: PageStart,
    scale: Option<String>,
    notes: &[String],
    out: impl Write,
) -> io::Result<()> {
    let mut merged = MergedTree::default();
    let mut sides = [new, base].map(|capture| {
        let stacks = capture.analysis.groups.iter().map(|group| group.stack);
        PageSide::new(capture, merged.places(&capture.frames, stacks))
    });
    let (mut floors, mut vanished, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    for (number, view) in VIEWS.into_iter().enumerate() {
        let metric = ComparedMetric { name: "", view, counts: false };
        let rows = DiffRows::of([base, new], metric, false, &mut merged);
        let [of_new, of_base] = &mut sides;
        of_base.match_elsewhere(number, view, &rows.set_off[0]);
        of_new.match_elsewhere(number, view, &rows.set_off[1]);
        floors.push(floors_of(view, &rows.all.whole));
        vanished.push(rows.all.vanished_stacks);
        moved.push(rows.moved().unwrap_or_default());
    }
    let tree = Heaviest::of_tree(&std::mem::take(&mut merged.tree), &mut sides, MOST_SITES);
    let facts = sides.iter().rev().flat_map(|side| info_pairs(side, start.display.with_imports)).collect::<Vec<_>>();
    let title = format!("{} -> {}", base.info.file.display(), new.info.file.display());
    let titles = VIEWS.map(|view| title_of_both([base, new], view));
    let data = bounded(MOST_BYTES, |most| {
        let sites = Sites::new(&tree, &sides, most);
        let mut data = PackedColumns::new();
        head(&mut data, "diff", (&title, &titles), &start)?;
        let meanings = VIEWS.map(|view| {
            let of_any = match [base, new].iter().find(|side| view == View::HighWaterMark && side.has_several_peaks()) {
                Some(side) => view_description(view, side),
                None => generic_view_description(view).to_owned(),
            };
            format!("Of both captures: {}{}", of_any[..1].to_lowercase(), &of_any[1..])
        });
        data.json("meanings", &meanings.to_vec().into())?;
        data.json("frameless", &frameless_titles(&[new, base]).into())?;
        data.json("facts", &facts.clone().into())?;
        data.json("vanishedStacks", &vanished.clone().into())?;
        data.json("floors", &floors.clone().into())?;
        data.json("moved", &moved.clone().into())?;
        data.json("scale", &scale.clone().into())?;
        let mut names = KeyNames::of_functions(&merged.functions, start.plumbing(), [&base.frames, &new.frames]);
        sites.write(&mut data, &mut names)?;
        data.json("notes", &notes.iter().cloned().chain(sites.note()).collect::<Vec<_>>().into())?;
        data.finish()
    })?;
    let heading = [format!("{}, compared", new.info.program()), title];
    let title = format!("{} compared - memtrack", new.info.program());
    document::write(&StaticPage { title, heading, info: facts }, &data, out)
}

/// What memory without a Python frame in other threads than the main one is, in each view, in the words of `stats`.
fn frameless_titles(captures: &[&Capture]) -> Vec<String> {
    let title = |view: View| {
        let found = captures.iter().map(|capture| FramelessMemory::of(capture, capture.analysis.rows(view)));
        let what = found.filter(|found| found.sum().bytes > 0).map(|found| found.what()).next();
        what.map_or_else(String::new, |what| format!("{}{}", what[..1].to_uppercase(), &what[1..]))
    };
    VIEWS.map(title).to_vec()
}

/// Minimum changes of bytes and of counts that are coloured.
fn floors_of(view: View, whole: &FigurePair) -> Vec<u64> {
    let floor = |counts, base: u64, new: u64| ComparedMetric { name: "", view, counts }.floor(base.max(new));
    vec![floor(false, whole.base.bytes, whole.new.bytes), floor(true, whole.base.count, whole.new.count)]
}

/// Builds the data with decreasing numbers of call sites until the page is small enough, or has the minimum number of
/// sites.
fn bounded(most_bytes: usize, mut build: impl FnMut(usize) -> io::Result<PackedObject>) -> io::Result<PackedObject> {
    let mut most = MOST_SITES;
    loop {
        let data = build(most)?;
        if data.len() <= most_bytes || most <= FEWEST_SITES {
            return Ok(data);
        }
        // Slightly less than proportional, so that one repetition usually suffices.
        most = (most as u64 * most_bytes as u64 * 9 / 10 / data.len() as u64).max(FEWEST_SITES as u64) as usize;
    }
}

fn head(data: &mut PackedColumns, kind: &str, (title, views): (&str, &[&str]), start: &PageStart) -> io::Result<()> {
    data.json("kind", &kind.into())?;
    data.json("title", &visible(title).into())?;
    data.json("views", &views.to_vec().into())?;
    let view = VIEWS.iter().position(|view| *view == start.view).unwrap_or(0);
    let PageStart { inverted, split_threads, counts, display, .. } = start;
    let start = serde_json::json!({
        "view": view, "inverted": inverted, "split": split_threads, "counts": counts,
        "allFrames": display.all_frames, "imports": display.with_imports,
    });
    data.json("start", &start)
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
