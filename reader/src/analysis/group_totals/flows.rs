//! What each group has allocated and freed so far, while a replay goes on: for windows of time.
//!
//! Invariant: what a group has allocated is what it has freed and what is live of it.

use memtrack_format::Allocator;

use super::{GroupFigures, GroupKey, GroupTotals, slot};
use crate::analysis::estimate::Variance;
use crate::analysis::sampled_variances::VarianceSum;
use crate::analysis::{ExactFlow, Group, GroupFlow, Moment, RunningFlow, Sum, Tally};
use crate::event::{StackId, ThreadId};

/// The live heap and its peak while events are replayed one by one: it stays in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveLevel {
    bytes: u64,
    count: u64,
    peak_bytes: u64,
    /// The event that raised the peak last, and what was live then.
    peak: Option<(usize, u64)>,
}

impl LiveLevel {
    /// The event at this place allocates a block.
    #[inline(always)]
    pub(crate) fn rise(&mut self, place: usize, bytes: u64) {
        (self.bytes, self.count) = (self.bytes.wrapping_add(bytes), self.count.wrapping_add(1));
        if self.bytes > self.peak_bytes {
            (self.peak_bytes, self.peak) = (self.bytes, Some((place, self.count)));
        }
    }

    /// A block ends.
    #[inline(always)]
    pub(crate) fn fall(&mut self, bytes: u64) {
        (self.bytes, self.count) = (self.bytes.wrapping_sub(bytes), self.count.wrapping_sub(1));
    }
}

impl GroupTotals {
    /// What each selected group has allocated and freed, in the order of their first allocations, if that is kept.
    pub(crate) fn flows(&self) -> impl Iterator<Item = RunningFlow> + '_ {
        let ended = self.figures.ended.as_deref().unwrap_or_default();
        let all = (0..).zip(self.figures.groups.iter().zip(ended));
        all.filter(|(at, _)| self.is_selected(*at)).map(|(at, (group, freed))| {
            let Group { stack, thread, allocator, .. } = group;
            let mut allocated = group.allocated.tally();
            let mut freed = freed.tally();
            let mut live = allocated.less(freed);
            let mut variances = [VarianceSum::default(); 2];
            if self.distances.is_some() {
                variances = self.sampled.flow(at);
                [allocated.variance, freed.variance] = variances.map(Variance::from);
                if (live.bytes, live.count) != (0, 0) {
                    live.variance = variances[0].less(variances[1]).into();
                }
            }
            let peak = self.figures.window_peaks.as_ref().map(|peaks| peaks.of(at));
            RunningFlow::new(GroupFlow { stack, thread, allocator, allocated, freed, live, peak }, variances)
        })
    }

    /// The same where all sums are exact, which takes a small part of the time; `None`: they are estimates.
    pub(crate) fn exact_flows(&self) -> Option<impl Iterator<Item = ExactFlow> + '_> {
        let ended = self.figures.ended.as_deref().unwrap_or_default();
        let all = (0..).zip(self.figures.groups.rows().iter().zip(ended));
        let flows = all.filter(|(at, _)| self.is_selected(*at)).map(|(_, (row, freed))| {
            let Sum { bytes, count, .. } = row.allocated();
            let (allocated, freed) = ((bytes, count), freed.amount());
            ExactFlow { stack: row.stack, thread: row.thread, allocator: row.allocator(), allocated, freed }
        });
        self.distances.is_none().then_some(flows)
    }

    /// Counts an allocation where nothing but flows and the peak is asked for, but for the live heap; returns its group.
    #[inline(always)]
    pub(crate) fn flow_in(&mut self, stack: StackId, thread: ThreadId, allocator: Allocator, bytes: u64) -> u32 {
        let known = self.recent[slot(stack, thread, allocator)];
        if let Some(row) = self.figures.groups.known_row(known, stack, thread, allocator) {
            row.count(bytes);
            return known;
        }
        let group = self.group::<true>(GroupKey { stack, thread, allocator, selected: true });
        self.figures.groups.row_mut(group).count(bytes);
        group
    }

    /// Counts the end of a block likewise.
    #[inline(always)]
    pub(crate) fn flow_out(&mut self, group: u32, bytes: u64) {
        self.ended(group).into_iter().for_each(|ended| ended.add(bytes, 1));
    }

    /// The live heap, to be kept apart for a while.
    #[inline(always)]
    pub(crate) fn level(&self) -> LiveLevel {
        let peak_bytes = self.totals.peak.bytes;
        LiveLevel { bytes: self.live_bytes, count: self.live_count, peak_bytes, peak: None }
    }

    /// What became of it; `moment`: that of an event by its place.
    #[inline(always)]
    pub(crate) fn set_level(&mut self, level: LiveLevel, moment: impl Fn(usize) -> Moment) {
        if let Some((place, count)) = level.peak {
            (self.live_bytes, self.live_count) = (level.peak_bytes, count);
            self.set_peak::<true>(moment(place));
        }
        (self.live_bytes, self.live_count) = (level.bytes, level.count);
    }

    /// The peaks of windows are from now on.
    pub(crate) fn begin_window(&mut self) {
        let GroupFigures { groups, ended, window_peaks, .. } = &mut self.figures;
        if let Some((peaks, ended)) = window_peaks.as_mut().zip(ended.as_ref()) {
            peaks.begin(groups.iter().zip(ended).map(|(group, freed)| group.allocated.tally().less(freed.tally())));
        }
    }

    #[inline]
    pub(super) fn raise_window_peak(&mut self, group: u32) {
        let GroupFigures { groups, ended, window_peaks, .. } = &mut self.figures;
        let Some((peaks, ended)) = window_peaks.as_mut().zip(ended.as_ref()) else { return };
        let allocated = groups.row(group).map_or_else(Tally::default, |row| row.allocated().tally());
        peaks.raise(group, allocated.less(ended.get(group as usize).copied().unwrap_or_default().tally()));
    }
}
