//! `memtrack merge`, `strip` and `anonymize`: write new captures from existing ones.
//!
//! Invariant: the new capture records what was dropped, replaced or lost, and every report shows it.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use memtrack_format::aggregate::Aggregate;
use memtrack_format::block::{BlockHeader, BlockKind};
use memtrack_format::members;
use memtrack_format::meta::Process;
use memtrack_format::symbols::ModuleSymbols;
use memtrack_reader::analysis::Tally;
use memtrack_reader::query::Expr;
use memtrack_reader::rewrite::{
    Anonymizer, CaptureBlocks, Rewriter, StripPlan, StripRule, anonymized_aggregate, write_aggregate,
};
use memtrack_reader::symbols::{WantedOffsets, places};
use memtrack_reader::{aggregate, source};

use crate::args::rewrite::{AnonymizeArgs, MergeArgs, StripArgs};
use crate::load::{Request, capture_info, refuse_samples, to_merge, warn_unnamed};
use crate::output::ReportOutput;
use crate::terminal::Progress;
use crate::units::{count, duration, plural, size};
use crate::{allocation_records, message};

/// Merges captures into one file.
///
/// # Errors
/// A capture that cannot be read, or an output that cannot be written; likewise below.
pub(crate) fn merge(options: &MergeArgs) -> Result<u8> {
    let first = &options.captures[0];
    let mut out = ReportOutput::capture(options.output.output.as_deref(), options.output.force, first, "merged")?;
    let paths = to_merge(&options.captures)?;
    let captures = paths.iter().map(source::CaptureReader::open).collect::<Result<Vec<_>, _>>()?;
    let lengths: Vec<u64> = captures.iter().map(source::CaptureReader::file_bytes).collect();
    let mut blocks = CaptureBlocks::new(&mut out)?;
    blocks.block(BlockHeader::plain(BlockKind::Members), &members::encode(&lengths))?;
    blocks.finish(false)?;
    let mut progress = Progress::new(lengths.iter().sum(), "merging");
    for capture in &captures {
        capture.copy_to(&mut out, |bytes| progress.add(bytes))?;
        capture_info(capture, capture.lost()).warn();
    }
    drop(progress);
    let text = format!("{} in one file", plural(captures.len() as u64, "capture", "captures"));
    done(out, &text)
}

/// Writes a capture without short-lived small allocations.
pub(crate) fn strip(options: &StripArgs) -> Result<u8> {
    let mut capture = open_single(&options.capture, "strip")?;
    refuse_samples(&capture)?;
    capture.ignore_names();
    if capture.aggregated() {
        bail!("{}: an aggregated capture has no individual allocations to drop", options.capture.display());
    }
    let output = &options.output;
    let mut out = ReportOutput::capture(output.output.as_deref(), output.force, &options.capture, "stripped")?;
    let mut plan = StripPlan::new(StripRule { lived_less_ns: options.lived_less, smaller: options.smaller });
    allocation_records::for_each_allocation(&capture, &Request::default(), &Expr::And(Vec::new()), |_, life| {
        plan.add(life)
    })?;
    let dropped = plan.allocations;
    let process = stripped(capture.process(), options, dropped);
    rewrite(&capture, (&process, capture.symbols()), Some(&plan), None, &mut out)?;
    let text = format!("dropped {} allocations, {} in total", count(dropped.count), size(dropped.bytes));
    done(out, &text)
}

/// The process metadata with what was stripped, added to what earlier runs of `strip` have dropped.
fn stripped(process: &Process, options: &StripArgs, dropped: Tally) -> Process {
    let mut process = process.clone();
    let rule = format!("lived less than {} and were smaller than {}", exact(options.lived_less), size(options.smaller));
    let rule = match &process.stripped.rule {
        Some(before) => format!("{}, or {rule}", String::from_utf8_lossy(before)),
        None => rule,
    };
    process.stripped.rule = Some(rule.into_bytes());
    let add = |before: Option<u64>, more: u64| Some(before.unwrap_or(0).saturating_add(more));
    process.stripped.count = add(process.stripped.count, dropped.count);
    process.stripped.bytes = add(process.stripped.bytes, dropped.bytes);
    process
}

