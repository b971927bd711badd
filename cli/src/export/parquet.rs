//! `memtrack transform parquet`: a directory of tables for DuckDB, Polars, pandas and Spark.
//!
//! `events` has a row for each event, in the total order; `stacks`, `frames`, `modules` and `threads` define the ids in
//! it; `snapshots` has the memory over time. Events are written as they are read, a row group at a time. Invariant:
//! memory grows with the capture's tables and with live allocations, not with the number of events.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use memtrack_reader::modules::{ModuleId, ModuleTable};
use memtrack_reader::source::{self, Consumer, ReadSummary, RunPosition};
use memtrack_reader::{Event, EventKind, FrameId, Frames, Options, Replay, Snapshot};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::allocation_filter::{AllocationFilter, KeptEvents};
use crate::sys::EndSignals;

/// Rows per row group.
const ROWS: usize = 1 << 18;

/// Buffered values of a column.
#[derive(Debug)]
enum ParquetColumn {
    Int32(ColumnValues<i32>),
    Int64(ColumnValues<i64>),
    Text(ColumnValues<ByteArray>),
}

/// The non-null values, and for each row whether it has one.
#[derive(Debug)]
struct ColumnValues<T> {
    there: Vec<T>,
    levels: Vec<i16>,
}

impl<T> Default for ColumnValues<T> {
    fn default() -> Self {
        Self { there: Vec::new(), levels: Vec::new() }
    }
}

impl<T> ColumnValues<T> {
    fn push(&mut self, value: Option<T>) {
        self.levels.push(i16::from(value.is_some()));
        self.there.extend(value);
    }

    /// Writes the buffered values.
    fn flush<D: DataType<T = T>>(&mut self, writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
        writer.typed::<D>().write_batch(&self.there, Some(&self.levels), None)?;
        self.there.clear();
        self.levels.clear();
        Ok(())
    }
}

/// A cell.
enum ParquetCell<'a> {
    Int32(Option<u32>),
    Int64(Option<u64>),
    Text(Option<&'a str>),
    /// One of a few texts, see [`StringPool`].
    Word(Option<&'static str>),
}

/// Columns whose values are increasing or rarely repeat: no dictionary.
const DISTINCT: [&str; 3] = ["order", "time_ns", "address"];

/// A Parquet file being written.
struct ParquetTable {
    writer: SerializedFileWriter<File>,
    columns: Vec<ParquetColumn>,
    rows: usize,
    strings: StringPool,
}

/// Frequently repeated texts, each allocated once.
#[derive(Debug, Default)]
struct StringPool(Vec<(&'static str, ByteArray)>);

impl StringPool {
    fn get(&mut self, word: &'static str) -> ByteArray {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| std::ptr::eq(*known, word)) {
            return known.clone();
        }
        let new = ByteArray::from(word);
        self.0.push((word, new.clone()));
        new
    }
}

impl ParquetTable {
    /// Creates a table with these columns: name and type.
    fn new(directory: &Path, name: &str, about: &str, columns: &[(&str, &str)]) -> Result<Self> {
        let path = directory.join(format!("{name}.parquet"));
        let field = |(column, kind): &(&str, &str)| match *kind {
            "u32" => format!("optional int32 {column} (INTEGER(32, false));"),
            "i32" => format!("optional int32 {column};"),
            "u64" => format!("optional int64 {column} (INTEGER(64, false));"),
            _ => format!("optional binary {column} (UTF8);"),
        };
        let fields: String = columns.iter().map(field).collect();
        let schema = parse_message_type(&format!("message {name} {{ {fields} }}"))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(format!("memtrack {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(vec![KeyValue::new("memtrack".into(), about.to_owned())]));
        let properties =
            columns.iter().filter(|(name, _)| DISTINCT.contains(name)).fold(properties, |all, (name, _)| {
                let column = ColumnPath::from(*name);
                all.set_column_dictionary_enabled(column.clone(), false)
                    .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED)
            });
        let file = File::create(&path).with_context(|| format!("{}: cannot be created", path.display()))?;
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties.build()))?;
        let column = |(_, kind): &(&str, &str)| match *kind {
            "u32" | "i32" => ParquetColumn::Int32(ColumnValues::default()),
            "u64" => ParquetColumn::Int64(ColumnValues::default()),
            _ => ParquetColumn::Text(ColumnValues::default()),
        };
        Ok(Self { writer, columns: columns.iter().map(column).collect(), rows: 0, strings: StringPool::default() })
    }

    fn row<const N: usize>(&mut self, cells: [ParquetCell<'_>; N]) -> Result<()> {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            match (column, cell) {
                (ParquetColumn::Int32(values), ParquetCell::Int32(value)) => values.push(value.map(u32::cast_signed)),
                (ParquetColumn::Int64(values), ParquetCell::Int64(value)) => values.push(value.map(u64::cast_signed)),
                (ParquetColumn::Text(values), ParquetCell::Text(value)) => values.push(value.map(ByteArray::from)),
                (ParquetColumn::Text(values), ParquetCell::Word(value)) => {
                    values.push(value.map(|word| self.strings.get(word)));
                }
                _ => bail!("internal error: cell type does not match its column; please report this"),
            }
        }
        self.rows += 1;
        if self.rows >= ROWS { self.flush() } else { Ok(()) }
    }

    /// Writes the buffered rows as a row group.
    fn flush(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let Some(mut writer) = group.next_column()? else { break };
            match column {
                ParquetColumn::Int32(values) => values.flush::<Int32Type>(&mut writer)?,
                ParquetColumn::Int64(values) => values.flush::<Int64Type>(&mut writer)?,
                ParquetColumn::Text(values) => values.flush::<ByteArrayType>(&mut writer)?,
            }
            writer.close()?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.writer.close()?;
        Ok(())
    }
}

