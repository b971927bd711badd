//! The summary printed after the program has ended: path of the capture, main figures, next commands.
//!
//! Invariant: the figures are those of `stats`, over all recorded processes. Captures that take long to read are not
//! read; only their size is printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use memtrack_collector::control_groups::memory_limit;
use memtrack_collector::{ChildSummary, Error, NothingRecorded, ProcessorTimes, RecordingSummary, processor_ns};
use memtrack_format::meta::Process;
use memtrack_reader::symbols::DebugFileSearch;
use memtrack_reader::{Options, View};

use super::children::Children;
use super::limits::LimitOutcome;
use super::termination::Termination;
use crate::args;
use crate::capture_file::CaptureFile;
use crate::load::{LEAST_RECORD_BYTES, Request, load};
use crate::message;
use crate::reports::capture_info::{Capture, OWN_MALLOC, quoted_path, unrecorded};
use crate::reports::display::DisplayOptions;
use crate::reports::estimates::at_peak;
use crate::reports::leak_parts::LeakParts;
use crate::reports::{failed, mappings, own_lines, page};
use crate::units::{duration, plural, size};

/// Records up to this many bytes are read back in about a second.
const RECORD_BYTES: u64 = 128 << 20;
/// For each second that the program ran, this many bytes more are read back, which takes a twentieth of that second.
const RECORD_BYTES_PER_SECOND: u64 = 4 << 20;
/// Records of more bytes are never read back.
const MAX_RECORD_BYTES: u64 = 256 << 20;
/// In a control group with a memory limit, at most this part of the limit: reading takes about three times the bytes of the
/// records, and an OOM kill of memtrack would lose the program's exit status.
const PART_OF_LIMIT: u64 = 8;

/// Shown if a program without Python was recorded without native call stacks.
const STACKLESS: &str = "none recorded: the program does not run Python; use --native to record C, C++ and Rust stacks";
/// Native call stacks are on by default for programs without Python.
const NATIVE: &str = "native, because the program does not run Python; --no-native disables them and is faster";

/// Limits of symbolization in the final summary, in processor time of memtrack: with lines and inlined functions, and for function
/// names alone. Larger in debug builds, which are about ten times slower.
const LINES_TAKE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 20_000 } else { 450 });
const NAMES_TAKE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 30_000 } else { 800 });
/// Notes for when the first time limit was exceeded, when both were, whatever took the time, and for a binary that is too
/// large to be opened within them.
const BRIEF: &str =
    "some without line and inlined functions, for which there was no time here; the commands below find them";
const UNNAMED: &str = "not symbolized: there was no time for it here; the commands below do it";
const TOO_LARGE: &str = "not symbolized: resolving symbols of binaries this large takes long; the commands below do it";

/// Memory that the control group must allow for symbolization in the final summary.
pub(super) const MEMORY_FOR_NAMES: u64 = 128 << 20;

/// Processor time from which the note about unrecorded children is printed: nanoseconds, and one part in `MUCH_OF` of the
/// total.
const MUCH_NS: u64 = 20_000_000;
const MUCH_OF: u64 = 4;

/// CPU time of a program whose children are not recorded, in nanoseconds: its own, and including all descendants that
/// were waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnrecordedChildren {
    pub(super) own_ns: u64,
    pub(super) all_ns: u64,
}

impl UnrecordedChildren {
    /// A note if the children used much of the CPU time, because then they may be what should be recorded. `before`:
    /// CPU time of a wrapper (such as a version manager's script) before it executed the program; not counted.
    fn text(self, before: ProcessorTimes) -> Option<String> {
        let theirs = self.all_ns.saturating_sub(self.own_ns).saturating_sub(before.children_ns);
        let all_ns = self.own_ns.saturating_sub(before.own_ns).saturating_add(theirs);
        let percent = 100.0 * theirs as f64 / all_ns.max(1) as f64;
        let is_much = theirs >= MUCH_NS && theirs >= all_ns / MUCH_OF;
        is_much.then(|| {
            format!("not recorded, though they took {percent:.0} % of the CPU time; use --follow to record them")
        })
    }
}

