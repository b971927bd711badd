//! The state of the live heap after the events so far, and the windows that have closed.
//!
//! A window closes when a tick, or an event with an exact time, shows that all coming events are later. Invariant: windows
//! follow one another without gaps, each event is in the window of its time, and what is live at the end of a window is what
//! all windows so far have allocated and not freed.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use memtrack_format::meta::Process;

use super::grid::{LiveTotals, LiveWindow, WindowGrid};
use super::history::LiveHistory;
use super::sums::ReadSums;
use crate::analysis::{Analysis, GroupFlow, Options, RunningFlow, Tally, UnknownBlocks};
use crate::decoded_run::DecodedRun;
use crate::event::{Event, RunEvent, Snapshot};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::source::Consumer;
use crate::window_groups::WindowGroups;

/// The live heap.
#[derive(Debug)]
pub struct LiveState {
    replay: Replay,
    /// In place of a replay: what an aggregated capture says.
    sums: Option<ReadSums>,
    history: LiveHistory,
    rss_bytes: u64,
    rss_peak_bytes: u64,
    time_ns: u64,
    grids: Vec<WindowGrid>,
    /// Grids so far.
    numbered: u32,
    windows: VecDeque<LiveWindow>,
    /// The most that was live at the end of a window: no peak is said to be less, though an estimated one may be corrected to less.
    most_live: u64,
}

impl LiveState {
    /// The state before the first event. `every`: the length of windows, if there are to be any.
    #[must_use]
    pub fn new(every: Option<Duration>) -> Self {
        let mut state = Self {
            replay: Replay::new(&Options { flows: true, ..Options::default() }),
            sums: None,
            history: LiveHistory::default(),
            rss_bytes: 0,
            rss_peak_bytes: 0,
            time_ns: 0,
            grids: Vec::new(),
            numbered: 0,
            windows: VecDeque::new(),
            most_live: 0,
        };
        if let Some(every) = every {
            state.grids.push(WindowGrid::new(0, every));
            state.numbered = 1;
        }
        state
    }

    /// Adds a grid of windows; returns its number. Its first window is from the beginning of the recording until now.
    pub(super) fn add_grid(&mut self, every: Duration) -> u32 {
        let number = self.numbered;
        self.numbered += 1;
        self.grids.push(WindowGrid::new(number, every).at_once());
        number
    }

    pub(super) fn grid_mut(&mut self, number: u32) -> Option<&mut WindowGrid> {
        self.grids.iter_mut().find(|grid| grid.number == number)
    }

    /// Removes a grid.
    pub(super) fn remove_grid(&mut self, number: u32) {
        self.grids.retain(|grid| grid.number != number);
    }

    /// An earlier grid with the same open window.
    pub(super) fn same_grid(&self, number: u32) -> Option<u32> {
        let of = self.grids.iter().find(|grid| grid.number == number)?;
        self.grids.iter().find(|grid| grid.number < number && grid.is_like(of)).map(|grid| grid.number)
    }

