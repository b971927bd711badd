//! Follows captures in the recording process, once for all viewers, while there are viewers, or somebody asks for totals.
//!
//! One thread at the lowest priority replays the captures that are being watched, as they are written, and makes a
//! line for each window. It begins with the first viewer and ends some time after the last one has gone, or after the last process
//! that was watched has ended.
//!
//! Invariant: neither the recording nor the control thread waits for it; it waits for no viewer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use memtrack_collector::RecordingHandle;
use memtrack_collector::control::Subscriber;
use memtrack_reader::live::{FollowProgress, LiveFollower, LiveTotals};

use super::message::WindowLine;

/// How long is read at a time.
const BUDGET: Duration = Duration::from_millis(50);
/// How often the captures are looked at while nothing is new.
const PAUSE: Duration = Duration::from_millis(20);
/// Without viewers for this long, a capture is followed no more: one that comes back in this time does not wait for what is replayed
/// already.
const LINGER: Duration = Duration::from_secs(10);
/// How often checkpoints are asked for.
const ASKED: Duration = Duration::from_secs(1);
/// For how long they are.
const FOLLOWED: Duration = Duration::from_secs(3);
/// For how long a capture is followed after somebody asked for its totals.
const COUNTED: Duration = Duration::from_secs(60);
/// Totals that are older than this are not told.
const FRESH: Duration = Duration::from_secs(2);
/// How often is looked for totals that are waited for.
const LOOK: Duration = Duration::from_millis(2);
/// Lines are made at most 1/n of the time.
const TIME_PART: u32 = 5;
/// The shortest window.
const SHORTEST: Duration = Duration::from_millis(100);
/// Lengths of windows of a capture that are made at once.
const MOST_GRIDS: usize = 16;
/// How long the end of the recording may wait for what was not replayed yet.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The engine of a recording.
pub(crate) struct LiveEngine {
    recording: RecordingHandle,
    shared: Arc<Mutex<EngineState>>,
}

/// What is known of a process's sums.
#[derive(Clone, Copy, Debug)]
struct KnownTotals {
    /// They hold everything that was written by then.
    of: Instant,
    /// When that was last found out.
    told: Instant,
    totals: LiveTotals,
}

/// What callers and the thread share.
#[derive(Default)]
struct EngineState {
    arrived: Vec<Arrival>,
    /// Processes whose totals were asked for, with their captures.
    counted: Vec<(u32, PathBuf)>,
    /// Totals of processes by their number, and the moment up to which all that was written of the capture was replayed.
    totals: HashMap<u32, KnownTotals>,
    thread: Option<thread::JoinHandle<()>>,
    is_running: bool,
    /// When the recording ended.
    ending: Option<Instant>,
}

/// A viewer that comes.
struct Arrival {
    number: u32,
    capture: PathBuf,
    every: Duration,
    subscriber: Subscriber,
}

impl LiveEngine {
    pub(crate) fn new(recording: RecordingHandle) -> Self {
        Self { recording, shared: Arc::default() }
    }

    /// Sends windows of the process with this number in the tree to the subscriber.
    ///
    /// # Errors
    /// A text for the user.
    pub(crate) fn watch(
        &self,
        (number, capture): (u32, PathBuf),
        every: Duration,
        subscriber: Subscriber,
    ) -> Result<(), String> {
        if let Some((_, why)) = recorded_no_more(&self.recording).find(|(ended, _)| *ended == number) {
            return Err(why);
        }
        let mut state = self.running(&capture)?;
        state.arrived.push(Arrival { number, capture, every: every.max(SHORTEST), subscriber });
        Ok(())
    }

    /// Follows the process with this number in the tree for a time, so that [`Self::totals`] are known.
    ///
    /// # Errors
    /// A text for the user.
    pub(crate) fn count(&self, (number, capture): (u32, PathBuf)) -> Result<(), String> {
        self.running(&capture)?.counted.push((number, capture));
        Ok(())
    }

