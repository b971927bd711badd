//! Memory over time for a page: heap and resident memory as step functions, the moments, and at which of them each
//! group's allocations were live.
//!
//! The steps are drawn as a chart; they are made from all events if the capture has them, otherwise from the snapshots
//! and the peak. A moment is a snapshot for which the page can show what was live. If there are too many, the highest
//! of every few neighbours is kept, so that peaks are kept. Invariant: at each kept moment the live allocations add up
//! exactly to its heap size.

use std::io;

use memtrack_reader::Snapshot;
use memtrack_reader::analysis::{Curve, Intervals};
use memtrack_reader::resident::{ClassesAt, MemoryClass};
use rustc_hash::FxHashMap;

use super::columns::PackedColumns;
use super::sites::Sites;
use crate::reports::capture_info::Capture;
use crate::reports::resident::meaning;
use crate::units::count;

/// Maximum number of points of the chart, and of moments.
pub(super) const MOST_MOMENTS: usize = 2_000;
/// Minimum number of moments.
const FEWEST_MOMENTS: usize = 64;

/// (group, first moment, end moment) -> sums; for allocations that are never freed, the end is one past the last moment.
type Lives = FxHashMap<(u32, u32, u32), LiveSums>;

/// What was live at the same moments. A `Tally` also has how exact it is, which the page does not show, and three quarters of
/// its bytes are that: the map would be moved and cleared with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LiveSums {
    bytes: u64,
    count: u64,
}

impl LiveSums {
    /// Adds allocations. Sums stop at `u64::MAX`: only a forged capture gets there.
    fn add(&mut self, bytes: u64, count: u64) {
        (self.bytes, self.count) = (self.bytes.saturating_add(bytes), self.count.saturating_add(count));
    }
}

/// Times are written in microseconds.
const MICROSECOND_NS: u64 = 1000;
/// Default precision of times: there is a snapshot in every millisecond with events.
const SNAPSHOT_NS: u64 = 1_000_000;

/// Times, and the bytes from each time on.
type TimeSteps = Vec<(u64, u64)>;

/// Writes the columns. Reduces the moments until the table of live intervals has at most `most` entries; returns a note
/// if moments were merged.
pub(super) fn write(
    capture: &Capture,
    sites: &Sites,
    most_lives: usize,
    data: &mut PackedColumns,
) -> io::Result<Option<String>> {
    let moments = PageMoments::of(capture);
    let intervals = capture.analysis.intervals.as_ref();
    let mut step = moments.all.len().div_ceil(MOST_MOMENTS).div_ceil(moments.step);
    // One map for all tries: its memory is that of as many entries each time.
    let mut lives = Lives::default();
    let kept = loop {
        match moments.thinned(intervals, sites, step, most_lives, &mut lives) {
            Some(kept) => break kept,
            None => step *= 2,
        }
    };
    data.steps("time", kept.iter().map(|moment| moment.time_ns / MICROSECOND_NS))?;
    data.column("heap", kept.iter().map(|moment| moment.heap_bytes))?;
    write_steps("heap", &heap(capture, &kept), data)?;
    data.json("heapOfEverything", &is_of_everything(capture).into())?;
    write_steps("rss", &resident(&capture.analysis.snapshots), data)?;
    let exact_ns =
        if capture.analysis.exact_times { 0 } else { capture.info.time_uncertainty_ns.unwrap_or(SNAPSHOT_NS) };
    data.json("timePrecision", &exact_ns.div_ceil(MICROSECOND_NS).max(1).into())?;
    if intervals.is_some() {
        write_live_intervals(&lives, data)?;
    }
    write_bands(&capture.info.resident_bands, data)?;
    let step = step * moments.step;
    Ok((step > 1).then(|| {
        let (kept, all) = (count(kept.len() as u64), count(moments.all.len() as u64));
        format!("the memory chart shows {kept} of {all} snapshots: the highest of every {step}")
    }))
}

/// The moments of a capture.
struct PageMoments {
    /// The snapshots, and the end as an additional one.
    all: Vec<Snapshot>,
    /// The snapshots, except the end, at which live allocations are known.
    known: Vec<u32>,
    /// Each known snapshot is the highest of this many neighbours.
    step: usize,
}

