//! `memtrack transform`: converts a capture to the format of another tool.
//!
//! Invariant: an order or view that the capture does not contain is an error, never replaced by another.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufWriter, IntoInnerError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use memtrack_reader::source::{CaptureReader, Consumer, DataLoss};
use memtrack_reader::spans::TimeSpan;
use memtrack_reader::windows::WindowReplay;
use memtrack_reader::{Event, Frames, Options, Replay, View};

use crate::allocation_filter::{AllocationFilter, KeptEvents};
use crate::args::transform::{EventTransformArgs, ParquetArgs, RecordTable, RecordsArgs, Transform, TransformArgs};
use crate::export::packed::Packed;
use crate::export::{
    Collapsed, Csv, Dhat, Firefox, Gprof2dot, Jsonl, Pprof, Speedscope, SumsFormat, heaptrack, parquet, records,
};
use crate::load::{Request, capture_info, expanded, load, load_by, of_one_recording, refuse_samples};
use crate::message;
use crate::origin_names;
use crate::output::{ReportOutput, derived};
use crate::report_mark::ReportMark;
use crate::reports::capture_info::{CaptureInfo, rfc3339};
use crate::span_sums;
use crate::terminal::Progress;

/// Writes the file of a format.
///
/// # Errors
/// A capture that cannot be read or lacks the requested data, or an output that cannot be written.
pub(crate) fn run(transform: &Transform) -> Result<u8> {
    match transform {
        Transform::Speedscope(options) => write(&options.common, &Speedscope(options.order)),
        Transform::Csv(common) => write(common, &Csv),
        Transform::Collapsed(options) => write(&options.common, &Collapsed(options.metric)),
        Transform::Gprof2dot(options) => write(&options.common, &Gprof2dot(options.metric)),
        Transform::Pprof(common) => write(common, &Pprof),
        Transform::Firefox(common) => write(common, &Firefox),
        Transform::Dhat(common) => write(common, &Dhat),
        Transform::Heaptrack(options) => write_heaptrack(options),
        Transform::Parquet(options) => write_parquet(options),
        Transform::Jsonl(common) => write(common, &Jsonl),
        Transform::Records(options) => write_records(options),
    }
}

fn write(common: &TransformArgs, format: &impl SumsFormat) -> Result<u8> {
    let (name, suffix) = (format.name(), format.suffix());
    let mut out = ReportOutput::file(common.output.of(&common.input.captures), name, suffix)?;
    // These formats have functions, files and lines, but no columns.
    let request = Request {
        without_columns: true,
        shows_times: format.shows_times(),
        ..Request::from((&common.input, &common.view))
    };
    let capture = load(request, &format.reading(common.view.reading()))?;
    if format.holds_every_view() && !matches!(common.view.wanted(), View::HighWaterMark | View::LeaksAtExit) {
        message::line(format_args!("{name} contains all views; --leaks, --temporary and --allocated have no effect"));
    }
    format.write(&capture, common.view.wanted(), &mut out)?;
    let status = done(out, format.opens_in())?;
    capture.info.note_missing_stacks();
    Ok(status)
}

/// Writes heaptrack's format from events.
fn write_heaptrack(options: &EventTransformArgs) -> Result<u8> {
    let request = Request::from(&options.input);
    let paths = of_one_recording(request.paths)?;
    let [path] = paths.as_slice() else { bail!("the heaptrack format holds one process; pass a single capture") };
    let mut file = request.open(path)?;
    file.ignore_columns();
    if file.aggregated() {
        bail!("{}: an aggregated capture holds no events; use another format, such as pprof", path.display());
    }
    let out = ReportOutput::file(options.output.of(&paths), "heaptrack", "heaptrack.gz")?;
    let kept = AllocationFilter::new(&request, &file)?;
    let keep = |event: &Event| kept.takes(event);
    // Lines are short; passing each to the compressor would cost more than compressing its bytes.
    let out = BufWriter::with_capacity(1 << 16, Packed::named(options.output.output.as_deref(), out)?);
    let known = capture_info(&file, DataLoss::default());
    let mut writer = heaptrack::HeaptrackWriter::new(&known, &keep, out);
    let mut progress = Progress::new(file.total_record_bytes(), "writing");
    let read = file.read(&mut writer, |bytes| progress.add(bytes))?;
    drop(progress);
    let out = writer.finish(file.duration_ns()?)?.into_inner().map_err(IntoInnerError::into_error)?.finish()?;
    if kept.is_everything() {
        warn(path, &CaptureInfo { unknown_frames: read.unknown_frames, ..capture_info(&file, read.lost) });
    }
    done(out, "open it with heaptrack_gui or heaptrack_print")
}

