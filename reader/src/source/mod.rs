//! Reads captures: from bytes to events in their total order.
//!
//! `file` opens and reads, `index` finds the blocks, `group_records` and `segment` decode one group of segments (`ahead`: several in parallel),
//! `tables` and [`crate::timeline`] resolve ids and tickets, `merge` emits events. [`CaptureReader`] does this for a file,
//! [`Online`] for the pieces that a collector drains.
//!
//! Invariant: for any file, reading ends, allocates memory in proportion to the file, and either returns the recorded
//! events or reports what is missing.

mod accounts;
mod ahead;
mod brief;
mod consumer;
mod file;
mod follow;
mod followed_group;
mod group_end;
mod group_records;
mod index;
mod members;
mod merge;
mod natives;
mod online;
mod pictures;
mod read;
mod repack;
mod repeats;
mod segment;
mod segment_nodes;
mod short_lived;
mod short_lived_sums;
mod stretch_counts;
mod tables;
mod thread_names;
mod top_nodes;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use memtrack_format::block::BlockKind;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;

pub use self::consumer::{Consumer, RunPosition, ShortLivedUse};
pub(crate) use self::follow::{FollowStep, FollowedCapture};
pub use self::members::{Members, members};
pub use self::online::Online;
pub use self::pictures::PictureMoment;
pub(crate) use self::read::MergeReader;
pub use self::repack::Pack;

use self::ahead::AheadLimits;
use self::file::OpenCaptureFile;
use self::index::Index;
use crate::analysis::UnknownBlocks;
use crate::error::Error;
use crate::event::Thread;
use crate::frames::Frames;
use crate::symbols::{DebugFileSearch, Symbolizer};

/// The loss by damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataLoss {
    /// Lost blocks; a damaged range counts as one.
    pub blocks: u64,
    /// Bytes that could not be read.
    pub bytes: u64,
}

