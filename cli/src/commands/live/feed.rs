//! The threads behind the live view: one receives windows from the recording, or where that cannot be reached follows the
//! capture; one looks up names and makes the rows.
//!
//! Invariant: neither waits for the screen, nor the first for the second: a picture that was not taken is replaced by the next.

mod received;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use memtrack_reader::analysis::{FlowMark, GroupFlow, RunningFlow, Tally, share_live};
use memtrack_reader::live::{FollowProgress, LiveFollower, LivePoint, LiveTotals};
use memtrack_reader::symbols::Symbolizer;

use super::board::{Board, GrowthRecord, rows, threads};
use crate::live::picture::LivePicture;
use crate::live::source::LiveSource;
use crate::live::subscription::WindowSubscription;
use crate::live_windows::message::{Lag, SummedCounts};
use crate::reports::diff_noise::DiffNoise;
use crate::reports::display::DisplayOptions;
use crate::units::duration;

/// How long is read at a time.
const BUDGET: Duration = Duration::from_millis(50);
/// How often the file is looked at while nothing is new.
const PAUSE: Duration = Duration::from_millis(20);
/// Pictures are made at most 1/n of the time.
const TIME_PART: u32 = 5;

/// What is said of a key that needs new figures, when there are none.
const NOTHING_COMES: &str = "not done: no figures come any more";
/// The same of a mark, before the first figures are there.
const MARK_WAITS: &str = "growth counts from this moment on, as soon as there are figures";
/// The same of one that was asked for earlier.
const MARK_LOST: &str = "no mark was set: the recording is gone, and its moment was not replayed";

/// What the view asks of the following thread.
#[derive(Debug)]
pub(super) enum FeedRequest {
    /// Growth counts from this moment on.
    Mark(Instant),
    /// A snapshot is to be written.
    Snapshot,
}

/// A picture on its way to the second thread.
struct FedPicture {
    picture: LivePicture,
    totals: LiveTotals,
    points: Vec<LivePoint>,
    window_ns: u64,
    events: u64,
    allocated_ever: Tally,
    freed_ever: Tally,
    mark_ns: u64,
    ended: bool,
    lag: Lag,
    /// The processes whose sum it is; `None`: it is that of one.
    processes: Option<SummedCounts>,
    /// Windows before this one were lost.
    has_lost: bool,
}

/// What the threads and the view share.
#[derive(Default)]
struct FeedState {
    picture: Option<FedPicture>,
    board: Option<Arc<Board>>,
    message: Option<String>,
    failed: Option<String>,
    stopped: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<FeedState>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, fed: FedPicture) {
        self.lock().picture = Some(fed);
        self.changed.notify_all();
    }
}

/// The view's end of the threads. When it is dropped, they end.
pub(super) struct LiveFeed {
    shared: Arc<Shared>,
    requests: Sender<FeedRequest>,
}

impl LiveFeed {
    /// Starts to follow a process, or all processes of its recording.
    ///
    /// # Errors
    /// The capture cannot be read.
    pub(super) fn start(source: LiveSource, every: Duration, all: bool) -> Result<Self> {
        let subscription = if all { Some(source.subscribe_all(every)?) } else { source.subscribe(every) };
        let follower = match &subscription {
            None => Some(LiveFollower::open(source.path(), None)?),
            Some(_) => None,
        };
        let shared = Arc::<Shared>::default();
        let (requests, asked) = channel();
        let (following, preparing) = (Arc::clone(&shared), Arc::clone(&shared));
        thread::Builder::new().name("memtrack-follow".into()).spawn(move || {
            let told = Arc::clone(&following);
            if let Err(error) = follow(source, (subscription, follower), every, following, asked) {
                told.lock().failed = Some(format!("{error:#}"));
            }
        })?;
        thread::Builder::new().name("memtrack-names".into()).spawn(move || prepare(&preparing))?;
        Ok(Self { shared, requests })
    }

    /// The newest board, if there is one.
    pub(super) fn board(&self) -> Option<Arc<Board>> {
        self.shared.lock().board.clone()
    }

    /// A message for the user, once.
    pub(super) fn take_message(&self) -> Option<String> {
        let mut state = self.shared.lock();
        state.message.take().or_else(|| state.failed.take())
    }

    /// Asks the following thread.
    pub(super) fn ask(&self, request: FeedRequest) {
        if self.requests.send(request).is_err() {
            let mut state = self.shared.lock();
            // Why it has ended, if that was not said yet.
            state.message = state.failed.take().or_else(|| Some(NOTHING_COMES.into()));
        }
    }
}

impl Drop for LiveFeed {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Relaxed);
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
    }
}

/// Receives windows, then follows the capture, if the recording is lost before it ends.
fn follow(
    source: LiveSource,
    (subscription, follower): (Option<WindowSubscription>, Option<LiveFollower>),
    every: Duration,
    shared: Arc<Shared>,
    asked: Receiver<FeedRequest>,
) -> Result<()> {
    let mut due_ns = None;
    if let Some(subscription) = subscription {
        let mut received = received::ReceivedWindows::new(subscription, &source, &shared, &asked);
        if !received.run()? {
            return Ok(());
        }
        due_ns = received.mark_moment();
    }
    let follower = match follower {
        Some(follower) => follower,
        None => LiveFollower::open(source.path(), None)?,
    };
    let (mark, before) = (GrowthStart::default(), Before::default());
    Follow { source, follower, every, shared, asked, mark, due_ns, before }.run()
}

