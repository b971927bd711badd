//! Figures with their 95 % intervals, where a capture has samples of allocations only.
//!
//! Sums of whole captures are widened by what may be there without a sample. Invariant: where everything was recorded, a
//! figure equals both ends of its interval, and reports are as they are without this module.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use memtrack_reader::View;
use memtrack_reader::analysis::{SampleWeights, SamplingGaps, Tally, Variance, unseen_bytes};
use memtrack_reader::event::Thread;
use serde_json::{Value, json};

use super::capture_info::Capture;
use super::stats::{allocated, freed, is_counted};
use crate::units::{allocations_within, count, count_within, plural, size, size_within};

impl Capture {
    /// Whether only samples of its allocations were recorded.
    pub(crate) fn is_sampled(&self) -> bool {
        self.sample_bytes().is_some()
    }

    /// How many bytes samples are apart on the average.
    pub(crate) fn sample_bytes(&self) -> Option<NonZeroU64> {
        self.info.process.sample_bytes.and_then(NonZeroU64::new)
    }

    /// Frees of what the process had allocated before it was recorded; `None`: samples do not tell them from others.
    pub(crate) fn frees_of_earlier_blocks(&self) -> Option<u64> {
        let is_known = !(self.is_sampled() && self.info.process.began_late);
        is_known.then(|| self.analysis.totals.frees_of_earlier_blocks())
    }
}

/// A figure and its intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangedTally {
    pub(crate) tally: Tally,
    pub(crate) bytes: (u64, u64),
    pub(crate) count: (u64, u64),
}

impl From<Tally> for RangedTally {
    fn from(tally: Tally) -> Self {
        Self { tally, bytes: tally.bytes_range(), count: tally.count_range() }
    }
}

impl RangedTally {
    /// What is left of another figure without this.
    fn rest_of(self, all: Self, tally: Tally) -> Self {
        let rest = |all: (u64, u64), (low, high): (u64, u64)| (all.0.saturating_sub(high), all.1.saturating_sub(low));
        Self { tally, bytes: rest(all.bytes, self.bytes), count: rest(all.count, self.count) }
    }

    /// Of a whole process: with what no sample shows.
    pub(crate) fn with_unseen(self, capture: &Capture) -> Self {
        capture.sample_bytes().map_or(self, |distance| self.with_unseen_of(SampleWeights::new(distance)))
    }

    fn with_unseen_of(self, weights: SampleWeights) -> Self {
        let (bytes, count) = weights.unseen_beside(self.tally);
        let widened =
            |(low, high): (u64, u64), figure: u64, unseen: u64| (low, high.max(figure.saturating_add(unseen)));
        Self {
            bytes: widened(self.bytes, self.tally.bytes, bytes),
            count: widened(self.count, self.tally.count, count),
            ..self
        }
    }

    /// With what may be there unseen, but not more than all there is without what the samples show of the rest. Where they stand for
    /// more than all, a part of it is estimated too high, too.
    fn widened(self, unseen: (u64, u64), whole: &WholeSamples, rest: Tally) -> Self {
        let (rest, missing) = (Self::from(rest), whole.missing());
        let widened = |(low, high): (u64, u64), figure: u64, unseen: u64, [all, estimated, rest]: [u64; 3]| {
            let scaled =
                |end: u64| if estimated > all { (end as f64 * all as f64 / estimated as f64) as u64 } else { end };
            let rest = if whole.is_counted { scaled(rest) } else { 0 };
            let figure = figure.min(all);
            let high = high.max(figure.saturating_add(unseen));
            (scaled(low).min(figure), high.min(all.saturating_sub(rest).max(figure)))
        };
        let WholeSamples { all, estimated, .. } = whole;
        let (bytes, count) = (self.tally.bytes, self.tally.count);
        Self {
            tally: at_most(self.tally, whole.all),
            bytes: widened(self.bytes, bytes, unseen.0, [all.bytes, estimated.bytes, rest.bytes.0]),
            count: widened(self.count, count, unseen.1.max(missing), [all.count, estimated.count, rest.count.0]),
        }
    }

    /// `12.4 MB ± 900 kB`.
    pub(crate) fn size(&self) -> String {
        size_within(self.tally.bytes, self.bytes)
    }

    /// `12,345 ± 678`.
    pub(crate) fn number(&self) -> String {
        count_within(self.tally.count, self.count)
    }

