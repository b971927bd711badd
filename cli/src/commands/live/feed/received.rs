//! Pictures of the windows that a recording sends.
//!
//! Invariant: growth since a mark is that of the groups, which keep their ids from window to window. What they have the same samples
//! of at both moments is known as long as no window was lost.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Result;
use memtrack_format::Allocator;
use memtrack_reader::analysis::{Group, Groups, Sum, Variance, ViewVariances, share_live};
use memtrack_reader::{StackId, ThreadId};

use super::{FedPicture, FeedRequest, MARK_LOST, MARK_WAITS, Shared, due, is_past, mark_message};
use crate::live::picture::{ALLOCATED, AT_MARK, LIVE};
use crate::live::received_window::{NextWindow, ReceivedWindow};
use crate::live::source::LiveSource;
use crate::live::subscription::WindowSubscription;
use crate::live_windows::message::WindowSums;

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
    /// When it came.
    came: Instant,
    /// When the mark is set that was asked for.
    due_ns: Option<u64>,
    /// When it was asked for, before there was a window.
    asked_early: Option<Instant>,
    mark_ns: u64,
    /// What was live at the mark.
    mark: HashMap<WindowGroupKey, GroupAtMark>,
    /// What came since the mark is not all known.
    has_lost: bool,
}

/// What a group had live at the mark.
#[derive(Clone, Copy, Debug, Default)]
struct GroupAtMark {
    live: Sum,
    variance: Variance,
    /// That of what it has allocated since.
    came: Variance,
}

impl<'a> ReceivedWindows<'a> {
    pub(super) fn new(
        subscription: WindowSubscription,
        source: &'a LiveSource,
        shared: &'a Shared,
        asked: &'a Receiver<FeedRequest>,
    ) -> Self {
        let (came, mark) = (Instant::now(), HashMap::new());
        let (newest, due_ns, asked_early) = (None, None, None);
        Self {
            subscription,
            source,
            shared,
            asked,
            newest,
            came,
            due_ns,
            asked_early,
            mark_ns: 0,
            mark,
            has_lost: false,
        }
    }

    /// Shows windows; `true`: the recording was lost before it ended.
    pub(super) fn run(&mut self) -> Result<bool> {
        while !self.shared.stopped.load(Relaxed) {
            while let Ok(request) = self.asked.try_recv() {
                self.answer(&request);
            }
            match self.subscription.next(WAIT)? {
                NextWindow::Window(window) => {
                    self.note_allocated(&window);
                    let (end_ns, is_last, lag) = (window.message.t1_ns, window.message.last, window.message.lag);
                    (self.newest, self.came) = (Some(*window), Instant::now());
                    if let Some(asked) = self.asked_early.take() {
                        self.answer(&FeedRequest::Mark(asked));
                    } else if self.due_ns.is_some_and(|due_ns| is_last || is_past(end_ns, due_ns, lag)) {
                        self.set_mark();
                    }
                }
                NextWindow::Nothing => continue,
                NextWindow::Lost => {
                    let goes_on = !self.subscription.is_sum();
                    if !goes_on && (self.due_ns.is_some() || self.asked_early.is_some()) {
                        self.shared.lock().message = Some(MARK_LOST.into());
                    }
                    return Ok(goes_on);
                }
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

    /// Adds up what groups with something live at the mark have allocated since.
    fn note_allocated(&mut self, window: &ReceivedWindow) {
        self.has_lost |= window.skipped > 0;
        let Some(variances) = &window.sums.variances else { return };
        for (group, of) in window.sums.groups.iter().zip(variances) {
            self.mark.get_mut(&key(&group)).into_iter().for_each(|at_mark| at_mark.came += of.of(ALLOCATED));
        }
    }

    fn answer(&mut self, request: &FeedRequest) {
        match request {
            FeedRequest::Mark(asked) => {
                let Some(newest) = &self.newest else {
                    self.asked_early = Some(*asked);
                    self.shared.lock().message = Some(MARK_WAITS.into());
                    return;
                };
                let (shown_ns, lag) = (newest.message.t1_ns, newest.message.lag);
                self.due_ns = due(*asked, shown_ns, lag, self.came).filter(|_| !newest.message.last);
                match self.due_ns {
                    Some(_) => self.shared.lock().message = Some(mark_message(shown_ns, self.due_ns)),
                    None => {
                        self.set_mark();
                        self.show();
                    }
                }
            }
            FeedRequest::Snapshot => {
                let told = self.source.write_snapshot().unwrap_or_else(|error| format!("no snapshot: {error:#}"));
                self.shared.lock().message = Some(told);
            }
        }
    }

    /// When the mark was set that was set last, or is to be set; for whoever reads the capture from its begin.
    pub(super) fn mark_moment(&self) -> Option<u64> {
        self.due_ns.or(Some(self.mark_ns).filter(|mark_ns| *mark_ns > 0))
    }

    /// Growth counts from the end of the newest window.
    fn set_mark(&mut self) {
        let Some(newest) = &self.newest else { return };
        let variances = newest.sums.variances.iter().flatten().map(|of| of.of(LIVE));
        let all = newest.sums.groups.iter().zip(variances.chain(std::iter::repeat(Variance::EXACT)));
        let live = all.filter(|(group, _)| group.peak.bytes > 0);
        let at_mark = |(group, variance): (Group, _)| GroupAtMark { live: group.peak, variance, came: Variance::EXACT };
        self.mark = live.map(|of| (key(&of.0), at_mark(of))).collect();
        (self.mark_ns, self.due_ns, self.has_lost) = (newest.message.t1_ns, None, false);
        self.shared.lock().message = Some(mark_message(self.mark_ns, None));
    }

    fn show(&self) {
        let Some(window) = &self.newest else { return };
        let mut at_mark = self.mark.clone();
        let mut variances = window.sums.variances.clone();
        let with_mark = |(at, group): (usize, Group)| {
            let GroupAtMark { live, variance, came } = at_mark.remove(&key(&group)).unwrap_or_default();
            if let Some(of) = variances.as_mut().and_then(|variances| variances.get_mut(at)) {
                let moments = [variance, of.of(LIVE)];
                let [before, now] = if self.has_lost { moments } else { share_live(moments, came) };
                *of = of.with(AT_MARK, before).with(LIVE, now);
            }
            Group { allocated: live, ..group }
        };
        let mut groups: Groups = window.sums.groups.iter().enumerate().map(with_mark).collect();
        // What is all freed since the mark.
        for ((stack, thread, allocator), GroupAtMark { live, variance, .. }) in at_mark {
            groups.push(&Group { allocated: live, ..Group::new(stack, allocator, thread) });
            let of = ViewVariances::default().with(AT_MARK, variance);
            variances.iter_mut().for_each(|variances| variances.push(of));
        }
        let message = &window.message;
        self.shared.show(FedPicture {
            picture: self.subscription.picture(window, WindowSums { groups, variances }),
            totals: message.totals(),
            points: message.points(),
            window_ns: message.t1_ns.saturating_sub(message.t0_ns),
            events: message.events,
            allocated_ever: message.total_allocated.into(),
            freed_ever: message.total_freed.into(),
            mark_ns: self.mark_ns,
            ended: message.last,
            lag: message.lag,
            processes: message.processes,
            has_lost: window.skipped > 0,
        });
    }
}

fn key(group: &Group) -> WindowGroupKey {
    (group.stack, group.thread, group.allocator)
}
