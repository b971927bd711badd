//! Replays several captures in one order of time: the processes of a tree, with their common memory.
//!
//! The high-water mark of several processes is the largest sum of their live bytes at one moment. So their events are
//! replayed in the order of their times; at equal times, one process after the other. With exact times this is the true
//! order; without them events have the time of the last tick, so it is right to a millisecond. A process has no memory
//! before its recording began and after it was last seen alive: later ends would put it beside what its parent started next.
//!
//! Captures are opened when their time comes and closed at their end, so memory is that of the processes that lived at
//! the same time. Invariant: at the end every part's sums of the peak are of the same moment, and add up to the largest
//! sum, but for the correction of estimates.

mod joint_peak;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use self::joint_peak::PeakMarks;
use crate::analysis::{Analysis, Curve, LiveSample, Peak, Tally};
use crate::error::Error;
use crate::replay::watch::LiveBytesObserver;
use crate::source::{CaptureReader, MergeReader, ReadSummary};
use crate::{Options, Replay};

/// One of several captures, read to its end.
#[derive(Debug)]
pub struct JointCapture {
    /// The summary of reading it.
    pub read: ReadSummary,
    /// Its analysis; its peak is the common one.
    pub analysis: Analysis,
    /// Everything that was ever allocated, selected or not.
    pub allocated: Tally,
    /// The high-water mark of this process alone.
    pub own_peak: Peak,
    /// The order of its last event at the common peak; `None`: nothing of it was live then.
    pub last_at_peak: Option<u64>,
}

/// The captures, read to their ends.
#[derive(Debug, Default)]
pub struct JointReplay {
    /// In the order in which they were named.
    pub members: Vec<JointCapture>,
    /// The live bytes of all of them over time, since the earliest start.
    pub curve: Curve,
}

/// A capture while it is read.
struct RunningCapture {
    reading: MergeReader,
    replay: Replay,
    /// From its own time to that of all.
    shift_ns: u64,
    end_ns: u64,
    live: LiveSample,
    /// How often the common peaks had been raised when they were last marked in this replay.
    marks: PeakMarks,
    /// All its events were replayed.
    over: bool,
}

enum RunningState {
    Waiting,
    Running(Box<RunningCapture>),
    Ended(Box<JointCapture>, PeakMarks),
}

/// Reads captures that start at these times of a common clock. `open` opens one and returns its options when its time
/// comes; `progress` is called with the number of bytes processed.
///
/// # Errors
/// What `open` says, and what reading a capture alone says.
pub fn read<E: From<Error>>(
    starts_ns: &[u64],
    mut open: impl FnMut(usize) -> Result<(CaptureReader, Options), E>,
    mut progress: impl FnMut(u64),
) -> Result<JointReplay, E> {
    let first_ns = starts_ns.iter().copied().min().unwrap_or(0);
    let mut states: Vec<RunningState> = starts_ns.iter().map(|_| RunningState::Waiting).collect();
    let mut turns: BinaryHeap<Reverse<(u64, usize)>> =
        starts_ns.iter().zip(0..).map(|(start, number)| Reverse((start - first_ns, number))).collect();
    let mut sum = JointSum::default();
    while let Some(Reverse((now_ns, number))) = turns.pop() {
        let until_ns = turns.peek().map_or(u64::MAX, |&Reverse((next, _))| next);
        let state = &mut states[number];
        match std::mem::replace(state, RunningState::Waiting) {
            RunningState::Waiting => {
                let (capture, options) = open(number)?;
                if options.sample_bytes.is_some() {
                    sum.watch.halves.get_or_insert_default();
                }
                *state = RunningState::Running(Box::new(RunningCapture::new(&capture, &options, now_ns)?));
                turns.push(Reverse((now_ns, number)));
            }
            RunningState::Running(mut running) if !running.over => {
                let next_ns = sum.turn(&mut running, until_ns, &mut progress)?;
                turns.push(Reverse((next_ns.max(now_ns), number)));
                *state = RunningState::Running(running);
            }
            RunningState::Running(running) => *state = sum.end(*running, now_ns),
            ended @ RunningState::Ended(..) => *state = ended,
        }
    }
    Ok(sum.finish(states))
}

impl RunningCapture {
    fn new(capture: &CaptureReader, options: &Options, shift_ns: u64) -> Result<Self, Error> {
        let lived_ns = capture.process().lived_ns().map_or_else(|| capture.duration_ns(), Ok)?;
        Ok(Self {
            reading: capture.reading()?,
            // The moments of one process are not those of all.
            replay: Replay::new(&Options { shared_peak: true, moments: 0, ..*options }),
            shift_ns,
            end_ns: shift_ns.saturating_add(lived_ns),
            live: LiveSample::default(),
            marks: PeakMarks::default(),
            over: false,
        })
    }
}