impl PageMoments {
    fn of(capture: &Capture) -> Self {
        let analysis = &capture.analysis;
        let snapshots = analysis.snapshots.len();
        let (known, step) = analysis.intervals.as_ref().map_or((None, 1), Intervals::moments);
        let known = known.map_or_else(|| (0..snapshots as u32).collect(), <[u32]>::to_vec);
        let mut all = analysis.snapshots.clone();
        let last = all.last().copied().unwrap_or_default();
        let totals = &analysis.totals;
        let heap_bytes = if analysis.intervals.is_some() { totals.leaked_at_exit.bytes } else { last.heap_bytes };
        let time_ns = totals.end_time_ns.max(last.time_ns);
        all.push(Snapshot { heap_bytes, time_ns, rss_bytes: totals.rss_last_bytes, ..last });
        Self { all, known, step: step as usize }
    }

    /// The highest of every `step` known snapshots and the end, and in `lives` the intervals of allocations live at them;
    /// `None` where these are more than `most` and there are moments to spare.
    fn thinned(
        &self,
        intervals: Option<&Intervals>,
        sites: &Sites,
        step: usize,
        most: usize,
        lives: &mut Lives,
    ) -> Option<Vec<Snapshot>> {
        let heap = |at: u32| self.all[at as usize].heap_bytes;
        let highest = |chunk: &[u32]| chunk.iter().copied().max_by_key(|at| (heap(*at), u32::MAX - at));
        let mut kept: Vec<u32> = self.known.chunks(step).filter_map(highest).collect();
        kept.push(self.all.len() as u32 - 1);
        // Maps a moment to the first kept moment at or after it.
        let after = |moment: u32| kept.partition_point(|at| *at < moment) as u32;
        let after: Vec<u32> = (0..self.all.len() as u32).map(after).collect();
        lives.clear();
        for interval in intervals.into_iter().flat_map(Intervals::iter) {
            let first = after[interval.first_snapshot as usize];
            let end = interval.end_snapshot.map_or(kept.len() as u32, |end| after[end as usize]);
            if first < end {
                let group = sites.group_numbers[interval.group as usize];
                lives.entry((group, first, end)).or_default().add(interval.bytes, interval.count);
                // There may be many millions, so they are not collected first.
                if lives.len() > most && kept.len() > FEWEST_MOMENTS {
                    return None;
                }
            }
        }
        let mut kept: Vec<_> = kept.into_iter().map(|at| self.all[at as usize]).collect();
        if intervals.is_some() {
            // Snapshots have the unfiltered heap size; recompute it with filters.
            let heaps = heaps(lives, kept.len());
            kept.iter_mut().zip(heaps).for_each(|(moment, bytes)| moment.heap_bytes = bytes);
        }
        Some(kept)
    }
}

/// Live bytes at each of so many moments.
fn heaps(lives: &Lives, moments: usize) -> impl Iterator<Item = u64> {
    let mut changes = vec![0_i128; moments + 1];
    for (&(_, first, end), live) in lives {
        let bytes = i128::from(live.bytes);
        [(first, bytes), (end, -bytes)].into_iter().for_each(|(moment, change)| changes[moment as usize] += change);
    }
    changes.into_iter().scan(0_i128, |live, change| {
        *live += change;
        Some(u64::try_from(*live).unwrap_or(0))
    })
}

/// Whether no filter is active. With filters, the heap size is known only at moments.
fn is_of_everything(capture: &Capture) -> bool {
    capture.info.narrowed && capture.analysis.intervals.is_none()
}

