//! `memtrack explain`: findings about a capture, the most important first.
//!
//! A capture with events is read again for the large blocks that were live at its peak or end. Invariant: nothing is printed
//! before the capture was read.

use std::io::Write;

use anyhow::Result;
use memtrack_reader::Options;
use memtrack_reader::query::{AllocationRecord, Amount, Comparison, Expr, Flag, KeyMoments, Number};

use crate::allocation_records::{allocations_at, for_each_allocation};
use crate::args::ExplainArgs;
use crate::line_objects::objects_of_lines;
use crate::load::{Request, load, of_one_recording};
use crate::object_growth::{GrowingType, growing_types};
use crate::output::ReportOutput;
use crate::reports::capture_info::Capture;
use crate::reports::explain::{Explanation, LargeBlocks, MOMENTS, least_copy};
use crate::reports::line_objects::LineObjects;
use crate::reports::resident::ResidentReport;
use crate::reports::source::Sources;

/// Characters of the text, if nothing else was asked for.
const TEXT_BUDGET: usize = 4000;

/// Blocks from this size on are looked at in any case.
const LARGE: u64 = 1 << 20;

/// Prints the findings.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn run(options: &ExplainArgs) -> Result<u8> {
    let request = Request {
        without_columns: true,
        with_resident: true,
        shows_times: !options.json,
        ..Request::from(&options.input).for_people()
    };
    let mut capture = load(request.clone(), &Options { moments: MOMENTS, ..Options::default() })?;
    let (blocks, tables) = large_blocks(&capture, &request)?;
    let (types, objects) = objects(&mut capture, &request)?;
    let report = tables.as_ref().zip(capture.info.resident.as_ref());
    let report = report.map(|(tables, memory)| ResidentReport::new(tables, memory));
    let explanation = Explanation::of(&capture, &blocks, report.as_ref(), &types, &objects);
    let mut out = ReportOutput::printed(options.output.of(&options.input.captures))?;
    if options.json {
        writeln!(out, "{:#}", explanation.json(options.budget.unwrap_or(usize::MAX)))?;
    } else {
        let format = options.colors.text_format(&out);
        explanation.text(options.budget.unwrap_or(TEXT_BUDGET), format, &mut out)?;
    }
    out.finish()?;
    capture.info.note_missing_stacks();
    Ok(0)
}

/// The types of objects that grow, and the objects in the blocks of lines, if the capture is one with pictures of objects.
fn objects(capture: &mut Capture, request: &Request<'_>) -> Result<(Vec<GrowingType>, LineObjects)> {
    let paths = of_one_recording(request.paths)?;
    let [path] = &paths[..] else { return Ok(Default::default()) };
    if request.narrows() || capture.info.aggregated {
        return Ok(Default::default());
    }
    let file = request.open_any(path)?;
    let types = growing_types(&file)?;
    // Of samples, few of a line's objects have a block that is known.
    let objects = if capture.is_sampled() { LineObjects::default() } else { objects_of_lines(&file, capture)? };
    Ok((types, objects))
}

/// The large blocks that were live at the peak or at the end, if the capture is one with events; and its tables without
/// sums, if it was read without filters.
fn large_blocks(capture: &Capture, request: &Request<'_>) -> Result<(LargeBlocks, Option<Capture>)> {
    let mut blocks = LargeBlocks::default();
    let paths = of_one_recording(request.paths)?;
    let [path] = &paths[..] else { return Ok((blocks, None)) };
    // Samples have no single blocks.
    if capture.info.aggregated || capture.is_sampled() || capture.analysis.totals.peak.bytes == 0 {
        return Ok((blocks, None));
    }
    // What of the peak is not in memory is not known here.
    let least = least_copy(capture.analysis.totals.peak.bytes).min(LARGE);
    let large = Expr::Number(Number::Bytes, Comparison::AtLeast, Amount::Plain(least));
    let expr = Expr::And(vec![Expr::Or(vec![Expr::Flag(Flag::Peak), Expr::Flag(Flag::Live)]), large]);
    let mut sources = Sources::of(&capture.info);
    let mut take = |capture: &Capture, record: &AllocationRecord| blocks.add(capture, record, &mut sources);
    let file = request.open(path)?;
    if request.narrows() {
        let _ = for_each_allocation(&file, request, &expr, take)?;
        Ok((blocks, None))
    } else {
        let moments = KeyMoments::of(&capture.analysis.totals, Options::default().temporary_threshold);
        let (tables, found) = allocations_at(&file, request, moments, &expr)?;
        found.iter().for_each(|record| take(&tables, record));
        file.accounts(|_| {
            blocks.has_accounts = true;
            false
        })?;
        Ok((blocks, Some(tables)))
    }
}
