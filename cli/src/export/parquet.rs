//! `memtrack transform parquet`: a directory of tables for DuckDB, Polars, pandas and Spark.
//!
//! `events` has a row for each event, `sites` the sums of each stack, `windows` the same for every span of time,
//! `snapshots` the memory over time; `processes`, `threads`, `stacks` and `frames` say what they refer to. Tables of many
//! processes share a directory, and join by the keys of [`keys`]. Invariant: memory grows with the capture's tables, live
//! allocations and windows, not with the number of events; without filters the sums of `sites` are those of `memtrack
//! stats`.

mod checksum;
mod directory;
mod events;
mod keys;
mod sums;
mod table;

use anyhow::Result;
use memtrack_format::meta::Process;
use memtrack_reader::analysis::SiteWindow;
use memtrack_reader::source;

pub(crate) use self::checksum::is_as_written;
pub(crate) use self::directory::{Partition, TableDirectory};
use self::events::EventRows;
use self::keys::{CaptureKeys, process_key};
pub(crate) use self::table::VERSION_KEY;
#[cfg(test)]
pub(crate) use self::table::tests::write as write_any_table;
use self::table::{ParquetTable, SCHEMA_VERSION};
use crate::allocation_filter::AllocationFilter;
use crate::report_mark::ReportMark;
use crate::reports::capture_info::Capture;

/// All tables.
pub(crate) const TABLES: [&str; 8] =
    ["events", "sites", "windows", "snapshots", "stacks", "frames", "threads", "processes"];

/// What the capture does not say.
#[derive(Debug)]
pub(crate) struct ProcessLabels<'a> {
    pub(crate) partition: Partition,
    /// The version of the program, as the user calls it.
    pub(crate) release: Option<&'a str>,
    /// The length of a window, in nanoseconds.
    pub(crate) window_ns: u64,
}

/// One loaded capture, from which the tables are written.
pub(crate) struct TableSource<'a> {
    pub(crate) capture: &'a Capture,
    /// Spans of time, if they are known.
    pub(crate) windows: Option<&'a [SiteWindow]>,
    pub(crate) labels: &'a ProcessLabels<'a>,
    pub(crate) kept: &'a AllocationFilter,
    /// Of the capture's file; `None` if that does not identify its process.
    pub(crate) mark: Option<ReportMark>,
}

/// The tables of one process, while they are written.
struct TableWriter<'a> {
    source: &'a TableSource<'a>,
    directory: &'a TableDirectory,
    keys: CaptureKeys,
    /// The key of the process.
    process: u64,
    /// The metadata of each file.
    about: String,
    written: Vec<&'static str>,
}

/// Writes the tables of one process. `events`: the capture that is read again for its events, if they are wanted. An aggregated
/// capture has no snapshots.
///
/// # Errors
/// A capture that cannot be read, or a file that cannot be written or is already there.
pub(crate) fn write(
    source: &TableSource<'_>,
    events: Option<&source::CaptureReader>,
    directory: &TableDirectory,
    progress: impl FnMut(u64),
) -> Result<()> {
    let process = &source.capture.info.process;
    let mut writer = TableWriter {
        source,
        directory,
        keys: CaptureKeys::of(&source.capture.frames),
        process: process_key(process, &source.labels.partition.host),
        about: about(process, source.capture.info.complete),
        written: Vec::new(),
    };
    if let Some(file) = events {
        let table = writer.table("events", &events::COLUMNS)?;
        let mut rows = EventRows::new(writer.process, table, &writer.keys, source.kept);
        file.read(&mut rows, progress)?;
        rows.finish()?;
    }
    if !source.capture.info.aggregated {
        let snapshots = writer.table("snapshots", &sums::SNAPSHOTS)?;
        writer.snapshots(snapshots)?;
    }
    if let Some(windows) = source.windows {
        let table = writer.table("windows", &sums::WINDOWS)?;
        writer.windows(windows, table)?;
    }
    writer.sums()?;
    directory.publish(&writer.written, &source.labels.partition, (writer.process, source.mark))
}

impl TableWriter<'_> {
    /// Creates the file of a table.
    fn table(&mut self, name: &'static str, columns: &[(&str, &str)]) -> Result<ParquetTable> {
        self.written.push(name);
        ParquetTable::new(&self.directory.file(name), name, &self.about, columns)
    }
}

fn about(process: &Process, complete: bool) -> String {
    let about = serde_json::json!({
        "schema": "memtrack-parquet",
        "version": SCHEMA_VERSION,
        "pid": process.pid,
        "start_realtime_ns": process.start.realtime_ns,
        "has_allocation_timestamps": process.timestamps,
        "complete": complete,
    });
    about.to_string()
}
