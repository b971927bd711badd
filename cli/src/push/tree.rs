//! Follows the captures of all processes of a recording, and makes a profile's contents of each window.
//!
//! Invariant: the windows of a process follow one another without gaps, and the last one ends with its recording. At the end, no
//! capture is begun with after the time at which reading ends, and none keeps the others from having their turn.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use memtrack_reader::live::{FollowProgress, LiveFollower, LiveWindow};
use memtrack_reader::symbols::{DebugFileSearch, Symbolizer};

use super::made::{AHEAD, MadeWindows, WindowSpan};
use super::request::{PushLabels, PushedWindow};
use crate::control::snapshot::CapturePaths;
use crate::live::picture::LivePicture;
use crate::message;
use crate::origin_names;

/// How long one capture is read at a time.
const BUDGET: Duration = Duration::from_millis(50);

/// Once the recording has ended: for how long native code gets names with lines and inlined functions, and names at all.
const LINES_LIMIT: Duration = Duration::from_millis(1500);
const NAMES_LIMIT: Duration = Duration::from_millis(2500);

/// The processes of a recording.
pub(super) struct PushedTree {
    captures: CapturePaths,
    every: Duration,
    host: String,
    labels: Vec<(String, String)>,
    made: Arc<MadeWindows>,
    /// With the numbers of their processes.
    followed: Vec<(u32, LiveFollower)>,
    /// The lowest number in the tree of a process that was not followed yet, and the higher ones that were.
    lowest: u32,
    known: HashSet<u32>,
    symbolizer: Symbolizer,
    has_failed: bool,
}

impl PushedTree {
    /// Of a recording, whose windows have this length, those that are not `made`. `ended`: says when it ends: from then on there is
    /// little time for names.
    pub(super) fn new(
        captures: CapturePaths,
        (every, labels): (Duration, Vec<(String, String)>),
        made: &Arc<MadeWindows>,
        ended: &Arc<OnceLock<Instant>>,
    ) -> Self {
        let search = DebugFileSearch::default().limited_from(Arc::clone(ended), LINES_LIMIT, NAMES_LIMIT);
        Self {
            captures,
            every,
            host: origin_names::host(),
            labels,
            made: Arc::clone(made),
            followed: Vec::new(),
            lowest: 0,
            known: HashSet::new(),
            symbolizer: Symbolizer::new(search),
            has_failed: false,
        }
    }

    /// Reads what was written since the last time, and passes on the windows that have closed, until `is_over` at the latest; returns
    /// whether all was read.
    pub(super) fn read(&mut self, is_over: impl Fn() -> bool, mut put: impl FnMut(&PushedWindow)) -> bool {
        self.look();
        self.read_each(false, &is_over, &mut put)
    }

    /// The same when nothing more is written: to the end of each process.
    pub(super) fn finish(&mut self, is_over: impl Fn() -> bool, mut put: impl FnMut(&PushedWindow)) -> bool {
        self.look();
        loop {
            let is_read = self.read_each(true, &is_over, &mut put);
            if is_read || is_over() {
                return is_read;
            }
        }
    }

    /// Each process has its turn, as long as there is time.
    fn read_each(&mut self, has_ended: bool, is_over: &impl Fn() -> bool, put: &mut impl FnMut(&PushedWindow)) -> bool {
        let mut followed = std::mem::take(&mut self.followed);
        let mut is_done = true;
        followed.retain_mut(|(number, follower)| {
            if is_over() {
                is_done = false;
                return true;
            }
            match self.read_one((*number, follower), has_ended, put) {
                Ok(is_read) => {
                    is_done &= is_read;
                    !follower.has_ended()
                }
                Err(error) => {
                    self.tell(&error);
                    false
                }
            }
        });
        self.followed = followed;
        is_done
    }

    /// Begins with the processes that are new.
    fn look(&mut self) {
        while self.known.remove(&self.lowest) {
            self.lowest += 1;
        }
        let highest = self.known.iter().max().map_or(self.lowest, |highest| *highest);
        for number in self.lowest..highest.saturating_add(AHEAD) {
            let Some(capture) = (!self.known.contains(&number)).then(|| (self.captures)(number)).flatten() else {
                continue;
            };
            // It may have nothing in it yet: then it is tried again.
            if let Ok(follower) = LiveFollower::open(capture, Some(self.every)) {
                self.known.insert(number);
                self.followed.push((number, follower));
            }
        }
    }

    /// `has_ended`: nothing more is written; returns whether all is read that was.
    fn read_one(
        &mut self,
        (number, follower): (u32, &mut LiveFollower),
        has_ended: bool,
        put: &mut impl FnMut(&PushedWindow),
    ) -> Result<bool> {
        let progress = follower.poll(BUDGET)?;
        if progress == FollowProgress::CaughtUp && has_ended {
            follower.finish()?;
        }
        while let Some(window) = follower.take_window() {
            let LiveWindow { from_ns, to_ns, last, .. } = window;
            let span = WindowSpan { process: number, from_ns, to_ns, is_last: last };
            if self.made.is_next(span) {
                put(&self.window(follower, span, window)?);
            }
        }
        Ok(progress != FollowProgress::Behind)
    }

    fn window(&mut self, follower: &LiveFollower, span: WindowSpan, window: LiveWindow) -> Result<PushedWindow> {
        let LiveWindow { from_ns, to_ns, groups, totals, .. } = window;
        let groups = groups.iter().map(|group| (group, memtrack_reader::analysis::Tally::default()));
        let capture = LivePicture::of(follower, groups, totals).capture(&mut self.symbolizer)?;
        let process = follower.process();
        Ok(PushedWindow {
            span,
            capture,
            time_ns: process.start.realtime_ns.unwrap_or(0).saturating_add(from_ns),
            duration_ns: to_ns.saturating_sub(from_ns),
            labels: PushLabels {
                service: origin_names::service(process),
                host: self.host.clone(),
                pid: process.pid.unwrap_or(0),
                python: process.python_version.map(|version| version.to_string()),
                own: self.labels.clone(),
            },
        })
    }

    fn tell(&mut self, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.has_failed, true) {
            message::warning(format_args!("windows of a process are not sent: {error:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::PushedTree;

    /// A recording of two processes that have ended.
    fn tree(directory: &std::path::Path) -> PushedTree {
        let captures = ["0.bin", "1.bin"].map(|name| directory.join(name));
        let whole = concat!(env!("CARGO_MANIFEST_DIR"), "/../reader/tests/fixtures/v5.bin");
        for capture in &captures {
            std::fs::copy(whole, capture).unwrap();
        }
        let of_number = move |number: u32| captures.get(number as usize).cloned();
        PushedTree::new(Arc::new(of_number), (Duration::from_secs(3600), Vec::new()), &Arc::default(), &Arc::default())
    }

    #[test]
    fn at_the_end_each_process_has_its_window_while_there_is_time() {
        let directory = tempfile::tempdir().unwrap();
        let mut windows = 0;
        let mut late = tree(directory.path());
        assert!(!late.finish(|| true, |_| windows += 1) && windows == 0);
        assert!(late.finish(|| false, |_| windows += 1) && windows == 2);
    }
}
