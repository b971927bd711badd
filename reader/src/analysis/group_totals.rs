//! The running sums of every group: peak, leaks, temporary and all allocations, in one pass.
//!
//! Which event was the peak is only known at the end. Let P be the highest moment so far. What was live at P is what is
//! live now and was allocated up to P, plus what was allocated up to P and has ended since. So the end of such an
//! allocation is added to its group's sum [`EndedSince`] the peak; a new peak discards these sums. What was live at
//! finalization is found in the same way, with a moment that never moves. The common peak of several processes is set
//! from outside: see [`GroupTotals::mark_peak`]. An estimated peak is corrected: see [`sampled_peak`](super::sampled_peak).
//!
//! Invariant: `live_bytes` is the sum over everything allocated and not yet released, after every event.

mod end;
mod ended_sum;
mod flows;
mod peak;
mod short_lived;

use std::hash::BuildHasher;
use std::num::NonZeroU64;

use hashbrown::HashTable;
use memtrack_format::Allocator;
use rustc_hash::FxBuildHasher;

use self::ended_sum::EndedSum;
use self::peak::JointMoments;
pub(crate) use self::peak::LiveSample;
use super::Options;
use super::block_weight::{variance_of, weight_of};
use super::estimate::Variance;
use super::flow::WindowPeaks;
use super::groups::{OptionalSum, StoredGroup};
use super::interval_tracker::IntervalTracker;
use super::live_block::{LiveBlock, ReleasedBlock};
use super::sample_distances::SampleDistances;
use super::sampled_peak::SampledPeak;
use super::sampled_variances::{SampledVariances, ViewMoments};
use super::since::EndedSince;
use super::{Detail, Failed, Group, Groups, Moment, Selection, Tally, Totals, ViewVariances};
use crate::event::{Event, Snapshot, StackId, ThreadId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GroupKey {
    stack: StackId,
    thread: ThreadId,
    allocator: Allocator,
    /// Whether the selection includes its allocations; the others have groups of their own, which are dropped at the
    /// end.
    selected: bool,
}

/// The sums of each group, and what else is kept of it.
#[derive(Clone, Debug, Default)]
struct GroupFigures {
    /// Their sums of moments have what ended after the moment; what is live is added at the end.
    groups: Groups,
    lives: Option<IntervalTracker>,
    details: Option<Vec<Detail>>,
    /// What has ended of each group.
    ended: Option<Vec<EndedSum>>,
    window_peaks: Option<WindowPeaks>,
    /// How exact the sums are, where they are estimates; at the end only.
    variances: Option<Vec<ViewVariances>>,
}

/// Entries of the cache in front of the group index: a power of two; more than this measures no better.
const RECENT: usize = 8192;

/// The running sums.
#[derive(Debug)]
pub(crate) struct GroupTotals {
    /// The totals that are not sums over groups.
    pub(crate) totals: Totals,
    figures: GroupFigures,
    /// Ended after the peak.
    since_peak: EndedSince,
    /// Groups by their keys.
    index: HashTable<u32>,
    /// Whether each group is selected; empty if no selection is active.
    selected: Vec<bool>,
    /// The group last used for each hash of a key; checked against the key before use.
    recent: Box<[u32; RECENT]>,
    failed: Failed,
    live_bytes: u64,
    live_count: u64,
    /// One more than the peak's order: allocations with a smaller order may have been live at the peak. 0: no peak yet.
    peak_end: u64,
    /// `Some`: the peak is that of several processes; inside, the moment if this process raised it.
    shared_peak: Option<Option<Moment>>,
    /// Bytes that undone frees have added to the peak since [`GroupTotals::take_restored`] was last called.
    restored_at_peak: u64,
    /// The order at which finalization began; 0: not yet.
    finalizing: u64,
    /// Of samples, what was live then.
    live_at_finalizing: u64,
    /// The number of allocations of each thread so far, modulo 2^32.
    thread_counts: Vec<u32>,
    snapshots: Vec<Snapshot>,
    /// The order of the last moment that intervals distinguish: only blocks allocated before it were shown by one. 0:
    /// none.
    shown: u64,
    /// `None` for everything.
    selection: Option<Selection>,
    exact_times: bool,
    /// What a block stands for, where samples are recorded.
    distances: Option<SampleDistances>,
    sampled: SampledVariances,
    /// By what the peak is corrected, where samples are recorded.
    sampled_peak: SampledPeak,
    joint: JointMoments,
}

impl GroupTotals {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            totals: Totals { temporary_threshold: options.temporary_threshold, ..Totals::default() },
            figures: GroupFigures {
                groups: Groups::default(),
                lives: (options.moments > 0).then(|| IntervalTracker::new(options.moments, options.snapshots)),
                details: options.details.then(Vec::new),
                ended: options.flows.then(Vec::new),
                window_peaks: (options.flows && options.window_peaks).then(WindowPeaks::default),
                variances: None,
            },
            since_peak: EndedSince::default(),
            index: HashTable::new(),
            selected: Vec::new(),
            recent: Box::new([0; RECENT]),
            failed: Failed::default(),
            live_bytes: 0,
            live_count: 0,
            peak_end: 0,
            shared_peak: options.shared_peak.then_some(None),
            restored_at_peak: 0,
            finalizing: 0,
            live_at_finalizing: 0,
            thread_counts: Vec::new(),
            snapshots: Vec::new(),
            shown: 0,
            selection: Some(options.selection).filter(|selection| !selection.is_everything()),
            exact_times: options.exact_times,
            distances: options.sample_bytes.map(SampleDistances::new),
            sampled: SampledVariances::default(),
            sampled_peak: SampledPeak::default(),
            joint: JointMoments::default(),
        }
    }

    pub(crate) fn group_keys(&self) -> impl Iterator<Item = (StackId, Allocator, ThreadId)> + '_ {
        self.figures.groups.iter().map(|group| (group.stack, group.allocator, group.thread))
    }

    pub(crate) fn live(&self) -> Tally {
        Tally { bytes: self.live_bytes, count: self.live_count, variance: self.sampled.live() }
    }

    /// The bytes of that.
    #[inline]
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Everything ever allocated, selected or not.
    pub(crate) fn allocated(&self) -> Tally {
        self.figures.groups.iter().map(|group| group.allocated.tally()).sum()
    }

    /// Whether only the sums of groups are asked for, of everything, by events that stand for themselves: then
    /// [`GroupTotals::allocate`] and [`GroupTotals::release`] need not look at anything else.
    pub(crate) fn is_sums_only(&self) -> bool {
        let GroupFigures { details, window_peaks, .. } = &self.figures;
        let extra = details.is_some() || window_peaks.is_some();
        !extra && self.selection.is_none() && self.distances.is_none()
    }

    /// Whether it is noted when blocks were live, in the order in which they end or are found live.
    pub(crate) fn keeps_intervals(&self) -> bool {
        self.figures.lives.is_some()
    }

    /// Counts an allocation by the event's thread and stack; fills in `block`.
    #[inline(always)]
    pub(crate) fn allocate<const SUMS_ONLY: bool>(
        &mut self,
        event: &Event,
        allocator: Allocator,
        block: &mut LiveBlock,
    ) {
        let selected = SUMS_ONLY || self.selection.is_none_or(|selection| selection.takes(event));
        let group = self.group::<SUMS_ONLY>(GroupKey { stack: event.stack, thread: event.thread, allocator, selected });
        self.look_before::<SUMS_ONLY>();
        let weight = match self.distances.as_ref().filter(|_| !SUMS_ONLY && !allocator.is_mapping()) {
            None => (event.size, 1),
            Some(distances) => {
                let weights = distances.at(event.thread, event.order);
                self.sampled.allocate(group, weights.variance(event.size));
                weights.of(event.size, event.order)
            }
        };
        self.figures.groups.row_mut(group).allocate(weight, event.order, event.time_ns);
        if !SUMS_ONLY {
            self.detail(group, |detail| detail.allocate(event.size, weight));
            self.raise_window_peak(group);
        }
        self.totals.size_histogram.add(event.size, weight.1);
        let nth = self.count_of_thread(event.thread);
        *nth = nth.wrapping_add(1);
        let nth = *nth;
        self.live_bytes = self.live_bytes.wrapping_add(weight.0);
        self.live_count = self.live_count.wrapping_add(weight.1);
        *block = LiveBlock { size: event.size, order: event.order, time_ns: event.time_ns, group, nth };
        self.raise_peak_by::<SUMS_ONLY>(block, event);
    }

    /// Samples of the event's thread are so far apart from here on.
    pub(crate) fn sample_distance(&mut self, event: &Event) {
        if let Some((distances, bytes)) = self.distances.as_mut().zip(NonZeroU64::new(event.size)) {
            distances.change(event.thread, event.order, bytes);
        }
    }

    /// A call for memory failed.
    pub(crate) fn failed(&mut self, event: &Event, allocator: Allocator) {
        if self.selection.is_none_or(|selection| selection.takes(event)) {
            self.failed.add(event, allocator);
        }
    }

    /// Counts the end of `bytes` of the block, and with `whole` of the block itself. Writes to `ended` what an undo
    /// needs.
    #[inline(always)]
    pub(crate) fn release<const SUMS_ONLY: bool>(
        &mut self,
        block: &LiveBlock,
        bytes: u64,
        whole: bool,
        event: &Event,
        ended: &mut ReleasedBlock,
    ) {
        (ended.order, ended.temporary) = (event.order, false);
        let part = bytes;
        let (bytes, count) = if SUMS_ONLY { (bytes, u64::from(whole)) } else { self.weight(block, bytes, whole) };
        // How many allocations lie between two events is not known from samples.
        if whole && (SUMS_ONLY || self.distances.is_none()) {
            self.end_temporary(block, event, ended);
        }
        self.totals.deallocations = self.totals.deallocations.saturating_add(count);
        if !SUMS_ONLY {
            self.end_sampled(block, part, whole);
            self.sampled_peak.last = Moment { order: event.order, time_ns: event.time_ns };
            self.detail(block.group, |detail| detail.end(count, event.time_ns.saturating_sub(block.time_ns)));
        }
        self.drop_live::<SUMS_ONLY>(block, bytes, count);
    }

    /// The block's address was allocated again: its free was not seen.
    pub(crate) fn replace(&mut self, block: &LiveBlock) {
        let (bytes, count) = self.weight(block, block.size, true);
        self.totals.replaced = self.totals.replaced.saturating_add(count);
        self.end_sampled(block, block.size, true);
        self.drop_live::<false>(block, bytes, count);
    }

    /// The block, or a part of it, disappeared with the process's old image.
    pub(crate) fn discard(&mut self, block: &LiveBlock, bytes: u64, whole: bool) {
        self.end_sampled(block, bytes, whole);
        let (bytes, count) = self.weight(block, bytes, whole);
        self.totals.discarded = self.totals.discarded.saturating_add(count);
        self.drop_live::<false>(block, bytes, count);
    }

    /// Undoes a release; `event` is the undo.
    ///
    /// The sums become as if the block had been live all the time. So does the peak, with one exception: if events of
    /// other threads came in between, and only the undone bytes make a new maximum, then the peak is taken at the undo,
    /// not at its first moment. A source that removes both events avoids this.
    pub(crate) fn restore(&mut self, block: &LiveBlock, bytes: u64, whole: bool, ended: &ReleasedBlock, event: &Event) {
        self.restore_in_halves(block, bytes, whole, ended);
        let (bytes, count) = self.weight(block, bytes, whole);
        if let Some(variance) = self.sampled_variance(block) {
            self.sampled.restore(block, variance, ended.order, self.moments());
        }
        self.totals.undone += 1;
        self.totals.deallocations = self.totals.deallocations.saturating_sub(count);
        self.live_bytes = self.live_bytes.wrapping_add(bytes);
        self.live_count = self.live_count.wrapping_add(count);
        self.ended(block.group).into_iter().for_each(|ended| ended.subtract(bytes, count));
        self.figures.lives.iter_mut().for_each(|lives| lives.take_back(block, bytes, count, ended.order));
        let lived_ns = event.time_ns.saturating_sub(block.time_ns);
        self.detail(block.group, |detail| detail.restore(bytes, count, lived_ns));
        let of_block = self.weight(block, block.size, true);
        ended.take_back(block, of_block, &mut self.figures.groups);
        if block.order < self.finalizing && self.finalizing <= ended.order {
            self.figures.groups.part_mut(block.group, OptionalSum::Leaked).subtract(bytes, count);
        }
        if self.totals.peak.at.is_some_and(|at| ended.order <= at.order) {
            self.totals.peak.bytes = self.totals.peak.bytes.saturating_add(bytes);
            self.totals.peak.allocations = self.totals.peak.allocations.saturating_add(count);
        }
        if ended.order < self.peak_end {
            self.restored_at_peak = self.restored_at_peak.saturating_add(bytes);
        } else if block.order < self.peak_end {
            let sum = self.since_peak.known(block.group);
            sum.into_iter().for_each(|sum| sum.subtract(bytes, count));
        }
        self.raise_window_peak(block.group);
        if self.distances.is_none() {
            self.raise_peak::<false>(event);
        }
    }

    /// Python begins to finalize; only the first such event counts.
    pub(crate) fn finalizing(&mut self, event: &Event) {
        if self.totals.finalizing.is_none() {
            self.totals.finalizing = Some(Moment { order: event.order, time_ns: event.time_ns });
            self.finalizing = event.order;
            self.look_at_finalizing();
        }
    }

    /// All so far.
    pub(crate) fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// A snapshot is taken before the event of this order.
    pub(crate) fn snapshot(&mut self, order: u64, time_ns: u64, rss_bytes: u64) -> Snapshot {
        let index = u32::try_from(self.snapshots.len()).unwrap_or(u32::MAX);
        let time_ns = self.snapshots.last().map_or(time_ns, |last| time_ns.max(last.time_ns));
        let snapshot = Snapshot { index, time_ns, rss_bytes, heap_bytes: self.live_bytes, order };
        self.totals.rss_last_bytes = rss_bytes;
        self.totals.rss_peak_bytes = self.totals.rss_peak_bytes.max(rss_bytes);
        self.snapshots.push(snapshot);
        self.shown = self.figures.lives.as_mut().map_or(0, |lives| lives.snapshot(&snapshot));
        snapshot
    }

    /// The group with this key. Consecutive events mostly share a group, so a small cache avoids most hashing.
    #[inline(always)]
    fn group<const SUMS_ONLY: bool>(&mut self, key: GroupKey) -> u32 {
        let slot = slot(key.stack, key.thread, key.allocator);
        let recent = self.recent[slot];
        match self.figures.groups.row(recent) {
            Some(row) if key.is_of(row) && (SUMS_ONLY || self.is_selected(recent) == key.selected) => recent,
            _ => {
                let group = self.indexed_group(key);
                self.recent[slot] = group;
                group
            }
        }
    }

    #[inline]
    fn is_selected(&self, group: u32) -> bool {
        self.selected.get(group as usize).copied().unwrap_or(true)
    }

    #[cold]
    fn indexed_group(&mut self, key: GroupKey) -> u32 {
        let is_same = |&group: &u32| {
            self.figures.groups.row(group).is_some_and(|row| key.is_of(row)) && self.is_selected(group) == key.selected
        };
        if let Some(&known) = self.index.find(key.hash(), is_same) {
            return known;
        }
        // Never cut off: 2^32 groups would take hundreds of gigabytes of memory first.
        let group = self.figures.groups.len() as u32;
        self.figures.groups.push(&Group::new(key.stack, key.allocator, key.thread));
        self.since_peak.add_group();
        if self.distances.is_some() {
            self.sampled.add_group();
            self.sampled_peak.add_group();
            if self.shared_peak.is_some() {
                self.joint.moments.add_group();
            }
        }
        if self.selection.is_some() {
            self.selected.push(key.selected);
        }
        if let Some(details) = &mut self.figures.details {
            details.push(Detail::default());
        }
        self.figures.ended.iter_mut().for_each(|ended| ended.push(EndedSum::default()));
        let groups = &self.figures.groups;
        self.index
            .insert_unique(key.hash(), group, |&group| groups.row(group).map_or(0, |row| GroupKey::from(row).hash()));
        group
    }

    /// Updates the details of a group, if details are kept.
    #[inline]
    fn detail(&mut self, group: u32, change: impl FnOnce(&mut Detail)) {
        if let Some(detail) = self.figures.details.as_mut().and_then(|details| details.get_mut(group as usize)) {
            change(detail);
        }
    }

    /// What has ended of a group, if that is kept.
    #[inline]
    fn ended(&mut self, group: u32) -> Option<&mut EndedSum> {
        self.figures.ended.as_mut()?.get_mut(group as usize)
    }

    #[inline]
    fn count_of_thread(&mut self, thread: ThreadId) -> &mut u32 {
        let index = thread.0 as usize;
        if index >= self.thread_counts.len() {
            self.thread_counts.resize(index + 1, 0);
        }
        &mut self.thread_counts[index]
    }

    /// Counts the block as temporary if its thread freed it soon enough.
    #[inline(always)]
    fn end_temporary(&mut self, block: &LiveBlock, event: &Event, ended: &mut ReleasedBlock) {
        let Some(count) = self.thread_counts.get(event.thread.0 as usize) else { return };
        let further = count.wrapping_sub(block.nth);
        // The order resolves what the counter, modulo 2^32, cannot.
        let recent = event.order.wrapping_sub(block.order) <= u64::from(u32::MAX);
        let is_own = || self.figures.groups.row(block.group).is_some_and(|row| row.thread == event.thread);
        if further <= self.totals.temporary_threshold && recent && is_own() {
            // Nothing is counted here where samples are recorded, so each block stands for itself.
            ended.count(block, (block.size, 1), self.figures.groups.part_mut(block.group, OptionalSum::Temporary));
        }
    }

    /// Bytes and number for which a part of a block stands.
    #[inline]
    fn weight(&self, block: &LiveBlock, bytes: u64, whole: bool) -> (u64, u64) {
        weight_of(self.distances.as_ref(), &self.figures.groups, block, bytes, whole)
    }

    /// The variance that a block has brought; `None`: it is no sample.
    fn sampled_variance(&self, block: &LiveBlock) -> Option<Variance> {
        variance_of(self.distances.as_ref(), &self.figures.groups, block)
    }

    #[inline]
    fn end_sampled(&mut self, block: &LiveBlock, bytes: u64, whole: bool) {
        if let Some(variance) = self.sampled_variance(block) {
            self.sampled.end(block, variance, self.moments());
        }
        self.end_in_halves(block, bytes, whole);
    }

    fn moments(&self) -> ViewMoments {
        (self.peak_end, self.finalizing)
    }

    #[inline(always)]
    fn drop_live<const SUMS_ONLY: bool>(&mut self, block: &LiveBlock, bytes: u64, count: u64) {
        self.live_bytes = self.live_bytes.wrapping_sub(bytes);
        self.live_count = self.live_count.wrapping_sub(count);
        self.ended(block.group).into_iter().for_each(|ended| ended.add(bytes, count));
        if !SUMS_ONLY {
            self.detail(block.group, |detail| detail.shrink(bytes, count));
        }
        if block.order < self.peak_end {
            self.since_peak.sum(block.group).add(bytes, count, block.order, block.time_ns);
        }
        if block.order < self.finalizing {
            self.figures.groups.part_mut(block.group, OptionalSum::Leaked).add(
                bytes,
                count,
                block.order,
                block.time_ns,
            );
        }
        if block.order < self.shown
            && let Some(lives) = &mut self.figures.lives
        {
            lives.add(block, bytes, count);
        }
    }
}

/// The place of a group in the cache.
#[inline(always)]
fn slot(stack: StackId, thread: ThreadId, allocator: Allocator) -> usize {
    let mixed = stack.0 ^ thread.0.wrapping_mul(0x9e5) ^ ((allocator as u32) << 8);
    mixed as usize % RECENT
}

impl GroupKey {
    #[inline]
    fn is_of(self, row: &StoredGroup) -> bool {
        row.is_of(self.stack, self.thread, self.allocator)
    }

    /// Groups that differ only in `selected` share the hash.
    fn hash(self) -> u64 {
        FxBuildHasher.hash_one((self.stack, self.thread, self.allocator))
    }
}

impl From<&StoredGroup> for GroupKey {
    fn from(row: &StoredGroup) -> Self {
        Self { stack: row.stack, thread: row.thread, allocator: row.allocator(), selected: true }
    }
}
