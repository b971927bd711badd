//! Which memory goes on growing until the end of a recording, as a leak does and a cache that is full does not.
//!
//! Live bytes over time come from the intervals of an [`Analysis`], or from its windows. The first quarter of the recording is
//! start-up, or, where growth began later, the first half. The rest is divided into equal slices, and the smallest value of
//! each is taken, so that memory that comes and goes does not look like growth.
//!
//! Invariant: what stopped growing before the last quarter of the recording is never reported.

use rustc_hash::FxHashMap;

use super::sampled_variances::VarianceSum;
use super::{Analysis, Intervals, Variance, View, snapshots_before};

/// Slices after the start-up.
const SLICES: usize = 8;
/// Least number of steps between slices, of seven, in which memory grew.
const LEAST_STEPS: usize = 6;
/// Coefficient of determination from which growth is steady.
const STEADY: f64 = 0.9;

/// Live bytes of several parts of a capture at the same moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSeries {
    /// The moments, in nanoseconds since recording began, up to the moment of leaks.
    pub times_ns: Vec<u64>,
    /// Live bytes at these moments, for each part.
    pub parts: Vec<Vec<u64>>,
}

impl LiveSeries {
    fn push(&mut self, time_ns: u64, live: &[u64]) {
        self.times_ns.push(time_ns);
        self.parts.iter_mut().zip(live).for_each(|(part, live)| part.push(*live));
    }
}

/// Memory that grows until the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnendingGrowth {
    /// By how many bytes it grew after the start-up.
    pub bytes: u64,
    /// In which time, in nanoseconds.
    pub span_ns: u64,
    /// The begin of that time, in nanoseconds since recording began.
    pub from_ns: u64,
    /// Whether it grows along a straight line from the first quarter on: bytes at the moments against their times.
    pub is_steady: bool,
}

impl UnendingGrowth {
    /// Bytes a second.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 * 1e9 / self.span_ns.max(1) as f64) as u64
    }

    /// The growth of live bytes at these moments, which do not decrease; `None` if they do not go on growing, or if there
    /// are too few moments to say so.
    #[must_use]
    pub fn of(times_ns: &[u64], bytes: &[u64]) -> Option<Self> {
        let (first, last) = (*times_ns.first()?, *times_ns.last()?);
        let [early, late] = [4, 2].map(|part| first + (last - first) / part);
        Self::since(early, times_ns, bytes).or_else(|| {
            let late = Self::since(late, times_ns, bytes)?;
            Some(Self { is_steady: false, ..late })
        })
    }

    fn since(begin: u64, times_ns: &[u64], bytes: &[u64]) -> Option<Self> {
        let last = *times_ns.last()?;
        let least = least_of_slices(times_ns, bytes, (begin, last))?;
        let steps = least.windows(2).filter(|step| step[1] > step[0]).count();
        let falls = least.windows(2).filter(|step| step[1] < step[0] - step[0] / 64).count();
        let goes_on = least[SLICES - 1] > least[SLICES - 2] && least[SLICES - 2] > least[SLICES - 4];
        let (from, to) = (least[0], least[SLICES - 1]);
        if steps < LEAST_STEPS || falls > 0 || !goes_on {
            return None;
        }
        let start = times_ns.partition_point(|time| *time < begin);
        let is_steady = determination(&times_ns[start..], &bytes[start..]) >= STEADY;
        // From the beginning of the first slice to that of the last.
        let span_ns = (last - begin) / SLICES as u64 * (SLICES as u64 - 1);
        Some(Self { bytes: to - from, span_ns, from_ns: begin, is_steady })
    }
}

