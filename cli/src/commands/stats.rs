//! `memtrack stats`: the numbers of a capture, as text or JSON.
//!
//! Invariant: nothing is printed before the capture was read.

use anyhow::Result;
use memtrack_reader::Options;
use memtrack_reader::analysis::SizeHistogram;

use crate::args;
use crate::load::load;
use crate::message;
use crate::output::Report;
use crate::reports::{stats_json, stats_text};
use crate::terminal::Look;

/// Prints the report.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn run(options: &args::Stats) -> Result<u8> {
    let capture = load(&options.input, &Options::default())?;
    if capture.facts.aggregated && capture.analysis.totals.size_histogram == SizeHistogram::default() {
        message::warning("aggregated captures keep the sizes of allocations for the whole only: no sizes are shown");
    }
    let mut out = Report::printed(options.output.output.as_deref(), options.output.force)?;
    if options.json {
        stats_json::write(&capture, options.rows, &mut out)?;
    } else {
        let look = Look::new(options.color, matches!(out, Report::Stdout(_)));
        stats_text::write(&capture, options.rows, look, &mut out)?;
    }
    out.finish()?;
    Ok(0)
}
