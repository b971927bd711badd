//! The end of a replay: what is live is added to the running sums.
//!
//! Invariant: the running sums are not changed by an analysis before the last one.

use hashbrown::HashTable;

use super::RECENT;
use super::{GroupFigures, GroupTotals};
use crate::analysis::block_weight::{peak_weight_of, variance_of, weight_of};
use crate::analysis::estimate::place;
use crate::analysis::groups::OptionalSum;
use crate::analysis::intervals::PackedRows;
use crate::analysis::live_block::{LiveBlock, LivePart};
use crate::analysis::peak_moves::PeakMoves;
use crate::analysis::sampled_peak::{OtherMoments, PeakSum};
use crate::analysis::sampled_variances::{self, ViewVarianceSums, add_live};
use crate::analysis::since::EndedSince;
use crate::analysis::{Analysis, Groups, Mapped, Peak, Totals, View};

/// The intervals of what is live at the end.
#[derive(Debug)]
pub(crate) struct Surviving(PackedRows);

impl GroupTotals {
    /// The analysis, given all live blocks.
    pub(crate) fn finish(&self, live: impl Iterator<Item = LivePart>) -> Analysis {
        let mut figures = self.figures.clone();
        let surviving = self.survive(&mut figures, live, self.other_moments());
        self.analysis(figures, &surviving)
    }

    /// The first half of [`GroupTotals::finish`], for the last call: it consumes the tables, and the caller may free
    /// the live blocks before the second half. So nothing is in memory twice.
    pub(crate) fn close(&mut self, live: impl Iterator<Item = LivePart>) -> Surviving {
        (self.index, self.recent) = (HashTable::new(), Box::new([0; RECENT]));
        let others = self.other_moments();
        let mut figures = std::mem::take(&mut self.figures);
        let surviving = self.survive(&mut figures, live, others);
        (self.figures, self.since_peak) = (figures, EndedSince::default());
        surviving
    }

    /// The second half of [`GroupTotals::finish`].
    pub(crate) fn into_analysis(mut self, surviving: &Surviving) -> Analysis {
        let figures = std::mem::take(&mut self.figures);
        self.analysis(figures, surviving)
    }

    /// Adds the live blocks to the groups.
    fn survive(
        &self,
        figures: &mut GroupFigures,
        live: impl Iterator<Item = LivePart>,
        mut others: Option<OtherMoments>,
    ) -> Surviving {
        let GroupFigures { groups, lives, details, variances: of_views, .. } = figures;
        let moments = (self.newest_peak_end(), self.finalizing);
        let is_peak_now = moments.0 == u64::MAX;
        let ended = self.since_peak.iter().filter(|_| !is_peak_now);
        ended.for_each(|(group, sum)| *groups.part_mut(group, OptionalSum::Peak) = sum);
        let mut surviving = PackedRows::default();
        let mut variances = self.distances.as_ref().map(|_| self.sampled.without_live(is_peak_now));
        for LivePart { block, bytes, first } in live {
            if let Some((others, distances)) = others.as_mut().zip(self.distances.as_ref()) {
                others.add_live((block.group, block.order), &peak_weight_of(distances, groups, &block, bytes, first));
            }
            let (bytes, count) = weight_of(self.distances.as_ref(), groups, &block, bytes, first);
            self.add_survivor(groups, &block, (bytes, count), moments.0);
            let sums = variances.as_mut().and_then(|variances| variances.get_mut(block.group as usize));
            if let Some((sums, variance)) = sums.zip(variance_of(self.distances.as_ref(), groups, &block)) {
                add_live(sums, &block, variance, moments);
            }
            if let Some(detail) = details.as_mut().and_then(|details| details.get_mut(block.group as usize)) {
                detail.live_on(count, self.totals.end_time_ns.saturating_sub(block.time_ns));
            }
            if let Some(lives) = lives {
                surviving.push(&lives.survivor(&block, bytes, count));
            }
        }
        let moves = others.as_ref().zip(variances.as_ref()).map_or_else(Vec::new, |(others, variances)| {
            correct_peak(groups, variances, others, self.shared_peak.is_some())
        });
        let moves = moves.into_iter().chain(std::iter::repeat(PeakMoves::NONE));
        *of_views = variances.map(|variances| {
            variances.into_iter().zip(moves).map(|(sums, moves)| sampled_variances::of_views(sums, moves)).collect()
        });
        if self.totals.finalizing.is_none() {
            groups.copy_part(OptionalSum::LeakedAtExit, OptionalSum::Leaked);
        }
        Surviving(surviving)
    }