/// When the mark is set that was asked for at a moment, in nanoseconds since recording began; `None`: at once. Where the view is
/// behind, that is when the moment is replayed. `shown_ns`: what was replayed at the moment `since`, which was so far behind.
fn due(asked: Instant, shown_ns: u64, lag: Lag, since: Instant) -> Option<u64> {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let present = shown_ns.saturating_add(lag.ms.saturating_mul(1_000_000));
    let later = nanoseconds(asked.saturating_duration_since(since));
    let earlier = nanoseconds(since.saturating_duration_since(asked));
    (lag.is_behind() && lag.ms > 0).then(|| present.saturating_add(later).saturating_sub(earlier).max(shown_ns))
}

/// Whether this moment is replayed when so much is. A program that does nothing has no event at or after it; then nothing is left to
/// be replayed.
fn is_past(shown_ns: u64, due_ns: u64, lag: Lag) -> bool {
    shown_ns >= due_ns || !lag.is_behind()
}

/// What is said of a mark; `due_ns`: when it is set.
fn mark_message(shown_ns: u64, due_ns: Option<u64>) -> String {
    match due_ns {
        Some(due_ns) => format!("growth counts from {} on, as soon as that is replayed", duration(due_ns)),
        None => format!("growth counts from {} on", duration(shown_ns)),
    }
}

/// What was live at the mark, by group.
#[derive(Default)]
struct GrowthStart {
    time_ns: u64,
    live: Vec<LiveAtMark>,
}

/// What a group had live at the mark, and had allocated and freed until then.
#[derive(Clone, Copy, Default)]
struct LiveAtMark {
    live: Tally,
    flow: FlowMark,
}

impl LiveAtMark {
    /// What was live then, and is live now.
    fn until(self, running: &RunningFlow) -> [Tally; 2] {
        let (mut before, mut now) = (self.live, running.flow.live);
        let came = running.since(self.flow).allocated.variance;
        [before.variance, now.variance] = share_live([before.variance, now.variance], came);
        [before, now]
    }
}

/// What was there at the last picture.
#[derive(Default)]
struct Before {
    time_ns: u64,
    events: u64,
    flows: Vec<FlowMark>,
}

struct Follow {
    source: LiveSource,
    follower: LiveFollower,
    every: Duration,
    shared: Arc<Shared>,
    asked: Receiver<FeedRequest>,
    mark: GrowthStart,
    /// When the mark is set that was asked for.
    due_ns: Option<u64>,
    before: Before,
}