/// Writes events and snapshots as they are read.
struct ParquetWriter<'a> {
    events: ParquetTable,
    snapshots: ParquetTable,
    kept: KeptEvents<'a>,
    replay: Replay,
    tid: i32,
    written: Result<()>,
}

/// Writes the tables into a new directory.
///
/// # Errors
/// A capture that cannot be read, or a directory that cannot be written.
pub(crate) fn write(
    capture: &source::CaptureReader,
    kept: &AllocationFilter,
    directory: &Path,
    progress: impl FnMut(u64),
) -> Result<ReadSummary> {
    let about = serde_json::json!({
        "schema": "memtrack-parquet",
        "version": 1,
        "pid": capture.process().pid,
        "start_realtime_ns": capture.process().start.realtime_ns,
        "has_allocation_timestamps": capture.has_timestamps(),
        "complete": capture.complete(),
    });
    let about = about.to_string();
    let events = [
        ("order", "u64"),
        ("time_ns", "u64"),
        ("kind", "text"),
        ("address", "u64"),
        ("size", "u64"),
        ("allocator", "text"),
        ("class", "text"),
        ("tid", "i32"),
        ("stack", "u32"),
    ];
    let snapshots =
        [("snapshot", "u32"), ("time_ns", "u64"), ("rss_bytes", "u64"), ("heap_bytes", "u64"), ("order", "u64")];
    let mut writer = ParquetWriter {
        events: ParquetTable::new(directory, "events", &about, &events)?,
        snapshots: ParquetTable::new(directory, "snapshots", &about, &snapshots)?,
        kept: KeptEvents::new(kept),
        replay: Replay::new(&Options::default()),
        tid: 0,
        written: Ok(()),
    };
    let read = capture.read(&mut writer, progress)?;
    writer.written?;
    writer.events.finish()?;
    writer.snapshots.finish()?;
    stacks(directory, &about, &read.frames)?;
    frames(directory, &about, &read.frames)?;
    let mut threads = ParquetTable::new(directory, "threads", &about, &[("tid", "i32"), ("name", "text")])?;
    for thread in &read.threads {
        let name = Some(thread.name.as_str()).filter(|name| !name.is_empty());
        threads.row([ParquetCell::Int32(Some(thread.tid.cast_unsigned())), ParquetCell::Text(name)])?;
    }
    threads.finish()?;
    Ok(read)
}

fn stacks(directory: &Path, about: &str, frames: &Frames) -> Result<()> {
    let columns = [("stack", "u32"), ("caller", "u32"), ("frame", "u32"), ("depth", "u32")];
    let mut table = ParquetTable::new(directory, "stacks", about, &columns)?;
    let mut depths = vec![0_u32];
    for (number, node) in (1..).zip(frames.stacks()) {
        let depth = depths.get(node.parent.0 as usize).copied().unwrap_or(0).saturating_add(1);
        depths.push(depth);
        let caller = Some(node.parent.0).filter(|caller| *caller > 0);
        table.row([Some(number), caller, Some(node.frame.0), Some(depth)].map(ParquetCell::Int32))?;
    }
    table.finish()
}

fn frames(directory: &Path, about: &str, frames: &Frames) -> Result<()> {
    let columns = [
        ("frame", "u32"),
        ("function", "text"),
        ("file", "text"),
        ("line", "u32"),
        ("column", "u32"),
        ("module", "u32"),
    ];
    let mut table = ParquetTable::new(directory, "frames", about, &columns)?;
    let mut known = ModuleTable::default();
    let mut modules: Vec<ModuleId> = Vec::new();
    for (number, frame) in (0..).zip(frames.frames()) {
        let id = FrameId(number);
        let file = Some(frames.file(id)).filter(|file| !file.is_empty());
        let module = known.of_frame(frames, id).map(|module| match modules.iter().position(|other| *other == module) {
            Some(known) => known,
            None => {
                modules.push(module);
                modules.len() - 1
            }
        });
        table.row([
            ParquetCell::Int32(Some(number)),
            ParquetCell::Text(Some(frames.function(id))),
            ParquetCell::Text(file),
            ParquetCell::Int32(Some(frame.line).filter(|line| *line > 0)),
            ParquetCell::Int32(Some(frame.column).filter(|column| *column > 0)),
            ParquetCell::Int32(module.and_then(|module| u32::try_from(module).ok())),
        ])?;
    }
    table.finish()?;
    let mut table = ParquetTable::new(directory, "modules", about, &[("module", "u32"), ("name", "text")])?;
    for (number, module) in (0..).zip(modules) {
        table.row([ParquetCell::Int32(Some(number)), ParquetCell::Text(Some(known.name(module)))])?;
    }
    table.finish()
}