/// The smallest value in each slice of a span of time. A program that stands still for a while leaves a slice without a
/// moment: what was live before stays so. `None` if there are more of them.
fn least_of_slices(times_ns: &[u64], bytes: &[u64], (begin, end): (u64, u64)) -> Option<[u64; SLICES]> {
    let mut least = [None::<u64>; SLICES];
    let mut last = [None::<u64>; SLICES];
    for (time, bytes) in times_ns.iter().zip(bytes).filter(|(time, _)| **time >= begin) {
        let slice = u128::from(time - begin) * SLICES as u128 / u128::from((end - begin).max(1));
        let slice = (slice as usize).min(SLICES - 1);
        least[slice] = Some(least[slice].map_or(*bytes, |least| least.min(*bytes)));
        last[slice] = Some(*bytes);
    }
    if least.iter().filter(|least| least.is_none()).count() > 1 {
        return None;
    }
    let before = times_ns.partition_point(|time| *time < begin).checked_sub(1).and_then(|at| bytes.get(at)).copied();
    let last = |slice: usize| slice.checked_sub(1).map_or(before, |earlier| last[earlier]);
    let mut known = [0; SLICES];
    for (slice, known) in known.iter_mut().enumerate() {
        *known = least[slice].or_else(|| last(slice))?;
    }
    Some(known)
}

/// How much of the variation a straight line explains, from 0 to 1.
fn determination(times_ns: &[u64], bytes: &[u64]) -> f64 {
    let number = times_ns.len().max(1) as f64;
    let mean = |values: &[u64]| values.iter().map(|value| *value as f64).sum::<f64>() / number;
    let (mean_time, mean_bytes) = (mean(times_ns), mean(bytes));
    let (mut together, mut of_time, mut of_bytes) = (0.0, 0.0, 0.0);
    for (time, bytes) in times_ns.iter().zip(bytes) {
        let (time, bytes) = (*time as f64 - mean_time, *bytes as f64 - mean_bytes);
        together += time * bytes;
        of_time += time * time;
        of_bytes += bytes * bytes;
    }
    if of_time == 0.0 || of_bytes == 0.0 { 0.0 } else { together * together / (of_time * of_bytes) }
}

/// What a group has allocated and freed since a moment.
#[derive(Clone, Copy, Debug, Default)]
struct MovedSamples {
    variance: VarianceSum,
    live: u64,
    /// Live at that moment.
    before: u64,
}

impl Analysis {
    /// Live bytes over time of the parts that the groups belong to, up to the moment of leaks; `None` if neither intervals were
    /// asked for nor the capture has windows. `part_of_group` has a number below `parts` for each group.
    #[must_use]
    pub fn live_series(&self, part_of_group: &[u32], parts: usize) -> Option<LiveSeries> {
        match &self.intervals {
            Some(intervals) => Some(self.series_of_intervals(intervals, part_of_group, parts)),
            None if self.windows.is_empty() => None,
            None => Some(self.series_of_windows(part_of_group, parts)),
        }
    }

    /// What is live at the ends of windows, and at the moment of leaks.
    fn series_of_windows(&self, part_of_group: &[u32], parts: usize) -> LiveSeries {
        let keys = self.groups.iter().map(|group| (group.stack, group.allocator, group.thread));
        let part_of: FxHashMap<_, usize> = keys.zip(part_of_group.iter().map(|part| *part as usize)).collect();
        let mut series = LiveSeries { times_ns: Vec::new(), parts: vec![Vec::new(); parts] };
        let mut live = vec![0_u64; parts];
        let last_ns = self.totals.finalizing.map_or(self.totals.end_time_ns, |moment| moment.time_ns);
        for window in self.windows.iter().take_while(|window| window.to_ns < last_ns) {
            for row in &window.rows {
                let part = part_of.get(&(row.stack, row.allocator, row.thread)).and_then(|part| live.get_mut(*part));
                let Some(live) = part else { continue };
                // In this order: a window may free more than it allocates.
                *live = live.saturating_add(row.allocated.bytes).saturating_sub(row.freed.bytes);
            }
            series.push(window.to_ns, &live);
        }
        live.fill(0);
        for (group, part) in self.groups.iter().zip(part_of_group) {
            let live = live.get_mut(*part as usize);
            live.into_iter().for_each(|live| *live = live.saturating_add(group.leaked.bytes));
        }
        series.push(last_ns, &live);
        series
    }