impl Follow {
    fn run(&mut self) -> Result<()> {
        let mut next = Instant::now();
        // The first pictures come soon.
        let mut interval = self.every.min(Duration::from_millis(250));
        while !self.shared.stopped.load(Relaxed) {
            let progress = self.follower.poll(BUDGET)?;
            let may_grow = self.source.may_grow();
            if progress == FollowProgress::CaughtUp && !may_grow {
                self.follower.finish()?;
            }
            while let Ok(request) = self.asked.try_recv() {
                self.answer(&request)?;
                next = Instant::now();
            }
            let ended = self.follower.has_ended();
            if let Some(due_ns) = self.due_ns
                && (ended || is_past(self.follower.state().totals().time_ns, due_ns, Lag::of(&mut self.follower)?))
            {
                self.set_mark();
                next = Instant::now();
            }
            let is_known = self.follower.state().totals().events > 0;
            if ended || is_known && Instant::now() >= next {
                let begun = Instant::now();
                self.show()?;
                next = begun + interval.max(begun.elapsed() * TIME_PART);
                interval = self.every;
            }
            if ended {
                self.shared.lock().message = self.source.why_ended().map(str::to_owned);
                return self.rest();
            }
            if progress == FollowProgress::CaughtUp {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Nothing changes any more but the mark.
    fn rest(&mut self) -> Result<()> {
        while let Ok(request) = self.asked.recv() {
            self.answer(&request)?;
            self.show()?;
        }
        Ok(())
    }

    fn answer(&mut self, request: &FeedRequest) -> Result<()> {
        match request {
            FeedRequest::Mark(asked) => {
                let shown_ns = self.follower.state().totals().time_ns;
                let lag = Lag::of(&mut self.follower)?;
                self.due_ns = due(*asked, shown_ns, lag, Instant::now());
                match self.due_ns {
                    Some(_) => self.shared.lock().message = Some(mark_message(shown_ns, self.due_ns)),
                    None => self.set_mark(),
                }
            }
            FeedRequest::Snapshot => {
                let told = self.source.write_snapshot().unwrap_or_else(|error| format!("no snapshot: {error:#}"));
                self.shared.lock().message = Some(told);
            }
        }
        Ok(())
    }

    /// Growth counts from what is replayed.
    fn set_mark(&mut self) {
        let at_mark = |running: RunningFlow| LiveAtMark { live: running.flow.live, flow: running.mark() };
        let live = self.follower.state().running_groups().map(at_mark).collect();
        self.mark = GrowthStart { time_ns: self.follower.state().totals().time_ns, live };
        self.due_ns = None;
        self.shared.lock().message = Some(mark_message(self.mark.time_ns, None));
    }

    fn show(&mut self) -> Result<()> {
        let state = self.follower.state();
        let totals = state.totals();
        let mut flows = Vec::new();
        let (mut allocated_ever, mut freed_ever) = (Tally::default(), Tally::default());
        let mut before = std::mem::take(&mut self.before.flows).into_iter();
        let mut at_mark = self.mark.live.iter().copied();
        let groups = state.running_groups().map(|running| {
            flows.push(running.mark());
            allocated_ever += running.flow.allocated;
            freed_ever += running.flow.freed;
            let group = running.since(before.next().unwrap_or_default());
            let [at_mark, live] = at_mark.next().unwrap_or_default().until(&running);
            (GroupFlow { live, ..group }, at_mark)
        });
        let empty = |(group, at_mark): &(GroupFlow, Tally)| {
            [group.live, group.allocated, *at_mark].iter().all(|tally| *tally == Tally::default())
        };
        let groups: Vec<_> = groups.filter(|group| !empty(group)).collect();
        let lag = Lag::of(&mut self.follower)?;
        let picture = LivePicture::of(&self.follower, groups.into_iter(), totals);
        let Before { time_ns, events, .. } = self.before;
        self.before = Before { time_ns: totals.time_ns, events: totals.events, flows };
        let fed = FedPicture {
            picture,
            totals,
            points: self.follower.state().history().points().to_vec(),
            window_ns: totals.time_ns.saturating_sub(time_ns),
            events: totals.events.saturating_sub(events),
            allocated_ever,
            freed_ever,
            mark_ns: self.mark.time_ns,
            ended: self.follower.has_ended(),
            lag,
            processes: None,
            has_lost: false,
        };
        self.shared.show(fed);
        Ok(())
    }
}

/// Makes boards from pictures.
fn prepare(shared: &Shared) {
    let (mut symbolizer, mut growth) = (Symbolizer::default(), GrowthRecord::default());
    let mut last_ns = 0;
    loop {
        let mut state = shared.lock();
        let fed = loop {
            if state.stopped {
                return;
            }
            match state.picture.take() {
                Some(fed) => break fed,
                None => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        match board(fed, &mut symbolizer, &mut growth, &mut last_ns) {
            Ok(board) => shared.lock().board = Some(Arc::new(board)),
            Err(error) => shared.lock().failed = Some(format!("{error:#}")),
        }
    }
}

fn board(fed: FedPicture, symbolizer: &mut Symbolizer, growth: &mut GrowthRecord, last_ns: &mut u64) -> Result<Board> {
    let FedPicture { picture, totals, points, window_ns, events, allocated_ever, freed_ever, .. } = fed;
    let FedPicture { mark_ns, ended, lag, processes, has_lost, .. } = fed;
    let mut capture = picture.capture(symbolizer)?;
    capture.fold(&DisplayOptions::default())?;
    let mut rows = rows(&capture, mark_ns > 0);
    // A picture for a key, or of a recording that rests, is no window.
    if totals.time_ns > *last_ns {
        // One that came too soon was not taken.
        let follows = !has_lost && totals.time_ns.saturating_sub(window_ns) <= *last_ns;
        growth.note(&mut rows, follows, DiffNoise::of_moments(&capture));
        *last_ns = totals.time_ns;
    }
    let threads = threads(&capture);
    let allocated = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.allocated.bytes));
    Ok(Board {
        capture,
        rows,
        threads,
        totals,
        points,
        window_ns,
        events,
        allocated,
        allocated_ever,
        freed_ever,
        mark_ns,
        ended,
        lag,
        processes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{due, is_past, mark_message};
    use crate::live_windows::message::Lag;

    #[test]
    fn a_mark_of_a_view_that_is_behind_is_set_when_its_moment_is_replayed() {
        let since = Instant::now();
        let lag = |ms| Lag { bytes: 1, events: 9, ms };
        let second = Duration::from_secs(1);
        assert_eq!(due(since + second, 600_000_000, lag(13_000), since), Some(14_600_000_000));
        assert_eq!(due(since, 13_600_000_000, lag(13_000), since + second), Some(25_600_000_000));
        assert_eq!(due(since + second, 600_000_000, lag(200), since), None);
        // Of a program that has ended, no further moment is replayed at which a key was pressed.
        assert_eq!(due(since, 5, Lag { bytes: 1, events: 9_000_000, ms: 0 }, since), None);
        assert!(is_past(5, 5, lag(13_000)) && !is_past(4, 5, lag(13_000)));
        assert!(is_past(4, 5, lag(200)), "the program has done nothing since");
        assert_eq!(mark_message(600_000_000, None), "growth counts from 600 ms on");
        let later = mark_message(600_000_000, Some(13_900_000_000));
        assert_eq!(later, "growth counts from 13.9 s on, as soon as that is replayed");
    }
}