/// Callback for the captures that are kept.
pub(super) type AfterClosing<'a> = &'a dyn Fn(&[PathBuf]);

/// Prints the summary of the recording; with `quiet` only errors. Calls `then` for the kept captures first. Returns the
/// kept captures, the main one first.
pub(super) fn report(
    (options, termination): (&args::RunArgs, &Termination),
    capture: CaptureFile,
    program: &Path,
    result: std::result::Result<RecordingSummary, Error>,
    (children, unrecorded_children, limits): (&Children, Option<UnrecordedChildren>, Option<&LimitOutcome>),
    then: AfterClosing<'_>,
) -> Vec<PathBuf> {
    let quiet = options.quiet;
    // Said in any case: nobody else knows why the program has ended.
    if let Some(stopped) = limits.and_then(|limits| limits.stopped.as_ref()) {
        message::warning(format_args!("{}; 'memtrack table' shows what held most", stopped.text()));
    }
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            message::error(format_args!("{}: {error}", capture.path().display()));
            return Vec::new();
        }
    };
    let captures = finish_children(quiet, &summary, children);
    then(&captures);
    if let Some(nothing) = &summary.nothing {
        if !quiet || summary.process.is_none() {
            message::warning(format_args!("no allocations of {} were recorded: {nothing}", program.display()));
            if summary.process.as_ref().is_some_and(|process| process.own_malloc) {
                message::warning(OWN_MALLOC);
            }
            warn_of_missing(&summary);
            if let Some(text) = unrecorded_children.and_then(|children| children.text(summary.before)) {
                message::warning(format_args!("its children were {text}"));
            }
        }
        // The capture of a program that allocated nothing is kept, since scripts expect it.
        if summary.process.is_none() {
            capture.discard();
            children.put_back();
            return captures;
        }
        if captures.is_empty() {
            return Vec::new();
        }
    }
    children.has_begun();
    let own = vec![capture.path().to_path_buf()];
    then(&own);
    if !quiet {
        summary.notes.iter().for_each(message::warning);
        let with = (captures.as_slice(), children, limits.map(LimitOutcome::snapshots_text).unwrap_or_default());
        recorded((options, termination), &capture, &summary, with, unrecorded_children);
    }
    [own, captures].concat()
}

fn warn_of_missing(summary: &RecordingSummary) {
    if summary.missing > 0 {
        message::warning(unrecorded(summary.missing.into()));
    }
}

/// Prints problems of the children's captures, and removes those of processes that exited before recording began;
/// returns the others.
fn finish_children(quiet: bool, summary: &RecordingSummary, children: &Children) -> Vec<PathBuf> {
    let mut captures = Vec::new();
    for ChildSummary { pid, number, summary } in &summary.followed {
        let Some(capture) = children.take(*number) else { continue };
        match summary {
            Err(error) => message::error(format_args!("{}: {error}", capture.path().display())),
            Ok(summary) if matches!(summary.nothing, Some(NothingRecorded::NotLoaded | NothingRecorded::NotBegun)) => {
                if !quiet {
                    message::warning(format_args!(
                        "no allocations of process {pid} were recorded: it exited immediately, or had no free file descriptor"
                    ));
                }
                capture.discard();
                continue;
            }
            Ok(summary) if !quiet => {
                let path = capture.path().display();
                summary.notes.iter().for_each(|note| message::warning(format_args!("{path}: {note}")));
            }
            Ok(_) => {}
        }
        captures.push(capture.path().to_path_buf());
    }
    children.discard_rest();
    captures
}

