//! Pictures of the windows that a recording sends.
//!
//! Invariant: growth since a mark is that of the groups, which keep their ids from window to window.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Result;
use memtrack_format::Allocator;
use memtrack_reader::analysis::{Group, Groups, Sum};
use memtrack_reader::{StackId, ThreadId};

use super::{FedPicture, FeedRequest, Shared};
use crate::live::source::LiveSource;
use crate::live::subscription::{NextWindow, ReceivedWindow, WindowSubscription};

/// How long is waited for a window before requests are looked at.
const WAIT: Duration = Duration::from_millis(100);

type WindowGroupKey = (StackId, ThreadId, Allocator);

/// Windows that come, until the recording has ended or is lost.
pub(super) struct ReceivedWindows<'a> {
    subscription: WindowSubscription,
    source: &'a LiveSource,
    shared: &'a Shared,
    asked: &'a Receiver<FeedRequest>,
    newest: Option<ReceivedWindow>,
    mark_ns: u64,
    /// What was live at the mark.
    mark: HashMap<WindowGroupKey, Sum>,
}

impl<'a> ReceivedWindows<'a> {
    pub(super) fn new(
        subscription: WindowSubscription,
        source: &'a LiveSource,
        shared: &'a Shared,
        asked: &'a Receiver<FeedRequest>,
    ) -> Self {
        Self { subscription, source, shared, asked, newest: None, mark_ns: 0, mark: HashMap::new() }
    }

    /// Shows windows; `true`: the recording was lost before it ended.
    pub(super) fn run(&mut self) -> Result<bool> {
        while !self.shared.stopped.load(Relaxed) {
            while let Ok(request) = self.asked.try_recv() {
                self.answer(&request);
            }
            match self.subscription.next(WAIT)? {
                NextWindow::Window(window) => self.newest = Some(*window),
                NextWindow::Nothing => continue,
                NextWindow::Lost => return Ok(true),
            }
            self.show();
            if self.newest.as_ref().is_some_and(|window| window.message.last) {
                // Nothing changes any more but the mark.
                while let Ok(request) = self.asked.recv() {
                    self.answer(&request);
                }
            }
        }
        Ok(false)
    }

    fn answer(&mut self, request: &FeedRequest) {
        match request {
            FeedRequest::Mark => {
                let Some(newest) = &self.newest else { return };
                let live = newest.groups.iter().filter(|group| group.peak.bytes > 0);
                self.mark = live.map(|group| (key(&group), group.peak)).collect();
                self.mark_ns = newest.message.t1_ns;
                self.show();
            }
            FeedRequest::Snapshot => {
                let told = self.source.write_snapshot().unwrap_or_else(|error| format!("no snapshot: {error:#}"));
                self.shared.lock().message = Some(told);
            }
        }
    }

    fn show(&self) {
        let Some(window) = &self.newest else { return };
        let mut at_mark = self.mark.clone();
        let mut groups: Groups = window
            .groups
            .iter()
            .map(|group| Group { allocated: at_mark.remove(&key(&group)).unwrap_or_default(), ..group })
            .collect();
        // What is all freed since the mark.
        for ((stack, thread, allocator), allocated) in at_mark {
            groups.push(&Group { allocated, ..Group::new(stack, allocator, thread) });
        }
        let message = &window.message;
        self.shared.show(FedPicture {
            picture: self.subscription.picture(window, groups),
            totals: message.totals(),
            points: message.points(),
            window_ns: message.t1_ns.saturating_sub(message.t0_ns),
            events: message.events,
            allocated_ever: message.total_allocated.into(),
            freed_ever: message.total_freed.into(),
            mark_ns: self.mark_ns,
            ended: message.last,
            lag: message.lag,
        });
    }
}

fn key(group: &Group) -> WindowGroupKey {
    (group.stack, group.thread, group.allocator)
}
