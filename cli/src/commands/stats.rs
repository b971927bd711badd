//! `memtrack stats`: totals and tables of a capture, as text or JSON.
//!
//! Invariant: nothing is printed before the capture was read.

use anyhow::Result;
use memtrack_reader::View;
use memtrack_reader::analysis::SizeHistogram;
use memtrack_reader::query::Expr;

use crate::allocation_records;
use crate::args;
use crate::load::{Request, load, of_one_recording};
use crate::message;
use crate::output::ReportOutput;
use crate::reports::{self, stats_json, stats_text};

/// Prints the report.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn run(options: &args::StatsArgs) -> Result<u8> {
    let view = options.which.wanted().unwrap_or(View::Allocated);
    let request = Request::from(&options.input).for_people();
    let display = request.display.clone();
    // Attribution to lines of own code needs whole stacks.
    let without_paths = view == View::Allocated && (options.json || display.all_frames);
    let request = Request {
        split_domains: true,
        without_paths,
        shown: false,
        with_resident: !options.json,
        ..request.about(view)
    };
    let mut capture = load(request, &options.which.reading())?;
    if capture.info.aggregated
        && capture.info.narrowed
        && capture.analysis.totals.size_histogram == SizeHistogram::default()
    {
        message::warning("the size histogram is omitted: aggregated captures have one for the whole process only");
    }
    let lifetimes = if options.lifetimes { Some(lifetimes(options)?) } else { None };
    let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
    if options.json {
        stats_json::write(&capture, view, lifetimes.as_ref(), options.text.rows, &mut out)?;
    } else {
        let format = options.text.colors.text_format(&out);
        stats_text::write(&mut capture, &display, view, options.text.rows, format, &mut out)?;
        if let Some(lifetimes) = &lifetimes {
            lifetimes.text(options.text.rows, format, &mut out)?;
        }
        if options.recording {
            capture.info.recording_cost.text(format, &mut out)?;
        }
    }
    out.finish()?;
    Ok(0)
}

/// Lifetimes of the allocations that pass the filters.
fn lifetimes(options: &args::StatsArgs) -> Result<reports::lifetimes::LifetimesReport> {
    let request = Request::from(&options.input);
    let request = if options.json { request } else { request.for_people() };
    let expr = Expr::And(Vec::new());
    let mut report = reports::lifetimes::LifetimesReport::default();
    for path in &of_one_recording(request.paths)? {
        let capture =
            allocation_records::for_each_allocation(&request.open(path)?, &request, &expr, |capture, life| {
                report.add(capture, life)
            })?;
        report.end_capture(&capture);
    }
    Ok(report)
}
