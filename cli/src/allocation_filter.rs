//! Selects the events that belong to allocations accepted by the filters, for exports that are built from events.
//!
//! If filters are active, the capture is read twice: which groups pass is known only at its end. Invariant: the same
//! allocations are kept as in every other report.

use anyhow::Result;
use memtrack_format::{Allocator, MapClass};
use memtrack_reader::analysis::Selection;
use memtrack_reader::{Event, EventKind, Options, StackId, ThreadId, source};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::address_ranges::{AddressRange, AddressRanges};
use crate::allocation_records;
use crate::load::{Request, note_filtered};

/// Decides for each event, in order, whether it belongs to a kept allocation.
#[derive(Debug)]
pub(crate) struct KeptEvents<'a> {
    kept: &'a AllocationFilter,
    /// Addresses of the live kept allocations; unused if all allocations are kept.
    live: FxHashSet<u64>,
    /// The kept block that each thread has freed last, for an undo.
    freed: FxHashMap<ThreadId, u64>,
    /// All mappings, kept or not.
    mapped: AddressRanges<KnownMapping>,
    /// What each thread has unmapped last, for an undo.
    unmapped: FxHashMap<ThreadId, Vec<AddressRange<KnownMapping>>>,
    /// The range that each thread has resized or moved last.
    remapped: FxHashMap<ThreadId, KnownMapping>,
}

/// What is known of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownMapping {
    kept: bool,
    class: MapClass,
}

impl<'a> KeptEvents<'a> {
    /// Starts at the first event of a capture.
    pub(crate) fn new(kept: &'a AllocationFilter) -> Self {
        Self {
            kept,
            live: FxHashSet::default(),
            freed: FxHashMap::default(),
            mapped: AddressRanges::default(),
            unmapped: FxHashMap::default(),
            remapped: FxHashMap::default(),
        }
    }

    /// The event, if it begins or ends a kept allocation or a part of a kept mapping, or undoes that. In place of an allocation that
    /// is not kept, and that takes the place of a kept one, the end of that one.
    pub(crate) fn taken(&mut self, event: &Event) -> Option<Event> {
        if self.kept.is_everything() {
            return Some(*event);
        }
        let taken = match event.kind {
            EventKind::Alloc(_) => return self.block(event),
            EventKind::Map(allocator, class) => return self.map(event, allocator, class),
            EventKind::FailedAlloc(_) => self.kept.takes(event),
            EventKind::Free => self.free(event),
            EventKind::Unmap | EventKind::RemapFrom => self.unmap(event),
            EventKind::FreeUndo => {
                // The record says only whose last free or unmapping did not take place.
                let undone = self.freed.remove(&event.thread);
                self.live.extend(undone);
                undone.is_some()
            }
            EventKind::UnmapUndo => {
                let undone = self.unmapped.remove(&event.thread).unwrap_or_default();
                let taken = has_kept(&undone);
                self.mapped.restore(undone);
                taken
            }
            EventKind::SampleDistance | EventKind::Finalizing | EventKind::Exec => true,
        };
        taken.then_some(*event)
    }

    fn block(&mut self, event: &Event) -> Option<Event> {
        if self.kept.takes(event) {
            self.live.insert(event.address);
            return Some(*event);
        }
        let was_kept = self.live.remove(&event.address);
        was_kept.then_some(Event { kind: EventKind::Free, size: 0, stack: StackId::EMPTY, ..*event })
    }

    fn free(&mut self, event: &Event) -> bool {
        let was_kept = self.live.remove(&event.address);
        if was_kept {
            self.freed.insert(event.thread, event.address);
        } else {
            self.freed.remove(&event.thread);
        }
        was_kept
    }

    fn map(&mut self, event: &Event, allocator: Allocator, class: MapClass) -> Option<Event> {
        let overlaid = self.mapped.cut(event.address, event.size);
        let from = self.remapped.get(&event.thread).filter(|_| class == MapClass::Inherited);
        let known = KnownMapping { kept: self.kept.takes(event), class: from.map_or(class, |from| from.class) };
        // A class that is inherited from what is left out must be told.
        let told = if from.is_some_and(|from| !from.kept) { known.class } else { class };
        self.mapped.add(event.address, event.size, known);
        if known.kept {
            return Some(Event { kind: EventKind::Map(allocator, told), ..*event });
        }
        has_kept(&overlaid).then_some(Event { kind: EventKind::Unmap, stack: StackId::EMPTY, ..*event })
    }

    fn unmap(&mut self, event: &Event) -> bool {
        if event.kind == EventKind::RemapFrom {
            // One that was not seen is taken for memory of the heap, as in a replay.
            let unseen = KnownMapping { kept: false, class: MapClass::Heap };
            self.remapped.insert(event.thread, self.mapped.at(event.address).unwrap_or(unseen));
        }
        let parts = self.mapped.cut(event.address, event.size);
        let taken = has_kept(&parts);
        self.unmapped.insert(event.thread, parts);
        taken
    }

