//! Replays the events of mappings: they begin, end in part or as a whole, and come back where an unmap had failed.
//!
//! Invariant: of a mapping of class heap, what is cut out of it ends in the sums, and what is restored is live again.

use memtrack_format::{Allocator, MapClass};

use super::Replay;
use super::mappings::Cut;
use crate::analysis::{ClassTotals, LiveBlock, MappingTotals, ReleasedBlock};
use crate::event::Event;

impl Replay {
    pub(super) fn map(&mut self, event: &Event, allocator: Allocator, class: MapClass) {
        if event.size == 0 {
            return;
        }
        let class = if class == MapClass::Inherited { self.thread(event.thread).remap_class } else { class };
        let mut overlaid = std::mem::take(&mut self.cuts);
        self.mappings.cut(event.address, event.size, &mut overlaid);
        for cut in overlaid.drain(..) {
            self.end_cut(&cut, event);
        }
        self.cuts = overlaid;
        self.class_totals(class).map(event.size);
        let mut block = LiveBlock::outside(event);
        match class {
            MapClass::Heap => self.sums.allocate::<false>(event, allocator, &mut block),
            _ => block.nth = self.mapped.map(event, allocator, class),
        }
        self.mappings.insert(event.address, block, class);
    }

    pub(super) fn unmap(&mut self, event: &Event) {
        let mut cuts = std::mem::take(&mut self.cuts);
        let mut last_cuts = std::mem::take(&mut self.thread(event.thread).last_cuts);
        last_cuts.clear();
        if event.size > 0 {
            self.mappings.cut(event.address, event.size, &mut cuts);
            *self.unknown_unmaps() += u64::from(cuts.is_empty());
        }
        last_cuts.extend(cuts.drain(..).map(|cut| (cut, self.end_cut(&cut, event))));
        self.cuts = cuts;
        let thread = self.thread(event.thread);
        thread.last_unmap_matched = event.size == 0 || !last_cuts.is_empty();
        thread.last_cuts = last_cuts;
    }

    pub(super) fn undo_unmap(&mut self, event: &Event) {
        let thread = self.thread(event.thread);
        let matched = std::mem::replace(&mut thread.last_unmap_matched, true);
        let cuts = std::mem::take(&mut thread.last_cuts);
        let unmaps = self.unknown_unmaps();
        *unmaps = unmaps.saturating_sub(u64::from(!matched));
        // In reverse order, so that the cut that ended a mapping is restored first.
        for (cut, ended) in cuts.iter().rev() {
            if let Some(whole) = self.mappings.restore(cut) {
                self.restore_cut(cut, whole, ended.as_ref(), event);
            }
        }
    }

    /// Part of a mapping ended by this event.
    fn end_cut(&mut self, cut: &Cut, event: &Event) -> Option<ReleasedBlock> {
        self.class_totals(cut.mapping.class).unmap(cut.bytes());
        let is_heap = cut.mapping.class == MapClass::Heap;
        if !is_heap {
            self.mapped.shrink(cut.mapping.block.nth, cut.bytes(), cut.last);
        }
        is_heap.then(|| {
            let mut ended = ReleasedBlock::default();
            self.sums.release::<false>(&cut.mapping.block, cut.bytes(), cut.last, event, &mut ended);
            ended
        })
    }

    fn restore_cut(&mut self, cut: &Cut, whole: bool, ended: Option<&ReleasedBlock>, event: &Event) {
        self.class_totals(cut.mapping.class).grow(cut.bytes());
        match ended {
            Some(ended) => self.sums.restore(&cut.mapping.block, cut.bytes(), whole, ended, event),
            None => {
                self.mapped.grow(cut.mapping.block.nth, cut.bytes(), whole);
                self.sums.totals.undone += 1;
            }
        }
    }

    /// The class at the start of the range, which the kernel wants to be of one mapping.
    pub(super) fn class_of_range(&self, event: &Event) -> Option<MapClass> {
        self.mappings.class_at(event.address)
    }

    pub(super) fn class_totals(&mut self, class: MapClass) -> &mut ClassTotals {
        let MappingTotals { heap, reserved, file, shared } = &mut self.sums.totals.mappings;
        match class {
            MapClass::Heap | MapClass::Inherited => heap,
            MapClass::Reserved => reserved,
            MapClass::File => file,
            MapClass::Shared => shared,
        }
    }
}