fn recorded(
    (options, termination): (&args::RunArgs, &Termination),
    capture: &CaptureFile,
    summary: &RecordingSummary,
    (children, named, snapshots): (&[PathBuf], &Children, String),
    unrecorded_children: Option<UnrecordedChildren>,
) {
    let path = capture.path();
    let shown = quoted_path(path);
    // Of one that memtrack could not wait for, the collector may have seen how it ended.
    let seen = summary.process.as_ref().filter(|_| termination.status.is_none());
    let seen = seen.and_then(|process| Some(String::from_utf8_lossy(process.end_reason.as_ref()?).into_owned()));
    if let Some(text) = termination.signal_text().or(seen) {
        message::line("");
        message::note(format_args!("memtrack: the program was {text}"));
    }
    let own = [path.to_path_buf()];
    let all: Vec<PathBuf> = own.iter().chain(children).cloned().collect();
    let bytes = all.iter().filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum();
    let read = path.is_file() && is_read_back(summary);
    let is_native = |process: &Process| process.native_traces;
    // In a small control group, symbolization could trigger the OOM killer, and the program's exit status would be
    // lost.
    let has_memory = memory_limit().is_none_or(|limit| limit >= MEMORY_FOR_NAMES);
    let followed = summary.followed.iter().filter_map(|child| child.summary.as_ref().ok()?.process.as_ref());
    let native = has_memory && summary.process.iter().chain(followed).any(is_native);
    let names = DebugFileSearch::limited(LINES_TAKE, NAMES_TAKE, Some(processor_time));
    let read = read.then(|| read_back(&all, (!native, names.clone())));
    // Else reading has warned of it.
    if !matches!(read, Some(Ok(_))) {
        warn_of_missing(summary);
    }
    let took = match &read {
        Some(Ok((capture, _))) => capture.info.duration_ns(&capture.analysis),
        _ => nanos(summary),
    };
    let took = duration(took);
    if !path.is_file() {
        message::line(format_args!(
            "\nmemtrack: the capture {shown} was deleted while the program ran (recorded for {took})"
        ));
        return;
    }
    let events =
        read.as_ref().and_then(|read| read.as_ref().ok()).and_then(|(capture, _)| events(capture)).unwrap_or_default();
    message::line(format_args!("\nmemtrack: {events}{} in {shown}, recorded in {took}", size(bytes)));
    match read {
        Some(Ok((capture, parts))) => {
            figures((options, termination), (&capture, parts), all.len(), &names);
        }
        Some(Err(error)) => message::error(format_args!("{error:#}")),
        // Else reading has warned of it.
        None if summary.process.as_ref().is_some_and(|process| process.own_malloc) => message::warning(OWN_MALLOC),
        None => {}
    }
    if let Some(text) = termination.group_limits() {
        message::line(format_args!("  {:12}{text}", "limit"));
    }
    if let Some(text) = unrecorded_children.and_then(|unrecorded_children| unrecorded_children.text(summary.before)) {
        message::labelled("children", text);
    }
    let shown = if children.is_empty() {
        shown
    } else {
        let (processes, pattern) = (plural(children.len() as u64, "process", "processes"), named.pattern());
        message::labelled("children", format_args!("{processes}, with a capture each, in {pattern}"));
        format!("{shown} {pattern}")
    };
    if let replaced @ 1.. = named.replaced() {
        let captures = plural(replaced as u64, "capture", "captures");
        message::labelled("replaced", format_args!("{captures} of child processes of the previous recording"));
    }
    if !snapshots.is_empty() {
        message::labelled("snapshots", snapshots);
    }
    for (label, command) in [("next", "flamegraph"), ("", "stats"), ("", "transform speedscope")] {
        message::line(format_args!("  {label:12}memtrack {command} {shown}"));
    }
}

/// Whether the captures of a recording are read after it.
pub(super) fn is_read_back(summary: &RecordingSummary) -> bool {
    record_bytes(summary) <= readable_bytes(summary.duration, memory_limit())
}

/// The most bytes of records that are read back after a program that ran for `duration`; `limit`: of the control group's memory.
fn readable_bytes(duration: Duration, limit: Option<u64>) -> u64 {
    let more = duration.as_secs().saturating_mul(RECORD_BYTES_PER_SECOND);
    let bytes = RECORD_BYTES.saturating_add(more).min(MAX_RECORD_BYTES);
    limit.map_or(bytes, |limit| bytes.min(limit / PART_OF_LIMIT))
}

