//! How long allocations lived, in moments, while they are counted.
//!
//! Moments are snapshots: all of them, or, where they are too many, the highest of each few neighbours. Which one is
//! the highest is known when all of these have come. Until then the highest so far stands for it, and what has ended since
//! waits: when a higher one comes, what waits was gone by then.
//!
//! Invariant: what waits has ended after the last moment, and was live at it or at one before.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::intervals::{Intervals, MomentRow, PackedRows};
use super::{LiveBlock, Tally};
use crate::event::Snapshot;

/// A snapshot that is a moment.
#[derive(Clone, Copy, Debug)]
struct SnapshotMoment {
    order: u64,
    heap_bytes: u64,
    snapshot: u32,
}

/// The sums of lives that have ended.
#[derive(Clone, Debug)]
pub(super) struct IntervalTracker {
    /// Neighbouring snapshots of which one is a moment.
    step: u32,
    moments: Vec<SnapshotMoment>,
    /// How many of the last moment's neighbours have come, itself among them; 0: all of them.
    neighbours: u32,
    /// What waits, by group and first moment.
    waiting: FxHashMap<(u32, u32), Tally>,
    ended: PackedRows,
    /// What did not end though it is among what ended, by group, first moment and end.
    undone: FxHashMap<(u32, u32, u32), Tally>,
    /// The answer of the last look-up of a moment: blocks that end together were mostly made together.
    last_found: u32,
}

impl IntervalTracker {
    /// Keeps at most so many moments and two more, if no more than so many snapshots come.
    pub(super) fn new(most_moments: u32, snapshots: u64) -> Self {
        let step = snapshots.saturating_add(1).div_ceil(u64::from(most_moments.max(1)));
        Self {
            step: u32::try_from(step).unwrap_or(u32::MAX),
            moments: Vec::new(),
            neighbours: 0,
            waiting: FxHashMap::default(),
            ended: PackedRows::default(),
            undone: FxHashMap::default(),
            last_found: 0,
        }
    }

    /// A snapshot is taken. Returns the order up to which the last moment can show what was made.
    pub(super) fn snapshot(&mut self, &Snapshot { index, heap_bytes, order, .. }: &Snapshot) -> u64 {
        let moment = SnapshotMoment { order, heap_bytes, snapshot: index };
        match self.moments.last() {
            Some(last) if self.neighbours > 0 => {
                if heap_bytes > last.heap_bytes {
                    self.moments.pop();
                    self.end(moment);
                }
            }
            _ => self.end(moment),
        }
        self.neighbours = (self.neighbours + 1) % self.step;
        self.moments.last().map_or(0, |last| last.order)
    }

    /// What waits has ended by this moment, which comes next.
    fn end(&mut self, moment: SnapshotMoment) {
        let end = self.number();
        for ((group, first), Tally { bytes, count }) in self.waiting.drain() {
            // What was first shown by a moment that is none any more was shown by none.
            if first < end && (bytes > 0 || count > 0) {
                self.ended.push(&MomentRow { group, first, end: Some(end), bytes, count });
            }
        }
        self.moments.push(moment);
    }

    /// A block, or a part of it, ends that was made before the last moment.
    #[inline]
    pub(super) fn add(&mut self, block: &LiveBlock, bytes: u64, count: u64) {
        let first = self.first(block.order);
        self.waiting.entry((block.group, first)).or_default().add(bytes, count);
    }

    /// It has not ended by the event of this order.
    pub(super) fn take_back(&mut self, block: &LiveBlock, bytes: u64, count: u64, order: u64) {
        let (first, end) = (self.first(block.order), self.moment_after(order));
        if end == self.number() {
            if let Some(sum) = self.waiting.get_mut(&(block.group, first)) {
                subtract(sum, bytes, count);
            }
        } else if first < end {
            self.undone.entry((block.group, first, end)).or_default().add(bytes, count);
        }
    }

    /// What is live at the end, or a part of it.
    pub(super) fn survivor(&mut self, block: &LiveBlock, bytes: u64, count: u64) -> MomentRow {
        MomentRow { group: block.group, first: self.first(block.order), end: None, bytes, count }
    }

    /// These, which have ended, and those that have not, after so many snapshots.
    pub(super) fn into_intervals(mut self, surviving: &PackedRows, snapshots: u32) -> Intervals {
        let end = SnapshotMoment { order: u64::MAX, heap_bytes: 0, snapshot: snapshots };
        self.end(end);
        if !self.undone.is_empty() {
            let Self { ended, undone, .. } = &mut self;
            ended.rewrite(|row| without(row, undone));
        }
        surviving.iter().for_each(|row| self.ended.push(&row));
        let moments = self.moments.iter().map(|moment| moment.snapshot);
        Intervals { step: self.step, moments: moments.filter(|_| self.step > 1).collect(), rows: self.ended }
    }

    /// The first moment that can show what was made at this place in the order.
    #[inline]
    fn first(&mut self, order: u64) -> u32 {
        if !self.is_first(self.last_found, order) {
            self.last_found = self.moment_after(order);
        }
        self.last_found
    }

    #[inline]
    fn is_first(&self, number: u32, order: u64) -> bool {
        let at = |number: usize| self.moments.get(number).map(|moment| moment.order);
        let number = number as usize;
        at(number).is_some_and(|shown| order < shown)
            && number.checked_sub(1).and_then(at).is_none_or(|before| before <= order)
    }

    fn moment_after(&self, order: u64) -> u32 {
        // No more than snapshots.
        self.moments.partition_point(|moment| moment.order <= order) as u32
    }

    /// The number of the moment that comes next.
    fn number(&self) -> u32 {
        self.moments.len() as u32
    }
}

/// What is left of a row when what is undone is taken from it, and from that what was.
fn without(row: MomentRow, undone: &mut FxHashMap<(u32, u32, u32), Tally>) -> Option<MomentRow> {
    let Entry::Occupied(mut undone) = undone.entry((row.group, row.first, row.end?)) else { return Some(row) };
    let mut left = Tally { bytes: row.bytes, count: row.count };
    let Tally { bytes, count } = *undone.get();
    subtract(&mut left, bytes, count);
    subtract(undone.get_mut(), row.bytes, row.count);
    (left != Tally::default()).then_some(MomentRow { bytes: left.bytes, count: left.count, ..row })
}

fn subtract(sum: &mut Tally, bytes: u64, count: u64) {
    sum.bytes = sum.bytes.saturating_sub(bytes);
    sum.count = sum.count.saturating_sub(count);
}