    /// All groups that have something live, with all that they have allocated and freed so far.
    pub fn groups(&self) -> impl Iterator<Item = GroupFlow> + '_ {
        self.running_groups().map(|running| running.flow)
    }

    /// The same, of which differences can be taken.
    pub fn running_groups(&self) -> impl Iterator<Item = RunningFlow> + '_ {
        flows(&self.replay, self.sums.as_ref())
    }

    /// What was allocated and freed so far.
    #[must_use]
    pub fn moved(&self) -> [Tally; 2] {
        let mut sums = [Tally::default(); 2];
        match self.replay.exact_flows() {
            Some(flows) if self.sums.is_none() => flows.for_each(|flow| {
                sums[0].add(flow.allocated.0, flow.allocated.1);
                sums[1].add(flow.freed.0, flow.freed.1);
            }),
            _ => self.groups().for_each(|group| {
                sums[0] += group.allocated;
                sums[1] += group.freed;
            }),
        }
        sums
    }

    /// The totals now.
    #[must_use]
    pub fn totals(&self) -> LiveTotals {
        let totals = self.sums.as_ref().map_or_else(|| self.replayed_totals(), |sums| sums.totals);
        LiveTotals { peak_bytes: totals.peak_bytes.max(self.most_live), ..totals }
    }

    fn replayed_totals(&self) -> LiveTotals {
        let (totals, peak) = (self.replay.totals(), self.replay.own_peak());
        LiveTotals {
            time_ns: self.time_ns,
            events: totals.events,
            live: self.replay.live(),
            peak_bytes: peak.bytes,
            peak_time_ns: peak.at.map_or(0, |at| at.time_ns),
            rss_bytes: self.rss_bytes,
            rss_peak_bytes: self.rss_peak_bytes,
            unmatched_frees: totals.unmatched_frees,
        }
    }

    /// Memory over time.
    #[must_use]
    pub fn history(&self) -> &LiveHistory {
        &self.history
    }

    /// The oldest window that was not taken.
    pub(super) fn take_window(&mut self) -> Option<LiveWindow> {
        self.windows.pop_front()
    }

    /// Whether a window waits to be taken.
    pub(super) fn has_window(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The recording has ended at this time: closes the open windows.
    pub(super) fn end(&mut self, time_ns: u64) {
        if self.sums.is_none() {
            self.pass(time_ns);
        }
        self.close(|grid, now| Some((grid.last_end(now.time_ns), true)));
    }

    /// An aggregated capture has these sums now. `last`: it has ended.
    pub(super) fn read(&mut self, analysis: &Analysis, last: bool) {
        self.sums.get_or_insert_default().update(analysis, &mut self.history);
        if !last {
            self.close(|grid, now| grid.end_of_known(now.time_ns, now.events > 0).map(|end| (end, false)));
        }
    }

    /// All coming events are of this time or later.
    fn pass(&mut self, time_ns: u64) {
        // With exact times, events may be later than the tick before them.
        let passed_ns = self.time_ns.max(self.replay.totals().end_time_ns);
        let has_begun = self.replay.totals().events > 0;
        self.close(|grid, _| grid.end_at(time_ns, passed_ns, has_begun).map(|end| (end, false)));
        self.time_ns = self.time_ns.max(time_ns);
        self.history.add(self.time_ns, self.replay.live().bytes, self.rss_bytes);
    }

    #[inline]
    fn run(&mut self, events: impl ExactSizeIterator<Item = RunEvent> + Clone) {
        self.replay.run_and(events, |_, _| ());
    }

    /// Closes the windows of the grids for which there is an end, and whether it is the last one.
    fn close(&mut self, end: impl Fn(&WindowGrid, &LiveTotals) -> Option<(u64, bool)>) {
        if self.grids.is_empty() {
            return;
        }
        let totals = self.totals();
        for grid in &mut self.grids {
            if let Some((to_ns, last)) = end(grid, &totals) {
                self.most_live = self.most_live.max(totals.live.bytes);
                self.windows.push_back(match self.replay.exact_flows() {
                    Some(flows) if self.sums.is_none() => grid.close_exact((to_ns, last), totals, flows),
                    _ => {
                        let is_exact = self.sums.as_ref().is_some_and(|sums| sums.is_exact);
                        let groups = WindowGroups::new(is_exact);
                        grid.close((to_ns, last), totals, flows(&self.replay, self.sums.as_ref()), groups)
                    }
                });
            }
        }
    }
}

/// Of these one is empty.
fn flows<'a>(replay: &'a Replay, sums: Option<&'a ReadSums>) -> impl Iterator<Item = RunningFlow> + 'a {
    replay.running_flows().chain(sums.into_iter().flat_map(ReadSums::flows).map(RunningFlow::of_written))
}

impl Consumer for LiveState {
    /// What its first image frees without a recorded allocation, and whether sums are estimates from samples, decides what each
    /// event stands for.
    fn process(&mut self, process: &Process) {
        let (unknown_blocks, sample_bytes) =
            (UnknownBlocks::of(process), process.sample_bytes.and_then(NonZeroU64::new));
        self.replay = Replay::new(&Options { flows: true, unknown_blocks, sample_bytes, ..Options::default() });
    }

    #[inline]
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.run(std::iter::once(RunEvent::from(*event)));
    }

    #[inline]
    fn events(&mut self, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        self.run(events.map(RunEvent::from));
    }

    #[inline]
    fn run_events(&mut self, events: impl ExactSizeIterator<Item = RunEvent> + Clone, _frames: &Frames) {
        self.run(events);
    }

    #[inline]
    fn decoded_run(&mut self, run: &DecodedRun<'_>, _frames: &Frames) {
        if self.replay.is_sums_only() {
            self.replay.flow_run(run);
        } else {
            self.run(run.run_events());
        }
    }

    fn repeated(&mut self, times: u64, events: impl ExactSizeIterator<Item = Event> + Clone, _frames: &Frames) {
        self.replay.repeated(times, events);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.rss_bytes = snapshot.rss_bytes;
        self.rss_peak_bytes = self.rss_peak_bytes.max(snapshot.rss_bytes);
    }

    fn tick(&mut self, _ticket: u64, time_ns: u64) {
        self.pass(time_ns);
    }

    fn boundary_ns(&self) -> u64 {
        self.grids.iter().filter_map(WindowGrid::next_end).min().unwrap_or(u64::MAX)
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.replay.truncated_stacks(count);
    }

    fn replaced(&mut self) {
        self.replay.replaced();
    }
}