/// The common sum of all processes.
#[derive(Default)]
struct JointSum {
    watch: Box<LiveBytesObserver>,
    live: LiveSample,
    /// The most that was live when a process ended.
    live_at_ends: u64,
    marks: PeakMarks,
}

impl JointSum {
    /// Replays the events of one process up to this time; returns the time of its next event, or that it has ended.
    fn turn(
        &mut self,
        running: &mut RunningCapture,
        until_ns: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        self.mark(running);
        self.take_away(running.live);
        self.watch.elsewhere = Some(self.live.bytes);
        self.watch.halves.iter_mut().for_each(|halves| halves.elsewhere = self.live.halves);
        self.watch.shift_ns = running.shift_ns;
        running.replay.watched_by(Some(std::mem::take(&mut self.watch)));
        let outcome = running.go_on(until_ns, progress);
        self.watch = running.replay.watched_by(None).unwrap_or_default();
        running.live = running.replay.live_sample();
        self.live.bytes = self.live.bytes.saturating_add(running.live.bytes);
        let halves = self.live.halves.iter_mut().zip(running.live.halves);
        halves.for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
        self.take_marks(running);
        outcome
    }

    fn take_away(&mut self, LiveSample { bytes, halves }: LiveSample) {
        self.live.bytes = self.live.bytes.saturating_sub(bytes);
        self.live.halves.iter_mut().zip(halves).for_each(|(sum, bytes)| *sum = sum.saturating_sub(bytes));
    }

    /// What this process has raised is marked in it.
    fn take_marks(&mut self, running: &mut RunningCapture) {
        if std::mem::take(&mut self.watch.raised) {
            self.marks.peak += 1;
        }
        if let Some(halves) = &mut self.watch.halves {
            let raised = std::mem::take(&mut halves.raised);
            self.marks.halves.iter_mut().zip(raised).for_each(|(mark, raised)| *mark += u64::from(raised));
        }
        running.marks = self.marks;
    }

    /// Marks the common peaks in this process: its live blocks have not changed since another process raised them.
    fn mark(&self, running: &mut RunningCapture) {
        if running.marks.peak != self.marks.peak {
            running.replay.mark_peak();
        }
        running.marks.other_halves(self.marks).for_each(|at| running.replay.mark_half(at));
        running.marks = self.marks;
    }

    /// The process has ended; its memory is gone.
    fn end(&mut self, mut running: RunningCapture, now_ns: u64) -> RunningState {
        self.mark(&mut running);
        self.live_at_ends = self.live_at_ends.max(self.live.bytes);
        self.take_away(running.live);
        self.watch.curve.add(now_ns, self.live.bytes);
        let RunningCapture { reading, replay, marks, .. } = running;
        let (allocated, own_peak, last_at_peak) = (replay.allocated(), replay.own_peak(), replay.last_at_peak());
        let (read, analysis) = (reading.finish(), replay.into_analysis());
        let member = JointCapture { read, analysis, allocated, own_peak, last_at_peak };
        RunningState::Ended(Box::new(member), marks)
    }

    fn finish(self, states: Vec<RunningState>) -> JointReplay {
        let ended = states.into_iter().filter_map(|state| match state {
            RunningState::Ended(member, marks) => Some((*member, marks)),
            _ => None,
        });
        let members = ended.map(|(mut member, marks)| {
            if marks.peak != self.marks.peak {
                // It had ended before the peak.
                member.analysis.drop_peak();
                member.last_at_peak = None;
            } else if marks != self.marks {
                joint_peak::widen(&mut member.analysis);
            }
            member
        });
        let mut members: Vec<_> = members.collect();
        if let Some(halves) = &self.watch.halves {
            joint_peak::correct(&mut members, halves, self.live_at_ends);
        }
        // Each is estimated for itself.
        for member in &mut members {
            member.own_peak.bytes = member.own_peak.bytes.max(member.analysis.totals.peak.bytes);
        }
        JointReplay { members, curve: self.watch.curve }
    }
}

impl RunningCapture {
    fn go_on(&mut self, until_ns: u64, progress: &mut dyn FnMut(u64)) -> Result<u64, Error> {
        let Self { reading, replay, shift_ns, end_ns, over, .. } = self;
        let own_until_ns = until_ns.saturating_sub(*shift_ns);
        while let Some(next_ns) = reading.next_ns(replay, progress)? {
            let next_ns = next_ns.saturating_add(*shift_ns);
            if next_ns > until_ns {
                return Ok(next_ns);
            }
            reading.step(own_until_ns, replay, progress)?;
        }
        let recorded_until_ns = reading.end(replay)?;
        replay.look_at_end();
        replay.ended(recorded_until_ns);
        *over = true;
        Ok(*end_ns)
    }
}