    /// How exact it is by how much a part has grown from this moment to that of leaks. What is live at both has the same samples, whose
    /// error is in no difference, so that is the variance of what came and of what went in between. `is_of_part`: by group.
    #[must_use]
    pub fn growth_variance(&self, from_ns: u64, is_of_part: impl Fn(usize) -> bool) -> Variance {
        let groups = self.groups.iter().enumerate().filter(|(at, _)| is_of_part(*at));
        let of_one_byte = groups.map(|(at, group)| {
            let mut all = VarianceSum::default();
            all += self.variance(at, View::Allocated);
            (at, all.scaled(1.0 / group.allocated.bytes.max(1) as f64))
        });
        let of_one_byte: FxHashMap<usize, VarianceSum> = of_one_byte.collect();
        match &self.intervals {
            Some(intervals) => self.variance_of_intervals(intervals, from_ns, &of_one_byte),
            None => self.variance_of_windows(from_ns, &of_one_byte),
        }
        .into()
    }

    /// Of the blocks that are live at one of the moments only.
    fn variance_of_intervals(
        &self,
        intervals: &Intervals,
        from_ns: u64,
        of_one_byte: &FxHashMap<usize, VarianceSum>,
    ) -> VarianceSum {
        let finalizing = self.totals.finalizing.map_or(u64::MAX, |moment| moment.order);
        let last = (snapshots_before(&self.snapshots, finalizing) as u32).saturating_sub(1);
        let first = self.snapshots.partition_point(|snapshot| snapshot.time_ns < from_ns) as u32;
        let mut sum = VarianceSum::default();
        for interval in intervals.iter() {
            let is_live = |at| interval.first_snapshot <= at && interval.end_snapshot.is_none_or(|end| at < end);
            if let Some(of_one) = of_one_byte.get(&(interval.group as usize))
                && is_live(first) != is_live(last)
            {
                sum += of_one.scaled(interval.bytes as f64);
            }
        }
        sum
    }

    /// Of each group, at most that of what it allocated and freed, and at most that of all it had at both moments.
    fn variance_of_windows(&self, from_ns: u64, of_one_byte: &FxHashMap<usize, VarianceSum>) -> VarianceSum {
        let last_ns = self.totals.finalizing.map_or(self.totals.end_time_ns, |moment| moment.time_ns);
        let keys = of_one_byte.keys().filter_map(|at| {
            let group = self.groups.get(*at)?;
            Some(((group.stack, group.allocator, group.thread), *at))
        });
        let numbers: FxHashMap<_, usize> = keys.collect();
        let mut moved: FxHashMap<usize, MovedSamples> = FxHashMap::default();
        for window in self.windows.iter().take_while(|window| window.from_ns < last_ns) {
            for row in &window.rows {
                let Some(number) = numbers.get(&(row.stack, row.allocator, row.thread)) else { continue };
                let moved = moved.entry(*number).or_default();
                moved.live = moved.live.saturating_add(row.allocated.bytes);
                if window.to_ns > from_ns {
                    moved.variance += row.allocated.variance;
                }
                // What is freed after the moment of leaks is not in what leaked.
                if window.to_ns <= last_ns {
                    moved.live = moved.live.saturating_sub(row.freed.bytes);
                    if window.to_ns > from_ns {
                        moved.variance += row.freed.variance;
                    }
                }
                if window.to_ns <= from_ns {
                    moved.before = moved.live;
                }
            }
        }
        let mut sum = VarianceSum::default();
        for (number, MovedSamples { mut variance, live, before }) in moved {
            let leaked = self.groups.get(number).map_or(0, |group| group.leaked.bytes);
            let of_one_byte = of_one_byte.get(&number).copied().unwrap_or_default();
            variance += of_one_byte.scaled(live.saturating_sub(leaked) as f64);
            sum += variance.least(of_one_byte.scaled(before.saturating_add(leaked) as f64));
        }
        sum
    }

