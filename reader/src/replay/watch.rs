//! Observes live bytes after each event: for live bytes over time, and for the common high-water mark of several
//! processes.
//!
//! It is separate because most reports of one process do not need it. Where samples are recorded, the common high-water mark is looked for
//! before each sample, as that of one process is. Several processes share one
//! [`LiveBytesObserver`], which is moved to the process that is replayed. Invariant: `elsewhere` does not change while
//! a process is replayed.

use super::Replay;
use crate::analysis::{Curve, HALVES, Halves, LiveSample, Moment, Peak};
use crate::event::Event;

/// Live bytes of one process or of several.
#[derive(Debug, Default)]
pub(crate) struct LiveBytesObserver {
    /// Live bytes of the other processes; `None` if there is only one.
    pub(crate) elsewhere: Option<u64>,
    /// Offset from the process's times to the common ones.
    pub(crate) shift_ns: u64,
    /// The largest sum so far.
    pub(crate) most: u64,
    /// It was reached since the watch was moved last.
    pub(crate) raised: bool,
    /// Of several processes of which some have samples.
    pub(crate) halves: Option<Box<JointHalves>>,
    /// The sum over time.
    pub(crate) curve: Curve,
}

/// The largest sums of each half of the samples of all processes.
#[derive(Debug, Default)]
pub(crate) struct JointHalves {
    /// Those of the other processes.
    pub(crate) elsewhere: Halves,
    /// The largest so far, and what the other half of its way had there.
    pub(crate) most: [(u64, u64); HALVES],
    /// It was reached since the watch was moved last.
    pub(crate) raised: [bool; HALVES],
}

impl JointHalves {
    /// Which of them are larger than ever.
    fn look(&mut self, live: Halves) -> [bool; HALVES] {
        let sums: Halves = std::array::from_fn(|at| live[at].saturating_add(self.elsewhere[at]));
        let raises = std::array::from_fn(|at| sums[at] > self.most[at].0);
        for at in (0..HALVES).filter(|at| raises[*at]) {
            (self.most[at], self.raised[at]) = ((sums[at], sums[at ^ 1]), true);
        }
        raises
    }
}

impl LiveBytesObserver {
    /// Sets the process's live bytes from this time on.
    #[inline]
    fn observe(&mut self, time_ns: u64, live_bytes: u64) {
        let sum = live_bytes.saturating_add(self.elsewhere.unwrap_or(0));
        self.curve.add(time_ns.saturating_add(self.shift_ns), sum);
    }

    /// Whether this is the largest sum; `restored_bytes` were live at the largest one so far, too.
    #[inline]
    fn raises(&mut self, live_bytes: u64, restored_bytes: u64) -> bool {
        let sum = live_bytes.saturating_add(self.elsewhere.unwrap_or(0));
        self.most = self.most.saturating_add(restored_bytes);
        let raises = self.elsewhere.is_some() && sum > self.most;
        if raises {
            (self.most, self.raised) = (sum, true);
        }
        raises
    }
}

impl Replay {
    /// Observes live bytes after this event.
    #[inline]
    pub(super) fn look_after(&mut self, event: &Event) {
        if self.sums.is_sampled() && self.watch.as_ref().is_some_and(|watch| watch.elsewhere.is_some()) {
            self.look_at_samples(event);
        } else {
            self.look(event.order.saturating_add(1), event.time_ns);
        }
    }

    /// Observes live bytes after all events before this order.
    #[inline]
    pub(super) fn look(&mut self, order: u64, time_ns: u64) {
        let Some(watch) = &mut self.watch else { return };
        let live_bytes = self.sums.live_bytes();
        watch.observe(time_ns, live_bytes);
        if watch.halves.is_some() {
            self.raise(order, time_ns, self.sums.live_sample());
        } else if watch.raises(live_bytes, self.sums.take_restored()) {
            let at = Moment { order: order.saturating_sub(1), time_ns };
            self.sums.mark_peak(order, Some(at));
        }
    }

    /// Of samples, the moment before an allocation is looked at, as of a process alone.
    fn look_at_samples(&mut self, event: &Event) {
        if let Some(before) = self.sums.take_before() {
            self.raise(event.order, event.time_ns, before);
            if self.sums.is_settled() {
                self.raise(event.order.saturating_add(1), event.time_ns, self.sums.live_sample());
            }
        }
        let live_bytes = self.sums.live_bytes();
        self.watch.iter_mut().for_each(|watch| watch.observe(event.time_ns, live_bytes));
    }

    /// Marks the peak and those of halves, if this is more than ever.
    fn raise(&mut self, order: u64, time_ns: u64, live: LiveSample) {
        let Some(watch) = &mut self.watch else { return };
        let halves = watch.halves.as_mut().map(|halves| halves.look(live.halves));
        if watch.raises(live.bytes, self.sums.take_restored()) {
            self.sums.mark_peak(order, Some(Moment { order: order.saturating_sub(1), time_ns }));
        }
        let raised = halves.into_iter().flatten().enumerate().filter(|(_, raises)| *raises);
        raised.for_each(|(at, _)| self.sums.mark_half(at, order));
    }

    /// All events were replayed: what is live now is looked at, too.
    pub(crate) fn look_at_end(&mut self) {
        if self.watch.is_some() {
            self.look(self.next_order, self.sums.totals.end_time_ns);
        }
    }

    /// Sets what observes live bytes from now on; returns the previous one.
    pub(crate) fn watched_by(&mut self, watch: Option<Box<LiveBytesObserver>>) -> Option<Box<LiveBytesObserver>> {
        std::mem::replace(&mut self.watch, watch)
    }

    /// Other processes have raised the common peak, or that of a half: this process's live blocks were live at it.
    pub(crate) fn mark_peak(&mut self) {
        self.sums.mark_peak(self.next_order, None);
    }

    /// The same of a half.
    pub(crate) fn mark_half(&mut self, at: usize) {
        self.sums.mark_half(at, self.next_order);
    }

    /// What is live, in all and of each half.
    pub(crate) fn live_sample(&self) -> LiveSample {
        self.sums.live_sample()
    }

    /// The order of the last event before the common peak.
    pub(crate) fn last_at_peak(&self) -> Option<u64> {
        self.sums.last_at_peak()
    }

    /// The high-water mark of this process alone.
    pub(crate) fn own_peak(&self) -> Peak {
        self.sums.peak()
    }
}