/// Bytes of records of the process and its recorded children.
fn record_bytes(summary: &RecordingSummary) -> u64 {
    let children = summary.followed.iter().filter_map(|followed| followed.summary.as_ref().ok());
    children.map(|child| child.record_bytes).fold(summary.record_bytes, u64::saturating_add)
}

/// Reads captures as the summary does, for the sums that are kept then.
///
/// # Errors
/// A capture cannot be read.
pub(super) fn read_for_reports(captures: &[PathBuf]) -> Result<()> {
    read_back(captures, (true, DebugFileSearch::default())).map(drop)
}

/// Native frames are symbolized where a process has such, as far as there is time for it.
fn read_back(captures: &[PathBuf], (without_names, search): (bool, DebugFileSearch)) -> Result<(Capture, LeakParts)> {
    let request =
        Request { paths: captures, quiet: true, without_names, search, with_resident: true, ..Request::default() };
    // A page needs memory over time besides. Reading it here, too, takes a tenth longer, and the first page is then made from kept
    // sums.
    let file_bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let with_bands = matches!(captures, [one] if file_bytes(one) >= LEAST_RECORD_BYTES);
    let request = Request { with_bands, ..request };
    let options = if request.with_bands { page::reading(Options::default()) } else { Options::default() };
    let mut capture = load(request, &options)?;
    let parts = LeakParts::of(&capture, View::Leaks);
    capture.show(&DisplayOptions::default())?;
    Ok((capture, parts))
}

/// How many events the captures have; `None` of samples and sums, whose events are fewer than the program's.
fn events(capture: &Capture) -> Option<String> {
    let events = capture.analysis.totals.events;
    (events > 0 && !capture.is_sampled() && !capture.info.aggregated).then(|| plural(events, "event", "events") + ", ")
}

/// Prints the figures. If the time for symbolization was not enough, the lines of own code are those of Python alone.
fn figures(
    (options, termination): (&args::RunArgs, &Termination),
    (capture, parts): (&Capture, LeakParts),
    captures: usize,
    names: &DebugFileSearch,
) {
    let own_line_rows = |view| {
        if !names.is_over() {
            message::rows(&own_lines::top_rows(capture, view));
        } else if runs_python(capture) {
            message::rows(&own_lines::top_rows_without_names(capture, view));
        }
    };
    let peak = capture.analysis.totals.peak;
    match capture.info.combined_peaks.as_ref().filter(|combined_peaks| combined_peaks.no_joint_peak.is_some()) {
        Some(combined_peaks) => {
            let most = size(combined_peaks.sum_of_peaks.unwrap_or(peak.bytes));
            let least = size(combined_peaks.at_least);
            message::labelled("peak", format_args!("at least {least} at one time; sum of per-process peaks {most}"));
            own_line_rows(View::HighWaterMark);
        }
        None => {
            let all = if captures > 1 { ", in all processes together" } else { "" };
            let peak = format!("{}{all}", at_peak(capture).in_words());
            message::labelled("peak", peak);
            own_line_rows(View::HighWaterMark);
        }
    }
    let (leaked, when) = (parts.leaked(false), capture.info.leak_moment.when());
    message::labelled("leaked", format_args!("{}, live {when}", parts.leaked_in_words()));
    if leaked.bytes > 0 {
        own_line_rows(View::Leaks);
    }
    if let Some(text) = parts.excluded_text() {
        message::labelled("excluded", text);
    }
    let failed = failed::text(capture);
    let limits = failed.as_ref().and_then(|_| termination.memory_limits());
    let symbols = match names.is_over() {
        true if names.is_too_large() => Some(TOO_LARGE),
        true => Some(UNNAMED),
        false => names.is_brief().then_some(BRIEF),
    };
    let resident = resident(capture, captures);
    let mapped = mappings::note(capture).filter(|_| !names.is_over());
    for (label, text) in [
        ("mapped", mapped),
        ("resident", resident),
        ("failed", failed),
        ("limit", limits),
        ("symbols", symbols.map(str::to_owned)),
    ] {
        if let Some(text) = text {
            message::labelled(label, text);
        }
    }
    let recording_cost = &capture.info.recording_cost;
    let process = &capture.info.process;
    let native_by_itself = !options.native && process.native_traces && process.python_version.is_none();
    let stacks = match capture.info.has_no_stacks {
        true => Some(STACKLESS.into()),
        false => native_by_itself.then(|| NATIVE.to_owned()),
    };
    for (label, text) in [("stacks", stacks), ("cut", recording_cost.cut_in_short())] {
        if let Some(text) = text {
            message::labelled(label, text);
        }
    }
}

