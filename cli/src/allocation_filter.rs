//! Selects the events that belong to allocations accepted by the filters, for exports that are built from events.
//!
//! If filters are active, the capture is read twice: which groups pass is known only at its end. Invariant: the same
//! allocations are kept as in every other report.

use std::collections::HashSet;

use anyhow::Result;
use memtrack_format::Allocator;
use memtrack_reader::analysis::Selection;
use memtrack_reader::{Event, EventKind, Options, StackId, ThreadId, source};

use crate::allocation_records;
use crate::load::{Request, note_filtered};

/// Decides for each event, in order, whether it belongs to a kept allocation.
#[derive(Debug)]
pub(crate) struct KeptEvents<'a> {
    kept: &'a AllocationFilter,
    /// Addresses of the live kept allocations; unused if all allocations are kept.
    live: HashSet<u64>,
}

impl<'a> KeptEvents<'a> {
    /// Starts at the first event of a capture.
    pub(crate) fn new(kept: &'a AllocationFilter) -> Self {
        Self { kept, live: HashSet::new() }
    }

    /// Whether the event begins or ends a kept allocation. An unmapping counts if a kept mapping begins at its address.
    /// An undo record does not say what it undoes and is always accepted.
    pub(crate) fn takes(&mut self, event: &Event) -> bool {
        if self.kept.is_everything() {
            return true;
        }
        match event.kind {
            EventKind::Alloc(_) | EventKind::Map(..) => {
                let taken = self.kept.takes(event);
                if taken {
                    self.live.insert(event.address)
                } else {
                    self.live.remove(&event.address)
                };
                taken
            }
            EventKind::FailedAlloc(_) => self.kept.takes(event),
            EventKind::Free | EventKind::Unmap | EventKind::RemapFrom => self.live.remove(&event.address),
            EventKind::FreeUndo | EventKind::UnmapUndo | EventKind::Finalizing | EventKind::Exec => true,
        }
    }

    /// The process executed another program (exec): no allocation of the old one is live.
    pub(crate) fn replaced(&mut self) {
        self.live.clear();
    }
}

/// The allocations to keep. Stacks and threads have the same numbers each time a capture is read.
#[derive(Debug, Default)]
pub(crate) struct AllocationFilter {
    /// `None` for all.
    groups: Option<HashSet<(StackId, Option<Allocator>, ThreadId)>>,
    selection: Selection,
}

impl AllocationFilter {
    /// Computes the allocations of one capture that the request accepts.
    ///
    /// # Errors
    /// A capture that cannot be read.
    pub(crate) fn new(request: &Request<'_>, file: &source::CaptureReader) -> Result<Self> {
        let selection = request.selection(file)?;
        if !request.narrows() {
            return Ok(Self { groups: None, selection });
        }
        let (mut capture, all) = allocation_records::whole(file, &Options { selection, ..Options::default() })?;
        let kept = request.filter.apply(&mut capture.analysis, &capture.frames, &capture.threads);
        note_filtered(kept, all);
        let groups = capture.analysis.groups.iter();
        let groups = groups.map(|group| (group.stack, Some(group.allocator), group.thread));
        let failed = capture.analysis.failed.iter().map(|failed| (failed.stack, Some(failed.allocator), failed.thread));
        let groups = groups.chain(failed).collect();
        Ok(Self { groups: Some(groups), selection })
    }

    /// Whether no allocation is filtered out.
    pub(crate) fn is_everything(&self) -> bool {
        self.groups.is_none()
    }

    /// Whether the allocation that this event begins is kept.
    pub(crate) fn takes(&self, event: &Event) -> bool {
        let allocator = match event.kind {
            EventKind::Alloc(allocator) | EventKind::Map(allocator, _) | EventKind::FailedAlloc(allocator) => {
                Some(allocator)
            }
            _ => None,
        };
        self.selection.takes(event)
            && self.groups.as_ref().is_none_or(|groups| groups.contains(&(event.stack, allocator, event.thread)))
    }
}
