//! `memtrack summary`, `table` and `flamegraph`: who holds a view's memory, by function, by place and by call path.
//!
//! Invariant: nothing is printed before the capture was read.

use std::io::Write;

use anyhow::Result;

use memtrack_reader::analysis::Tally;

use crate::args;
use crate::load::{Request, load};
use crate::message;
use crate::output::Report;
use crate::reports::source::Sources;
use crate::reports::{arenas, page, places, summary, tree_json};

/// Prints own and total figures of every function.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn summary(options: &args::Summary) -> Result<u8> {
    let mut capture = load((&options.input, &options.view), &options.view.reading())?;
    let mut out = Report::printed(options.output.output.as_deref(), options.output.force)?;
    let look = options.text.colors.look(&out);
    let order = match options.sort {
        args::Sort::Total => summary::Order::Total,
        args::Sort::Own => summary::Order::Own,
        args::Sort::TotalCount => summary::Order::TotalCount,
        args::Sort::OwnCount => summary::Order::OwnCount,
    };
    if options.json {
        summary::json(&capture, options.view.wanted(), order, &mut out)?;
    } else {
        let held = capture.analysis.take_arenas_out_of_leaks(options.view.wanted());
        summary::write(&capture, options.view.wanted(), order, options.text.rows, look, &mut out)?;
        write_note(held, &mut out)?;
    }
    out.finish()?;
    capture.facts.tell_stackless();
    Ok(0)
}

/// Prints a row for each place and allocator.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn table(options: &args::Table) -> Result<u8> {
    let mut capture = load((&options.input, &options.view), &options.view.reading())?;
    let mut out = Report::printed(options.output.output.as_deref(), options.output.force)?;
    let is_text = !options.json && !options.csv;
    let held = is_text.then(|| capture.analysis.take_arenas_out_of_leaks(options.view.wanted()));
    let table =
        places::Places::new(&capture, options.view.wanted(), options.split_threads, options.view.split_processes);
    if options.json {
        table.json(&mut out)?;
    } else if options.csv {
        table.csv(&mut out)?;
    } else {
        let look = options.text.colors.look(&out);
        table.text(options.text.rows, look, &mut out)?;
        write_note(held.unwrap_or_default(), &mut out)?;
    }
    out.finish()?;
    capture.facts.tell_stackless();
    Ok(0)
}

/// What leaks leave out, after them.
pub(super) fn write_note(arenas: Tally, out: &mut impl Write) -> Result<()> {
    Ok(arenas::note(arenas).map_or(Ok(()), |note| writeln!(out, "{note}"))?)
}

/// Writes the page.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn flamegraph(options: &args::Flamegraph) -> Result<u8> {
    if options.json {
        return flamegraph_json(options);
    }
    let output = &options.output;
    let mut out = Report::file(output.output.as_deref(), output.force, options.input.first(), "flamegraph", "html")?;
    let mut capture = load((&options.input, &options.view), &page::reading(options.view.reading()))?;
    let start = page::Start {
        view: options.view.wanted(),
        inverted: options.inverted,
        split_threads: options.split_threads,
        counts: false,
    };
    let narrows = Request::from(&options.input).narrows();
    let note =
        narrows.then(|| "filtered: not all allocations are in these views; memory over time is of all".to_owned());
    let sources = options.embed_sources.then(|| Sources::new(capture.facts.process.start_realtime_ns));
    page::flamegraph(&mut capture, start, note.into_iter().collect(), sources, &mut out)?;
    if let Some(path) = out.finish()? {
        message::line(format_args!("{}: written; open it in a browser", path.display()));
    }
    capture.facts.tell_stackless();
    Ok(0)
}

fn flamegraph_json(options: &args::Flamegraph) -> Result<u8> {
    let output = &options.output;
    let mut out = Report::file(output.output.as_deref(), output.force, options.input.first(), "flamegraph", "json")?;
    let capture = load((&options.input, &options.view), &options.view.reading())?;
    let shape = tree_json::Shape {
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