/// A duration that is not rounded to 0.
fn exact(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} µs", ns as f64 / 1e3),
        _ => duration(ns),
    }
}

/// Writes a capture without names.
pub(crate) fn anonymize(options: &AnonymizeArgs) -> Result<u8> {
    let mut capture = open_single(&options.capture, "anonymize")?;
    capture.ignore_names();
    let output = &options.output;
    let mut out = ReportOutput::capture(output.output.as_deref(), output.force, &options.capture, "anonymized")?;
    let mut names = Anonymizer::default();
    if capture.aggregated() {
        let aggregate = capture.aggregate()?.and_then(|payload| Aggregate::decode(&payload));
        let damaged = || format!("{}: the aggregated data is corrupt", options.capture.display());
        let aggregate = aggregate.with_context(damaged)?;
        let (_, frames, _) = aggregate::restore(&aggregate)?;
        let symbols = names.symbols(&all_names(&capture, &places(&frames)));
        let process = names.process(capture.process());
        let payload = anonymized_aggregate(&aggregate, &mut names).encode();
        let marks = names.marks(capture.marks());
        write_aggregate(&mut out, (&process, &marks), &symbols, &payload, capture.complete())?;
    } else {
        // Anonymized captures cannot be symbolized later, so names are resolved now.
        let symbols = all_names(&capture, &native_places(&capture)?);
        rewrite(&capture, (capture.process(), &symbols), None, Some(names), &mut out)?;
        capture_info(&capture, capture.lost()).warn();
    }
    done(out, "functions, files, threads and arguments replaced by numbers; line numbers, sizes and times kept")
}

/// The native frames of a capture with records: offsets by module.
pub(super) fn native_places(capture: &source::CaptureReader) -> Result<Vec<WantedOffsets>> {
    let progress = Mutex::new(Progress::new(capture.total_record_bytes(), "resolving symbols"));
    // The lock is never poisoned: no holder panics.
    Ok(capture.native_places(|bytes| progress.lock().iter_mut().for_each(|progress| progress.add(bytes)))?)
}

/// Symbols of these native frames, as far as debug files are found.
fn all_names(capture: &source::CaptureReader, wanted: &[WantedOffsets]) -> Vec<ModuleSymbols> {
    let mut symbolizer = capture.symbolizer();
    symbolizer.prefetch(wanted);
    warn_unnamed(&symbolizer.problems());
    symbolizer.named()
}

fn rewrite(
    capture: &source::CaptureReader,
    about: (&Process, &[ModuleSymbols]),
    plan: Option<&StripPlan>,
    names: Option<Anonymizer>,
    out: impl Write,
) -> Result<()> {
    let mut writer = Rewriter::new(out, about.0, about.1, plan, names)?;
    writer.sources(capture.sources())?;
    writer.marks(capture.marks())?;
    let mut progress = Progress::new(capture.total_record_bytes(), "writing");
    let read = capture.read(&mut writer, |bytes| progress.add(bytes))?;
    drop(progress);
    writer.finish(&read.threads, read.lost, capture.complete())?;
    Ok(())
}

pub(super) fn open_single(path: &Path, what: &str) -> Result<source::CaptureReader> {
    let members = source::members(path)?;
    match members.paths.as_slice() {
        [only] if members.missing == 0 => Ok(source::CaptureReader::open(only)?),
        all => bail!(
            "{}: {} captures in one file; {what} them one by one, such as {}#1",
            path.display(),
            all.len() + members.missing,
            path.display()
        ),
    }
}

fn done(out: ReportOutput, what: &str) -> Result<u8> {
    if let Some(path) = out.finish()? {
        message::line(format_args!("{}: written; {what}", path.display()));
    }
    Ok(0)
}
