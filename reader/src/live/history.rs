//! Live and resident memory over time, in a bounded number of points.
//!
//! Invariant: there are at most [`MOST`] points, in the order of time, each with the largest values of its interval; when
//! there are more, neighbours become one and the interval doubles.

/// Points at most.
const MOST: usize = 1024;
/// The first interval, in nanoseconds.
const FIRST_INTERVAL_NS: u64 = 50_000_000;

/// Memory in an interval of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivePoint {
    /// Where it begins, in nanoseconds since recording began.
    pub time_ns: u64,
    /// The most live bytes that a tick in it saw.
    pub live_bytes: u64,
    /// The most resident memory that was sampled in it, or the last one before.
    pub rss_bytes: u64,
}

/// Memory over time.
#[derive(Clone, Debug)]
pub struct LiveHistory {
    points: Vec<LivePoint>,
    interval_ns: u64,
}

impl Default for LiveHistory {
    fn default() -> Self {
        Self { points: Vec::new(), interval_ns: FIRST_INTERVAL_NS }
    }
}

impl LiveHistory {
    /// The points so far.
    #[must_use]
    pub fn points(&self) -> &[LivePoint] {
        &self.points
    }

    /// Adds what is known at a time, not before the last one.
    pub(super) fn add(&mut self, time_ns: u64, live_bytes: u64, rss_bytes: u64) {
        let begin = time_ns - time_ns % self.interval_ns;
        match self.points.last_mut().filter(|last| last.time_ns >= begin) {
            Some(last) => {
                last.live_bytes = last.live_bytes.max(live_bytes);
                last.rss_bytes = last.rss_bytes.max(rss_bytes);
            }
            None => self.points.push(LivePoint { time_ns: begin, live_bytes, rss_bytes }),
        }
        if self.points.len() > MOST {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.interval_ns *= 2;
        let all = std::mem::take(&mut self.points);
        all.into_iter().for_each(|point| self.add(point.time_ns, point.live_bytes, point.rss_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_INTERVAL_NS, LiveHistory, MOST};

    #[test]
    fn points_are_bounded_and_keep_the_largest_values() {
        let mut history = LiveHistory::default();
        let count = MOST as u64 * 5;
        (0..count).for_each(|at| history.add(at * FIRST_INTERVAL_NS, if at == 77 { 1000 } else { 5 }, at));
        let points = history.points();
        assert!(points.len() <= MOST && points.len() > MOST / 2, "{}", points.len());
        assert!(points.is_sorted_by_key(|point| point.time_ns));
        assert_eq!(points.iter().map(|point| point.live_bytes).max(), Some(1000));
        assert_eq!(points.last().unwrap().rss_bytes, count - 1);
    }
}
