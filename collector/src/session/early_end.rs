//! When a forked child ended that had ended before anybody looked at it: its memory was in line meanwhile.
//!
//! Invariant: no time is earlier than the start of the recording, or later than now, whatever the process has left.

use std::sync::atomic::Ordering::Acquire;

use memtrack_format::meta::Process;
use memtrack_transport::clock::{ClockPairing, StampingClock};
use memtrack_transport::layout::ControlPage;

use super::Session;

/// What is known of the end of a process when its recording begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EarlyEnd {
    /// CLOCK_MONOTONIC when it was last known to be alive.
    pub(super) alive_ns: u64,
    /// When it ended, as far as that is known.
    pub(super) end: Option<ClockPairing>,
}

impl EarlyEnd {
    /// Of a process that is alive now.
    pub(super) const fn none(now: u64) -> Self {
        Self { alive_ns: now, end: None }
    }

    /// Of a process that has ended, before any tick is taken in its memory.
    pub(super) fn of(control: &ControlPage, process: &Process, clock: StampingClock) -> Self {
        Self::by(control, process, ClockPairing::measure(clock))
    }

    fn by(control: &ControlPage, process: &Process, now: ClockPairing) -> Self {
        let (Some(ticks), Some(start_ns)) = (process.start.ticks, process.start.monotonic_ns) else {
            return Self::none(now.monotonic_ns);
        };
        let span = Span { ticks, start_ns, now };
        let said_ns = control.end_ns.load(Acquire);
        // The last time that a thread has recorded, which is up to half a millisecond before its last event.
        let timed_ns = span.ns_at(control.timed.0.load(Acquire));
        let alive_ns = if said_ns > 0 { said_ns } else { timed_ns };
        let alive_ns = alive_ns.min(now.monotonic_ns).max(start_ns);
        // Events with times of their own may be later than all that is known otherwise.
        let is_known = said_ns > 0 || !process.timestamps;
        let end = ClockPairing { ticks: span.ticks_at(alive_ns), monotonic_ns: alive_ns, ..now };
        Self { alive_ns, end: is_known.then_some(end) }
    }
}

impl Session {
    /// Notes what a forked child has said of itself that has ended before anybody looked.
    pub(super) fn note_early_end(&mut self) {
        let control = self.area.control();
        if control.ends_early.load(Acquire) == 1 {
            self.progress.set_ends_itself();
            self.cpu_ns = Some(control.end_cpu_ns.load(Acquire)).max(self.cpu_ns);
            self.observer.note_peak(&self.area, control.end_peak.load(Acquire));
        }
    }
}

/// When a process that has ended was last known to be alive: as it was seen, or as it says itself.
pub(super) fn last_alive_ns(control: &ControlPage, seen_ns: u64, now_ns: u64) -> u64 {
    control.end_ns.load(Acquire).min(now_ns).max(seen_ns)
}

/// From the start of a recording until now, on both clocks.
#[derive(Clone, Copy, Debug)]
struct Span {
    ticks: u64,
    start_ns: u64,
    now: ClockPairing,
}

impl Span {
    fn ns_at(self, ticks: u64) -> u64 {
        let since = ticks.saturating_sub(self.ticks);
        self.start_ns.saturating_add(scaled(since, self.all_ns(), self.all_ticks()))
    }

    fn ticks_at(self, ns: u64) -> u64 {
        let since = ns.saturating_sub(self.start_ns);
        self.ticks.saturating_add(scaled(since, self.all_ticks(), self.all_ns()))
    }

    fn all_ns(self) -> u64 {
        self.now.monotonic_ns.saturating_sub(self.start_ns)
    }

    fn all_ticks(self) -> u64 {
        self.now.ticks.saturating_sub(self.ticks)
    }
}

fn scaled(number: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(by) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::EarlyEnd;
    use memtrack_format::meta::{Process, StartTimes};
    use memtrack_transport::Area;
    use memtrack_transport::clock::ClockPairing;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn the_end_is_what_the_process_says_or_its_last_time_and_never_now() {
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let start = StartTimes { ticks: Some(3000), monotonic_ns: Some(1000), ..StartTimes::default() };
        let process = |timestamps| Process { start, timestamps, ..Process::default() };
        let now = ClockPairing { ticks: 33_000, monotonic_ns: 11_000, realtime_ns: 0, uncertainty_ns: 0 };
        let of = |timestamps| EarlyEnd::by(area.control(), &process(timestamps), now);
        let at = |end: EarlyEnd| (end.alive_ns, end.end.map(|end| (end.ticks, end.monotonic_ns)));
        assert_eq!(at(of(false)), (1000, Some((3000, 1000))));
        area.control().timed.0.store(9000, SeqCst);
        assert_eq!(at(of(false)), (3000, Some((9000, 3000))));
        assert_eq!(at(of(true)), (3000, None));
        for (said, known) in [(4000, 4000), (1, 1000), (u64::MAX, 11_000)] {
            area.control().end_ns.store(said, SeqCst);
            assert_eq!(at(of(true)), (known, Some((known * 3, known))));
        }
    }
}
