//! The line for a window of time that a recording sends to its viewers; `docs/control-protocol.md` describes it.
//!
//! Invariant: a line is whole in itself: who sees one line sees everything that is live.

use std::num::NonZeroU64;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memtrack_format::aggregate::Aggregate;
use memtrack_format::meta::Process;
use memtrack_reader::analysis::{Group, GroupFlow, Groups, SampleWeights, Sum, Tally, ViewVariances};
use memtrack_reader::live::{LiveFollower, LivePoint, LiveTotals, LiveWindow};
use memtrack_reader::{Frames, Thread, View, aggregate};
use serde::{Deserialize, Serialize};

/// The view that has what is live.
pub(crate) const LIVE: View = View::HighWaterMark;
/// The view that has what was allocated in the window.
pub(crate) const ALLOCATED: View = View::Temporary;
/// The view that has what was freed in the window.
pub(crate) const FREED: View = View::Leaks;
/// The view that has what was live at the mark.
pub(crate) const AT_MARK: View = View::Allocated;

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WindowLine {
    /// How many lines were dropped before it, because the viewer was too slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) skipped: u64,
    pub(crate) window: WindowMessage,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TallyMessage {
    bytes: u64,
    count: u64,
    /// Where they are estimates from samples: the ends of their 95 % intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_low: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_high: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count_low: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count_high: Option<u64>,
}

impl TallyMessage {
    /// `process`: of which these are all of a kind, also what no sample shows.
    fn of(tally: Tally, process: &Process) -> Self {
        let Tally { bytes, count, .. } = tally;
        let exact = Self { bytes, count, ..Self::default() };
        let Some(weights) = process.sample_bytes.and_then(NonZeroU64::new).map(SampleWeights::new) else {
            return exact;
        };
        let ((bytes_low, bytes_high), (count_low, count_high)) = (tally.bytes_range(), tally.count_range());
        let unseen = weights.unseen_beside(tally);
        Self {
            bytes_low: Some(bytes_low),
            bytes_high: Some(bytes_high.max(bytes.saturating_add(unseen.0))),
            count_low: Some(count_low),
            count_high: Some(count_high.max(count.saturating_add(unseen.1))),
            ..exact
        }
    }
}

impl From<TallyMessage> for Tally {
    fn from(TallyMessage { bytes, count, .. }: TallyMessage) -> Self {
        Self { bytes, count, ..Self::default() }
    }
}

/// The groups of a window, as pictures have them.
#[derive(Debug, Default)]
pub(crate) struct WindowSums {
    pub(crate) groups: Groups,
    /// How exact the sums of each group are, where they are estimates.
    pub(crate) variances: Option<Vec<ViewVariances>>,
}

impl WindowSums {
    pub(crate) fn of(flows: impl Iterator<Item = (GroupFlow, Tally)>, is_sampled: bool) -> Self {
        let mut variances = is_sampled.then(Vec::new);
        let groups = flows.map(|(flow, at_mark)| {
            let GroupFlow { allocated, freed, live, .. } = flow;
            let of = ViewVariances::default().with(LIVE, live.variance).with(ALLOCATED, allocated.variance);
            let of = of.with(FREED, freed.variance).with(AT_MARK, at_mark.variance);
            variances.iter_mut().for_each(|variances| variances.push(of));
            group(&flow, at_mark)
        });
        let groups = groups.collect();
        Self { groups, variances }
    }
}

/// A window.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WindowMessage {
    pub(crate) pid: u32,
    /// Its first moment, and the one after its last, in nanoseconds since recording began.
    pub(crate) t0_ns: u64,
    pub(crate) t1_ns: u64,
    /// Events in it.
    pub(crate) events: u64,
    /// At its end.
    live: TallyMessage,
    /// In it.
    allocated: TallyMessage,
    freed: TallyMessage,
    /// Since recording began.
    total_events: u64,
    pub(crate) total_allocated: TallyMessage,
    pub(crate) total_freed: TallyMessage,
    peak_bytes: u64,
    peak_ns: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) rss_peak_bytes: u64,
    unmatched_frees: u64,
    pub(crate) lag: Lag,
    /// The recording has ended in it.
    pub(crate) last: bool,
    /// The recording has sums in place of events.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) aggregated: bool,
    /// Time, live bytes and resident bytes.
    pub(crate) history: Vec<[u64; 3]>,
    /// The processes whose sum it is; `None`: it is that of one, as it is sent.
    #[serde(skip)]
    pub(crate) processes: Option<SummedCounts>,
    /// In base64: the metadata of the process, and the groups as in a capture with sums.
    process: String,
    sums: String,
}

