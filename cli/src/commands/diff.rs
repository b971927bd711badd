//! `memtrack diff`: compares two captures and sets the exit status for CI checks.
//!
//! Invariant: the report is written even if the limit is exceeded.

use std::path::PathBuf;

use anyhow::Result;
use memtrack_format::meta::StartTimes;
use memtrack_reader::View;
use memtrack_reader::analysis::{RecordingPart, share_samples};

use crate::args::{self, DiffFigure, GrowthLimit};
use crate::commands::views::{refuse_open_without_file, show};
use crate::failure;
use crate::load::{Request, load};
use crate::message;
use crate::output::ReportOutput;
use crate::reports::capture_info::Capture;
use crate::reports::comparability::comparability_warnings;
use crate::reports::diff::Diff;
use crate::reports::page;
use crate::reports::scale::{ComparedMetric, NormalizeBy, Scale};
use crate::units::{count, size};

/// Compares two captures, prints the report, and returns exit status 1 if the limit is exceeded.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written.
pub(crate) fn run(options: &args::DiffArgs) -> Result<u8> {
    refuse_open_without_file(options.open, &options.output)?;
    let metric = options.metric.map_or_else(|| of_view(options.which.wanted().unwrap_or_default()), of_name);
    let read = |capture| load(Request::from((capture, &options.filters)).about(metric.view), &options.which.reading());
    let [mut base, mut new] = [read(&options.base)?, read(&options.new)?];
    let notes = comparability_warnings(&base, &new);
    notes.iter().for_each(message::warning);
    let scale = options.normalize.map(|to| Scale::new(to.into(), &base, &new, metric)).transpose()?;
    match &scale {
        Some(scale) => scale.apply(&mut base),
        None => share_samples_of_one_recording([&mut base, &mut new], metric.view),
    }
    let diff = Diff::new(&base, &new, metric, options.by == DiffFigure::Total).with_notes(scale.clone(), notes.clone());
    if options.html {
        html(options, [&base, &new], metric, scale.as_ref(), &notes)?;
    } else {
        write(options, &diff)?;
    }
    Ok(options.fail_over.map_or(0, |limit| check_limit(&diff, metric, limit)))
}

/// What two captures of one recording have the same samples of is no chance of their difference.
fn share_samples_of_one_recording(captures: [&mut Capture; 2], view: View) {
    if !is_one_recording([&*captures[0], &*captures[1]]) {
        return;
    }
    let mut parts = captures.map(|Capture { analysis, frames, .. }| RecordingPart { analysis, frames });
    parts.sort_by_key(|part| part.analysis.totals.end_time_ns);
    share_samples(parts, view);
}

/// Whether these are two moments of one recording with samples, all of it.
fn is_one_recording(captures: [&Capture; 2]) -> bool {
    let identity = |capture: &Capture| {
        let StartTimes { realtime_ns, monotonic_ns, .. } = capture.info.process.start;
        (realtime_ns, monotonic_ns, capture.info.process.pid, capture.sample_bytes())
    };
    let is_whole = |capture: &&Capture| !capture.info.narrowed && capture.info.combined_peaks.is_none();
    let [(realtime_ns, ..), _] = captures.map(identity);
    captures.iter().all(is_whole)
        && captures[0].is_sampled()
        && realtime_ns.is_some()
        && identity(captures[0]) == identity(captures[1])
}

fn write(options: &args::DiffArgs, diff: &Diff) -> Result<()> {
    let mut out = ReportOutput::printed(options.output.of(&captures(options)))?;
    if options.json {
        diff.json(&mut out)?;
    } else if options.markdown {
        diff.markdown(options.text.rows, &mut out)?;
    } else {
        let format = options.text.colors.text_format(&out);
        diff.text(options.text.rows, format, &mut out)?;
    }
    out.finish()?;
    Ok(())
}

fn html(
    options: &args::DiffArgs,
    [base, new]: [&Capture; 2],
    metric: ComparedMetric,
    scale: Option<&Scale>,
    notes: &[String],
) -> Result<()> {
    let mut out = ReportOutput::file(options.output.of(&captures(options)), "diff", "html")?;
    let display = Request::from((&options.new, &options.filters)).display_options();
    let start = page::PageStart { view: metric.view, counts: metric.counts, display, ..page::PageStart::default() };
    page::difference(base, new, start, scale.map(ToString::to_string), notes, &mut out)?;
    show(out.finish()?.as_deref(), options.open);
    Ok(())
}

/// The captures, the new one first: it determines the report's derived name.
fn captures(options: &args::DiffArgs) -> [PathBuf; 2] {
    [&options.new, &options.base].map(Clone::clone)
}

impl From<args::Normalize> for NormalizeBy {
    fn from(to: args::Normalize) -> Self {
        match to {
            args::Normalize::Total => Self::Total,
            args::Normalize::Duration => Self::Duration,
            args::Normalize::Work(base, new) => Self::Work(base, new),
        }
    }
}

fn of_name(metric: args::DiffMetric) -> ComparedMetric {
    match metric {
        args::DiffMetric::Peak => of_view(View::HighWaterMark),
        args::DiffMetric::Leaks => of_view(View::Leaks),
        args::DiffMetric::Allocated => of_view(View::Allocated),
        args::DiffMetric::Count => ComparedMetric { name: "count", view: View::Allocated, counts: true },
        args::DiffMetric::Temporary => of_view(View::Temporary),
    }
}

fn of_view(view: View) -> ComparedMetric {
    let name = match view {
        View::HighWaterMark => "peak",
        View::Leaks | View::LeaksAtExit => "leaks",
        View::Allocated => "allocated",
        View::Temporary => "temporary",
        View::Pinned => "pinned",
        View::Objects => "objects",
    };
    ComparedMetric { name, view, counts: false }
}

/// The exit status; prints an error if the limit is exceeded.
fn check_limit(diff: &Diff, metric: ComparedMetric, limit: GrowthLimit) -> u8 {
    let [base, new] = diff.whole();
    let growth = new.saturating_sub(base);
    let amount = |figure| if metric.counts { count(figure) } else { size(figure) };
    let allowed = match limit {
        GrowthLimit::Absolute(allowed) => allowed,
        GrowthLimit::Percent(percent) => (base as f64 * percent / 100.0) as u64,
    };
    if growth <= allowed {
        return 0;
    }
    if diff.least_growth() <= 0 {
        message::note(format_args!(
            "{} grew by {}, more than --fail-over allows, but within the 95 % interval of its estimate",
            metric.name,
            amount(growth)
        ));
        return 0;
    }
    let [growth, allowed] = told_apart([growth, allowed], amount);
    message::error(format_args!("regression: {} grew by {growth}, and --fail-over allows {allowed}", metric.name));
    failure::ERROR
}

/// Two figures, in bytes where they differ by less than their rounding.
fn told_apart(figures: [u64; 2], amount: impl Fn(u64) -> String) -> [String; 2] {
    let [one, other] = figures.map(amount);
    if one == other { figures.map(|bytes| format!("{} B", count(bytes))) } else { [one, other] }
}

#[cfg(test)]
mod tests {
    use super::told_apart;
    use crate::units::size;

    #[test]
    fn what_rounds_to_one_figure_is_told_in_bytes() {
        assert_eq!(told_apart([1_333_160, 1_330_000], size), ["1,333,160 B", "1,330,000 B"]);
        assert_eq!(told_apart([1_340_000, 1_330_000], size), ["1.34 MB", "1.33 MB"]);
    }
}