/// The heap over time: from all events if available, else from the moments; always with the peak.
fn heap(capture: &Capture, moments: &[Snapshot]) -> TimeSteps {
    let whole = is_of_everything(capture);
    let mut steps: TimeSteps = match &capture.analysis.curve {
        Some(curve) if whole || !capture.info.narrowed => curve.points().collect(),
        _ => moments.iter().map(|moment| (moment.time_ns, moment.heap_bytes)).collect(),
    };
    let peak = &capture.analysis.totals.peak;
    if let Some(at) = peak.at.filter(|_| !whole && !capture.has_several_peaks()) {
        let place = steps.partition_point(|(time_ns, _)| *time_ns <= at.time_ns);
        let (before, _) = steps.split_at(place);
        let at_its_time = before.iter().rev().take_while(|(time_ns, _)| *time_ns == at.time_ns);
        let reached = at_its_time.chain(before.last()).map(|(_, bytes)| *bytes).max();
        if reached.is_none_or(|bytes| bytes < peak.bytes) {
            steps.insert(place, (at.time_ns, peak.bytes));
        }
    }
    steps.dedup_by_key(|(_, bytes)| *bytes);
    steps
}

/// Resident memory over time, from its first sample on.
fn resident(snapshots: &[Snapshot]) -> TimeSteps {
    let mut curve = Curve::default();
    let mut last = 0;
    for snapshot in
        snapshots.iter().filter(|snapshot| snapshot.rss_bytes != std::mem::replace(&mut last, snapshot.rss_bytes))
    {
        curve.add(snapshot.time_ns, snapshot.rss_bytes);
    }
    curve.points().collect()
}

fn write_steps(name: &str, steps: &TimeSteps, data: &mut PackedColumns) -> io::Result<()> {
    data.steps(&format!("{name}Time"), steps.iter().map(|(time_ns, _)| time_ns / MICROSECOND_NS))?;
    data.column(&format!("{name}Bytes"), steps.iter().map(|(_, bytes)| *bytes))
}

/// Resident memory by class at some moments, without what is memtrack's own, as in the line of resident memory, and
/// without classes that can hardly be seen.
fn write_bands(bands: &[ClassesAt], data: &mut PackedColumns) -> io::Result<()> {
    let most = bands.iter().map(|band| band.bytes.iter().sum::<u64>()).max().unwrap_or(0);
    let is_shown = |class: &MemoryClass| bands.iter().any(|band| band.bytes[*class as usize] > most / 100);
    let classes: Vec<MemoryClass> =
        MemoryClass::ALL.into_iter().filter(|class| *class != MemoryClass::Memtrack && is_shown(class)).collect();
    let named = classes.iter().map(|class| serde_json::json!([class.name(), meaning(*class)]));
    data.json("bands", &named.collect())?;
    data.steps("bandTime", bands.iter().map(|band| band.time_ns / MICROSECOND_NS))?;
    for (number, class) in classes.into_iter().enumerate() {
        data.column(&format!("band{number}"), bands.iter().map(|band| band.bytes[class as usize]))?;
    }
    Ok(())
}

fn write_live_intervals(lives: &Lives, data: &mut PackedColumns) -> io::Result<()> {
    let mut sorted: Vec<_> = lives.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| **key);
    data.steps("liveGroup", sorted.iter().map(|(key, _)| u64::from(key.0)))?;
    data.column("liveFirst", sorted.iter().map(|(key, _)| u64::from(key.1)))?;
    data.column("liveEnd", sorted.iter().map(|(key, _)| u64::from(key.2)))?;
    data.column("liveBytes", sorted.iter().map(|(_, tally)| tally.bytes))?;
    data.column("liveCount", sorted.iter().map(|(_, tally)| tally.count))
}

#[cfg(test)]
mod tests {
    use super::{Lives, PageMoments, heap, resident, write};
    use crate::reports::capture_info::Capture;
    use crate::reports::fixture;
    use crate::reports::page::columns::PackedColumns;
    use crate::reports::page::heaviest::Heaviest;
    use crate::reports::page::sites::Sites;
    use memtrack_reader::Snapshot;
    use memtrack_reader::analysis::{Curve, Interval, Moment, Peak, Tally};