/// Writes Parquet tables of each capture into one directory.
fn write_parquet(options: &ParquetArgs) -> Result<u8> {
    let (output, request) = (&options.events.output, Request::from(&options.events.input));
    let paths = expanded(request.paths)?;
    let first = paths.first().map_or(Path::new("capture"), PathBuf::as_path);
    let named = output.output.clone().unwrap_or_else(|| derived(first, "parquet", "tables"));
    if named == Path::new("-") {
        bail!("-o -: parquet output is a directory; name one with -o");
    }
    let directory = parquet::TableDirectory::new(named, output.force)?;
    let mut folder = "sites";
    for path in &paths {
        if write_process(path, &request, options, &directory)? {
            folder = "events";
        }
    }
    let path = directory.path().display();
    message::line(format_args!("{path}: written; open it with DuckDB: from '{path}/{folder}/**/*.parquet'"));
    Ok(0)
}

/// The length of a window, if nothing else was asked for.
const WINDOW_NS: u64 = 15_000_000_000;

/// Says that the sums of a capture cannot be divided otherwise than they were recorded.
fn say_kept_windows(path: &Path, has_windows: bool) {
    let what = match has_windows {
        true => "it keeps the windows that it was recorded with; 'memtrack run --window' makes shorter ones",
        false => "it has no table of windows; 'memtrack run --window' records one",
    };
    message::warning(format_args!("{}: --window has no effect on an aggregated capture: {what}", path.display()));
}

/// Writes the tables of one capture; whether there is one of its events.
fn write_process(
    path: &Path,
    request: &Request<'_>,
    options: &ParquetArgs,
    directory: &parquet::TableDirectory,
) -> Result<bool> {
    // As recorded, so that keys are those of every other process.
    let request = Request { split_domains: true, ..request.clone() };
    let window_ns = options.window.unwrap_or(WINDOW_NS);
    let (file, capture, windows) = load_by(path, &request, &Options::default(), |file, replayed| {
        let mut replay = WindowReplay::new(replayed, Some(window_ns));
        let mut progress = Progress::new(file.total_record_bytes(), "reading");
        let read = file.read(&mut replay, |bytes| progress.add(bytes))?;
        let (replay, windows) = replay.finish();
        Ok((read, replay, windows))
    })?;
    let groups = capture.analysis.groups.iter().map(|group| (group.stack, group.allocator, group.thread));
    let (kept, windows) = match (file.aggregated(), capture.analysis.windows.as_slice()) {
        (true, windows) => (AllocationFilter::of_groups(groups), (!windows.is_empty()).then_some(windows)),
        (false, _) => (AllocationFilter::new(&request, &file)?, Some(windows.as_slice())),
    };
    if options.window.is_some() && file.aggregated() {
        say_kept_windows(path, windows.is_some());
    }
    let process = file.process();
    let host = options.host.clone().unwrap_or_else(origin_names::host);
    let service = options.service.clone().unwrap_or_else(|| origin_names::service(process));
    let day = rfc3339(process.start.realtime_ns.unwrap_or(0)).chars().take("2026-11-23".len()).collect();
    let labels = parquet::ProcessLabels {
        partition: parquet::Partition { day, service, host },
        release: options.release.as_deref(),
        window_ns,
    };
    let mark = ReportMark::of(&[path.to_path_buf()]);
    let source = parquet::TableSource { capture: &capture, windows, labels: &labels, kept: &kept, mark };
    // What a sample stands for shows in sums only.
    let has_events = !file.aggregated() && file.sample_bytes().is_none();
    let events = (!options.no_events && has_events).then_some(&file);
    let mut progress = Progress::new(file.total_record_bytes(), "writing");
    parquet::write(&source, events, directory, |bytes| progress.add(bytes)).map_err(|error| {
        // Of the errors of several crates around it, the system's says what has happened.
        let system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        system.map(|system| anyhow!("{}: cannot be written: {system}", directory.path().display())).unwrap_or(error)
    })?;
    Ok(events.is_some())
}

/// Writes one table as JSON lines.
fn write_records(options: &RecordsArgs) -> Result<u8> {
    let common = &options.common;
    let mut out = ReportOutput::printed(common.output.of(&common.input.captures))?;
    // Equal stacks of all tables are equal.
    let request = Request { with_columns: true, ..Request::from((&common.input, &common.view)) };
    // The rows of the other tables have no place for how exact they are, and need every allocation.
    if !matches!(options.table, RecordTable::Allocations | RecordTable::Snapshots) {
        for path in &expanded(request.paths)? {
            refuse_samples(&CaptureReader::open(path)?)?;
        }
    }
    let load = |request| load(request, &common.view.reading());
    match (options.table, &options.spans) {
        (RecordTable::Allocations, _) => {
            records::write_allocations(&load(request)?, common.view.wanted(), &mut out)?;
        }
        (RecordTable::Peak, _) => {
            for path in &of_one_recording(request.paths)? {
                write_peak(path, &request, options.rows.as_deref(), &mut out)?;
            }
        }
        (RecordTable::Snapshots, _) => records::write_snapshots(&load(request)?, &mut out)?,
        (RecordTable::Events, _) => {
            for path in &of_one_recording(request.paths)? {
                write_events(path, &request, &mut out)?;
            }
        }
        (RecordTable::Spans | RecordTable::Live, spans) => {
            let spans = spans.as_deref().map(read_spans).transpose()?.unwrap_or_default();
            for path in &of_one_recording(request.paths)? {
                write_spans(path, &request, (options.table, &spans), &mut out)?;
            }
        }
    }
    out.finish()?;
    Ok(0)
}

