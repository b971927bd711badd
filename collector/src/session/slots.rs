//! The slots of a session's shared memory: which are in use, what is drained of them, and what they give back.
//!
//! Invariant: each slot up to the last one that was found in use has one reader, at its number.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use memtrack_transport::barrier;
use memtrack_transport::layout::registration;

use super::Session;
use crate::session::busy_writers;
use crate::session::slot_reader::{MOST_KEPT, SlotReader};
use crate::sink::sink_queue::SinkQueue;

impl Session {
    /// Adds readers for slots that have come into use: not beyond the highest one that was claimed, since each page of
    /// headers that is looked at takes memory, and the time of a page fault.
    pub(super) fn find_used_slots(&mut self) {
        let used = |slot: &u32| {
            self.area.slot(*slot).is_some_and(|slot| slot.owner.load(Acquire) != 0 || slot.current.load(Acquire) != 0)
        };
        let count = self.slot_readers.len() as u32;
        let Some(last) = (count..self.area.claimed_slots()).rev().find(used) else { return };
        let base = self.base;
        self.slot_readers.extend((count..=last).map(|slot| SlotReader::new(slot, base + slot)));
        self.observer.used_slots = last + 1;
    }

    /// Visits all slots; returns the largest number of segments that one of them had finished.
    pub(super) fn drain(&mut self, save: bool, queue: &mut SinkQueue) -> u32 {
        let mut most = 0;
        self.changed = false;
        for slot_reader in &mut self.slot_readers {
            let visit = slot_reader.visit(&self.area, save, self.observer.segment_pages(), queue);
            self.changed |= visit.changed;
            self.observer.note_segment_pages(visit.new_pages, visit.discarded_pages);
            if visit.resumed {
                self.active.add();
            }
            most = most.max(visit.freed);
        }
        self.area.control().segment_room.store(self.active.segment_room(), Relaxed);
        self.dirty |= self.changed;
        most
    }

    /// Whether the target is registered for barriers, or cannot be.
    pub(super) fn is_registration_over(&self) -> bool {
        self.area.control().registration.load(Acquire) != registration::UNDER_WAY
    }

    /// Streams that may still add records with tickets before the one that was just taken.
    pub(super) fn busy(&mut self) -> Vec<u32> {
        barrier::raise(self.area.control().registration.load(Acquire) == registration::DONE);
        // Slots that came into use since the last scan may have taken an earlier ticket.
        self.find_used_slots();
        busy_writers::busy_streams(&self.area, self.slot_readers.len() as u32, self.base)
    }

    /// Where much of the shared memory is resident, gives back what threads hold that record nothing.
    pub(super) fn look_for_idle_threads(&mut self, queue: &mut SinkQueue) {
        self.active.begin_interval();
        for slot_reader in &mut self.slot_readers {
            slot_reader.begin_interval();
            if self.observer.segment_pages() > MOST_KEPT {
                let discarded = slot_reader.give_back_idle(&self.area, queue);
                self.observer.note_segment_pages(0, discarded);
            }
        }
    }
}
