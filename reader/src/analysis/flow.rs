//! What a group has allocated and freed in a span of time, and what it holds then.
//!
//! Invariant: over the whole recording, `live` is `allocated` less `freed`.

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

use super::{Group, Tally};
use crate::event::{StackId, ThreadId};

/// The sums of one stack, thread and allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFlow {
    /// The full call stack.
    pub stack: StackId,
    /// The allocating thread.
    pub thread: ThreadId,
    /// The allocating function.
    pub allocator: Allocator,
    /// What was allocated.
    pub allocated: Tally,
    /// What has ended of all that the group has ever allocated.
    pub freed: Tally,
    /// What is live at the end.
    pub live: Tally,
    /// The most bytes that were live at a moment, and the blocks then; `None`: it is not kept, see
    /// [`Options::window_peaks`](super::Options::window_peaks).
    pub peak: Option<Tally>,
}

/// What a group of an exact recording has allocated and freed since the recording began, as bytes and numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExactFlow {
    pub(crate) stack: StackId,
    pub(crate) thread: ThreadId,
    pub(crate) allocator: Allocator,
    pub(crate) allocated: (u64, u64),
    pub(crate) freed: (u64, u64),
}

/// A span of time, and what groups did in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteWindow {
    /// Its first moment, in nanoseconds since recording began.
    pub from_ns: u64,
    /// The moment after its last.
    pub to_ns: u64,
    /// Groups that allocated or freed in it; and, where [`complete`](crate::windows::complete) has added them, those that hold
    /// something at its end.
    pub rows: Vec<GroupFlow>,
}

impl SiteWindow {
    /// Maps each group to another stack and allocator, and merges groups of a thread that become equal.
    pub(super) fn merge(&mut self, key: impl Fn(&Group) -> (StackId, Allocator)) {
        let mut numbers: FxHashMap<(StackId, Allocator, ThreadId), usize> = FxHashMap::default();
        let mut merged: Vec<GroupFlow> = Vec::with_capacity(self.rows.len());
        for row in self.rows.drain(..) {
            let (stack, allocator) = key(&Group::new(row.stack, row.allocator, row.thread));
            let number = *numbers.entry((stack, allocator, row.thread)).or_insert(merged.len());
            match merged.get_mut(number) {
                Some(known) => known.add(&row),
                None => merged.push(GroupFlow { stack, allocator, ..row }),
            }
        }
        self.rows = merged;
    }
}

/// Sets what groups hold at the end of each window, after groups were merged: some of those that became one may have no row in
/// a window, as they did nothing in it, and hold something.
pub(super) fn hold_again(windows: &mut [SiteWindow]) {
    let mut held: FxHashMap<(StackId, Allocator, ThreadId), Tally> = FxHashMap::default();
    for row in windows.iter_mut().flat_map(|window| &mut window.rows) {
        let held = held.entry((row.stack, row.allocator, row.thread)).or_default();
        *held += row.allocated;
        *held = held.less(row.freed);
        let mut idle = held.less(row.live);
        if (idle.bytes, idle.count) == (0, 0) {
            idle = Tally::default();
            // What was rounded does not add up.
            *held = row.live;
        }
        row.live += idle;
        row.peak.iter_mut().for_each(|peak| *peak += idle);
    }
}

impl GroupFlow {
    /// Adds what another group did in the same span. The most of both together is not known: it is at most the sum of both,
    /// and at least what is live of both at the end.
    fn add(&mut self, other: &Self) {
        self.allocated += other.allocated;
        self.freed += other.freed;
        self.live += other.live;
        self.peak = self.peak.zip(other.peak).map(|(one, other)| {
            let mut sum = one;
            sum += other;
            sum
        });
    }
}

/// The most that each group had live at a moment since the present window began.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowPeaks(Vec<Tally>);

impl WindowPeaks {
    /// A window begins; what is live then, by group.
    pub(super) fn begin(&mut self, live: impl Iterator<Item = Tally>) {
        self.0.clear();
        self.0.extend(live);
    }

    /// The group has this live after an allocation.
    #[inline]
    pub(super) fn raise(&mut self, group: u32, live: Tally) {
        let group = group as usize;
        if group >= self.0.len() {
            self.0.resize(group + 1, Tally::default());
        }
        if let Some(peak) = self.0.get_mut(group).filter(|peak| peak.bytes < live.bytes) {
            *peak = live;
        }
    }

    /// That of a group.
    pub(super) fn of(&self, group: u32) -> Tally {
        self.0.get(group as usize).copied().unwrap_or_default()
    }
}