/// How many processes a window is the sum of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SummedCounts {
    /// That run.
    pub(crate) running: u64,
    /// That run, too, but are not in the sum.
    pub(crate) missing: u64,
}

/// How much of the recording was not replayed yet when a window was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lag {
    /// Bytes of the capture.
    pub(crate) bytes: u64,
    /// About how many events.
    pub(crate) events: u64,
    /// The time between what was replayed last and now.
    pub(crate) ms: u64,
}

/// More than this is worth a word. A loop at full rate writes few bytes, so time counts, too.
const BEHIND_BYTES: u64 = 8 << 20;
const BEHIND_MS: u64 = 3000;
/// Nothing comes any more, and these are still to be replayed: what is shown is no present state, however short it takes.
const BEHIND_EVENTS: u64 = 100_000;

impl Lag {
    /// Whether what was replayed is an earlier state than the present one.
    pub(crate) fn is_behind(self) -> bool {
        self.bytes > BEHIND_BYTES || self.ms > BEHIND_MS || (self.ms == 0 && self.events > BEHIND_EVENTS)
    }

    /// Of what has been replayed until now.
    ///
    /// # Errors
    /// The size of the capture cannot be read.
    pub(crate) fn of(follower: &mut LiveFollower) -> Result<Self> {
        let (bytes, events) = (follower.unread_bytes()?, follower.unread_events()?);
        let begun = follower.process().start.monotonic_ns.unwrap_or(0);
        let replayed = begun.saturating_add(follower.state().totals().time_ns);
        let is_late = bytes > 0 && !follower.is_complete();
        let ms = if is_late { memtrack_collector::monotonic_ns().saturating_sub(replayed) / 1_000_000 } else { 0 };
        Ok(Self { bytes, events, ms })
    }
}

impl WindowLine {
    /// The line of a window that a follower has closed.
    ///
    /// # Errors
    /// The size of the capture cannot be read.
    pub(crate) fn of(window: &LiveWindow, follower: &mut LiveFollower) -> Result<Self> {
        let lag = Lag::of(follower)?;
        let follower = &*follower;
        let message = |tally: Tally| TallyMessage::of(tally, follower.process());
        let [allocated, freed] = window.groups.moved();
        let [total_allocated, total_freed] = follower.state().moved();
        let sums = aggregate::save_window(&window.groups, follower.frames(), follower.threads()).encode();
        let LiveTotals { events, live, peak_bytes, peak_time_ns, rss_bytes, rss_peak_bytes, unmatched_frees, .. } =
            window.totals;
        let points = follower.state().history().points().iter();
        Ok(Self {
            skipped: 0,
            window: WindowMessage {
                pid: follower.process().pid.unwrap_or(0),
                t0_ns: window.from_ns,
                t1_ns: window.to_ns,
                events: window.events,
                live: message(live),
                allocated: message(allocated),
                freed: message(freed),
                total_events: events,
                total_allocated: message(total_allocated),
                total_freed: message(total_freed),
                peak_bytes,
                peak_ns: peak_time_ns,
                rss_bytes,
                rss_peak_bytes,
                unmatched_frees,
                lag,
                last: window.last,
                aggregated: follower.aggregated(),
                processes: None,
                history: points.map(|point| [point.time_ns, point.live_bytes, point.rss_bytes]).collect(),
                process: STANDARD.encode(follower.process().encode()),
                sums: STANDARD.encode(sums),
            },
        })
    }

    /// As it is sent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Serialization of this type cannot fail: it has no maps.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// # Errors
    /// It is no window.
    pub(crate) fn decode(line: &str) -> Result<Self> {
        serde_json::from_str(line).context("the recording process has sent something else than a window")
    }
}

