//! Scales the baseline figures of a diff, as requested by `--normalize`.
//!
//! Invariant: a nonzero figure stays nonzero, so that rounding does not make functions seem new.

use std::fmt;

use anyhow::{Result, bail};
use memtrack_reader::View;
use memtrack_reader::analysis::Sum;

use super::capture_info::Capture;
use crate::units::duration;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparedMetric {
    /// Its name in JSON.
    pub(crate) name: &'static str,
    /// The view whose sums are compared.
    pub(crate) view: View,
    /// Compare numbers of allocations instead of bytes.
    pub(crate) counts: bool,
}

impl ComparedMetric {
    /// Minimum change shown when the larger total is `whole`, in bytes or allocations.
    ///
    /// Memory that is live at one moment hardly differs between two runs of a program, whatever its size: 1 kB of
    /// growth is significant, and less in programs of less than 1 MB. Sums over the run grow with its length, and so
    /// does their noise.
    pub(crate) fn floor(self, whole: u64) -> u64 {
        let is_of_run = self.counts || matches!(self.view, View::Allocated | View::Temporary);
        let of_run = if is_of_run { whole / RUN_PART } else { 0 };
        if self.counts { of_run.max(1) } else { (whole / LIVE_PART).clamp(1, FLOOR_BYTES).max(of_run) }
    }

    /// The same for a function with the figure `own`: changes up to half a percent of it are noise of many small
    /// blocks, unless they are a significant share of the total.
    pub(crate) fn significance_floor(self, whole: u64, own: u64) -> u64 {
        self.floor(whole).max((own / OWN_PART).min(whole / LIVE_PART))
    }
}

/// Minimum change shown, in bytes.
const FLOOR_BYTES: u64 = 1000;
/// A smaller change is shown if it is at least 1/n of the total.
const LIVE_PART: u64 = 1000;
/// Changes below 1/n of the function's own figure are not shown.
const OWN_PART: u64 = 200;
/// For sums over the run, changes below 1/n of the total are not shown.
const RUN_PART: u64 = 10_000;

/// The quantity to normalize by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NormalizeBy {
    /// The total of what is compared.
    Total,
    /// The duration.
    Duration,
    /// Units of work, those of the base and of the new capture.
    Work(f64, f64),
}

/// The factor for the baseline's figures, and its reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    factor: f64,
    measure: NormalizeBy,
    /// The reason for the factor, as text.
    reason: String,
}

impl Scale {
    /// Determines the scale of a baseline.
    ///
    /// # Errors
    /// One of the captures has zero of the quantity.
    pub(crate) fn new(measure: NormalizeBy, base: &Capture, new: &Capture, metric: ComparedMetric) -> Result<Self> {
        let sides = [base, new];
        let ([from, to], reason) = match measure {
            NormalizeBy::Total => {
                (sides.map(|side| total(side, metric) as f64), format!("so that the {} totals are equal", metric.name))
            }
            NormalizeBy::Duration => {
                let ns = sides.map(|side| side.info.duration_ns(&side.analysis));
                (ns.map(|ns| ns as f64), format!("for the durations {} and {}", duration(ns[0]), duration(ns[1])))
            }
            NormalizeBy::Work(base, new) => ([base, new], format!("for {base} and {new} units of work")),
        };
        let factor = to / from;
        if !factor.is_normal() || factor <= 0.0 {
            bail!("--normalize {}: the value is zero in one of the captures", name(measure));
        }
        Ok(Self { factor, measure, reason })
    }

    /// The value of `--normalize`.
    pub(crate) fn to(&self) -> &'static str {
        name(self.measure)
    }

    /// The factor.
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// Multiplies the figures of all call stacks; metadata is unchanged.
    pub(crate) fn apply(&self, base: &mut Capture) {
        base.analysis.groups.change_all(|group| {
            let sums = [
                &mut group.peak,
                &mut group.leaked,
                &mut group.leaked_at_exit,
                &mut group.temporary,
                &mut group.allocated,
                &mut group.pinned,
                &mut group.objects,
            ];
            sums.into_iter().for_each(|sum| self.multiply(sum));
        });
        base.analysis.scale_variances(self.factor);
    }

    fn multiply(&self, sum: &mut Sum) {
        for figure in [&mut sum.bytes, &mut sum.count] {
            if *figure > 0 {
                *figure = ((*figure as f64 * self.factor).round() as u64).max(1);
            }
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "base multiplied by {:.4}, {}", self.factor, self.reason)
    }
}