    /// The totals of a process, if it is followed, and all that was recorded until now is replayed.
    pub(crate) fn totals(&self, number: u32) -> Option<LiveTotals> {
        let known = lock(&self.shared).totals.get(&number).copied();
        known.filter(|known| known.told.elapsed() < FRESH).map(|known| known.totals)
    }

    /// The same of all that was written until this moment: waits for it, if the process is followed, until the deadline.
    pub(crate) fn totals_since(&self, number: u32, since: Instant, deadline: Instant) -> Option<LiveTotals> {
        loop {
            let known = {
                let state = lock(&self.shared);
                if !state.is_running {
                    return None;
                }
                state.totals.get(&number).copied()
            };
            // Of a process that nobody views, there are none, or they stay old.
            let KnownTotals { of: at, totals, .. } = known.filter(|known| known.told.elapsed() < FRESH)?;
            if at >= since {
                return Some(totals);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(LOOK);
        }
    }

    /// Starts the thread for this capture, unless it runs already.
    fn running(&self, capture: &Path) -> Result<MutexGuard<'_, EngineState>, String> {
        let mut state = lock(&self.shared);
        if state.ending.is_some() {
            return Err("the recording has ended: read its capture".into());
        }
        if !state.is_running {
            // What cannot be followed is refused here.
            LiveFollower::open(capture, None).map_err(|error| error.to_string())?;
            let mut engine = Engine {
                recording: self.recording.clone(),
                shared: Arc::clone(&self.shared),
                watched: Vec::new(),
                asked: None,
            };
            let running = EngineGuard(Arc::clone(&self.shared));
            let started = thread::Builder::new().name("memtrack-live".into()).spawn(move || {
                let _running = running;
                engine.run();
            });
            state.thread = Some(started.map_err(|error| format!("no thread can be started: {error}"))?);
            state.is_running = true;
        }
        Ok(state)
    }

    /// The captures are complete: sends the last windows, if they are replayed in time, and ends.
    pub(crate) fn end(&self) {
        let thread = {
            let mut state = lock(&self.shared);
            state.ending.get_or_insert_with(Instant::now);
            state.thread.take()
        };
        // If it has panicked, its viewers read the captures by themselves.
        let _ = thread.map(thread::JoinHandle::join);
    }
}

