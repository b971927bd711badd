//! Sums of the mappings that do not count as heap, by class, stack, allocator and thread, when those of a class were largest.
//!
//! What a group had at the last peak of its class is stored when the group changes after it. Invariant: an event costs the same,
//! however many groups there are.

use memtrack_format::{Allocator, MapClass};
use rustc_hash::FxHashMap;

use crate::analysis::{Mapped, MappedGroup};
use crate::event::{Event, StackId, ThreadId};

type MappedKey = (MapClass, StackId, Allocator, ThreadId);

/// The sums so far.
#[derive(Debug, Default)]
pub(super) struct MappedSums {
    numbers: FxHashMap<MappedKey, u32>,
    groups: Vec<MappedSum>,
    classes: [ClassPeak; CLASSES],
}

/// Classes by number.
const CLASSES: usize = 5;

/// What is mapped of a class.
#[derive(Clone, Copy, Debug, Default)]
struct ClassPeak {
    live: u64,
    peak: u64,
    /// How many peaks there were, each higher than the one before.
    peaks: u64,
}

/// Bytes and number of the mappings of a group.
#[derive(Clone, Copy, Debug)]
struct MappedSum {
    key: MappedKey,
    live: (u64, u64),
    /// What was live at the peak of this number, or at a later one where nothing has changed since.
    at_peak: (u64, u64),
    known_at: u64,
}

impl MappedSums {
    /// A mapping begins; returns the number of its group, which the mapping keeps.
    pub(super) fn map(&mut self, event: &Event, allocator: Allocator, class: MapClass) -> u32 {
        let key = (class, event.stack, allocator, event.thread);
        let known_at = self.classes[class as usize].peaks;
        let next = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.groups.push(MappedSum { key, live: (0, 0), at_peak: (0, 0), known_at });
        }
        self.grow(number, event.size, true);
        number
    }

    /// More of a mapping is live again; `whole`: nothing of it was.
    pub(super) fn grow(&mut self, number: u32, bytes: u64, whole: bool) {
        let Some((group, class)) = self.changing(number) else { return };
        group.live = (group.live.0.saturating_add(bytes), group.live.1.saturating_add(u64::from(whole)));
        class.live = class.live.saturating_add(bytes);
        if class.live > class.peak {
            (class.peak, class.peaks) = (class.live, class.peaks + 1);
        }
    }

    /// Part of a mapping ends; `last`: nothing of it is left.
    pub(super) fn shrink(&mut self, number: u32, bytes: u64, last: bool) {
        let Some((group, class)) = self.changing(number) else { return };
        group.live = (group.live.0.saturating_sub(bytes), group.live.1.saturating_sub(u64::from(last)));
        class.live = class.live.saturating_sub(bytes);
    }

    /// A group that is about to change, with its class.
    fn changing(&mut self, number: u32) -> Option<(&mut MappedSum, &mut ClassPeak)> {
        let group = self.groups.get_mut(number as usize)?;
        let class = &mut self.classes[group.key.0 as usize];
        if group.known_at < class.peaks {
            (group.at_peak, group.known_at) = (group.live, class.peaks);
        }
        Some((group, class))
    }

    /// What was mapped at the peaks.
    pub(super) fn at_peaks(&self) -> Mapped {
        let row = |sum: &MappedSum| {
            let (class, stack, allocator, thread) = sum.key;
            let is_unchanged = sum.known_at < self.classes[class as usize].peaks;
            let (bytes, count) = if is_unchanged { sum.live } else { sum.at_peak };
            MappedGroup { class, stack, allocator, thread, bytes, count }
        };
        self.groups.iter().map(row).filter(|group| group.bytes > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};

    use super::MappedSums;
    use crate::event::{Event, EventKind, StackId, ThreadId};

    #[test]
    fn rows_are_those_of_the_peak_of_each_class() {
        let mut sums = MappedSums::default();
        let map = |sums: &mut MappedSums, class, stack, size| {
            let kind = EventKind::Map(Allocator::Mmap, class);
            let (stack, thread) = (StackId(stack), ThreadId(0));
            sums.map(&Event { kind, address: 0, size, stack, thread, order: 0, time_ns: 0 }, Allocator::Mmap, class)
        };
        let rows = |sums: &MappedSums| {
            let rows = sums.at_peaks();
            rows.iter().map(|row| (row.class, row.stack.0, row.bytes, row.count)).collect::<Vec<_>>()
        };
        let first = map(&mut sums, MapClass::Shared, 1, 100);
        let second = map(&mut sums, MapClass::Shared, 2, 50);
        map(&mut sums, MapClass::File, 1, 7);
        sums.shrink(first, 100, true);
        let peak = [(MapClass::Shared, 1, 100, 1), (MapClass::Shared, 2, 50, 1), (MapClass::File, 1, 7, 1)];
        assert_eq!(rows(&sums), peak);
        // Less than the peak: nothing changes.
        let third = map(&mut sums, MapClass::Shared, 3, 90);
        assert_eq!(rows(&sums), peak);
        // A higher one, with what an undone unmap gives back.
        sums.shrink(second, 20, false);
        sums.grow(second, 20, false);
        sums.grow(first, 100, true);
        sums.shrink(third, 90, true);
        let peak = [
            (MapClass::Shared, 1, 100, 1),
            (MapClass::Shared, 2, 50, 1),
            (MapClass::File, 1, 7, 1),
            (MapClass::Shared, 3, 90, 1),
        ];
        assert_eq!(rows(&sums), peak);
    }
}
