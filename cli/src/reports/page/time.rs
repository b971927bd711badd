//! Memory over time for a page: the snapshots, and in which of them each group's allocations were live.
//!
//! Every snapshot is a moment at which the page can be asked what was live. Where there are too many of them, the
//! highest of each few neighbours is kept, so peaks stay. Invariant: at each kept moment the live allocations add up to
//! the heap shown there, exactly.

use std::io;

use memtrack_reader::Snapshot;
use memtrack_reader::analysis::{Intervals, Tally};
use rustc_hash::FxHashMap;

use super::columns::Columns;
use super::sites::Sites;
use crate::reports::facts::Capture;
use crate::units::count;

/// Points that a chart shows, and so moments to choose from.
pub(super) const MOST_MOMENTS: usize = 2_000;
/// So many moments are kept in any case.
const FEWEST_MOMENTS: usize = 64;

/// (group, first moment, end moment) -> bytes and count; the end is one past the last moment for what stays.
type Lives = FxHashMap<(u32, u32, u32), Tally>;

/// Writes the columns, with at most so many entries in the table of lives as long as there are moments to do without;
/// says what was merged.
pub(super) fn write(
    capture: &Capture,
    sites: &Sites,
    most_lives: usize,
    data: &mut Columns,
) -> io::Result<Option<String>> {
    let moments = Moments::of(capture);
    let intervals = capture.analysis.intervals.as_ref();
    let mut step = moments.all.len().div_ceil(MOST_MOMENTS).div_ceil(moments.step);
    let (mut kept, mut lives) = moments.thinned(intervals, sites, step);
    while lives.len() > most_lives && kept.len() > FEWEST_MOMENTS {
        step *= 2;
        (kept, lives) = moments.thinned(intervals, sites, step);
    }
    let of_kept = |figure: fn(&Snapshot) -> u64| kept.iter().map(&figure).collect::<Vec<_>>();
    data.steps("time", of_kept(|moment| moment.time_ns / 1000))?;
    data.column("rss", of_kept(|moment| moment.rss_bytes))?;
    data.column("heap", of_kept(|moment| moment.heap_bytes))?;
    if intervals.is_some() {
        write_lives(&lives, data)?;
    }
    let step = step * moments.step;
    Ok((step > 1).then(|| {
        let (kept, all) = (count(kept.len() as u64), count(moments.all.len() as u64));
        format!("memory over time is kept at {kept} of {all} moments, the highest of each {step}; it is exact at these")
    }))
}

/// The moments of a capture.
struct Moments {
    /// The snapshots, and the end as one more.
    all: Vec<Snapshot>,
    /// Those of them at which it is known what was live, but for the end.
    known: Vec<u32>,
    /// Of how many neighbours each of these is the highest.
    step: usize,
}

impl Moments {
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

    /// The highest of each `step` neighbours that are known, always with the end, and the lives seen at them.
    fn thinned(&self, intervals: Option<&Intervals>, sites: &Sites, step: usize) -> (Vec<Snapshot>, Lives) {
        let heap = |at: u32| self.all[at as usize].heap_bytes;
        let highest = |chunk: &[u32]| chunk.iter().copied().max_by_key(|at| (heap(*at), u32::MAX - at));
        let mut kept: Vec<u32> = self.known.chunks(step).filter_map(highest).collect();
        kept.push(self.all.len() as u32 - 1);
        // The first kept moment that is not before each.
        let after = |moment: u32| kept.partition_point(|at| *at < moment) as u32;
        let after: Vec<u32> = (0..self.all.len() as u32).map(after).collect();
        let mut lives = Lives::default();
        for interval in intervals.into_iter().flat_map(Intervals::iter) {
            let first = after[interval.first_snapshot as usize];
            let end = interval.end_snapshot.map_or(kept.len() as u32, |end| after[end as usize]);
            if first < end {
                let group = sites.group_numbers[interval.group as usize];
                lives.entry((group, first, end)).or_default().add(interval.bytes, interval.count);
            }
        }
        (kept.into_iter().map(|at| self.all[at as usize]).collect(), lives)
    }
}

fn write_lives(lives: &Lives, data: &mut Columns) -> io::Result<()> {
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
    use super::{Moments, write};
    use crate::reports::facts::Capture;
    use crate::reports::fixture;
    use crate::reports::page::columns::Columns;
    use crate::reports::page::heaviest::Heaviest;
    use crate::reports::page::sites::Sites;
    use memtrack_reader::Snapshot;
    use memtrack_reader::analysis::{Interval, Tally};

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
        capture.analysis.totals.leaked_at_exit = Tally { bytes: 30, count: 1 };
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
        let (sites, moments) = (sites(&capture), Moments::of(&capture));
        for step in 1..8 {
            let (kept, lives) = moments.thinned(capture.analysis.intervals.as_ref(), &sites, step);
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
        let mut data = Columns::new();
        assert_eq!(write(&capture, &sites(&capture), 100, &mut data).unwrap(), None);
        let mut text = Vec::new();
        data.ended().unwrap().write(&mut text).unwrap();
        let text = crate::reports::page::testing::unpacked(&text);
        assert!(text.contains("\"heap\":[") && !text.contains("liveGroup"), "{text}");
    }
}