impl Drop for LiveEngine {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread: when it ends, by a panic too, the next viewer starts another.
struct EngineGuard(Arc<Mutex<EngineState>>);

impl Drop for EngineGuard {
    fn drop(&mut self) {
        // Else it has said so itself, and another may have begun since then.
        if thread::panicking() {
            let mut state = lock(&self.0);
            state.is_running = false;
            state.arrived.drain(..).for_each(|arrival| refuse(&arrival.subscriber, &"the live figures have failed"));
        }
    }
}

fn lock(shared: &Mutex<EngineState>) -> MutexGuard<'_, EngineState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's part.
struct Engine {
    recording: RecordingHandle,
    shared: Arc<Mutex<EngineState>>,
    watched: Vec<WatchedCapture>,
    asked: Option<Instant>,
}

impl Engine {
    fn run(&mut self) {
        crate::sys::yield_in_part();
        loop {
            let (arrived, counted, ending) = {
                let mut state = lock(&self.shared);
                (std::mem::take(&mut state.arrived), std::mem::take(&mut state.counted), state.ending)
            };
            arrived.into_iter().for_each(|arrival| self.add(arrival));
            counted.into_iter().for_each(|(number, capture)| self.count(number, capture));
            self.ask();
            let mut is_done = true;
            // A capture that cannot be read any more loses its viewers, who go on by themselves.
            self.watched.retain_mut(|watched| {
                // Everything that was written by now is replayed when it has caught up.
                let asked = Instant::now();
                let progress = watched.poll();
                is_done &= matches!(progress, Ok(FollowProgress::CaughtUp | FollowProgress::Ended));
                if let Ok(FollowProgress::CaughtUp | FollowProgress::Ended) = progress {
                    // Sums are not looked at in each poll; those of a process that has ended are the last ones.
                    let looked = watched.follower.known().filter(|_| !watched.follower.has_ended());
                    let of = looked.map_or(asked, |looked| looked.min(asked));
                    let totals = KnownTotals { of, told: asked, totals: watched.follower.state().totals() };
                    lock(&self.shared).totals.insert(watched.number, totals);
                }
                if let Err(error) = &progress {
                    watched.grids.iter().flat_map(|grid| &grid.viewers).for_each(|viewer| refuse(viewer, &error));
                }
                let is_wanted = watched.is_wanted() && (!watched.follower.has_ended() || ending.is_none());
                let stays = progress.is_ok() && is_wanted;
                if !stays {
                    lock(&self.shared).totals.remove(&watched.number);
                }
                stays
            });
            if self.watched.is_empty() || ending.is_some_and(|ending| ending.elapsed() > END_LIMIT) {
                let mut state = lock(&self.shared);
                if (state.arrived.is_empty() && state.counted.is_empty()) || ending.is_some() {
                    state.arrived.clear();
                    state.is_running = false;
                    return;
                }
            } else if is_done {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Asks for checkpoints.
    fn ask(&mut self) {
        if self.asked.is_none_or(|asked| asked.elapsed() > ASKED) {
            self.asked = Some(Instant::now());
            self.recording.follow_for(FOLLOWED);
            self.drop_recorded_no_more();
        }
    }

    /// Nothing more comes of such captures: their viewers read what there is.
    fn drop_recorded_no_more(&mut self) {
        let has_viewers = |watched: &WatchedCapture| !watched.grids.is_empty() || watched.counted.is_some();
        if !self.watched.iter().any(has_viewers) {
            return;
        }
        for (number, reason) in recorded_no_more(&self.recording) {
            for watched in self.watched.extract_if(.., |watched| watched.number == number) {
                watched.grids.iter().flat_map(|grid| &grid.viewers).for_each(|viewer| refuse(viewer, &reason));
                lock(&self.shared).totals.remove(&number);
            }
        }
    }

    /// A capture that cannot be followed any more has no totals.
    fn count(&mut self, number: u32, capture: PathBuf) {
        if let Ok(place) = self.follow(number, capture) {
            self.watched[place].counted = Some(Instant::now());
        }
    }

    /// The place of a capture among those that are watched.
    fn follow(&mut self, number: u32, capture: PathBuf) -> Result<usize> {
        if let Some(place) = self.watched.iter().position(|watched| watched.number == number) {
            return Ok(place);
        }
        let follower = LiveFollower::open(capture, None)?;
        let used = Instant::now();
        self.watched.push(WatchedCapture {
            number,
            follower,
            is_behind: false,
            counted: None,
            used,
            grids: Vec::new(),
        });
        Ok(self.watched.len() - 1)
    }

    fn add(&mut self, arrival: Arrival) {
        let Arrival { number, capture, every, subscriber } = arrival;
        let place = match self.follow(number, capture) {
            Ok(place) => place,
            Err(error) => return refuse(&subscriber, &error),
        };
        let watched = &mut self.watched[place];
        if watched.follower.has_ended() {
            refuse(&subscriber, &"the recording of the process has ended: read its capture");
        } else if watched.grids.len() >= MOST_GRIDS {
            refuse(&subscriber, &"too many viewers with windows of different lengths");
        } else {
            let grid = watched.follower.add_grid(every);
            watched.grids.push(GridViewers {
                grid,
                every,
                sent: None,
                took: Duration::ZERO,
                viewers: vec![subscriber],
            });
        }
    }
}

/// The numbers of the processes that are recorded no more although they may run on, and why, for the user: their captures could not be
/// written, or they have become programs that cannot be recorded.
fn recorded_no_more(recording: &RecordingHandle) -> impl Iterator<Item = (u32, String)> {
    recording.cut_off().into_iter().chain(recording.unrecorded())
}

/// Tells a viewer that it gets no windows.
fn refuse(viewer: &Subscriber, error: &dyn std::fmt::Display) {
    let line = serde_json::json!({"error": error.to_string()});
    // It may have gone.
    let _ = viewer.push(&format!("{line}\n").into_bytes().into());
}

/// A capture that is being watched.
struct WatchedCapture {
    number: u32,
    follower: LiveFollower,
    is_behind: bool,
    /// When its totals were asked for.
    counted: Option<Instant>,
    /// When somebody wanted it last.
    used: Instant,
    grids: Vec<GridViewers>,
}

/// The viewers of windows of one length.
struct GridViewers {
    grid: u32,
    every: Duration,
    /// When the last line was sent.
    sent: Option<Instant>,
    /// How long it took to make.
    took: Duration,
    viewers: Vec<Subscriber>,
}

impl WatchedCapture {
    /// Whether it has viewers, or has had some until a while ago, or its totals are asked for.
    fn is_wanted(&mut self) -> bool {
        self.forget_gone();
        if !self.grids.is_empty() || self.counted.is_some_and(|asked| asked.elapsed() < COUNTED) {
            self.used = Instant::now();
        }
        self.used.elapsed() <= LINGER
    }

    /// Removes viewers that have gone, or have the last window, and windows that nobody sees.
    fn forget_gone(&mut self) {
        let has_ended = self.follower.has_ended();
        let follower = &mut self.follower;
        self.grids.retain_mut(|grid| {
            grid.viewers.retain(|viewer| !has_ended && !viewer.has_gone());
            let is_seen = !grid.viewers.is_empty();
            if !is_seen {
                follower.remove_grid(grid.grid);
            }
            is_seen
        });
    }

    /// Replays what is new, and sends the windows that close.
    fn poll(&mut self) -> Result<FollowProgress> {
        for GridViewers { grid, every, sent, took, .. } in &self.grids {
            // While there is much to replay, windows come by the clock.
            let pause = if self.is_behind { (*every).max(*took * TIME_PART) } else { *took * TIME_PART };
            self.follower.hold_grid(*grid, sent.is_some_and(|sent| sent.elapsed() < pause));
        }
        let progress = self.follower.poll(BUDGET)?;
        let mut sent = Vec::new();
        while let Some(window) = self.follower.take_window() {
            let begun = Instant::now();
            let Some(place) = self.grids.iter().position(|grid| grid.grid == window.grid) else { continue };
            let line: Arc<[u8]> = WindowLine::of(&window, &mut self.follower)?.encode().into();
            let viewers = &mut self.grids[place];
            viewers.viewers.retain(|viewer| viewer.push(&line));
            (viewers.sent, viewers.took) = (Some(begun), begun.elapsed());
            sent.push(window.grid);
        }
        // One that stopped for a window tells nothing of what is left.
        if progress != FollowProgress::Behind || sent.is_empty() {
            self.is_behind = progress == FollowProgress::Behind;
        }
        // Only now: while windows are taken, the grids are as they are after the last of them.
        for number in sent {
            if let Some(place) = self.grids.iter().position(|grid| grid.grid == number) {
                self.tidy(place);
            }
        }
        Ok(progress)
    }

    /// Removes windows that nobody sees, and makes the same windows once.
    fn tidy(&mut self, place: usize) {
        let number = self.grids[place].grid;
        let same = self.follower.same_grid(number);
        let same = same.and_then(|same| self.grids.iter().position(|grid| grid.grid == same));
        if same.is_none() && !self.grids[place].viewers.is_empty() {
            return;
        }
        self.follower.remove_grid(number);
        let viewers = std::mem::take(&mut self.grids[place].viewers);
        if let Some(same) = same {
            self.grids[same].viewers.extend(viewers);
        }
        self.grids.remove(place);
    }
}
