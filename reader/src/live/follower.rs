//! Reads a capture into a [`LiveState`], as far as it is written.
//!
//! A capture that is being written is followed block by block. One that is complete is read as reports read it, which is
//! faster; both give the same state. An aggregated one is read each time that it was written.
//!
//! Invariant: a call of [`LiveFollower::poll`] takes about the time that it is given, whatever the file holds.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtrack_format::meta::Process;
use memtrack_format::sources::FileLines;
use memtrack_format::symbols::ModuleSymbols;

use super::grid::LiveWindow;
use super::state::LiveState;
use super::sums::{FollowedSums, SumsStep};
use crate::error::Error;
use crate::event::Thread;
use crate::frames::Frames;
use crate::source::{CaptureReader, Consumer, DataLoss, FollowStep, FollowedCapture, MergeReader};

/// Blocks or runs that are read between two looks at the clock.
const TOGETHER: usize = 16;

/// How far a call of [`LiveFollower::poll`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowProgress {
    /// There is more to read.
    Behind,
    /// All that is written was read.
    CaughtUp,
    /// The recording has ended, and all was read.
    Ended,
}

/// Follows a capture.
#[derive(Debug)]
pub struct LiveFollower {
    path: PathBuf,
    input: FollowInput,
    state: LiveState,
    ended: bool,
}

#[derive(Debug)]
enum FollowInput {
    Growing(Box<FollowedCapture>),
    Complete(Box<CompleteCapture>),
    Sums(Box<FollowedSums>),
}

/// A capture that is read as reports read it.
struct CompleteCapture {
    capture: CaptureReader,
    reading: MergeReader,
    left: u64,
}

impl std::fmt::Debug for CompleteCapture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompleteCapture").field("capture", &self.capture).finish_non_exhaustive()
    }
}