impl WindowMessage {
    /// The totals at its end.
    pub(crate) fn totals(&self) -> LiveTotals {
        LiveTotals {
            time_ns: self.t1_ns,
            events: self.total_events,
            live: self.live.into(),
            peak_bytes: self.peak_bytes,
            peak_time_ns: self.peak_ns,
            rss_bytes: self.rss_bytes,
            rss_peak_bytes: self.rss_peak_bytes,
            unmatched_frees: self.unmatched_frees,
        }
    }

    /// Memory over time.
    pub(crate) fn points(&self) -> Vec<LivePoint> {
        let point = |&[time_ns, live_bytes, rss_bytes]: &[u64; 3]| LivePoint { time_ns, live_bytes, rss_bytes };
        self.history.iter().map(point).collect()
    }

    /// Gives the tables back, once they were taken.
    pub(crate) fn forget_tables(&mut self) {
        (self.history, self.process, self.sums) = Default::default();
    }

    /// Adds what another process has had since its recording began.
    pub(crate) fn add_totals(&mut self, more: &Self) {
        for (sum, more) in [
            (&mut self.total_events, more.total_events),
            (&mut self.unmatched_frees, more.unmatched_frees),
            (&mut self.total_allocated.bytes, more.total_allocated.bytes),
            (&mut self.total_allocated.count, more.total_allocated.count),
            (&mut self.total_freed.bytes, more.total_freed.bytes),
            (&mut self.total_freed.count, more.total_freed.count),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Sets what is live, what was allocated and freed in it, and the peak with its time.
    pub(crate) fn set_sums(&mut self, sums: [Tally; 3], peak: (u64, u64), process: &Process) {
        [self.live, self.allocated, self.freed] = sums.map(|tally| TallyMessage::of(tally, process));
        (self.peak_bytes, self.peak_ns) = peak;
    }

    /// The groups, by ids of these tables; the threads; and the process.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn groups(&self, frames: &mut Frames) -> Result<(WindowSums, Vec<Thread>, Process)> {
        let mut process = Process::default();
        if !process.update(&STANDARD.decode(&self.process)?) {
            bail!("the process in a window is damaged");
        }
        let sums = Aggregate::decode(&STANDARD.decode(&self.sums)?).context("the sums in a window are damaged")?;
        let (analysis, threads) = aggregate::restore_into(frames, &sums)?;
        let groups = analysis.groups.iter().map(with_counts).collect();
        Ok((WindowSums { groups, variances: analysis.variances }, threads, process))
    }
}

/// What is live stands in place of the peak, what was allocated in that of temporary allocations, what was freed in that of leaks,
/// and what was live at the mark in that of all allocations.
pub(crate) fn group(flow: &GroupFlow, at_mark: Tally) -> Group {
    let sum = |tally: Tally| match tally {
        Tally { bytes: 0, count: 0, .. } => Sum::default(),
        Tally { bytes, count, .. } => Sum { bytes, count, first_order: 0, first_time_ns: 0 },
    };
    let &GroupFlow { stack, thread, allocator, allocated, freed, live, peak: _ } = flow;
    let group = Group::new(stack, allocator, thread);
    Group { peak: sum(live), temporary: sum(allocated), leaked: sum(freed), allocated: sum(at_mark), ..group }
}

/// Counts as they are: see [`aggregate::save_window`].
fn with_counts(mut group: Group) -> Group {
    for sum in [&mut group.peak, &mut group.temporary, &mut group.leaked] {
        sum.count = sum.count.saturating_sub(1);
    }
    group
}

#[cfg(test)]
mod tests {
    use super::{Process, Tally, TallyMessage};

    #[test]
    fn a_total_without_samples_may_be_as_much_as_these_do_not_show() {
        let total = |sample_bytes| TallyMessage::of(Tally::default(), &Process { sample_bytes, ..Process::default() });
        let sampled = total(Some(65_536));
        assert_eq!((sampled.bytes_low, sampled.bytes_high, sampled.count_low), (Some(0), Some(196_608), Some(0)));
        assert!(sampled.count_high > Some(10_000), "{sampled:?}");
        assert_eq!(total(None).bytes_high, None);
    }
}