    /// Both, in a sentence.
    pub(crate) fn in_words(&self) -> String {
        format!("{} in {}", self.size(), allocations_within(self.tally.count, self.count))
    }

    /// The ends of the intervals, for a value that has the figures.
    pub(crate) fn put(&self, value: &mut Value, [bytes, number]: [&str; 2]) {
        for (name, (low, high)) in [(bytes, self.bytes), (number, self.count)] {
            value[format!("{name}_low")] = low.into();
            value[format!("{name}_high")] = high.into();
        }
    }
}

/// A part as it is estimated, but no more of it than there is in all.
fn at_most(part: Tally, all: Tally) -> Tally {
    Tally { bytes: part.bytes.min(all.bytes), count: part.count.min(all.count), ..part }
}

/// The sums of a whole capture.
#[derive(Debug)]
pub(super) struct WholeFigures {
    /// Exact where it was counted.
    pub(super) allocated: RangedTally,
    pub(super) freed: RangedTally,
    pub(super) live: RangedTally,
    pub(super) peak: RangedTally,
    pub(super) leaked: RangedTally,
}

/// All allocations of a capture.
#[derive(Debug)]
struct WholeSamples {
    /// As many as there are; at most, if nothing was counted.
    all: Tally,
    is_counted: bool,
    /// What the samples stand for.
    estimated: Tally,
    weights: Option<SampleWeights>,
}

impl WholeSamples {
    /// How many of what was counted may be of any part without a sample there: small blocks, if what was counted leaves room for
    /// them, for beyond the interval of the estimate it is sure that they have none. Bytes are not missing so: what a part may have is
    /// in its interval, and what all that was ever allocated may have besides is chance of samples that are not in this part.
    fn missing(&self) -> u64 {
        let Some(weights) = self.weights.filter(|_| self.is_counted) else { return 0 };
        let (low, high) = self.estimated.variance.count_range(self.estimated.count);
        let all = self.all.count;
        all.saturating_sub(high).max(all.saturating_sub(low).min(weights.unseen_smallest()))
    }

    /// What is left of it without a view. The moment of a peak is not sure.
    fn without(&self, part: Tally, view: View) -> Tally {
        let rest = self.estimated.less(part);
        if view != View::HighWaterMark {
            return rest;
        }
        let mut variance = self.estimated.variance;
        variance += part.variance;
        Tally { variance, ..rest }
    }
}

impl WholeFigures {
    pub(super) fn of(capture: &Capture, leaks: View) -> Self {
        let (totals, all) = (&capture.analysis.totals, allocated(capture));
        let of_allocated = capture.analysis.whole_variance(View::Allocated);
        let is_counted = is_counted(capture);
        let allocated = Tally { variance: if is_counted { Variance::EXACT } else { of_allocated }, ..all };
        let allocated = RangedTally::from(allocated);
        let whole = WholeSamples {
            all: Tally { bytes: allocated.bytes.1, count: allocated.count.1, ..all },
            is_counted,
            estimated: Tally { variance: of_allocated, ..totals.allocations },
            weights: capture.sample_bytes().map(SampleWeights::new),
        };
        let weights = whole.weights;
        let ranged = |tally: Tally, view: View| {
            let tally = Tally { variance: capture.analysis.whole_variance(view), ..tally };
            let figure = RangedTally::from(tally);
            weights.map_or(figure, |weights| {
                let (bytes, count) = weights.unseen(all.bytes.checked_div(all.count).unwrap_or_default());
                let unseen = (bytes, count.max(of_allocated.unseen_of_smallest()));
                figure.widened(unseen, &whole, whole.without(tally, view))
            })
        };
        let peak = Tally { bytes: totals.peak.bytes, count: totals.peak.allocations, ..Tally::default() };
        let live = ranged(totals.leaked_at_exit, View::LeaksAtExit);
        let (leaked, leaks) = match leaks {
            View::LeaksAtExit => (totals.leaked_at_exit, View::LeaksAtExit),
            _ => (totals.leaked, View::Leaks),
        };
        Self {
            allocated,
            freed: live.rest_of(allocated, freed(capture)),
            live,
            peak: ranged(peak, View::HighWaterMark),
            leaked: ranged(leaked, leaks),
        }
    }
}

