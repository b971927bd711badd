//! From the path of a capture to what reports are made of.
//!
//! Invariant: reports do not know whether their sums were made now from records, or while the program ran.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use memtrack_format::aggregate::Aggregate;
use memtrack_reader::analysis::{Selection, Tally};
use memtrack_reader::combine::{Part, combine};
use memtrack_reader::source::{self, Loss};
use memtrack_reader::{Filter, Frames, Options, Replay, Thread, aggregate};

use crate::message;
use crate::reports::facts::{Capture, Facts};
use crate::terminal::Progress;
use crate::units::{count, size};

/// What a report is made of: captures, and which of their allocations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request<'a> {
    /// The captures, at least one.
    pub(crate) paths: &'a [PathBuf],
    /// Which groups to keep.
    pub(crate) filter: Filter,
    /// The smallest single allocation.
    pub(crate) min_bytes: u64,
    /// The earliest time of an allocation.
    pub(crate) from: Option<Time>,
    /// The time before which an allocation was made.
    pub(crate) to: Option<Time>,
}

impl<'a> From<&'a PathBuf> for Request<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Self { paths: std::slice::from_ref(path), ..Self::default() }
    }
}

/// A time since recording began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Time {
    /// In nanoseconds.
    Ns(u64),
    /// As a part of the whole duration, from 0 to 100.
    Percent(f64),
}

impl Time {
    fn ns(self, duration_ns: u64) -> u64 {
        match self {
            Self::Ns(ns) => ns,
            Self::Percent(percent) => (duration_ns as f64 * percent / 100.0) as u64,
        }
    }
}

/// Reads captures, with a bar on a terminal, and says on standard error what is missing in them and what was left out.
///
/// # Errors
/// A file that is no capture, cannot be read, or does not have what is asked for.
pub(crate) fn load<'a>(request: impl Into<Request<'a>>, options: &Options) -> Result<Capture> {
    let request = request.into();
    let mut captures =
        request.paths.iter().map(|path| load_one(path, &request, options)).collect::<Result<Vec<_>>>()?;
    let sum = |tally: fn(&(Capture, Tally)) -> Tally| {
        captures.iter().map(tally).fold(Tally::default(), |mut sum, tally| {
            sum.add(tally.bytes, tally.count);
            sum
        })
    };
    if request.narrows() {
        let (all, kept) = (sum(|(_, all)| *all), sum(|(capture, _)| capture.analysis.totals.allocations));
        message::line(format_args!(
            "filtered: {} of {} allocations, {} of {}; the rest is left out",
            count(kept.count),
            count(all.count),
            size(kept.bytes),
            size(all.bytes)
        ));
    }
    match captures.pop() {
        Some((only, _)) if captures.is_empty() => Ok(only),
        last => {
            message::line(format_args!(
                "{} captures in one report: sums are added up, and so is what each process held at its own high-water mark",
                request.paths.len()
            ));
            combined(captures.into_iter().chain(last).map(|(capture, _)| capture).collect())
        }
    }
}

impl Request<'_> {
    /// Whether anything may be left out.
    pub(crate) fn narrows(&self) -> bool {
        self.selects() || !self.filter.is_everything()
    }

    /// Whether single allocations are selected.
    fn selects(&self) -> bool {
        self.min_bytes > 0 || self.from.is_some() || self.to.is_some()
    }

    /// Which single allocations are selected of this capture.
    ///
    /// # Errors
    /// What reading its duration says.
    pub(crate) fn selection(&self, file: &source::Capture) -> Result<Selection> {
        let relative = [self.from, self.to].iter().any(|time| matches!(time, Some(Time::Percent(_))));
        let duration_ns = if relative { file.duration_ns()? } else { 0 };
        // An allocation in the very last moment is a part of 100%.
        let to = self.to.filter(|to| *to != Time::Percent(100.0));
        Ok(Selection {
            min_bytes: self.min_bytes,
            from_ns: self.from.map_or(0, |from| from.ns(duration_ns)),
            to_ns: to.map_or(u64::MAX, |to| to.ns(duration_ns)),
        })
    }
}

