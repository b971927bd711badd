//! What each group has allocated and freed so far, while a replay goes on: for windows of time.
//!
//! Invariant: what a group has allocated is what it has freed and what is live of it.

use super::{GroupFigures, GroupTotals};
use crate::analysis::estimate::Variance;
use crate::analysis::sampled_variances::VarianceSum;
use crate::analysis::{Group, GroupFlow, RunningFlow, Tally};

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