impl LiveFollower {
    /// Opens the capture. `every`: the length of windows, if there are to be any.
    ///
    /// # Errors
    /// No capture is there, or it cannot be read.
    pub fn open(path: impl AsRef<Path>, every: Option<Duration>) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut capture = CaptureReader::open(path)?;
        let mut state = LiveState::new(every);
        let input = if capture.aggregated() {
            FollowInput::Sums(Box::new(FollowedSums::new(path.to_owned(), capture)))
        } else if capture.complete() {
            capture.ignore_names();
            state.process(capture.process());
            let (reading, left) = (capture.reading_alone()?, capture.total_record_bytes());
            FollowInput::Complete(Box::new(CompleteCapture { capture, reading, left }))
        } else {
            FollowInput::Growing(Box::new(FollowedCapture::open(path)?))
        };
        Ok(Self { path: path.to_owned(), input, state, ended: false })
    }

    /// What was written by this moment is known when it has caught up. `None`: by the beginning of the last [`Self::poll`].
    #[must_use]
    pub fn known(&self) -> Option<Instant> {
        match &self.input {
            FollowInput::Sums(sums) => sums.known,
            FollowInput::Growing(_) | FollowInput::Complete(_) => None,
        }
    }

    /// Reads on, for about this long, or until a window has closed.
    ///
    /// # Errors
    /// Reading fails, or ids run out.
    pub fn poll(&mut self, budget: Duration) -> Result<FollowProgress, Error> {
        if self.ended {
            return Ok(FollowProgress::Ended);
        }
        let begun = Instant::now();
        loop {
            for _ in 0..TOGETHER {
                match self.step()? {
                    FollowStep::Block => {}
                    FollowStep::Waiting => return Ok(FollowProgress::CaughtUp),
                    FollowStep::Ended => {
                        self.end();
                        return Ok(FollowProgress::Ended);
                    }
                }
                if self.state.has_window() {
                    return Ok(FollowProgress::Behind);
                }
            }
            if begun.elapsed() >= budget {
                return Ok(FollowProgress::Behind);
            }
        }
    }

    fn step(&mut self) -> Result<FollowStep, Error> {
        match &mut self.input {
            FollowInput::Growing(followed) => {
                let step = followed.step(&mut self.state)?;
                // Before its first sums an aggregated capture looks like one without events, and to its end if it was not looked
                // at meanwhile.
                if !matches!(step, FollowStep::Block) && self.follow_sums() {
                    return Ok(FollowStep::Block);
                }
                Ok(step)
            }
            FollowInput::Sums(sums) => {
                let step = sums.step()?;
                Ok(read(&mut self.state, &step))
            }
            FollowInput::Complete(complete) => {
                let left = &mut complete.left;
                let mut progress = |bytes| *left = left.saturating_sub(bytes);
                if complete.reading.step(u64::MAX, &mut self.state, &mut progress)? {
                    return Ok(FollowStep::Block);
                }
                complete.reading.end(&mut self.state)?;
                Ok(FollowStep::Ended)
            }
        }
    }

    /// From now on the sums are read, if the capture has any, and no events; returns whether it has.
    fn follow_sums(&mut self) -> bool {
        if self.state.totals().events > 0 {
            return false;
        }
        let Some(capture) = CaptureReader::open(&self.path).ok().filter(CaptureReader::aggregated) else {
            return false;
        };
        self.input = FollowInput::Sums(Box::new(FollowedSums::new(self.path.clone(), capture)));
        true
    }

    /// Nobody writes the capture any more: takes what is there as all.
    ///
    /// # Errors
    /// Ids run out.
    pub fn finish(&mut self) -> Result<(), Error> {
        if !self.ended {
            if let FollowInput::Growing(_) = self.input {
                self.follow_sums();
            }
            match &mut self.input {
                FollowInput::Growing(followed) => followed.finish(&mut self.state)?,
                FollowInput::Sums(sums) => _ = read(&mut self.state, &sums.read()?),
                FollowInput::Complete(_) => {}
            }
            self.end();
        }
        Ok(())
    }

    fn end(&mut self) {
        self.ended = true;
        let end_ns = self.process().duration_ns().unwrap_or(0);
        self.state.end(end_ns);
    }

    /// Whether the capture has sums in place of events.
    #[must_use]
    pub fn aggregated(&self) -> bool {
        matches!(self.input, FollowInput::Sums(_))
    }

    /// Whether the capture was complete when it was opened: nothing runs on while it is read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        match &self.input {
            FollowInput::Growing(_) => false,
            FollowInput::Complete(_) => true,
            FollowInput::Sums(sums) => sums.capture.complete(),
        }
    }

    /// The capture.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the recording has ended, and all was read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The metadata of the process so far.
    #[must_use]
    pub fn process(&self) -> &Process {
        match &self.input {
            FollowInput::Growing(followed) => followed.process(),
            FollowInput::Complete(complete) => complete.capture.process(),
            FollowInput::Sums(sums) => sums.capture.process(),
        }
    }

    /// What the stacks of the events so far are; native ones are places without names.
    #[must_use]
    pub fn frames(&self) -> &Frames {
        match &self.input {
            FollowInput::Growing(followed) => followed.frames(),
            FollowInput::Complete(complete) => complete.reading.frames(),
            FollowInput::Sums(sums) => &sums.frames,
        }
    }

    /// The threads of the events so far.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        match &self.input {
            FollowInput::Growing(followed) => followed.threads(),
            FollowInput::Complete(complete) => complete.reading.threads(),
            FollowInput::Sums(sums) => &sums.threads,
        }
    }

    /// Names of native code that stand in the capture.
    #[must_use]
    pub fn symbols(&self) -> &[ModuleSymbols] {
        match &self.input {
            FollowInput::Growing(followed) => followed.symbols(),
            FollowInput::Complete(complete) => complete.capture.symbols(),
            FollowInput::Sums(sums) => sums.capture.symbols(),
        }
    }

    /// Source lines that stand in the capture.
    #[must_use]
    pub fn sources(&self) -> &[FileLines] {
        match &self.input {
            FollowInput::Growing(followed) => followed.sources(),
            FollowInput::Complete(complete) => complete.capture.sources(),
            FollowInput::Sums(sums) => sums.capture.sources(),
        }
    }

    /// What could not be read.
    #[must_use]
    pub fn lost(&self) -> DataLoss {
        match &self.input {
            FollowInput::Growing(followed) => followed.lost(),
            FollowInput::Complete(complete) => complete.capture.lost(),
            FollowInput::Sums(sums) => sums.capture.lost(),
        }
    }

    /// Adds windows of this length; returns the number of their grid. The first one is from the beginning until now.
    pub fn add_grid(&mut self, every: Duration) -> u32 {
        self.state.add_grid(every)
    }

    /// Ends the windows of a grid.
    pub fn remove_grid(&mut self, grid: u32) {
        self.state.remove_grid(grid);
    }

    /// An earlier grid whose open window, and all later ones, are the same.
    #[must_use]
    pub fn same_grid(&self, grid: u32) -> Option<u32> {
        self.state.same_grid(grid)
    }

    /// Closes no window of the grid for now: the next one is longer.
    pub fn hold_grid(&mut self, grid: u32, held: bool) {
        if let Some(grid) = self.state.grid_mut(grid) {
            grid.held = held;
        }
    }

    /// The first window of the grid ends at this time, which was the end of a window before.
    pub fn end_first_at(&mut self, grid: u32, time_ns: u64) {
        if let Some(grid) = self.state.grid_mut(grid) {
            grid.end_first_at(time_ns);
        }
    }

    /// Events that were not read yet, as far as can be told by the bytes.
    ///
    /// # Errors
    /// The file's size cannot be read.
    pub fn unread_events(&mut self) -> Result<u64, Error> {
        let unread = self.unread_bytes()?;
        let read = match &self.input {
            FollowInput::Growing(followed) => followed.read_bytes(),
            FollowInput::Complete(complete) => complete.capture.total_record_bytes().saturating_sub(complete.left),
            FollowInput::Sums(_) => return Ok(0),
        };
        let events = u128::from(self.state.totals().events) * u128::from(unread) / u128::from(read.max(1));
        Ok(u64::try_from(events).unwrap_or(u64::MAX))
    }

    /// Bytes of the file that were not read yet.
    ///
    /// # Errors
    /// The file's size cannot be read.
    pub fn unread_bytes(&mut self) -> Result<u64, Error> {
        match &mut self.input {
            FollowInput::Growing(followed) => followed.unread(),
            FollowInput::Complete(complete) => Ok(complete.left),
            FollowInput::Sums(_) => Ok(0),
        }
    }

    /// The live heap.
    #[must_use]
    pub fn state(&self) -> &LiveState {
        &self.state
    }

    /// The oldest window that was not taken.
    pub fn take_window(&mut self) -> Option<LiveWindow> {
        self.state.take_window()
    }
}

/// Takes over the sums of a step.
fn read(state: &mut LiveState, step: &SumsStep) -> FollowStep {
    match step {
        SumsStep::Nothing => FollowStep::Waiting,
        SumsStep::Sums(analysis) => {
            state.read(analysis, false);
            FollowStep::Block
        }
        SumsStep::Last(analysis) => {
            state.read(analysis, true);
            FollowStep::Ended
        }
    }
}