/// What the samples of a capture cannot show. Where only some of its events were replayed, it is not known how many allocations of
/// these there were.
pub(crate) fn sampling_gaps(capture: &Capture, has_selection: bool) -> SamplingGaps {
    let is_changing = capture.info.process.sample_rate.is_some();
    SamplingGaps {
        unaccounted: if has_selection { 0 } else { unaccounted(capture) },
        by_thread: if has_selection { Vec::new() } else { unaccounted_by_thread(capture) },
        pid: capture.info.process.pid.unwrap_or_default(),
        largest_distance: capture.sample_bytes().filter(|_| is_changing),
    }
}

/// How many more allocations were counted than estimated, if that is beyond the interval: see [`SamplingGaps::unaccounted`].
fn unaccounted(capture: &Capture) -> u64 {
    let (counted, estimated) = (allocated(capture).count, capture.analysis.totals.allocations.count);
    let variance = capture.analysis.whole_variance(View::Allocated);
    let (_, high) = variance.count_range(estimated);
    if is_counted(capture) && counted > high { counted - estimated } else { 0 }
}

/// The same by thread: see [`SamplingGaps::by_thread`].
fn unaccounted_by_thread(capture: &Capture) -> Vec<u64> {
    let mut estimated = vec![Tally::default(); capture.threads.len()];
    for row in capture.analysis.rows(View::Allocated).filter(|row| !row.allocator.is_mapping()) {
        estimated.get_mut(row.thread.0 as usize).into_iter().for_each(|sum| *sum += row.tally());
    }
    let of_thread = |(thread, Tally { count, variance, .. }): (&Thread, Tally)| {
        let counted = thread.counted.map_or(0, |counted| counted.count);
        let is_beyond = count > 0 && counted > variance.count_range(count).1;
        if is_beyond { counted - count } else { 0 }
    };
    let all: Vec<u64> = capture.threads.iter().zip(estimated).map(of_thread).collect();
    if all.iter().any(|number| *number > 0) { all } else { Vec::new() }
}

/// What all rows of a view add up to, with the interval that `stats` says of it. That encloses the sum, too, from which what was counted
/// differs where the rest is estimated.
pub(crate) fn whole(capture: &Capture, view: View, sum: Tally) -> RangedTally {
    if !capture.is_sampled() {
        return sum.into();
    }
    let Some(known) = known(capture, view) else { return RangedTally::from(sum).with_unseen(capture) };
    let around = |(low, high): (u64, u64), figure: u64| (low.min(figure), high.max(figure));
    RangedTally { tally: sum, bytes: around(known.bytes, sum.bytes), count: around(known.count, sum.count) }
}

/// The whole of a view as `stats` has it; `None` of a view that it says nothing of.
fn known(capture: &Capture, view: View) -> Option<RangedTally> {
    let WholeFigures { allocated, peak, leaked, .. } = WholeFigures::of(capture, view);
    match view {
        View::Allocated => Some(allocated),
        View::HighWaterMark => Some(peak),
        View::Leaks | View::LeaksAtExit => Some(leaked),
        View::Temporary | View::Pinned | View::Objects => None,
    }
}

/// The intervals of parts of a view: a part may have allocations without a sample as the whole has, and is no more than the whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartRanges {
    weights: Option<SampleWeights>,
    whole: Option<RangedTally>,
    /// All that was counted.
    all: Option<Tally>,
}

impl PartRanges {
    /// Of this view.
    pub(crate) fn of(capture: &Capture, view: View) -> Self {
        let weights = capture.sample_bytes().map(SampleWeights::new);
        let is_one_sum = view != View::HighWaterMark || !capture.has_several_peaks();
        let all = is_counted(capture).then(|| allocated(capture));
        Self { weights, whole: weights.filter(|_| is_one_sum).and_then(|_| known(capture, view)), all }
    }

    /// This part, or all of it.
    pub(crate) fn part(&self, part: Tally) -> RangedTally {
        let Some(weights) = self.weights else { return part.into() };
        let figures = |tally: &Tally| [tally.bytes, tally.count];
        let part = self.all.map_or(part, |all| at_most(part, all));
        let one = RangedTally::from(part).with_unseen_of(weights);
        let Some(whole) = &self.whole else { return one };
        if figures(&part) == figures(&whole.tally) {
            return RangedTally { tally: part, ..*whole };
        }
        let cut = |(low, high): (u64, u64), figure: u64, most: u64| (low, high.min(most.max(figure)));
        let (bytes, number) = (cut(one.bytes, part.bytes, whole.bytes.1), cut(one.count, part.count, whole.count.1));
        RangedTally { tally: part, bytes, count: number }
    }
}