    /// The process executed another program (exec): no allocation of the old one is live.
    pub(crate) fn replaced(&mut self) {
        self.live.clear();
        self.freed.clear();
        self.mapped = AddressRanges::default();
        self.unmapped.clear();
        self.remapped.clear();
    }
}

fn has_kept(parts: &[AddressRange<KnownMapping>]) -> bool {
    parts.iter().any(|part| part.value.kept)
}

/// The allocations to keep. Stacks and threads have the same numbers each time a capture is read.
#[derive(Debug, Default)]
pub(crate) struct AllocationFilter {
    /// `None` for all.
    groups: Option<FxHashSet<(StackId, Option<Allocator>, ThreadId)>>,
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
    use memtrack_format::{Allocator, MapClass};
    use memtrack_reader::{Event, EventKind, Options, Replay, StackId, ThreadId};

    use super::{AllocationFilter, KeptEvents};

    /// Of two blocks the first is kept; the free of each is undone, by the thread that freed it.
    #[test]
    fn an_undone_free_brings_back_what_was_kept() {
        let kept = AllocationFilter::of_groups([(StackId(1), Allocator::Malloc, ThreadId(0))].into_iter());
        let mut events = KeptEvents::new(&kept);
        let mut takes = |kind, address, stack: u32, thread: u32| {
            let (stack, thread) = (StackId(stack), ThreadId(thread));
            let event = Event { kind, address, size: 8, stack, thread, order: 0, time_ns: 0 };
            events.taken(&event).is_some()
        };
        let alloc = EventKind::Alloc(Allocator::Malloc);
        assert!(takes(alloc, 16, 1, 0) && !takes(alloc, 32, 2, 0));
        assert!(takes(EventKind::Free, 16, 0, 0) && !takes(EventKind::Free, 32, 0, 1));
        assert!(!takes(EventKind::FreeUndo, 0, 0, 1), "what was not kept");
        assert!(!takes(EventKind::UnmapUndo, 0, 0, 0), "no mapping");
        assert!(takes(EventKind::FreeUndo, 0, 0, 0) && !takes(EventKind::FreeUndo, 0, 0, 0), "once");
        assert!(takes(EventKind::Free, 16, 0, 3) && !takes(EventKind::Free, 16, 0, 3));
    }

    /// Events of a kept stack and of another one, as a replay of the kept ones sees them.
    fn replayed(all: &[(EventKind, u64, u64, u32)]) -> (Vec<EventKind>, u64, u64) {
        let kept = AllocationFilter::of_groups([(StackId(1), Allocator::Mmap, ThreadId(0))].into_iter());
        let (mut events, mut replay) = (KeptEvents::new(&kept), Replay::new(&Options::default()));
        let mut taken = Vec::new();
        for (order, &(kind, address, size, stack)) in (0..).zip(all) {
            let (stack, thread) = (StackId(stack), ThreadId(0));
            let event = events.taken(&Event { kind, address, size, stack, thread, order, time_ns: order });
            event.iter().for_each(|event| replay.event(event));
            taken.extend(event.map(|event| event.kind));
        }
        let live = replay.live().bytes;
        (taken, replay.into_analysis().totals.peak.bytes, live)
    }

    /// As glibc trims a new arena, and a program gives back the middle of a buffer.
    #[test]
    fn parts_of_a_mapping_end_with_it_and_come_back() {
        let map = EventKind::Map(Allocator::Mmap, MapClass::Heap);
        let cut = [
            (map, 0x10000, 0x8000, 1),
            (EventKind::Unmap, 0x12000, 0x1000, 0),
            (EventKind::Unmap, 0x10000, 0x2000, 0),
            (EventKind::Unmap, 0x40000, 0x2000, 0),
            (EventKind::Unmap, 0x13000, 0x4000, 0),
            (EventKind::UnmapUndo, 0, 0, 0),
            (EventKind::Unmap, 0x13000, 0x4000, 0),
            (map, 0x30000, 0x7000, 1),
        ];
        let (taken, peak, live) = replayed(&cut);
        let [unmap, undo] = [EventKind::Unmap, EventKind::UnmapUndo];
        assert_eq!(taken, [map, unmap, unmap, unmap, undo, unmap, map]);
        assert_eq!((peak, live), (0x8000, 0x8000));
    }

    #[test]
    fn what_others_take_the_place_of_is_over_and_what_they_leave_keeps_its_class() {
        let map = |class| EventKind::Map(Allocator::Mmap, class);
        let (heap, reserved) = (map(MapClass::Heap), map(MapClass::Reserved));
        let (taken, peak, live) = replayed(&[
            (heap, 0x10000, 0x4000, 1),
            (heap, 0x10000, 0x3000, 2),
            (reserved, 0x20000, 0x4000, 2),
            (EventKind::RemapFrom, 0x20000, 0x4000, 0),
            (map(MapClass::Inherited), 0x30000, 0x8000, 1),
            (EventKind::RemapFrom, 0x10000, 0x3000, 0),
            (map(MapClass::Inherited), 0x50000, 0x5000, 1),
        ]);
        assert_eq!(taken, [heap, EventKind::Unmap, reserved, heap]);
        assert_eq!((peak, live), (0x6000, 0x6000));
    }
}
