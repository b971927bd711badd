//! Follows the captures of all processes of a recording, and makes a profile's contents of each window.
//!
//! Invariant: the windows of a process follow one another without gaps, and the last one ends with its recording.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use memtrack_reader::live::{FollowProgress, LiveFollower, LiveWindow};
use memtrack_reader::symbols::Symbolizer;

use super::request::{PushLabels, PushedWindow};
use crate::control::snapshot::CapturePaths;
use crate::live::picture::LivePicture;
use crate::message;
use crate::origin_names;

/// How long one capture is read at a time.
const BUDGET: Duration = Duration::from_millis(50);

/// Numbers in the tree that are looked for beyond the highest known one: a child's capture may not be opened yet, or never.
const AHEAD: u32 = 17;

/// The processes of a recording.
pub(super) struct PushedTree {
    captures: CapturePaths,
    every: Duration,
    host: String,
    labels: Vec<(String, String)>,
    followed: Vec<LiveFollower>,
    /// The lowest number in the tree of a process that was not followed yet, and the higher ones that were.
    lowest: u32,
    known: HashSet<u32>,
    symbolizer: Symbolizer,
    has_failed: bool,
}

impl PushedTree {
    /// Of a recording, whose windows have this length.
    pub(super) fn new(captures: CapturePaths, every: Duration, labels: Vec<(String, String)>) -> Self {
        Self {
            captures,
            every,
            host: origin_names::host(),
            labels,
            followed: Vec::new(),
            lowest: 0,
            known: HashSet::new(),
            symbolizer: Symbolizer::default(),
            has_failed: false,
        }
    }

    /// Reads what was written since the last time, and passes on the windows that have closed. `end`: nothing more is
    /// written, and reading ends at this time; returns whether all was read.
    pub(super) fn read(&mut self, end: Option<Instant>, mut put: impl FnMut(&PushedWindow)) -> bool {
        self.look();
        let mut followed = std::mem::take(&mut self.followed);
        let mut is_done = true;
        followed.retain_mut(|follower| match self.read_one(follower, end, &mut put) {
            Ok(is_read) => {
                is_done &= is_read;
                !follower.has_ended()
            }
            Err(error) => {
                self.tell(&error);
                false
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
                self.followed.push(follower);
            }
        }
    }

    fn read_one(
        &mut self,
        follower: &mut LiveFollower,
        end: Option<Instant>,
        put: &mut impl FnMut(&PushedWindow),
    ) -> Result<bool> {
        loop {
            let progress = follower.poll(BUDGET)?;
            if progress == FollowProgress::CaughtUp && end.is_some() {
                follower.finish()?;
            }
            while let Some(window) = follower.take_window() {
                put(&self.window(follower, window)?);
            }
            if progress != FollowProgress::Behind {
                return Ok(true);
            }
            // While the program runs, the others have their turn, and the end is noticed.
            if end.is_none_or(|end| Instant::now() >= end) {
                return Ok(false);
            }
        }
    }

    fn window(&mut self, follower: &LiveFollower, window: LiveWindow) -> Result<PushedWindow> {
        let LiveWindow { from_ns, to_ns, groups, totals, .. } = window;
        let groups = groups.into_iter().map(|group| (group, memtrack_reader::analysis::Tally::default()));
        let capture = LivePicture::of(follower, groups, totals).capture(&mut self.symbolizer)?;
        let process = follower.process();
        Ok(PushedWindow {
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