/// The peak of a whole capture.
pub(crate) fn at_peak(capture: &Capture) -> RangedTally {
    WholeFigures::of(capture, View::Leaks).peak
}

/// How samples were taken, and which figures of `stats` are not estimates.
pub(crate) fn samples(capture: &Capture) -> Option<String> {
    let counted = if is_counted(capture) { ", but for the number of allocations and threads" } else { "" };
    Some(sampled_how(capture)? + counted)
}

/// How samples were taken.
fn sampled_how(capture: &Capture) -> Option<String> {
    let bytes = capture.sample_bytes()?;
    let rate =
        capture.info.process.sample_rate.map(|rate| format!(" at most, for at most {} a second", count(rate.into())));
    Some(format!(
        "{} apart on the average{}; figures are estimates with 95 % intervals",
        size(bytes.get()),
        rate.unwrap_or_default(),
    ))
}

/// What files of other tools say of a capture with samples, and of what is in no figure.
pub(crate) fn notes(capture: &Capture) -> Vec<String> {
    let of = |name: &str, text: Option<String>| text.map(|text| format!("{name}: {text}"));
    let notes = [("samples", sampled_how(capture)), ("unseen", unseen(capture)), ("left out", capture.earlier_frees())];
    notes.into_iter().filter_map(|(name, text)| of(name, text)).collect()
}

/// What has no sample at all.
pub(crate) fn unseen(capture: &Capture) -> Option<String> {
    let bytes = capture.sample_bytes()?;
    let mut text = format!("at most {} of each call stack without samples (95 %)", size(unseen_bytes(bytes)));
    if capture.analysis.unaccounted > 0 {
        let number = plural(capture.analysis.unaccounted, "small allocation has", "small allocations have");
        let _ = write!(text, "; {number} none, and may be of any call stack");
    }
    Some(text)
}

/// Bytes and number, with their intervals where there are samples only.
pub(crate) fn tally(capture: &Capture, tally: Tally) -> Value {
    let mut value = json!({"bytes": tally.bytes, "count": tally.count});
    put_ranges(&mut value, capture, "", tally);
    value
}

/// Adds the intervals of the fields `bytes` and `count`, whose names begin with `part`, where there are samples only.
pub(crate) fn put_ranges(value: &mut Value, capture: &Capture, part: &str, tally: Tally) {
    if capture.is_sampled() {
        let [bytes, number] = ["bytes", "count"].map(|name| format!("{part}{name}"));
        RangedTally::from(tally).put(value, [&bytes, &number]);
    }
}

/// Adds how samples were taken, in the words of `stats`, where there are samples only.
pub(crate) fn put_distance(value: &mut Value, capture: &Capture) {
    if let Some(bytes) = capture.sample_bytes() {
        value["sample_bytes"] = bytes.get().into();
        value["unseen_bytes"] = unseen_bytes(bytes).into();
        if let Some(rate) = capture.info.process.sample_rate {
            value["sample_rate"] = rate.into();
        }
    }
}

/// Adds the intervals of the sums of `stats`.
pub(super) fn put_figures(report: &mut Value, capture: &Capture, leaks: View) {
    if !capture.is_sampled() {
        return;
    }
    let WholeFigures { allocated, freed, live, peak, leaked } = WholeFigures::of(capture, leaks);
    if !is_counted(capture) {
        allocated.put(&mut report["allocations"], ["bytes", "count"]);
    }
    report["deallocations"]["count"] = freed.tally.count.into();
    report["deallocations"]["count_low"] = freed.count.0.into();
    report["deallocations"]["count_high"] = freed.count.1.into();
    put_distance(&mut report["capture"], capture);
    freed.put(&mut report["freed"], ["bytes", "count"]);
    for (figure, part, names) in [(live, "live_at_exit", ["bytes", "count"]), (peak, "peak", ["bytes", "allocations"])]
    {
        for (name, number) in names.into_iter().zip([figure.tally.bytes, figure.tally.count]) {
            // It is not known of every number of processes.
            if !report[part][name].is_null() {
                report[part][name] = number.into();
            }
        }
        figure.put(&mut report[part], names);
    }
    leaked.put(&mut report["leaked"], ["bytes", "allocations"]);
    // How many allocations lie between two events is not known from samples.
    report["temporary"] = Value::Null;
}