/// Spans of CLOCK_MONOTONIC, a line for each.
fn read_spans(path: &Path) -> Result<Vec<TimeSpan>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let mut spans: Vec<TimeSpan> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let times = line.split_once(' ').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let last = spans.last().map_or(0, |span| span.to_ns);
        match times {
            Some((from_ns, to_ns)) if last <= from_ns && from_ns <= to_ns => spans.push(TimeSpan { from_ns, to_ns }),
            _ => bail!(
                "{}:{number}: expected the begin and the end of a span after the one before, in nanoseconds; found {line:?}",
                path.display()
            ),
        }
    }
    Ok(spans)
}

fn write_spans(
    path: &Path,
    request: &Request<'_>,
    (table, spans): (RecordTable, &[TimeSpan]),
    out: &mut ReportOutput,
) -> Result<()> {
    let file = request.open(path)?;
    if request.narrows() {
        bail!("figures of spans are of all allocations; they have no filters");
    }
    let pid = file.process().pid;
    if table == RecordTable::Live {
        let (rows, read) = span_sums::live_at_ends(&file, spans)?;
        records::write_live(&rows, &read, pid, out)?;
    } else {
        records::write_spans(&span_sums::of_capture(&file, spans)?, pid, out)?;
    }
    Ok(())
}

/// Writes the rows of everything that was allocated, or of those that are selected what was live when they held most.
fn write_peak(path: &Path, request: &Request<'_>, selected: Option<&Path>, out: &mut ReportOutput) -> Result<()> {
    let request = Request { split_domains: true, ..request.clone() };
    let replay = |file: &CaptureReader, options: &Options| {
        let mut replay = Replay::new(options);
        Ok((file.read(&mut replay, |_| ())?, replay, ()))
    };
    let (file, mut capture, ()) = load_by(path, &request, &Options::default(), replay)?;
    let Some(selected) = selected else { return Ok(records::write_allocations(&capture, View::Allocated, out)?) };
    if file.aggregated() {
        bail!("{}: an aggregated capture holds no events, only sums of allocations", path.display());
    }
    let text = fs::read_to_string(selected).with_context(|| format!("{}: cannot be read", selected.display()))?;
    let numbers: HashSet<usize> = text
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("{}: expected the number of a row in each line", selected.display()))?;
    let rows = capture.analysis.rows(View::Allocated).enumerate().filter(|(number, _)| numbers.contains(number));
    let kept = AllocationFilter::of_groups(rows.map(|(_, row)| (row.stack, row.allocator, row.thread)));
    let options = Options {
        exact_times: file.has_timestamps(),
        unknown_blocks: file.unknown_blocks(),
        sample_bytes: file.sample_bytes(),
        ..Options::default()
    };
    let mut replay = KeptReplay { kept: KeptEvents::new(&kept), replay: Replay::new(&options) };
    file.read(&mut replay, |_| ())?;
    capture.analysis = replay.replay.into_analysis();
    Ok(records::write_allocations(&capture, View::HighWaterMark, out)?)
}

/// Replays kept allocations only: its high-water mark is theirs.
struct KeptReplay<'a> {
    kept: KeptEvents<'a>,
    replay: Replay,
}

impl Consumer for KeptReplay<'_> {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        if let Some(event) = self.kept.taken(event) {
            self.replay.event(&event);
        }
    }

    fn replaced(&mut self) {
        self.kept.replaced();
        self.replay.replaced();
    }
}

fn write_events(path: &Path, request: &Request<'_>, out: &mut ReportOutput) -> Result<()> {
    let file = request.open(path)?;
    if file.aggregated() {
        bail!("{}: an aggregated capture holds no events, only sums of allocations", path.display());
    }
    let kept = AllocationFilter::new(request, &file)?;
    let start_ns = request.times(&file)?.start_ns;
    let mut writer = records::EventRecords::new(&kept, (file.process().pid, start_ns), out)?;
    let read = file.read(&mut writer, |_| ())?;
    writer.finish(&read.frames)?;
    if kept.is_everything() {
        warn(path, &CaptureInfo { unknown_frames: read.unknown_frames, ..capture_info(&file, read.lost) });
    }
    Ok(())
}

fn warn(path: &Path, info: &CaptureInfo) {
    for warning in info.warnings() {
        message::warning(format_args!("{}: {warning}", path.display()));
    }
}

/// Completes the file and prints its path.
fn done(out: ReportOutput, opens_in: &str) -> Result<u8> {
    if let Some(path) = out.finish()? {
        message::line(format_args!("{}: written; {opens_in}", path.display()));
    }
    Ok(0)
}
