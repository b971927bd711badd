//! `memtrack transform`: a capture in the format of a viewer.
//!
//! Invariant: an order or a view that the capture cannot give is refused with the reason, never replaced by another.

use anyhow::{Result, bail};
use memtrack_reader::analysis::ordering::Ordering;
use memtrack_reader::{Options, View};

use crate::args::{self, Order};
use crate::load::load;
use crate::message;
use crate::output::Report;
use crate::reports::facts::Capture;
use crate::reports::speedscope;

/// Writes the file for speedscope.
///
/// # Errors
/// A capture that cannot be read or does not have what was asked for, or an output that cannot be written.
pub(crate) fn speedscope(options: &args::Speedscope) -> Result<u8> {
    let output = &options.output;
    let mut out =
        Report::file(output.output.as_deref(), output.force, &options.capture, "speedscope", "speedscope.json")?;
    let temporary_threshold = options.view.temporary_threshold.get();
    let capture = load(&options.capture, &Options { temporary_threshold, ..Options::default() })?;
    let ordering = ordering(options.order, &capture)?;
    speedscope::write(&capture, view(&options.view), ordering, &mut out)?;
    if let Some(path) = out.finish()? {
        message::line(format_args!("{}: written; open it at https://www.speedscope.app", path.display()));
    }
    Ok(0)
}

fn view(view: &args::View) -> View {
    match view {
        args::View { leaks: true, at_exit: true, .. } => View::LeaksAtExit,
        args::View { leaks: true, .. } => View::Leaks,
        args::View { temporary: true, .. } => View::Temporary,
        args::View { allocated: true, .. } => View::Allocated,
        _ => View::HighWaterMark,
    }
}

fn ordering(wanted: Order, capture: &Capture) -> Result<Ordering> {
    let file = capture.facts.file.display();
    let aggregated = capture.facts.aggregated;
    Ok(match wanted {
        Order::Exact if aggregated => bail!("{file}: an aggregated capture has no exact times; use --order capture"),
        Order::Exact if !capture.analysis.exact_times => {
            bail!("{file}: has no exact times; record with --allocation-timestamps, or use --order snapshot")
        }
        Order::Snapshot if aggregated => {
            bail!(
                "{file}: an aggregated capture has only the order in which stacks were first seen; use --order capture"
            )
        }
        Order::Exact => Ordering::Exact,
        Order::Snapshot => Ordering::Snapshot,
        Order::Capture => Ordering::Capture,
        Order::Auto if aggregated => Ordering::Capture,
        Order::Auto => Ordering::best_for(&capture.analysis),
    })
}