    fn analysis(
        &self,
        GroupFigures { groups, lives, details, variances, .. }: GroupFigures,
        surviving: &Surviving,
    ) -> Analysis {
        let intervals = lives.map(|ended| ended.into_intervals(&surviving.0, self.snapshots.len() as u32));
        let totals = self.totals_of(&groups);
        let snapshots = self.snapshots.clone();
        let exact_times = self.exact_times;
        let failed = self.failed.clone();
        let mut analysis = Analysis {
            groups,
            totals,
            failed,
            mapped: Mapped::default(),
            snapshots,
            intervals,
            details,
            variances,
            exact_times,
            is_joined: false,
            curve: None,
            windows: Vec::new(),
            unaccounted: 0,
        };
        if self.selection.is_some() {
            analysis.retain(|at, _| self.selected.get(at).copied().unwrap_or(false));
        }
        analysis
    }

    fn add_survivor(&self, groups: &mut Groups, block: &LiveBlock, (bytes, count): (u64, u64), peak_end: u64) {
        let mut add = |part| groups.part_mut(block.group, part).add(bytes, count, block.order, block.time_ns);
        add(OptionalSum::LeakedAtExit);
        if block.order < peak_end {
            add(OptionalSum::Peak);
        }
        if block.order < self.finalizing {
            add(OptionalSum::Leaked);
        }
    }

    fn totals_of(&self, groups: &Groups) -> Totals {
        let mut totals = self.totals.clone();
        groups.sum_up(&mut totals);
        totals.peak = match self.shared_peak {
            // Corrected sums.
            None if self.distances.is_some() => Peak { at: self.newest_peak().at, ..totals.peak },
            None => self.totals.peak,
            Some(at) => Peak { at, ..totals.peak },
        };
        totals
    }
}

/// Corrects the sums of the peak, and says how they differ at other moments that may have been it. Of a common peak of several
/// processes it is known later by how much it is too high.
fn correct_peak(
    groups: &mut Groups,
    variances: &[ViewVarianceSums],
    others: &OtherMoments,
    is_shared: bool,
) -> Vec<PeakMoves> {
    const PEAK: usize = place(View::HighWaterMark);
    let of = |(at, variances): (usize, &ViewVarianceSums)| {
        let sum = groups.part(at as u32, OptionalSum::Peak);
        let end = groups.part(at as u32, if is_shared { OptionalSum::Peak } else { OptionalSum::LeakedAtExit });
        let (variances, end) = (variances[PEAK].variances(), (end.bytes, end.count));
        PeakSum { bytes: sum.bytes, count: sum.count, variances, end, ..PeakSum::default() }
    };
    let mut sums: Vec<PeakSum> = variances.iter().enumerate().map(of).collect();
    let all = |part| {
        (0..).zip(&sums).fold((0_u64, 0_u64), |(bytes, count), (at, _)| {
            let sum = groups.part(at, part);
            (bytes.saturating_add(sum.bytes), count.saturating_add(sum.count))
        })
    };
    let (end, finalizing) = (all(OptionalSum::LeakedAtExit), all(OptionalSum::Leaked));
    let least = (end.0.max(finalizing.0), if finalizing.0 > end.0 { finalizing.1 } else { end.1 });
    others.correct(&mut sums, (!is_shared).then_some(least));
    for (at, sum) in (0..).zip(&sums) {
        let part = *groups.part(at, OptionalSum::Peak);
        if (part.bytes, part.count) != (sum.bytes, sum.count) {
            let corrected = groups.part_mut(at, OptionalSum::Peak);
            (corrected.bytes, corrected.count) = (sum.bytes, sum.count);
        }
    }
    sums.into_iter().map(|sum| sum.moves).collect()
}
