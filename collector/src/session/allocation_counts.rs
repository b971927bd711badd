//! What the threads of a sampled recording have allocated, as they count it in the headers of their slots.
//!
//! Invariant: a count is noted after it has changed, before each moment of which a capture may be made, and once more at the end,
//! when no thread counts any more.

use std::sync::atomic::Ordering::Acquire;

use memtrack_format::record::AllocationCount;
use memtrack_transport::Area;

use crate::session::observer::Observer;

/// The counts that were noted last, by slot.
#[derive(Debug, Default)]
pub(crate) struct AllocationCounts {
    noted: Vec<AllocationCount>,
}

impl AllocationCounts {
    /// Notes the counts that have changed.
    pub(crate) fn note_changes(&mut self, area: &Area, observer: &mut Observer) {
        if area.control().sample_bytes.load(Acquire) == 0 {
            return;
        }
        self.noted.resize_with(area.slot_count() as usize, AllocationCount::default);
        for (index, noted) in (0..).zip(&mut self.noted) {
            let Some(slot) = area.slot(index) else { break };
            let [stretch, allocations, bytes] =
                [&slot.stretch, &slot.allocations, &slot.allocated_bytes].map(|word| word.load(Acquire));
            let count = AllocationCount { stretch, allocations, bytes };
            // Another thread may be taking the slot just now.
            if allocations > 0 && count != *noted && slot.stretch.load(Acquire) == stretch {
                *noted = count;
                observer.counted(count);
            }
        }
    }
}