/// The most resident memory, and where it was at one moment if that matters.
fn resident(capture: &Capture, captures: usize) -> Option<String> {
    let all = if captures > 1 { ", in all processes together" } else { "" };
    let peak = capture.analysis.totals.resident_peak().map(|bytes| format!("peak {}{all}", size(bytes)));
    let parts = [peak, capture.info.resident_sentence()].into_iter().flatten();
    parts.reduce(|peak, sentence| format!("{peak}; {sentence}"))
}

/// Processor time of this process.
fn processor_time() -> Option<Duration> {
    processor_ns(std::process::id().cast_signed()).map(Duration::from_nanos)
}

/// Whether a process of the recording runs Python.
fn runs_python(capture: &Capture) -> bool {
    let frames = &capture.frames;
    frames.programs().iter().any(|program| program.has_python())
}

fn nanos(summary: &RecordingSummary) -> u64 {
    u64::try_from(summary.duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use memtrack_collector::ProcessorTimes;

    use std::time::Duration;

    use super::{MAX_RECORD_BYTES, MUCH_NS, RECORD_BYTES, UnrecordedChildren, readable_bytes};

    #[test]
    fn records_are_read_back_by_duration_and_memory() {
        let read = |seconds, limit| readable_bytes(Duration::from_secs(seconds), limit);
        assert_eq!([read(0, None), read(10, None)], [RECORD_BYTES, RECORD_BYTES + (40 << 20)]);
        assert_eq!([read(3600, None), read(3600, Some(u64::MAX))], [MAX_RECORD_BYTES; 2]);
        assert_eq!([read(0, Some(256 << 20)), read(3600, Some(256 << 20))], [32 << 20; 2]);
    }

    #[test]
    fn children_are_told_of_that_did_much_of_the_work() {
        let none = ProcessorTimes::default();
        let text = |own_ns, theirs_ns| UnrecordedChildren { own_ns, all_ns: own_ns + theirs_ns }.text(none);
        let expected = "not recorded, though they took 75 % of the CPU time; use --follow to record them";
        assert_eq!(text(MUCH_NS, 3 * MUCH_NS).as_deref(), Some(expected));
        assert_eq!(text(0, MUCH_NS - 1), None);
        assert_eq!(text(4 * MUCH_NS, MUCH_NS), None);
        assert_eq!(UnrecordedChildren { own_ns: 5, all_ns: 0 }.text(none), None);
    }

    #[test]
    fn the_work_of_a_wrapper_and_its_children_is_not_the_programs() {
        let before = ProcessorTimes { own_ns: 10 * MUCH_NS, children_ns: 30 * MUCH_NS };
        let text = |own_ns, theirs_ns| {
            let own_ns = before.own_ns + own_ns;
            UnrecordedChildren { own_ns, all_ns: own_ns + before.children_ns + theirs_ns }.text(before)
        };
        assert_eq!(text(MUCH_NS, 0), None);
        let expected = "not recorded, though they took 50 % of the CPU time; use --follow to record them";
        assert_eq!(text(MUCH_NS, MUCH_NS).as_deref(), Some(expected));
    }
}
