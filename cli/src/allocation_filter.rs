//! Selects the events that belong to allocations accepted by the filters, for exports that are built from events.
//!
//! If filters are active, the capture is read twice: which groups pass is known only at its end. Invariant: the same
//! allocations are kept as in every other report.

use std::collections::{HashMap, HashSet};

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
    /// What each thread has ended last of them, for an undo: a block, and a mapping.
    ended: HashMap<(ThreadId, bool), u64>,
}

impl<'a> KeptEvents<'a> {
    /// Starts at the first event of a capture.
    pub(crate) fn new(kept: &'a AllocationFilter) -> Self {
        Self { kept, live: HashSet::new(), ended: HashMap::new() }
    }

    /// Whether the event begins or ends a kept allocation, or undoes that. An unmapping counts if a kept mapping begins at its
    /// address.
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
            EventKind::Free | EventKind::Unmap | EventKind::RemapFrom => {
                let (was_kept, is_block) = (self.live.remove(&event.address), event.kind == EventKind::Free);
                if was_kept {
                    self.ended.insert((event.thread, is_block), event.address);
                } else {
                    self.ended.remove(&(event.thread, is_block));
                }
                was_kept
            }
            EventKind::FreeUndo | EventKind::UnmapUndo => {
                // The record says only whose last free or unmapping did not take place.
                let undone = self.ended.remove(&(event.thread, event.kind == EventKind::FreeUndo));
                self.live.extend(undone);
                undone.is_some()
            }
            EventKind::SampleDistance | EventKind::Finalizing | EventKind::Exec => true,
        }
    }

    /// The process executed another program (exec): no allocation of the old one is live.
    pub(crate) fn replaced(&mut self) {
        self.live.clear();
        self.ended.clear();
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

    /// The allocations of these groups.
    pub(crate) fn of_groups(groups: impl Iterator<Item = (StackId, Allocator, ThreadId)>) -> Self {
        let groups = groups.map(|(stack, allocator, thread)| (stack, Some(allocator), thread)).collect();
        Self { groups: Some(groups), selection: Selection::default() }
    }

    /// Whether the allocations of a group are kept, as far as size and time allow.
    pub(crate) fn has_group(&self, stack: StackId, allocator: Allocator, thread: ThreadId) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&(stack, Some(allocator), thread)))
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

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_reader::{Event, EventKind, StackId, ThreadId};

    use super::{AllocationFilter, KeptEvents};

    /// Of two blocks the first is kept; the free of each is undone, by the thread that freed it.
    #[test]
    fn an_undone_free_brings_back_what_was_kept() {
        let kept = AllocationFilter::of_groups([(StackId(1), Allocator::Malloc, ThreadId(0))].into_iter());
        let mut events = KeptEvents::new(&kept);
        let mut takes = |kind, address, stack: u32, thread: u32| {
            let (stack, thread) = (StackId(stack), ThreadId(thread));
            events.takes(&Event { kind, address, size: 8, stack, thread, order: 0, time_ns: 0 })
        };
        let alloc = EventKind::Alloc(Allocator::Malloc);
        assert!(takes(alloc, 16, 1, 0) && !takes(alloc, 32, 2, 0));
        assert!(takes(EventKind::Free, 16, 0, 0) && !takes(EventKind::Free, 32, 0, 1));
        assert!(!takes(EventKind::FreeUndo, 0, 0, 1), "what was not kept");
        assert!(!takes(EventKind::UnmapUndo, 0, 0, 0), "no mapping");
        assert!(takes(EventKind::FreeUndo, 0, 0, 0) && !takes(EventKind::FreeUndo, 0, 0, 0), "once");
        assert!(takes(EventKind::Free, 16, 0, 3) && !takes(EventKind::Free, 16, 0, 3));
    }
}
