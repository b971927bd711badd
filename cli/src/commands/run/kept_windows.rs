//! The windows of an aggregated recording, as many as a file can be rewritten with every few seconds.
//!
//! When there are too many, two neighbours become one: those that are shortest for their age. So the last minutes have windows of the
//! length that was asked for, and a day that is weeks ago has a few. Invariant: windows follow one another without gaps, and
//! what was allocated and freed in all of them adds up to the whole recording.

use memtrack_format::Allocator;
use memtrack_reader::analysis::{GroupFlow, SiteWindow};
use memtrack_reader::{StackId, ThreadId};
use rustc_hash::FxHashMap;

/// Windows at most, and rows of all of them, some 20 MB.
const MOST_WINDOWS: usize = 1024;
const MOST_ROWS: usize = 1 << 17;

/// The windows so far.
#[derive(Debug, Default)]
pub(super) struct KeptWindows {
    windows: Vec<SiteWindow>,
    rows: usize,
}

impl KeptWindows {
    /// Adds the next window. Rows of groups that did nothing in it are left out.
    pub(super) fn add(&mut self, mut window: SiteWindow) {
        window.rows.retain(did_something);
        window.from_ns = self.windows.last().map_or(0, |last| last.to_ns);
        self.rows += window.rows.len();
        match self.windows.last_mut().filter(|last| last.rows.is_empty() && window.rows.is_empty()) {
            Some(last) => last.to_ns = window.to_ns,
            None => self.windows.push(window),
        }
        while self.windows.len() > 1 && (self.windows.len() > MOST_WINDOWS || self.rows > MOST_ROWS) {
            self.merge_two();
        }
    }

    /// All of them, with the one that has not ended.
    pub(super) fn with_open(&self, open: Option<SiteWindow>) -> Vec<SiteWindow> {
        let mut all = self.windows.clone();
        if let Some(mut open) = open {
            open.rows.retain(did_something);
            open.from_ns = all.last().map_or(0, |last| last.to_ns);
            all.extend((!open.rows.is_empty()).then_some(open));
        }
        all
    }

    /// Makes one of the two neighbours that are shortest for their age.
    fn merge_two(&mut self) {
        let now = self.windows.last().map_or(0, |last| last.to_ns);
        let share = |pair: &[SiteWindow]| {
            let [from, to] = [pair.first().map_or(0, |one| one.from_ns), pair.last().map_or(0, |one| one.to_ns)];
            (to.saturating_sub(from)) as f64 / (now.saturating_sub(from)).max(1) as f64
        };
        let pairs = self.windows.windows(2).map(share).enumerate();
        let Some((at, _)) = pairs.min_by(|(_, one), (_, other)| one.total_cmp(other)) else { return };
        let later = self.windows.remove(at + 1);
        let earlier = &mut self.windows[at];
        let before = earlier.rows.len() + later.rows.len();
        earlier.to_ns = later.to_ns;
        join(&mut earlier.rows, later.rows);
        self.rows -= before - earlier.rows.len();
    }
}

fn did_something(flow: &GroupFlow) -> bool {
    [flow.allocated, flow.freed].into_iter().any(|tally| (tally.bytes, tally.count) != (0, 0))
}

/// Adds what groups did in the next window.
fn join(rows: &mut Vec<GroupFlow>, later: Vec<GroupFlow>) {
    let key = |flow: &GroupFlow| (flow.stack, flow.allocator, flow.thread);
    let places: FxHashMap<(StackId, Allocator, ThreadId), usize> = rows.iter().map(key).zip(0..).collect();
    for flow in later {
        let Some(known) = places.get(&key(&flow)).and_then(|&at| rows.get_mut(at)) else {
            rows.push(flow);
            continue;
        };
        known.allocated += flow.allocated;
        known.freed += flow.freed;
        known.live = flow.live;
        known.peak = [known.peak, flow.peak].into_iter().flatten().max_by_key(|peak| peak.bytes);
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_reader::analysis::{GroupFlow, SiteWindow, Tally};
    use memtrack_reader::{StackId, ThreadId};

    use super::{KeptWindows, MOST_ROWS, MOST_WINDOWS};

    fn tally(bytes: u64) -> Tally {
        Tally { bytes, count: 1, ..Tally::default() }
    }

    fn flow(stack: u32, live: u64, peak: u64) -> GroupFlow {
        GroupFlow {
            stack: StackId(stack),
            thread: ThreadId(0),
            allocator: Allocator::Malloc,
            allocated: tally(10),
            freed: Tally::default(),
            live: tally(live),
            peak: Some(tally(peak)),
        }
    }

    fn window(number: u64, rows: Vec<GroupFlow>) -> SiteWindow {
        SiteWindow { from_ns: number * 100, to_ns: number * 100 + 100, rows }
    }

    #[test]
    fn a_long_run_keeps_its_sums_in_few_windows() {
        let (mut kept, windows) = (KeptWindows::default(), 20_000);
        for number in 0..windows {
            // The second group holds most in one early window.
            let second = flow(2, 5, if number == 77 { 1 << 40 } else { 5 });
            kept.add(window(number, vec![flow(1, number, number), second]));
        }
        let all = kept.with_open(Some(window(windows, vec![flow(1, 7, 7)])));
        assert!(all.len() <= MOST_WINDOWS + 1);
        assert!(all.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns));
        assert_eq!((all[0].from_ns, all[all.len() - 1].to_ns), (0, windows * 100 + 100));
        let sum = |stack| -> u64 {
            let rows = all.iter().flat_map(|window| &window.rows).filter(|row| row.stack == StackId(stack));
            rows.map(|row| row.allocated.bytes).sum()
        };
        assert_eq!((sum(1), sum(2)), (windows * 10 + 10, windows * 10));
        let first = all.iter().find(|window| window.to_ns > 7_700).unwrap();
        assert_eq!(first.rows.iter().find(|row| row.stack == StackId(2)).unwrap().peak.unwrap().bytes, 1 << 40);
        // What it held at the end of the window, whichever it was made of.
        for one in &all[..all.len() - 1] {
            assert_eq!(one.rows.iter().find(|row| row.stack == StackId(1)).unwrap().live.bytes, one.to_ns / 100 - 1);
        }
        let lengths: Vec<u64> = all.iter().map(|window| window.to_ns - window.from_ns).collect();
        assert!(lengths[..10].iter().all(|length| *length > 1_000), "{:?}", &lengths[..10]);
        assert!(lengths[all.len() - 20..].iter().all(|length| *length == 100));
    }

    #[test]
    fn many_groups_in_each_window_make_fewer_of_them() {
        let mut kept = KeptWindows::default();
        let groups = 10_000;
        for number in 0..100 {
            kept.add(window(number, (0..groups).map(|stack| flow(stack, 1, 1)).collect()));
        }
        let all = kept.with_open(None);
        let rows: usize = all.iter().map(|window| window.rows.len()).sum();
        assert!(rows <= MOST_ROWS && all.len() >= 10, "{rows} {}", all.len());
        assert_eq!(rows, kept.rows);
    }

    #[test]
    fn a_pause_is_one_window() {
        let mut kept = KeptWindows::default();
        let idle = GroupFlow { allocated: Tally::default(), ..flow(1, 5, 5) };
        kept.add(window(0, vec![flow(1, 5, 5)]));
        (1..5).for_each(|number| kept.add(window(number, vec![idle])));
        let spans: Vec<_> = kept.with_open(None).iter().map(|one| (one.from_ns, one.to_ns, one.rows.len())).collect();
        assert_eq!(spans, [(0, 100, 1), (100, 500, 0)]);
    }
}
