//! What each group has allocated and freed so far, while a replay goes on: for windows of time.
//!
//! Invariant: what a group has allocated is what it has freed and what is live of it.

use super::{GroupFigures, GroupTotals};
use crate::analysis::estimate::Variance;
use crate::analysis::{Group, GroupFlow, Tally};

impl GroupTotals {
    /// What each selected group has allocated and freed, in the order of their first allocations, if that is kept.
    pub(crate) fn flows(&self) -> impl Iterator<Item = GroupFlow> + '_ {
        let ended = self.figures.ended.as_deref().unwrap_or_default();
        let all = (0..).zip(self.figures.groups.iter().zip(ended));
        all.filter(|(at, _)| self.is_selected(*at)).map(|(at, (group, &freed))| {
            let Group { stack, thread, allocator, .. } = group;
            let mut allocated = group.allocated.tally();
            let (mut freed, mut live) = (freed, allocated.less(freed));
            if self.distances.is_some() {
                [allocated.variance, freed.variance, live.variance] = self.sampled.flow(at);
                if (live.bytes, live.count) == (0, 0) {
                    live.variance = Variance::EXACT;
                }
            }
            let peak = self.figures.window_peaks.as_ref().map(|peaks| peaks.of(at));
            GroupFlow { stack, thread, allocator, allocated, freed, live, peak }
        })
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
