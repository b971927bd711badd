//! `memtrack query`: lists the allocations that match an expression.
//!
//! Invariant: nothing is printed before the expression is parsed and the captures are read, except JSON rows, which are
//! written as they are found.

use std::path::PathBuf;

use anyhow::{Result, bail};
use memtrack_reader::analysis::Tally;
use memtrack_reader::query::{Expr, Flag, MatchContext, Matcher};
use memtrack_reader::{Options, source};

use crate::allocation_records;
use crate::args::query::QueryArgs;
use crate::load::{Request, joint_peaks, load, of_one_recording};
use crate::output::ReportOutput;
use crate::reports::capture_info::{Capture, CaptureInfo};
use crate::reports::query::{GroupBy, Largest, ListingWriter, MatchTotals, QueryGroups};
use crate::terminal::TextFormat;

/// Prints the matching allocations or groups.
///
/// # Errors
/// A capture that cannot be read or lacks the requested data, or an output that cannot be written.
pub(crate) fn run(options: &QueryArgs) -> Result<u8> {
    let request = Request::from((options.captures.as_slice(), &options.filters));
    let mut request = if options.json { request } else { request.for_people() };
    let expr = &options.expression.expr;
    let paths = of_one_recording(request.paths)?;
    // Rows of JSON say whether they were live at the peak.
    if paths.len() > 1 && (expr.mentions(Flag::Peak) || options.json && options.by.is_none()) {
        request.joint_peaks = joint_peaks(&paths)?;
    }
    let mut out = ReportOutput::printed(options.output.of(&options.captures))?;
    let format = options.text.colors.text_format(&out);
    match options.by {
        Some(by) => grouped(options, &request, (by, expr), format, &mut out)?,
        None if options.json => stream(options, &request, expr, &mut out)?,
        None => largest(options, &request, expr, format, &mut out)?,
    }
    out.finish()?;
    Ok(0)
}

fn grouped(
    options: &QueryArgs,
    request: &Request<'_>,
    (by, expr): (GroupBy, &Expr),
    format: TextFormat,
    out: &mut ReportOutput,
) -> Result<()> {
    let mut groups = QueryGroups::new(by);
    let mut matched = MatchTotals::default();
    let mut times = CaptureInfo::default();
    for path in &of_one_recording(request.paths)? {
        let file = request.open(path)?;
        let capture = if file.aggregated() {
            sums((path, &file), request, (by, expr), &mut groups, &mut matched)?
        } else {
            allocation_records::for_each_allocation(&file, request, expr, |capture, life| {
                matched.matched.add(life.size, 1);
                groups.add(capture, life);
            })?
        };
        if !capture.info.aggregated {
            times.time_uncertainty_ns = times.time_uncertainty_ns.max(capture.info.time_uncertainty_ns);
        }
        add(&mut matched.of, capture.analysis.totals.allocations);
        groups.end_capture(&capture);
    }
    if options.json {
        groups.json(&options.expression.text, &matched, &mut *out)?;
    } else {
        groups.text(&matched, options.text.rows, options.lifetimes, format, &mut *out)?;
        times.note_time_precision();
    }
    Ok(())
}

/// The request without filters: the expression contains them.
fn without_filters(request: &Request<'_>) -> Request<'static> {
    Request { search: request.search.clone(), ..Request::default() }
}

/// Groups of an aggregated capture.
fn sums(
    (path, file): (&PathBuf, &source::CaptureReader),
    request: &Request<'_>,
    (by, expr): (GroupBy, &Expr),
    groups: &mut QueryGroups,
    matched: &mut MatchTotals,
) -> Result<Capture> {
    let expr = &Expr::And(vec![allocation_records::filters(request, file)?, expr.clone()]);
    if !expr.is_of_groups() || by == GroupBy::Size {
        bail!(
            "{}: an aggregated capture has no individual allocations; only function, file, module, thread and allocator \
             can be queried",
            path.display()
        );
    }
    let unfiltered = Request { paths: std::slice::from_ref(path), ..without_filters(request) };
    let mut capture = load(unfiltered, &Options::default())?;
    if request.shown {
        capture.fold_beside(&request.display)?;
    }
    let known = MatchContext { frames: &capture.frames, threads: &capture.threads, start_ns: 0, duration_ns: 0 };
    let judge = Matcher::new(expr, &known);
    for group in capture.analysis.groups.iter() {
        if judge.takes_group(group.stack, group.allocator, group.thread) {
            matched.matched.add(group.allocated.bytes, group.allocated.count);
            groups.add_sum(&capture, &group);
        }
    }
    Ok(capture)
}

fn largest(
    options: &QueryArgs,
    request: &Request<'_>,
    expr: &Expr,
    format: TextFormat,
    out: &mut ReportOutput,
) -> Result<()> {
    let mut rows = Largest::new(options.text.rows);
    let mut matched = MatchTotals::default();
    let mut times = CaptureInfo::default();
    for path in &of_one_recording(request.paths)? {
        let capture = allocation_records::for_each_allocation(&request.open(path)?, request, expr, |capture, life| {
            matched.matched.add(life.size, 1);
            rows.add(capture, life);
        })?;
        times.time_uncertainty_ns = times.time_uncertainty_ns.max(capture.info.time_uncertainty_ns);
        add(&mut matched.of, capture.analysis.totals.allocations);
    }
    rows.text(&matched, format, &mut *out)?;
    if matched.matched.count > 0 {
        times.note_time_precision();
    }
    Ok(())
}

fn stream(options: &QueryArgs, request: &Request<'_>, expr: &Expr, out: &mut ReportOutput) -> Result<()> {
    // Before the first word is written.
    for path in &of_one_recording(request.paths)? {
        let file = request.open(path)?;
        allocation_records::refuse_sums(&file)?;
        allocation_records::filters(request, &file)?;
    }
    let mut rows = ListingWriter::new(&options.expression.text, &mut *out);
    let mut matched = MatchTotals::default();
    for path in &of_one_recording(request.paths)? {
        let capture = allocation_records::for_each_allocation(&request.open(path)?, request, expr, |capture, life| {
            matched.matched.add(life.size, 1);
            rows.add(capture, life);
        })?;
        rows.end_capture(&capture);
        add(&mut matched.of, capture.analysis.totals.allocations);
    }
    Ok(rows.finish(&matched)?)
}

fn add(sum: &mut Tally, more: Tally) {
    sum.add(more.bytes, more.count);
}