impl ParquetWriter<'_> {
    fn row(&mut self, event: &Event) -> Result<()> {
        let (kind, allocator, class) = match event.kind {
            EventKind::Alloc(allocator) => ("alloc", Some(allocator), None),
            EventKind::Map(allocator, class) => ("map", Some(allocator), Some(class.name())),
            EventKind::Free => ("free", None, None),
            EventKind::Unmap => ("unmap", None, None),
            EventKind::RemapFrom => ("remap_from", None, None),
            EventKind::FreeUndo => ("free_undo", None, None),
            EventKind::UnmapUndo => ("unmap_undo", None, None),
            EventKind::FailedAlloc(allocator) => ("failed_alloc", Some(allocator), None),
            EventKind::Finalizing => ("finalizing", None, None),
            EventKind::Exec => ("exec", None, None),
        };
        let sized = allocator.is_some() || matches!(event.kind, EventKind::Unmap | EventKind::RemapFrom);
        let addressed = (sized || event.kind == EventKind::Free) && !matches!(event.kind, EventKind::FailedAlloc(_));
        self.events.row([
            ParquetCell::Int64(Some(event.order)),
            ParquetCell::Int64(Some(event.time_ns)),
            ParquetCell::Word(Some(kind)),
            ParquetCell::Int64(addressed.then_some(event.address)),
            ParquetCell::Int64(sized.then_some(event.size)),
            ParquetCell::Word(allocator.map(memtrack_format::Allocator::name)),
            ParquetCell::Word(class),
            ParquetCell::Int32(Some(self.tid.cast_unsigned())),
            ParquetCell::Int32(allocator.and(Some(event.stack.0)).filter(|stack| *stack > 0)),
        ])
    }
}

impl Consumer for ParquetWriter<'_> {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.replay.event(event);
        if self.written.is_ok() && self.kept.takes(event) {
            self.written = self.row(event);
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        let Snapshot { index, time_ns, rss_bytes, heap_bytes, order } =
            self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes);
        if self.written.is_ok() {
            let [time_ns, rss_bytes, heap_bytes, order] =
                [time_ns, rss_bytes, heap_bytes, order].map(|number| ParquetCell::Int64(Some(number)));
            self.written = self.snapshots.row([ParquetCell::Int32(Some(index)), time_ns, rss_bytes, heap_bytes, order]);
        }
    }

    fn run(&mut self, place: &RunPosition) {
        self.tid = place.tid;
    }

    fn replaced(&mut self) {
        self.replay.replaced();
        self.kept.replaced();
    }
}

/// A directory that appears complete or not at all.
#[derive(Debug)]
pub(crate) struct OutputDirectory {
    temporary: tempfile::TempDir,
    path: PathBuf,
}

impl OutputDirectory {
    /// Prepares the directory `path`, which must not exist unless `force` is set.
    ///
    /// # Errors
    /// The directory exists, or cannot be created.
    pub(crate) fn new(path: PathBuf, force: bool) -> Result<Self> {
        if path.exists() && !force {
            bail!("{}: file exists; overwrite it with -f/--force, or name another with -o", path.display());
        }
        if path.exists() && !is_ours(&path) {
            bail!("{}: not overwritten: not a directory written by memtrack; name another with -o", path.display());
        }
        let signals = EndSignals::take().context("cannot install signal handlers")?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".memtrack-")
            .permissions(fs::Permissions::from_mode(0o777)) // less the umask
            .tempdir_in(parent);
        let temporary = temporary.with_context(|| format!("{}: cannot be created", path.display()))?;
        signals.remove(temporary.path().to_owned());
        Ok(Self { temporary, path })
    }

    /// The temporary directory that files are written to.
    pub(crate) fn inside(&self) -> &Path {
        self.temporary.path()
    }

    /// Renames the temporary directory to its final path, and returns that.
    ///
    /// # Errors
    /// Removing the old directory, or renaming, fails.
    pub(crate) fn finish(self) -> Result<PathBuf> {
        let cannot = || format!("{}: cannot be written", self.path.display());
        if self.path.exists() {
            fs::remove_dir_all(&self.path).with_context(cannot)?;
        }
        fs::rename(self.temporary.keep(), &self.path).with_context(cannot)?;
        Ok(self.path)
    }
}

/// Whether the directory contains only tables, so that replacing it destroys nothing else.
fn is_ours(path: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(path) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "parquet")))
}