    fn series_of_intervals(&self, intervals: &Intervals, part_of_group: &[u32], parts: usize) -> LiveSeries {
        let finalizing = self.totals.finalizing.map_or(u64::MAX, |moment| moment.order);
        let before = snapshots_before(&self.snapshots, finalizing) as u32;
        let every: Vec<u32> = (0..self.snapshots.len() as u32).collect();
        let moments = intervals.moments().0.unwrap_or(&every);
        let moments = &moments[..moments.partition_point(|moment| *moment < before)];
        let place = |snapshot: u32| moments.partition_point(|moment| *moment < snapshot);
        let mut changes = vec![vec![0_i64; moments.len() + 1]; parts];
        for interval in intervals.iter() {
            let part = part_of_group.get(interval.group as usize).and_then(|part| changes.get_mut(*part as usize));
            let Some(changes) = part else { continue };
            let (first, end) = (place(interval.first_snapshot), interval.end_snapshot.map_or(moments.len(), place));
            changes[first] = changes[first].wrapping_add(interval.bytes as i64);
            changes[end] = changes[end].wrapping_sub(interval.bytes as i64);
        }
        let sums = |changes: Vec<i64>| {
            let mut live = 0_i64;
            let sum = changes[..moments.len()].iter().map(|change| {
                live = live.wrapping_add(*change);
                live.max(0) as u64
            });
            sum.collect()
        };
        let time = |moment: &u32| self.snapshots.get(*moment as usize).map_or(0, |snapshot| snapshot.time_ns);
        let times_ns = moments.iter().map(time).collect();
        LiveSeries { times_ns, parts: changes.into_iter().map(sums).collect() }
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{LiveSeries, UnendingGrowth};
    use crate::analysis::{
        Analysis, Group, GroupFlow, Interval, Moment, SiteWindow, Sum, Tally, Variance, View, ViewVariances,
    };
    use crate::event::{Snapshot, StackId, ThreadId};

    const SECOND: u64 = 1_000_000_000;

    /// The growth of a curve over 64 s, a moment each second.
    fn growth(curve: impl Fn(u64) -> u64) -> Option<UnendingGrowth> {
        let times: Vec<u64> = (0..64).map(|second| second * SECOND).collect();
        UnendingGrowth::of(&times, &(0..64).map(curve).collect::<Vec<_>>())
    }

    #[test]
    fn a_steady_leak_grows_without_end() {
        let found = growth(|second| 5_000_000 + second * 1000).unwrap();
        assert!(found.is_steady, "{found:?}");
        assert!((950..=1050).contains(&found.bytes_per_second()), "{found:?}");
        // Below a saw of a hundred times its size.
        let found = growth(|second| second * 1000 + second % 4 * 100_000).unwrap();
        assert!(!found.is_steady && found.bytes > 30_000, "{found:?}");
        // Faster and faster.
        assert!(growth(|second| second * second * 100).is_some());
    }

    #[test]
    fn what_stops_growing_is_no_growth() {
        assert_eq!(growth(|second| second.min(40) * 1000), None);
        assert_eq!(growth(|second| second.min(47) * 1000), None);
        assert_eq!(growth(|_| 1000), None);
        assert_eq!(growth(|second| 64_000 - second * 1000), None);
        assert_eq!(growth(|second| second % 20 * 1000), None);
        assert_eq!(growth(|second| u64::from(second > 30) * 1000), None);
        assert!(growth(|second| second.saturating_sub(30) * 1000).is_some_and(|late| !late.is_steady));
        // Dropped once, as a cache that is cleared.
        assert_eq!(growth(|second| if second < 40 { second * 1000 } else { (second - 40) * 1000 }), None);
    }

    #[test]
    fn a_program_that_stands_still_for_a_while_grows_nevertheless() {
        // Of 64 s, 48 are looked at, in slices of 6 s: one of them has no moment.
        let times: Vec<u64> =
            (0..64).filter(|second| !(27..35).contains(second)).map(|second| second * SECOND).collect();
        let bytes: Vec<u64> = times.iter().map(|time| time / 1000).collect();
        assert!(UnendingGrowth::of(&times, &bytes).is_some());
        let times: Vec<u64> =
            (0..64).filter(|second| !(27..48).contains(second)).map(|second| second * SECOND).collect();
        let bytes: Vec<u64> = times.iter().map(|time| time / 1000).collect();
        assert_eq!(UnendingGrowth::of(&times, &bytes), None);
    }

    #[test]
    fn too_few_moments_say_nothing() {
        let times: Vec<u64> = (0..7).map(|second| second * SECOND).collect();
        assert_eq!(UnendingGrowth::of(&times, &[1, 2, 3, 4, 5, 6, 7]), None);
        assert_eq!(UnendingGrowth::of(&[], &[]), None);
        assert_eq!(UnendingGrowth::of(&[5; 20], &[1; 20]), None);
    }

    #[test]
    fn series_end_where_finalization_begins() {
        let snapshots = (0..4).map(|index| Snapshot {
            index,
            time_ns: u64::from(index) * 10,
            rss_bytes: 0,
            heap_bytes: 0,
            order: u64::from(index) * 100,
        });
        let interval = |group, first_snapshot, end_snapshot, bytes| Interval {
            group,
            first_snapshot,
            end_snapshot,
            bytes,
            count: 1,
        };
        let intervals =
            [interval(0, 0, None, 5), interval(1, 1, Some(2), 7), interval(0, 2, Some(3), 1), interval(2, 3, None, 9)];
        let mut analysis = Analysis {
            snapshots: snapshots.collect(),
            intervals: Some(intervals.into_iter().collect()),
            ..Analysis::default()
        };
        let whole = analysis.live_series(&[0, 1, 0], 2).unwrap();
        assert_eq!(
            whole,
            LiveSeries { times_ns: vec![0, 10, 20, 30], parts: vec![vec![5, 5, 6, 14], vec![0, 7, 0, 0]] }
        );
        analysis.totals.finalizing = Some(Moment { order: 250, time_ns: 25 });
        let before = analysis.live_series(&[0, 1, 0], 2).unwrap();
        assert_eq!(before, LiveSeries { times_ns: vec![0, 10, 20], parts: vec![vec![5, 5, 6], vec![0, 7, 0]] });
        analysis.intervals = None;
        assert_eq!(analysis.live_series(&[0, 1, 0], 2), None);
    }

    #[test]
    fn windows_have_what_their_parts_hold() {
        let group = |stack, leaked| Group {
            leaked: Sum { bytes: leaked, ..Sum::default() },
            ..Group::new(StackId(stack), Allocator::Malloc, ThreadId(0))
        };
        let flow = |stack, allocated, freed| {
            let [allocated, freed] = [allocated, freed].map(|bytes| Tally { bytes, count: 1, ..Tally::default() });
            let (live, peak) = (Tally::default(), None);
            GroupFlow {
                stack: StackId(stack),
                thread: ThreadId(0),
                allocator: Allocator::Malloc,
                allocated,
                freed,
                live,
                peak,
            }
        };
        let window = |number: u64, rows| SiteWindow { from_ns: number * 10, to_ns: number * 10 + 10, rows };
        let windows = vec![
            window(0, vec![flow(1, 100, 20), flow(2, 7, 0)]),
            // Groups without a row hold what they held.
            window(1, vec![flow(3, 50, 10)]),
            window(4, vec![flow(1, 0, 80), flow(3, 1, 1)]),
            window(6, vec![flow(1, 999, 0)]),
        ];
        let groups = [group(1, 0), group(2, 7), group(3, 40)].into_iter().collect();
        let mut analysis = Analysis { groups, windows, ..Analysis::default() };
        analysis.totals.end_time_ns = 65;
        let series = analysis.live_series(&[0, 1, 0], 2).unwrap();
        assert_eq!(series.times_ns, [10, 20, 50, 65]);
        assert_eq!(series.parts, [[80, 120, 40, 40], [7, 7, 7, 7]]);
        analysis.totals.finalizing = Some(Moment { order: 9, time_ns: 45 });
        assert_eq!(analysis.live_series(&[0, 1, 0], 2).unwrap().times_ns, [10, 20, 45]);
    }

    /// A group of 100 blocks of 10 bytes each that are kept, of which one byte has a variance of 4.
    fn sampled(windows: Vec<SiteWindow>, intervals: Option<Vec<Interval>>) -> Analysis {
        let sum = Sum { bytes: 1000, count: 100, ..Sum::default() };
        let group = Group { allocated: sum, leaked: sum, ..Group::new(StackId(1), Allocator::Malloc, ThreadId(0)) };
        let variance = Variance { bytes: 4000.0, ..Variance::EXACT };
        let variances = ViewVariances::default().with(View::Allocated, variance).with(View::Leaks, variance);
        let mut analysis = Analysis {
            groups: [group].into_iter().collect(),
            variances: Some(vec![variances]),
            windows,
            intervals: intervals.map(|all| all.into_iter().collect()),
            ..Analysis::default()
        };
        analysis.totals.end_time_ns = 35;
        analysis
    }

    #[test]
    fn growth_has_the_variance_of_what_came_and_went() {
        let of =
            |bytes: u64| Tally { bytes, count: 1, variance: Variance { bytes: bytes as f32 * 4.0, ..Variance::EXACT } };
        let window = |number: u64, allocated, freed| {
            let (stack, thread, allocator) = (StackId(1), ThreadId(0), Allocator::Malloc);
            let (allocated, freed, live) = (of(allocated), of(freed), Tally::default());
            let row = GroupFlow { stack, thread, allocator, allocated, freed, live, peak: None };
            SiteWindow { from_ns: number * 10, to_ns: number * 10 + 10, rows: vec![row] }
        };
        let since = |analysis: &Analysis, from_ns| analysis.growth_variance(from_ns, |_| true).of_samples();
        // What is freed in the last window is freed after the moment of leaks.
        let windows = sampled(vec![window(0, 800, 0), window(2, 150, 50), window(3, 100, 1000)], None);
        assert_eq!(since(&windows, 10), 4.0 * (150.0 + 50.0 + 100.0));
        assert_eq!(since(&windows, 30), 4.0 * 100.0);
        assert_eq!(windows.growth_variance(10, |_| false).of_samples(), 0.0);
        // No more than that of both moments.
        let windows = sampled(vec![window(0, 800, 0), window(2, 90_000, 89_800)], None);
        assert_eq!(since(&windows, 10), 4.0 * 1800.0);

        let interval =
            |first_snapshot, end_snapshot, bytes| Interval { group: 0, first_snapshot, end_snapshot, bytes, count: 1 };
        let all =
            vec![interval(0, None, 750), interval(0, Some(2), 50), interval(1, Some(3), 7777), interval(3, None, 250)];
        let mut events = sampled(Vec::new(), Some(all));
        let snapshot = |index| Snapshot {
            index,
            time_ns: u64::from(index) * 10,
            rss_bytes: 0,
            heap_bytes: 0,
            order: u64::from(index) * 100,
        };
        events.snapshots = (0..4).map(snapshot).collect();
        assert_eq!(since(&events, 0), 4.0 * (50.0 + 250.0));
        assert_eq!(since(&events, 20), 4.0 * (7777.0 + 250.0));
    }
}
