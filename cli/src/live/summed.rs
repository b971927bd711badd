//! Windows of all processes of a recording, added up.
//!
//! The recording makes windows of each process; a thread for each receives them, or reads the capture of one that has ended
//! before anybody asked, or that is one of more than the recording serves. At the end of each span of time what has come is added up.
//!
//! Invariant: a window of a process is in exactly one sum, so what was allocated and freed in the sums adds up to that of the
//! captures. What is live is that of the processes that run, each at its newest window; those that are in no sum are counted. Of a
//! process that has ended only its number is kept.

mod process;
mod threads;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memtrack_collector::control::ControlClient;
use memtrack_collector::control::protocol::{ControlCommand, ProcessState, ProcessStatus, RecordingStatus};
use memtrack_format::meta::Process;
use memtrack_reader::analysis::{GroupFlow, Sum, Tally, ViewVariances};
use memtrack_reader::{Frames, ThreadId};

use self::process::{ProcessNews, ProcessWay, SummedGroupKey, SummedProcess};
use self::threads::SummedThreads;
use super::picture::{ALLOCATED, FREED, LIVE};
use super::received_window::{NextWindow, ReceivedWindow};
use crate::child_captures::{ChildCapture, children_of, run_of};
use crate::control::recordings;
use crate::live_windows::message::{Lag, SummedCounts, WindowMessage, WindowSums};

/// Processes that are received at once: the recording serves 64 clients.
const MOST_RECEIVED: usize = 32;
/// Processes whose captures are read here at once, each with a descriptor: programs have 1024 of these.
const MOST_READ: usize = 480;
/// Windows that may wait here.
const MOST_WAITING: usize = 64;
/// How often new processes are looked for.
const ASKED: Duration = Duration::from_millis(200);
/// The first sum comes soon.
const SOON: Duration = Duration::from_millis(500);
/// How long a recording is asked whose processes have all ended, unless it ends itself.
const LINGER: Duration = Duration::from_secs(1);
/// Points of memory over time; then every second one is dropped.
const MOST_POINTS: usize = 1024;

/// Receives the windows of all processes.
pub(crate) struct SummedProcesses {
    /// `None`: it has ended.
    recording: Option<ControlClient>,
    /// Its number among those at its socket.
    recording_number: Option<u32>,
    every: Duration,
    asked: Option<Instant>,
    /// When the next sum is made.
    next: Instant,
    begun_ns: Option<u64>,
    sender: SyncSender<ProcessNews>,
    receiver: Receiver<ProcessNews>,
    known: HashMap<u32, SummedProcess>,
    /// Since when all processes have ended that the recording tells of.
    all_ended: Option<Instant>,
    /// The capture of the first process.
    first: Option<PathBuf>,
    /// Processes that wait until others have ended.
    waiting: VecDeque<ProcessStatus>,
    /// Of how many windows come in each way.
    receiving: usize,
    reading: usize,
    /// What those that have ended have had in all, and the largest peak of one.
    ended: WindowMessage,
    own_peak: u64,
    /// What was allocated and freed since the last sum.
    flows: HashMap<SummedGroupKey, [Tally; 2]>,
    events: u64,
    skipped: u64,
    has_news: bool,
    threads: SummedThreads,
    process: Process,
    to_ns: u64,
    peak: (u64, u64),
    history: Vec<[u64; 3]>,
}

impl SummedProcesses {
    /// Begins to receive the processes of a recording, which has this number at its socket.
    pub(crate) fn begin((client, recording_number): (ControlClient, Option<u32>), every: Duration) -> Self {
        Self { recording: Some(client), recording_number, ..Self::without_recording(every) }
    }

    fn without_recording(every: Duration) -> Self {
        let (sender, receiver) = sync_channel(MOST_WAITING);
        Self {
            recording: None,
            recording_number: None,
            every,
            asked: None,
            next: Instant::now() + every.min(SOON),
            begun_ns: None,
            sender,
            receiver,
            known: HashMap::new(),
            all_ended: None,
            first: None,
            waiting: VecDeque::new(),
            receiving: 0,
            reading: 0,
            ended: WindowMessage::default(),
            own_peak: 0,
            flows: HashMap::new(),
            events: 0,
            skipped: 0,
            has_news: false,
            threads: SummedThreads::default(),
            process: Process::default(),
            to_ns: 0,
            peak: (0, 0),
            history: Vec::new(),
        }
    }

