//! Tracks between which moments allocations were live.
//!
//! A moment is a snapshot: each one, or, if there are too many, the one with the largest heap of every few neighbours.
//! Which of the neighbours has the largest heap is known when all of them were seen. Until then the largest so far is
//! the moment, and blocks that ended since then wait: if a larger one comes, they were not live at it.
//!
//! Invariant: a waiting block ended after the last moment, and was live at it or at an earlier one.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::intervals::{Intervals, MomentRow, PackedRows};
use super::moment_index::MomentIndex;
use super::{LiveBlock, Tally};
use crate::event::Snapshot;

/// A snapshot that was chosen as a moment.
#[derive(Clone, Copy, Debug)]
struct SnapshotMoment {
    order: u64,
    heap_bytes: u64,
    snapshot: u32,
}

/// The sums of ended allocations, by group and interval.
#[derive(Clone, Debug)]
pub(super) struct IntervalTracker {
    /// Of this number of neighbouring snapshots one is a moment.
    step: u32,
    moments: Vec<SnapshotMoment>,
    index: MomentIndex,
    /// How many of the last moment's neighbours were seen, itself included; 0: all of them.
    neighbours: u32,
    /// The waiting blocks, by group and first moment.
    waiting: FxHashMap<(u32, u32), Tally>,
    ended: PackedRows,
    /// Blocks counted in `ended` whose end was undone, by group, first moment and end.
    undone: FxHashMap<(u32, u32, u32), Tally>,
}

impl IntervalTracker {
    /// Keeps at most `most_moments` moments and two more, if `snapshots` is not exceeded.
    pub(super) fn new(most_moments: u32, snapshots: u64) -> Self {
        let step = snapshots.saturating_add(1).div_ceil(u64::from(most_moments.max(1)));
        Self {
            step: u32::try_from(step).unwrap_or(u32::MAX),
            moments: Vec::new(),
            index: MomentIndex::default(),
            neighbours: 0,
            waiting: FxHashMap::default(),
            ended: PackedRows::default(),
            undone: FxHashMap::default(),
        }
    }

    /// Adds a snapshot. Returns the order of the last moment: only blocks with a smaller order were shown by one.
    pub(super) fn snapshot(&mut self, &Snapshot { index, heap_bytes, order, .. }: &Snapshot) -> u64 {
        let moment = SnapshotMoment { order, heap_bytes, snapshot: index };
        match self.moments.last() {
            Some(last) if self.neighbours > 0 => {
                if heap_bytes > last.heap_bytes {
                    self.moments.pop();
                    self.index.pop();
                    self.end(moment);
                }
            }
            _ => self.end(moment),
        }
        self.neighbours = (self.neighbours + 1) % self.step;
        self.moments.last().map_or(0, |last| last.order)
    }

    /// Ends the waiting blocks at this moment, which is the next one.
    fn end(&mut self, moment: SnapshotMoment) {
        let end = self.number();
        for ((group, first), Tally { bytes, count, .. }) in self.waiting.drain() {
            // A block whose first moment was replaced was shown by none.
            if first < end && (bytes > 0 || count > 0) {
                self.ended.push(&MomentRow { group, first, end: Some(end), bytes, count });
            }
        }
        self.moments.push(moment);
        self.index.push(moment.order);
    }

    /// Counts the end of a block, or of a part of it, that was allocated before the last moment.
    #[inline]
    pub(super) fn add(&mut self, block: &LiveBlock, bytes: u64, count: u64) {
        let first = self.moment_after(block.order);
        self.waiting.entry((block.group, first)).or_default().add(bytes, count);
    }

    /// Undoes the end that the event of this order counted.
    pub(super) fn take_back(&mut self, block: &LiveBlock, bytes: u64, count: u64, order: u64) {
        let (first, end) = (self.moment_after(block.order), self.moment_after(order));
        if end == self.number() {
            if let Some(sum) = self.waiting.get_mut(&(block.group, first)) {
                subtract(sum, bytes, count);
            }
        } else if first < end {
            self.undone.entry((block.group, first, end)).or_default().add(bytes, count);
        }
    }

    /// The row of a block, or of a part of it, that is live at the end.
    pub(super) fn survivor(&self, block: &LiveBlock, bytes: u64, count: u64) -> MomentRow {
        MomentRow { group: block.group, first: self.moment_after(block.order), end: None, bytes, count }
    }

    /// The intervals of the ended blocks and of the surviving ones; `snapshots`: how many there were.
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

    /// The first moment that can show a block that is allocated at this order, and does not show one that ends there.
    #[inline]
    fn moment_after(&self, order: u64) -> u32 {
        self.index.after(order)
    }

    /// The number of the moment that comes next.
    fn number(&self) -> u32 {
        self.moments.len() as u32
    }
}

/// A row minus what was undone of it; the remainder of the undone sum is left for further rows.
fn without(row: MomentRow, undone: &mut FxHashMap<(u32, u32, u32), Tally>) -> Option<MomentRow> {
    let Entry::Occupied(mut undone) = undone.entry((row.group, row.first, row.end?)) else { return Some(row) };
    let mut left = Tally { bytes: row.bytes, count: row.count, ..Tally::default() };
    let Tally { bytes, count, .. } = *undone.get();
    subtract(&mut left, bytes, count);
    subtract(undone.get_mut(), row.bytes, row.count);
    (left != Tally::default()).then_some(MomentRow { bytes: left.bytes, count: left.count, ..row })
}

fn subtract(sum: &mut Tally, bytes: u64, count: u64) {
    sum.bytes = sum.bytes.saturating_sub(bytes);
    sum.count = sum.count.saturating_sub(count);
}
