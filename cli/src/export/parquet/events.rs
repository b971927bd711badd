//! The table of events: a row for each, in the total order, written as they are read.
//!
//! Invariant: memory does not grow with the number of events.

use anyhow::Result;
use memtrack_reader::source::{Consumer, RunPosition};
use memtrack_reader::{Event, EventKind, Frames};

use super::keys::CaptureKeys;
use super::table::{ParquetCell, ParquetTable};
use crate::allocation_filter::{AllocationFilter, KeptEvents};

pub(super) const COLUMNS: [(&str, &str); 10] = [
    ("process", "i64"),
    ("order", "i64"),
    ("time_ns", "i64"),
    ("kind", "text"),
    ("address", "u64"),
    ("size", "u64"),
    ("allocator", "text"),
    ("class", "text"),
    ("tid", "i32"),
    ("stack", "i64"),
];

/// Writes events as they are read.
pub(super) struct EventRows<'a> {
    process: u64,
    table: ParquetTable,
    keys: &'a CaptureKeys,
    kept: KeptEvents<'a>,
    tid: i32,
    written: Result<()>,
}

impl<'a> EventRows<'a> {
    /// Before the first event.
    pub(super) fn new(process: u64, table: ParquetTable, keys: &'a CaptureKeys, kept: &'a AllocationFilter) -> Self {
        Self { process, table, keys, kept: KeptEvents::new(kept), tid: 0, written: Ok(()) }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn finish(self) -> Result<()> {
        self.written?;
        self.table.finish()
    }

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
            EventKind::SampleDistance => ("sample_distance", None, None),
            EventKind::Finalizing => ("finalizing", None, None),
            EventKind::Exec => ("exec", None, None),
        };
        let sized = allocator.is_some() || matches!(event.kind, EventKind::Unmap | EventKind::RemapFrom);
        let addressed = (sized || event.kind == EventKind::Free) && !matches!(event.kind, EventKind::FailedAlloc(_));
        self.table.row([
            ParquetCell::Bits(Some(self.process)),
            ParquetCell::Number(Some(event.order)),
            ParquetCell::Number(Some(event.time_ns)),
            ParquetCell::Word(Some(kind)),
            ParquetCell::Bits(addressed.then_some(event.address)),
            ParquetCell::Bits(sized.then_some(event.size)),
            ParquetCell::Word(allocator.map(memtrack_format::Allocator::name)),
            ParquetCell::Word(class),
            ParquetCell::Int32(Some(self.tid.cast_unsigned())),
            ParquetCell::Bits(allocator.and_then(|_| self.keys.stack(event.stack))),
        ])
    }
}

impl Consumer for EventRows<'_> {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        if self.written.is_ok()
            && let Some(event) = self.kept.taken(event)
        {
            self.written = self.row(&event);
        }
    }

    fn run(&mut self, place: &RunPosition) {
        self.tid = place.tid;
    }

    fn replaced(&mut self) {
        self.kept.replaced();
    }
}