    /// Waits for the end of a span of time.
    ///
    /// # Errors
    /// A window is damaged, or no process of the recording can be received.
    pub(crate) fn next(&mut self, frames: &mut Frames, limit: Duration) -> Result<NextWindow> {
        let deadline = Instant::now() + limit;
        loop {
            self.ask();
            let now = Instant::now();
            let is_over = self.recording.is_none() && self.receiving + self.reading == 0 && self.waiting.is_empty();
            if is_over && self.known.is_empty() {
                bail!("no process of the recording can be watched: it has ended");
            }
            if is_over || self.has_news && now >= self.next {
                self.next = now.max(self.next) + self.every;
                return Ok(NextWindow::Window(Box::new(self.sum(is_over))));
            }
            if now >= deadline {
                return Ok(NextWindow::Nothing);
            }
            let until = if self.has_news { self.next.min(deadline) } else { deadline };
            match self.receiver.recv_timeout(until.saturating_duration_since(now).min(ASKED)) {
                Ok(window) => self.take(window, frames)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Asks the recording for its processes, and begins with those that are new.
    fn ask(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASKED) {
            return;
        }
        self.asked = Some(Instant::now());
        if let Some(client) = &mut self.recording {
            let pid = client.pid();
            let again = || recordings::of(Some(pid)).ok().map(|found| (found.client, found.status));
            match client.ask::<RecordingStatus>(ControlCommand::Status { within_ms: None }) {
                Ok(status) => self.note(&status),
                Err(_) => match again() {
                    Some((client, status)) => {
                        self.recording = Some(client);
                        self.note(&status);
                    }
                    None => self.lose(),
                },
            }
        }
        let (every, sender) = (self.every, self.sender.clone());
        self.start_waiting(|process, known| process::start(process, known, every, sender.clone()));
    }

    /// Starts a thread for each process that waits, of as many as may be received and read at once.
    fn start_waiting(&mut self, start: impl Fn(ProcessStatus, &SummedProcess) -> io::Result<()>) {
        while self.receiving < MOST_RECEIVED || self.reading < MOST_READ {
            let Some(process) = self.waiting.pop_front() else { return };
            let known = self.known.entry(process.number).or_default();
            let (way, number) = if self.receiving < MOST_RECEIVED {
                (ProcessWay::Received, &mut self.receiving)
            } else {
                (ProcessWay::Read, &mut self.reading)
            };
            known.way = way;
            if start(process.clone(), known).is_ok() {
                *number += 1;
                continue;
            }
            // One without a thread is counted as missing, and has its turn when there are threads again. Where none is left to end,
            // and nothing that runs, it would be tried for ever.
            if self.recording.is_some() || self.receiving + self.reading > 0 {
                self.waiting.push_front(process);
                return;
            }
            known.is_given_up = true;
        }
    }

    /// The recording has ended: finds children that have begun and ended since it was asked last.
    fn lose(&mut self) {
        self.recording = None;
        self.known.values().for_each(|process| process.runs.store(false, Relaxed));
        let Some(first) = &self.first else { return };
        let Some(run) = run_of(first) else { return };
        let known = &self.known;
        for ChildCapture { pid, number, path } in children_of(first, run, |number| !known.contains_key(&number)) {
            if let Entry::Vacant(vacant) = self.known.entry(number) {
                vacant.insert(SummedProcess::default());
                let ended = ProcessStatus::new(pid, number, ProcessState::Ended);
                self.waiting.push_back(ProcessStatus { capture: Some(path), ..ended });
            }
        }
    }

    fn note(&mut self, status: &RecordingStatus) {
        let recorder = status.recorder;
        let of_recording = || status.of_recording(self.recording_number);
        let is_over = of_recording().all(|process| process.state == ProcessState::Ended);
        for process in of_recording() {
            let capture = process.capture.as_deref().map(|capture| recordings::as_seen_here(capture, recorder));
            if process.number == 0 {
                self.first = self.first.take().or_else(|| capture.clone());
            }
            if capture.is_some() {
                let is_new = !self.known.contains_key(&process.number);
                let known = self.known.entry(process.number).or_default();
                known.runs.store(process.state != ProcessState::Ended, Relaxed);
                if is_new {
                    self.waiting.push_back(ProcessStatus { capture, ..process.clone() });
                }
            }
        }
        // A child that has ended may be told of last.
        if !is_over || self.known.is_empty() {
            self.all_ended = None;
        } else if self.all_ended.get_or_insert_with(Instant::now).elapsed() > LINGER {
            self.lose();
        }
    }

    /// Adds what has come.
    fn take(&mut self, news: ProcessNews, frames: &mut Frames) -> Result<()> {
        let ProcessNews { number, line, failed } = news;
        let Some(line) = line else {
            self.take_end(number, failed);
            return Ok(());
        };
        let mut message = line.window;
        let (sums, threads, process) = message.groups(frames)?;
        let start_ns = process.start.monotonic_ns.unwrap_or(0);
        if number == 0 || self.begun_ns.is_none() {
            self.begun_ns = Some(start_ns);
            self.process = process;
        }
        let moved: Vec<ThreadId> = threads.into_iter().map(|thread| self.threads.id_of(number, thread)).collect();
        let mut live = Vec::new();
        let variances = sums.variances.iter().flatten().copied();
        for (group, of) in sums.groups.iter().zip(variances.chain(std::iter::repeat(ViewVariances::default()))) {
            let tally = |sum: Sum, view| Tally { bytes: sum.bytes, count: sum.count, variance: of.of(view) };
            let thread = moved.get(group.thread.0 as usize).copied().unwrap_or(group.thread);
            let key = (group.stack, thread, group.allocator);
            let [allocated, freed] = self.flows.entry(key).or_default();
            *allocated += tally(group.temporary, ALLOCATED);
            *freed += tally(group.leaked, FREED);
            if group.peak.bytes > 0 || group.peak.count > 0 {
                live.push((key, tally(group.peak, LIVE)));
            }
        }
        message.forget_tables();
        self.events = self.events.saturating_add(message.events);
        self.skipped = self.skipped.saturating_add(line.skipped);
        self.has_news = true;
        self.ended.aggregated |= message.aggregated;
        let last = message.last;
        let known = self.known.entry(number).or_default();
        (known.live, known.start_ns, known.newest) = (live, start_ns, Some(Box::new(message)));
        known.seen = true;
        if last {
            self.end(number);
        }
        Ok(())
    }

    /// Nothing more comes from the thread of a process.
    fn take_end(&mut self, number: u32, failed: bool) {
        let known = self.known.entry(number).or_default();
        known.seen &= !failed;
        match known.way {
            ProcessWay::Received => self.receiving -= 1,
            ProcessWay::Read => self.reading -= 1,
        }
        self.end(number);
    }

    /// A process has no memory any more: what it has had is all that is kept, once for all processes.
    fn end(&mut self, number: u32) {
        let Some(known) = self.known.get_mut(&number) else { return };
        known.live = Vec::new();
        if let Some(newest) = known.newest.take() {
            self.ended.add_totals(&newest);
            self.ended.t1_ns = self.ended.t1_ns.max(end_ns(&newest, known.start_ns, self.begun_ns));
            self.own_peak = self.own_peak.max(newest.totals().peak_bytes);
            self.has_news = true;
        }
        self.threads.end(number);
    }

    /// The sum of what has come since the last one.
    fn sum(&mut self, last: bool) -> ReceivedWindow {
        let mut groups: HashMap<SummedGroupKey, GroupFlow> = HashMap::new();
        let begin = |(stack, thread, allocator): SummedGroupKey| {
            let [allocated, freed, live] = [Tally::default(); 3];
            GroupFlow { stack, thread, allocator, allocated, freed, live, peak: None }
        };
        let mut sums = [Tally::default(); 2];
        for (key, [allocated, freed]) in self.flows.drain() {
            sums[0] += allocated;
            sums[1] += freed;
            groups.insert(key, GroupFlow { allocated, freed, ..begin(key) });
        }
        for (key, live) in self.known.values().flat_map(|process| &process.live) {
            groups.entry(*key).or_insert_with(|| begin(*key)).live += *live;
        }
        let is_sampled = self.process.sample_bytes.is_some();
        let flows = groups.into_values().map(|flow| (flow, Tally::default()));
        let sums_of_groups = WindowSums::of(flows, is_sampled);
        self.has_news = false;
        ReceivedWindow {
            skipped: std::mem::take(&mut self.skipped),
            message: self.totals(sums, last),
            sums: sums_of_groups,
            threads: self.threads.take(),
            process: self.process.clone(),
        }
    }

    /// How many processes run that are in no sum, or ran and could not be read.
    fn missing(&self) -> u64 {
        self.known.values().filter(|known| known.is_missing()).count() as u64
    }

    fn totals(&mut self, [allocated, freed]: [Tally; 2], last: bool) -> WindowMessage {
        let mut sum = self.ended.clone();
        let mut counts = SummedCounts { running: 0, missing: self.missing() };
        let mut live = Tally::default();
        for process in self.known.values() {
            let Some(newest) = &process.newest else { continue };
            sum.add_totals(newest);
            let totals = newest.totals();
            self.own_peak = self.own_peak.max(totals.peak_bytes);
            sum.t1_ns = sum.t1_ns.max(end_ns(newest, process.start_ns, self.begun_ns));
            counts.running += 1;
            live += totals.live;
            sum.rss_bytes = sum.rss_bytes.saturating_add(totals.rss_bytes);
            sum.lag.add(newest.lag);
        }
        sum.pid = self.process.pid.unwrap_or(0);
        sum.t1_ns = sum.t1_ns.max(self.to_ns);
        (sum.t0_ns, self.to_ns) = (self.to_ns, sum.t1_ns);
        sum.events = std::mem::take(&mut self.events);
        if live.bytes.max(self.own_peak) > self.peak.0 {
            self.peak = (live.bytes.max(self.own_peak), sum.t1_ns);
        }
        sum.set_sums([live, allocated, freed], self.peak, &self.process);
        sum.rss_peak_bytes = self.history.iter().map(|point| point[2]).fold(sum.rss_bytes, u64::max);
        (sum.last, sum.processes) = (last, Some(counts));
        if self.history.len() >= MOST_POINTS {
            let mut at = 0;
            self.history.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        self.history.push([sum.t1_ns, live.bytes, sum.rss_bytes]);
        sum.history.clone_from(&self.history);
        sum
    }
}

/// When the window of a process ended, since the recording of the first one began.
fn end_ns(window: &WindowMessage, start_ns: u64, begun_ns: Option<u64>) -> u64 {
    window.t1_ns.saturating_add(start_ns.saturating_sub(begun_ns.unwrap_or(0)))
}

/// What is behind, of all.
impl Lag {
    fn add(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.events = self.events.saturating_add(more.events);
        self.ms = self.ms.max(more.ms);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use memtrack_collector::control::protocol::{ProcessState, ProcessStatus};

    use super::{SummedProcess, SummedProcesses};

    /// Two processes that run and wait.
    fn with_two() -> SummedProcesses {
        let mut summed = SummedProcesses::without_recording(Duration::from_secs(1));
        for number in [1, 2] {
            let known = SummedProcess::default();
            known.runs.store(true, Relaxed);
            summed.known.insert(number, known);
            summed.waiting.push_back(ProcessStatus::new(number + 100, number, ProcessState::Recording));
        }
        summed
    }

    #[test]
    fn a_process_without_a_thread_is_missing_and_tried_again() {
        let mut summed = with_two();
        let threads = Cell::new(1);
        let started = Cell::new(Vec::new());
        let start = |process: ProcessStatus, _: &SummedProcess| {
            let left = threads.replace(threads.get() - 1);
            if left < 1 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            started.set([started.take(), vec![process.number]].concat());
            Ok(())
        };
        summed.start_waiting(start);
        assert_eq!((started.take(), summed.receiving, summed.waiting.len(), summed.missing()), (vec![1], 1, 1, 2));
        threads.set(0);
        summed.start_waiting(start);
        assert_eq!((started.take(), summed.receiving, summed.waiting.len()), (vec![], 1, 1), "it waits");
        threads.set(9);
        summed.start_waiting(start);
        assert_eq!((started.take(), summed.receiving, summed.waiting.len()), (vec![2], 2, 0));
    }

    #[test]
    fn where_no_thread_can_be_had_the_end_comes_and_says_what_is_missing() {
        let mut summed = with_two();
        summed.known.values().for_each(|known| known.runs.store(false, Relaxed));
        assert_eq!(summed.missing(), 0);
        summed.start_waiting(|_, _| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!((summed.receiving, summed.waiting.len(), summed.missing()), (0, 0, 2));
    }
}
