//! What each group has allocated and freed so far, while a replay goes on: for windows of time.
//!
//! Invariant: what a group has allocated is what it has freed and what is live of it.

use memtrack_format::Allocator;

use super::{GroupFigures, GroupKey, GroupTotals};
use crate::analysis::estimate::Variance;
use crate::analysis::live_block::LiveBlock;
use crate::analysis::sampled_variances::VarianceSum;
use crate::analysis::{Group, GroupFlow, RunningFlow, Tally};
use crate::event::Event;

impl GroupTotals {
    /// What each selected group has allocated and freed, in the order of their first allocations, if that is kept.
    pub(crate) fn flows(&self) -> impl Iterator<Item = RunningFlow> + '_ {
        let ended = self.figures.ended.as_deref().unwrap_or_default();
        let all = (0..).zip(self.figures.groups.iter().zip(ended));
        all.filter(|(at, _)| self.is_selected(*at)).map(|(at, (group, &freed))| {
            let Group { stack, thread, allocator, .. } = group;
            let mut allocated = group.allocated.tally();
            let (mut freed, mut live) = (freed, allocated.less(freed));
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

    /// Counts an allocation where nothing but flows and the peak is asked for; fills in `block`.
    #[inline(always)]
    pub(crate) fn flow_in(&mut self, event: &Event, allocator: Allocator, block: &mut LiveBlock) {
        let (stack, thread) = (event.stack, event.thread);
        let group = self.group::<true>(GroupKey { stack, thread, allocator, selected: true });
        self.figures.groups.row_mut(group).count(event.size);
        self.live_bytes = self.live_bytes.wrapping_add(event.size);
        self.live_count = self.live_count.wrapping_add(1);
        *block = LiveBlock { size: event.size, order: event.order, time_ns: event.time_ns, group, nth: 0 };
        self.raise_peak::<true>(event);
    }

    /// Counts the end of the block likewise.
    #[inline(always)]
    pub(crate) fn flow_out(&mut self, block: &LiveBlock) {
        self.live_bytes = self.live_bytes.wrapping_sub(block.size);
        self.live_count = self.live_count.wrapping_sub(1);
        self.ended(block.group).into_iter().for_each(|ended| ended.add(block.size, 1));
    }

    /// The peaks of windows are from now on.
    pub(crate) fn begin_window(&mut self) {
        let GroupFigures { groups, ended, window_peaks, .. } = &mut self.figures;
        if let Some((peaks, ended)) = window_peaks.as_mut().zip(ended.as_ref()) {
            peaks.begin(groups.iter().zip(ended).map(|(group, freed)| group.allocated.tally().less(*freed)));
        }
    }

    #[inline]
    pub(super) fn raise_window_peak(&mut self, group: u32) {
        let GroupFigures { groups, ended, window_peaks, .. } = &mut self.figures;
        let Some((peaks, ended)) = window_peaks.as_mut().zip(ended.as_ref()) else { return };
        let allocated = groups.row(group).map_or_else(Tally::default, |row| row.allocated().tally());
        peaks.raise(group, allocated.less(ended.get(group as usize).copied().unwrap_or_default()));
    }
}