fn name(measure: NormalizeBy) -> &'static str {
    match measure {
        NormalizeBy::Total => "total",
        NormalizeBy::Duration => "duration",
        NormalizeBy::Work(..) => "work",
    }
}

fn total(capture: &Capture, metric: ComparedMetric) -> u64 {
    let sums = capture.analysis.groups.iter().map(|group| *group.sum(metric.view));
    sums.map(|sum| if metric.counts { sum.count } else { sum.bytes }).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::{ComparedMetric, NormalizeBy, Scale, View};
    use crate::reports::fixture;

    const ALLOCATED: ComparedMetric = ComparedMetric { name: "allocated", view: View::Allocated, counts: false };

    #[test]
    fn a_leak_of_a_kilobyte_is_shown_in_a_program_of_any_size() {
        let live = ComparedMetric { name: "leaks", view: View::Leaks, counts: false };
        let of_run = ComparedMetric { name: "allocated", view: View::Allocated, counts: false };
        let number = ComparedMetric { name: "count", counts: true, ..of_run };
        assert_eq!([0, 100_000, 10_000_000, u64::MAX].map(|whole| live.floor(whole)), [1, 100, 1000, 1000]);
        assert_eq!([100_000, 100_000_000].map(|whole| of_run.floor(whole)), [100, 10_000]);
        assert_eq!([100, 100_000].map(|whole| number.floor(whole)), [1, 10]);
        let least = [10_000, 5_000_000, 50_000_000].map(|own| live.significance_floor(60_000_000, own));
        assert_eq!(least, [1000, 25_000, 60_000]);
    }

    #[test]
    fn figures_are_multiplied_and_none_disappears() {
        let (mut base, new) = (fixture::capture(), fixture::capture());
        base.analysis.groups.change_all(|group| (group.pinned, group.objects) = (group.allocated, group.allocated));
        let before: Vec<_> = base.analysis.groups.iter().map(|group| group.allocated).collect();
        let scale = Scale::new(NormalizeBy::Work(1000.0, 1.0), &base, &new, ALLOCATED).unwrap();
        scale.apply(&mut base);
        for (before, group) in before.iter().zip(base.analysis.groups.iter()) {
            let expected = |figure: u64| ((figure as f64 / 1000.0).round() as u64).max(u64::from(figure > 0));
            assert_eq!(group.allocated.bytes, expected(before.bytes));
            assert_eq!(group.allocated.count, expected(before.count));
            assert_eq!((group.pinned, group.objects), (group.allocated, group.allocated));
            assert_eq!(group.leaked.bytes, 0, "nothing stays nothing");
        }
        assert_eq!(scale.to_string(), "base multiplied by 0.0010, for 1000 and 1 units of work");
    }

    #[test]
    fn to_the_total_and_to_the_duration() {
        let (base, mut new) = (fixture::capture(), fixture::capture());
        new.analysis.groups.change_all(|group| group.allocated.bytes *= 3);
        new.info.process.end.monotonic_ns = Some(12_000_000_000);
        assert_eq!(Scale::new(NormalizeBy::Total, &base, &new, ALLOCATED).unwrap().factor(), 3.0);
        let scale = Scale::new(NormalizeBy::Duration, &base, &new, ALLOCATED).unwrap();
        assert_eq!((scale.factor(), scale.to()), (2.0, "duration"));
        assert!(scale.to_string().ends_with("for the durations 3.50 s and 7.00 s"));
    }

    #[test]
    fn nothing_has_no_scale() {
        let error = Scale::new(NormalizeBy::Total, &fixture::empty(), &fixture::capture(), ALLOCATED).unwrap_err();
        assert!(error.to_string().contains("is zero in one"), "{error}");
    }
}
