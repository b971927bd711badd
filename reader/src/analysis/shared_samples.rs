//! What two captures of one recording have the same samples of: what was live at both of their moments.
//!
//! The chance of these samples is in both figures, and in no difference of them. Which blocks these are is not kept in sums. Of each call
//! path, what is live at the later moment and was not at the earlier one was allocated in between, so its variance is at most that
//! of what was allocated; the rest of the later variance is shared. A path that keeps what it allocates shares all that it had,
//! and one that frees more in between than it holds nothing at all. Of what is followed live, what came in between is known by group.
//!
//! Invariant: no more is shared than either side has.

use super::diff::MergedTree;
use super::estimate::{Variance, place};
use super::sampled_variances::VarianceSum;
use super::{Analysis, Sum, View};
use crate::frames::Frames;

/// Sums in single precision differ by as much where they are equal.
const ROUNDED: f64 = 1e-6;

/// One capture.
#[derive(Debug)]
pub struct RecordingPart<'a> {
    /// Its sums.
    pub analysis: &'a mut Analysis,
    /// The stacks that they refer to.
    pub frames: &'a Frames,
}

/// The sums of a call path in one capture.
#[derive(Clone, Copy, Debug, Default)]
struct PathSums {
    viewed: VarianceSum,
    at_end: VarianceSum,
    allocated: VarianceSum,
    /// Bytes and blocks of the view, and at the end.
    figures: [(u64, u64); 2],
}

impl PathSums {
    fn add(&mut self, figures: [Sum; 2], variances: [Variance; 3]) {
        let [viewed, at_end, allocated] = variances;
        self.viewed += viewed;
        self.at_end += at_end;
        self.allocated += allocated;
        for ((bytes, count), sum) in self.figures.iter_mut().zip(figures) {
            (*bytes, *count) = (bytes.saturating_add(sum.bytes), count.saturating_add(sum.count));
        }
    }

    /// At most so much of what is live at the end was allocated since the moment of the view.
    fn since_viewed(&self) -> VarianceSum {
        let [viewed, at_end] = self.figures;
        if viewed == at_end && self.viewed.is_nearly(self.at_end, ROUNDED) {
            return VarianceSum::default();
        }
        self.at_end.least(self.allocated.less(self.viewed))
    }

    /// What this has the same samples of as a later one.
    fn shared_with(&self, later: &Self) -> VarianceSum {
        let mut since = later.allocated.less(self.allocated).least(later.allocated);
        since += later.allocated.scaled(ROUNDED);
        since += self.since_viewed();
        later.viewed.less(since).least(self.viewed).least(later.viewed)
    }
}

/// Notes in the variances of a view what two captures of one recording share.
pub fn share_samples([mut earlier, mut later]: [RecordingPart<'_>; 2], view: View) {
    let mut merged = MergedTree::default();
    let places = [&earlier, &later].map(|part| {
        let stacks = part.analysis.groups.iter().map(|group| group.stack).collect::<Vec<_>>();
        merged.places(part.frames, stacks)
    });
    let number = merged.tree.nodes().len();
    let sums = [(&earlier, &places[0]), (&later, &places[1])].map(|(part, places)| part.sums(places, number, view));
    let [of_earlier, of_later] = &sums;
    let shared: Vec<VarianceSum> = of_earlier.iter().zip(of_later).map(|(base, new)| base.shared_with(new)).collect();
    for ((part, places), sums) in [(&mut earlier, &places[0]), (&mut later, &places[1])].into_iter().zip(&sums) {
        let parts: Vec<_> = shared.iter().zip(sums).map(|(shared, sums)| shared.parts_of(sums.viewed)).collect();
        for (variances, at) in part.analysis.variances.iter_mut().flatten().zip(places) {
            let variance = &mut variances.0[place(view)];
            *variance = variance.sharing(parts.get(*at as usize).copied().unwrap_or_default());
        }
    }
}

/// The variances of what was live at a moment and is live at a later one, of a group or of several: in them is noted what both have
/// the same samples of. `came`: that of what was allocated in between.
#[must_use]
pub fn share_live([earlier, later]: [Variance; 2], came: Variance) -> [Variance; 2] {
    let [earlier_sum, later_sum, came] = [earlier, later, came].map(|of| {
        let mut sum = VarianceSum::default();
        sum += of;
        sum
    });
    let shared = later_sum.less(came).least(earlier_sum).least(later_sum);
    [earlier.sharing(shared.parts_of(earlier_sum)), later.sharing(shared.parts_of(later_sum))]
}

impl RecordingPart<'_> {
    fn sums(&self, places: &[u32], number: usize, view: View) -> Vec<PathSums> {
        const AT_END: View = View::LeaksAtExit;
        let mut sums = vec![PathSums::default(); number];
        for ((at, group), place) in self.analysis.groups.iter().enumerate().zip(places) {
            let figures = [view, AT_END].map(|view| *group.sum(view));
            let variances = [view, AT_END, View::Allocated].map(|view| self.analysis.variance(at, view));
            sums.get_mut(*place as usize).into_iter().for_each(|sums| sums.add(figures, variances));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::{Variance, share_live};
    use crate::analysis::SampleWeights;

    /// So many samples of blocks of one size.
    fn samples(count: usize) -> Variance {
        let one = SampleWeights::new(NonZeroU64::new(512 << 10).unwrap()).variance(300);
        std::iter::repeat_n(one, count).fold(Variance::EXACT, |mut sum, one| {
            sum += one;
            sum
        })
    }

    fn unshared(held: [usize; 2], came: usize) -> [f64; 2] {
        let one = samples(1).of_samples();
        share_live(held.map(samples), samples(came)).map(|of| of.unshared().of_samples() / one)
    }

    #[test]
    fn what_stays_is_no_chance_and_what_came_and_went_is() {
        let is_near = |held, came, wanted: [f64; 2]| {
            let found = unshared(held, came);
            assert!(
                found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 0.01),
                "{found:?} {wanted:?}"
            );
        };
        is_near([600, 600], 0, [0.0, 0.0]);
        is_near([600, 636], 36, [0.0, 36.0]);
        is_near([600, 500], 0, [100.0, 0.0]);
        // A third was replaced.
        is_near([300, 300], 100, [100.0, 100.0]);
        // All of it, several times.
        is_near([300, 330], 5000, [300.0, 330.0]);
        is_near([0, 20], 20, [0.0, 20.0]);
    }

    #[test]
    fn what_each_moment_has_by_itself_stays() {
        let [earlier, later] = share_live([samples(600), samples(636)], samples(36));
        assert_eq!(
            [earlier.sample_numbers(), later.sample_numbers()],
            [samples(600), samples(636)].map(Variance::sample_numbers)
        );
    }
}