    /// Six snapshots of one group, whose heap goes up and down, and one allocation that stays.
    fn capture() -> Capture {
        let mut capture = fixture::capture();
        let lives = [(0, Some(2), 10), (1, Some(3), 500), (1, Some(5), 7), (4, None, 30)];
        let heap = |at: u32| {
            lives.iter().filter(move |life| life.0 <= at && life.1.is_none_or(|end| at < end)).map(|life| life.2)
        };
        let snapshot = |index| Snapshot {
            index,
            time_ns: u64::from(index) * 1_000_000,
            rss_bytes: 0,
            heap_bytes: heap(index).sum(),
            order: 0,
        };
        capture.analysis.snapshots = (0..6).map(snapshot).collect();
        capture.analysis.totals.leaked_at_exit = Tally { bytes: 30, count: 1, ..Tally::default() };
        let interval = |&(first_snapshot, end_snapshot, bytes)| Interval {
            group: 0,
            first_snapshot,
            end_snapshot,
            bytes,
            count: 1,
        };
        capture.analysis.intervals = Some(lives.iter().map(interval).collect());
        capture
    }

    fn sites(capture: &Capture) -> Sites {
        let (tree, side) = Heaviest::of_stacks(capture, 100);
        Sites::new(&tree, &[side], 100)
    }

    #[test]
    fn what_is_live_at_each_kept_moment_adds_up_to_the_heap() {
        let capture = capture();
        let (sites, moments) = (sites(&capture), PageMoments::of(&capture));
        let mut lives = Lives::default();
        for step in 1..8 {
            let intervals = capture.analysis.intervals.as_ref();
            let kept = moments.thinned(intervals, &sites, step, usize::MAX, &mut lives).unwrap();
            for (at, moment) in (0..).zip(&kept) {
                let live: u64 =
                    lives.iter().filter(|(key, _)| key.1 <= at && at < key.2).map(|(_, live)| live.bytes).sum();
                assert_eq!(live, moment.heap_bytes, "moment {at} with step {step}");
            }
            assert!(kept.iter().any(|moment| moment.heap_bytes == 517), "the peak stays with step {step}");
            assert_eq!(kept.last().unwrap().heap_bytes, 30);
        }
    }

    #[test]
    fn a_capture_without_lives_has_a_chart_alone() {
        let mut capture = capture();
        capture.analysis.intervals = None;
        let mut data = PackedColumns::new();
        assert_eq!(write(&capture, &sites(&capture), 100, &mut data).unwrap(), None);
        let mut text = Vec::new();
        data.finish().unwrap().write(&mut text).unwrap();
        let text = crate::reports::page::testing::unpacked(&text);
        assert!(text.contains("\"heap\":[") && !text.contains("liveGroup"), "{text}");
    }

    #[test]
    fn the_peak_lies_on_the_steps_of_the_heap() {
        let mut capture = capture();
        capture.analysis.totals.peak =
            Peak { bytes: 600, at: Some(Moment { order: 9, time_ns: 1_500_000 }), ..Peak::default() };
        let snapshots = capture.analysis.snapshots.clone();
        // The peak is inserted between two snapshots.
        assert_eq!(heap(&capture, &snapshots)[1..4], [(1_000_000, 517), (1_500_000, 600), (2_000_000, 507)]);
        let mut curve = Curve::default();
        let events = [(900_000, 500), (1_500_000, 600), (1_500_000, 0), (4_000_000, 30)];
        events.into_iter().for_each(|(time, bytes)| curve.add(time, bytes));
        capture.analysis.curve = Some(curve);
        assert_eq!(heap(&capture, &snapshots), events, "of events it is known");
        capture.info.narrowed = true;
        assert_eq!(heap(&capture, &snapshots).len(), 7, "they are of what was left out, too");
        capture.analysis.intervals = None;
        assert_eq!(heap(&capture, &snapshots), events, "nothing else is known");
    }

    #[test]
    fn resident_memory_has_a_step_where_it_changes() {
        let rss = [0, 0, 5, 5, 9, 9, 0];
        let snapshot = |(index, rss_bytes)| Snapshot { index, time_ns: index.into(), rss_bytes, ..Snapshot::default() };
        let snapshots: Vec<_> = (0..).zip(rss).map(snapshot).collect();
        assert_eq!(resident(&snapshots), [(2, 5), (4, 9), (6, 0)]);
    }
}