/// One capture, filtered, and everything that was ever allocated in it.
fn load_one(path: &Path, request: &Request<'_>, options: &Options) -> Result<(Capture, Tally)> {
    let file = source::Capture::open(path)?;
    if file.aggregated() && request.selects() {
        bail!(
            "{}: an aggregated capture holds sums of many allocations, none of which can be told by its size or time; \
             leave out --min-bytes, --from and --to",
            path.display()
        );
    }
    let options =
        Options { selection: request.selection(&file)?, details: options.details || request.narrows(), ..*options };
    let (mut capture, all) = if file.aggregated() { restore(&file, &options)? } else { replay(&file, &options)? };
    for warning in capture.facts.warnings() {
        message::warning(format_args!("{}: {warning}", path.display()));
    }
    request.filter.apply(&mut capture.analysis, &capture.frames, &capture.threads);
    Ok((capture, all))
}

/// One capture of several. What is said of the process is that of the one that started first.
fn combined(mut captures: Vec<Capture>) -> Result<Capture> {
    let start = |capture: &Capture| capture.facts.process.start_monotonic_ns.unwrap_or(0);
    captures.sort_by_key(start);
    let end = captures.iter().filter_map(|capture| capture.facts.process.end_monotonic_ns).max();
    let mut facts = captures.iter().map(|capture| capture.facts.clone()).reduce(Facts::and).unwrap_or_default();
    facts.process.end_monotonic_ns = end;
    let parts = captures.into_iter().map(|capture| {
        let start_ns = start(&capture);
        let Capture { analysis, frames, threads, .. } = capture;
        Part { analysis, frames, threads, start_ns }
    });
    let Part { analysis, frames, threads, .. } = combine(parts.collect())?;
    Ok(Capture { facts, analysis, frames, threads })
}

/// Replays the records.
fn replay(file: &source::Capture, options: &Options) -> Result<(Capture, Tally)> {
    let mut replay = Replay::new(&Options { exact_times: file.has_timestamps(), ..*options });
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut replay, |bytes| progress.add(bytes))?;
    drop(progress);
    let mut facts = facts(file, read.lost);
    facts.unknown_frames = read.unknown_frames;
    let capture = Capture { facts, analysis: replay.finish(), frames: read.frames, threads: read.threads };
    Ok((capture, replay.allocated()))
}

/// Takes over sums that were made while the program ran.
fn restore(file: &source::Capture, options: &Options) -> Result<(Capture, Tally)> {
    let payload = file.aggregate()?;
    let aggregate = payload.and_then(|payload| Aggregate::decode(&payload));
    let aggregate =
        aggregate.with_context(|| format!("{}: its sums are damaged and cannot be read", file.path().display()))?;
    let (analysis, frames, threads): (_, Frames, Vec<Thread>) = aggregate::restore(&aggregate)?;
    let (wanted, known) = (options.temporary_threshold, analysis.totals.temporary_threshold);
    if wanted != known {
        bail!(
            "{}: an aggregated capture, which knows temporary allocations for the threshold {known} only, not {wanted}",
            file.path().display()
        );
    }
    let all = analysis.totals.allocations;
    Ok((Capture { facts: facts(file, file.lost()), analysis, frames, threads }, all))
}

/// What is said of a capture that was read.
pub(crate) fn facts(file: &source::Capture, lost: Loss) -> Facts {
    Facts {
        file: file.path().into(),
        format_version: file.format_version(),
        process: file.process().clone(),
        aggregated: file.aggregated(),
        complete: file.complete(),
        lost_blocks: lost.blocks,
        lost_bytes: lost.bytes,
        unknown_frames: 0,
        others: 0,
    }
}