impl DataLoss {
    fn add(&mut self, blocks: u64, bytes: u64) {
        self.blocks = self.blocks.saturating_add(blocks);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The result of reading a capture, besides the events.
#[derive(Clone, Debug, Default)]
pub struct ReadSummary {
    /// The stacks of the events.
    pub frames: Frames,
    /// The threads of the events.
    pub threads: Vec<Thread>,
    /// Stack nodes whose code object is not described, shown as `<unknown>`.
    pub unknown_frames: u64,
    /// By how much the times of events without stamps may be too early, in nanoseconds.
    pub time_uncertainty_ns: u64,
    /// Data that could not be read, in the whole file.
    pub lost: DataLoss,
    /// Modules of native code without names, and why.
    pub unnamed: Vec<crate::symbols::SymbolProblem>,
}

/// An open capture.
#[derive(Debug)]
pub struct CaptureReader {
    file: Arc<OpenCaptureFile>,
    index: Arc<Index>,
    how: ReadOptions,
}

/// The process metadata in the first block of the capture at `path`, without reading the rest. Empty if that block is
/// damaged or is no process block.
///
/// # Errors
/// As [`CaptureReader::open`].
pub fn first_process(path: impl AsRef<Path>) -> Result<Process, Error> {
    let file = members::open(path.as_ref())?;
    let mut process = Process::default();
    if let Some(payload) = file.first_block(BlockKind::Process)? {
        process.update(&payload);
    }
    Ok(process)
}

/// How frames and stacks are read.
#[derive(Debug)]
struct ReadOptions {
    /// Frames have columns.
    columns: bool,
    /// Names of native frames are looked up; else the frames are places.
    names: bool,
    /// Stacks are reduced to what places and modules need.
    brief: bool,
    /// Where symbol files are searched.
    search: DebugFileSearch,
}

impl ReadOptions {
    /// The symbolizer of this capture, which prefers the names stored in it. An anonymized capture has no files.
    fn symbolizer(&self, index: &Index) -> Symbolizer {
        let anonymized = index.process.anonymized;
        let mut symbolizer = if anonymized { Symbolizer::nowhere() } else { Symbolizer::new(self.search.clone()) };
        symbolizer.know(&index.symbols);
        symbolizer
    }
}

impl CaptureReader {
    /// Opens the capture at `path` and indexes its blocks. It may be incomplete, and may still be written.
    ///
    /// # Errors
    /// [`Error::Unusable`] when there is no capture of a known version there, [`Error::Io`] when reading fails.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let file = Arc::new(members::open(path.as_ref())?);
        let index = Arc::new(Index::build(&file)?);
        let how = ReadOptions { columns: true, names: true, brief: false, search: DebugFileSearch::default() };
        Ok(Self { file, index, how })
    }

    /// Opens a capture with these bytes.
    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, bytes).unwrap();
        Self::open(file.path())
    }

    /// Drops columns of frames while reading: for reports without columns, and for maxima or lifetimes of stacks.
    pub fn ignore_columns(&mut self) {
        self.how.columns = false;
    }

    /// Leaves native frames as places; [`crate::symbols::apply`] can replace them later.
    pub fn ignore_names(&mut self) {
        self.how.names = false;
    }

    /// Reads whole stacks with columns, and leaves native frames as places: for sums from which any report can be made.
    pub fn keep_everything(&mut self) {
        self.how =
            ReadOptions { columns: true, names: false, brief: false, search: std::mem::take(&mut self.how.search) };
    }

    /// Reduces stacks to what places and modules need: for reports that show no call paths, sum everything that was
    /// allocated, and filter nothing by its stack.
    pub fn ignore_paths(&mut self) {
        self.how.brief = true;
    }

    /// Sets where symbol files are searched.
    pub fn look_in(&mut self, search: DebugFileSearch) {
        self.how.search = search;
    }

    /// A symbolizer for this capture.
    #[must_use]
    pub fn symbolizer(&self) -> Symbolizer {
        self.how.symbolizer(&self.index)
    }

    /// Its path, as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Its format version.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        self.file.version()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file.len()
    }

    /// Copies its bytes unchanged, damage included. `progress` is called with the number of bytes processed.
    ///
    /// # Errors
    /// What reading or writing says.
    pub fn copy_to(&self, mut out: impl io::Write, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        self.file.copy(0..self.file.len(), &mut out, &mut progress)
    }

    /// The same with other names of native code in place of those that it begins with, which `write_names` writes.
    pub(crate) fn copy_with_names<W: io::Write>(
        &self,
        mut out: W,
        write_names: impl FnOnce(&mut W) -> io::Result<()>,
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        let names = self.file.leading_blocks(BlockKind::Symbols)?;
        self.file.copy(0..names.start, &mut out, &mut progress)?;
        write_names(&mut out).map_err(Error::Copy)?;
        self.file.copy(names.end..self.file.len(), &mut out, &mut progress)
    }

    /// Copies it with its payloads compressed by `pack`, where that is smaller. `go_on` is called with the number of
    /// bytes processed; `Ok(false)`: it returned `false`, and the copy is incomplete.
    ///
    /// # Errors
    /// What reading or writing says.
    pub fn repack(
        &self,
        out: &mut dyn io::Write,
        pack: &mut Pack<'_>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, Error> {
        repack::repack(&self.file, out, pack, go_on)
    }

    /// The metadata of the recorded process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.index.process
    }

    /// The first tickets of the later images of the process, in order: it executed programs.
    #[must_use]
    pub fn images(&self) -> &[u64] {
        &self.index.images
    }

    /// Whether it was written to its end.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.index.complete
    }

    /// Bytes behind its end that are no part of a capture.
    #[must_use]
    pub fn bytes_behind(&self) -> u64 {
        self.index.bytes_behind
    }

    /// Whether it is incomplete because it is still being written.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        !self.complete() && self.file.is_locked()
    }

    /// Duration of the recording in nanoseconds: to its end, or to its last tick if it is incomplete.
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn duration_ns(&self) -> Result<u64, Error> {
        let process = self.process();
        let start = process.start.monotonic_ns.unwrap_or(0);
        let end = match process.end.monotonic_ns {
            Some(end) => end,
            None => read::last_tick_ns(&self.file, &self.index)?.unwrap_or(start),
        };
        Ok(end.saturating_sub(start))
    }

    /// The number of snapshots in it.
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn snapshots(&self) -> Result<u64, Error> {
        read::snapshots(&self.file, &self.index)
    }

    /// The loss that the index found; [`ReadSummary::lost`] has all of it.
    #[must_use]
    pub fn lost(&self) -> DataLoss {
        self.index.lost
    }

    /// Whether events carry exact times.
    #[must_use]
    pub fn has_timestamps(&self) -> bool {
        self.index.process.timestamps
    }

    /// What its first image frees without a recorded allocation.
    #[must_use]
    pub fn unknown_blocks(&self) -> UnknownBlocks {
        UnknownBlocks::of(&self.index.process)
    }

    /// How many bytes samples are apart on the average, where only samples of allocations were recorded.
    #[must_use]
    pub fn sample_bytes(&self) -> Option<NonZeroU64> {
        self.index.process.sample_bytes.and_then(NonZeroU64::new)
    }

    /// Whether it holds sums, and no records.
    #[must_use]
    pub fn aggregated(&self) -> bool {
        self.index.aggregated
    }

    /// The names of native code that are stored in it: for [`Symbolizer::know`](crate::symbols::Symbolizer::know).
    #[must_use]
    pub fn symbols(&self) -> &[memtrack_format::symbols::ModuleSymbols] {
        &self.index.symbols
    }

    /// Source lines of its frames, if they were recorded.
    #[must_use]
    pub fn sources(&self) -> &[memtrack_format::sources::FileLines] {
        &self.index.sources
    }

    /// Moments that were named while the program ran, in their order.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.index.marks
    }

    /// The time of a mark of this or another capture of the same machine in nanoseconds since this recording began; 0 if
    /// it was before.
    #[must_use]
    pub fn mark_ns(&self, mark: &Mark) -> u64 {
        mark.time_ns.saturating_sub(self.process().start.monotonic_ns.unwrap_or(mark.time_ns))
    }

    /// Every native place in its stacks, by module: for [`Symbolizer::prefetch`](crate::symbols::Symbolizer::prefetch).
    /// Reads all records, unless none can be native; `progress` is called with the number of bytes processed, which add
    /// up to [`CaptureReader::total_record_bytes`].
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn native_places(&self, progress: impl Fn(u64) + Sync) -> Result<Vec<crate::symbols::WantedOffsets>, Error> {
        if !self.index.process.native_traces {
            return Ok(Vec::new());
        }
        natives::places(&self.file, &self.index, &progress)
    }

    /// The payload of the newest aggregate that is intact, its parts joined; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn aggregate(&self) -> Result<Option<Vec<u8>>, Error> {
        let mut whole = Vec::new();
        for part in &self.index.aggregates {
            let Some(payload) = self.file.whole_payload(part)? else { return Ok(None) };
            whole.extend(payload);
        }
        Ok((!whole.is_empty()).then_some(whole))
    }

    /// Bytes of the file that [`CaptureReader::read`] reports progress in.
    #[must_use]
    pub fn total_record_bytes(&self) -> u64 {
        (0..self.index.segments.len()).map(|segment| self.index.stored_bytes(segment)).sum()
    }

    /// Passes all events and snapshots to `consumer`, in their total order. `progress` is called with the number of
    /// bytes processed, which add up to [`CaptureReader::total_record_bytes`].
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails, [`Error::TooMany`] when ids run out. Damage is no error: it is counted.
    pub fn read<C: Consumer>(&self, consumer: &mut C, mut progress: impl FnMut(u64)) -> Result<ReadSummary, Error> {
        read::read(self, consumer, &mut progress)
    }

    /// The same step by step, for a consumer that uses nothing of short-lived blocks.
    pub(crate) fn reading_alone(&self) -> Result<MergeReader, Error> {
        MergeReader::new(self, AheadLimits::ALONE, ShortLivedUse::Nothing)
    }

    /// The same step by step, for several captures that are read together.
    pub(crate) fn reading(&self) -> Result<MergeReader, Error> {
        MergeReader::new(self, AheadLimits::SHARED, ShortLivedUse::Marks)
    }
}
