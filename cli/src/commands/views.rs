//! `memtrack summary`, `table` and `flamegraph`: a view's memory by function, by source location and by call path.
//!
//! Invariant: nothing is printed before the capture was read.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use memtrack_reader::analysis::Tally;
use memtrack_reader::{Options, View};

use crate::args;
use crate::failure::Failure;
use crate::load::objects::ObjectStacks;
use crate::load::{Request, load};
use crate::message;
use crate::output::ReportOutput;
use crate::reports::capture_info::Capture;
use crate::reports::source::Sources;
use crate::reports::{arenas, page, summary, table_report, tree_json};
use crate::terminal::TextFormat;
use crate::text::paragraph;

/// Prints self and total figures of every function.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn summary(options: &args::SummaryArgs) -> Result<u8> {
    let request = Request::from((&options.input, &options.view));
    let mut capture = load(if options.json { request } else { request.for_people() }, &options.view.reading())?;
    let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
    let format = options.text.colors.text_format(&out);
    let order = options.sort;
    if options.json {
        summary::json(&capture, options.view.wanted(), order, &mut out)?;
    } else {
        let held = capture.analysis.take_arenas_out_of_leaks(options.view.wanted());
        summary::write(&capture, options.view.wanted(), order, options.text.rows, format, &mut out)?;
        write_note(&capture, options.view.wanted(), held, format, &mut out)?;
    }
    out.finish()?;
    capture.info.note_missing_stacks();
    Ok(0)
}

/// Prints a row for each source location and allocator.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn table(options: &args::TableArgs) -> Result<u8> {
    let request = Request::from((&options.input, &options.view));
    let request = if options.json || options.csv { request } else { request.for_people() };
    let mut capture = load(request, &options.view.reading())?;
    let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
    let is_text = !options.json && !options.csv;
    let held = is_text.then(|| capture.analysis.take_arenas_out_of_leaks(options.view.wanted()));
    let table = table_report::TableReport::new(
        &capture,
        options.view.wanted(),
        options.split_threads,
        options.view.split_processes,
    );
    if options.json {
        table.json(&mut out)?;
    } else if options.csv {
        table.csv(&mut out)?;
    } else {
        let format = options.text.colors.text_format(&out);
        table.text(options.text.rows, format, &mut out)?;
        write_note(&capture, options.view.wanted(), held.unwrap_or_default(), format, &mut out)?;
    }
    out.finish()?;
    capture.info.note_missing_stacks();
    Ok(0)
}

/// Prints the note about arenas: those that are excluded from leaks, or that the high-water mark includes.
pub(super) fn write_note(
    capture: &Capture,
    view: View,
    excluded: Tally,
    format: TextFormat,
    out: &mut impl Write,
) -> Result<()> {
    let note = match view {
        View::HighWaterMark => {
            let whole = capture.analysis.rows(view).map(|row| row.tally()).sum();
            arenas::included(capture.analysis.python_arenas(view), whole)
        }
        _ => arenas::note(excluded),
    };
    let lines = note.map(|note| paragraph(&note, format)).unwrap_or_default();
    Ok(lines.iter().try_for_each(|line| writeln!(out, "{line}"))?)
}

/// Writes the page, and opens it if requested.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn flamegraph(options: &args::FlamegraphArgs) -> Result<u8> {
    if options.json {
        return flamegraph_json(options);
    }
    refuse_open_without_file(options.open, &options.output)?;
    let request = Request::from((&options.input, &options.view));
    let start = page::PageStart {
        view: options.view.wanted(),
        inverted: options.inverted,
        split_threads: options.split_threads,
        counts: false,
        display: request.display_options(),
    };
    let out = ReportOutput::file(options.output.of(&options.input.captures), "flamegraph", "html")?;
    let path = write_page(request, options.view.reading(), (start, options.embed_sources), out)?;
    show(path.as_deref(), options.open);
    Ok(0)
}

/// Reads the captures and writes their page, with source lines if requested; returns the page's path.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn write_page(
    request: Request<'_>,
    reading: Options,
    (start, embed_sources): (page::PageStart, bool),
    mut out: ReportOutput,
) -> Result<Option<PathBuf>> {
    let narrows = request.narrows();
    let objects = match request.objects {
        ObjectStacks::Unwanted => ObjectStacks::IfThere,
        asked => asked,
    };
    let request = Request { with_resident: true, with_bands: true, objects, ..request };
    let mut capture = load(request, &page::reading(reading))?;
    let note = narrows
        .then(|| "filtered: the views contain only selected allocations; the memory chart contains all".to_owned());
    let sources = embed_sources.then(|| Sources::of(&capture.info));
    page::flamegraph(&mut capture, start, note.into_iter().collect(), sources, &mut out)?;
    let path = out.finish()?;
    capture.info.note_missing_stacks();
    Ok(path)
}

/// Refuses `--open` if the page goes to standard output.
///
/// # Errors
/// Wrong usage.
pub(crate) fn refuse_open_without_file(open: bool, output: &args::OutputArgs) -> Result<(), Failure> {
    if open && output.output.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage("--open cannot be combined with -o -: the browser needs a file"));
    }
    Ok(())
}

/// Prints the path of the page, and opens it if requested.
pub(crate) fn show(page: Option<&Path>, open: bool) {
    let Some(page) = page else { return };
    let advice = if open { "" } else { "; open it in a browser, or write it with --open" };
    message::line(format_args!("{}: written{advice}", page.display()));
    if open {
        crate::open::in_browser(page);
    }
}

fn flamegraph_json(options: &args::FlamegraphArgs) -> Result<u8> {
    let mut out = ReportOutput::file(options.output.of(&options.input.captures), "flamegraph", "json")?;
    let capture = load((&options.input, &options.view), &options.view.reading())?;
    let shape = tree_json::TreeShape {
        view: options.view.wanted(),
        inverted: options.inverted,
        split_threads: options.split_threads,
    };
    tree_json::flamegraph(&capture, shape, &mut out)?;
    if let Some(path) = out.finish()? {
        message::line(format_args!("{}: written", path.display()));
    }
    Ok(0)
}
