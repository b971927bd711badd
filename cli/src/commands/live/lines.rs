//! `memtrack live --jsonl`: a group of records for each window of time.
//!
//! The windows come from the recording, which makes them once for all viewers. Where it cannot be reached, one thread
//! follows the capture and another looks up names and writes; so it goes on, too, where a recording was killed. Invariant:
//! following never waits for whoever reads the records: windows that come while [`MOST_WAITING`] wait are dropped, and the next
//! one says how many. Only of a capture that is complete, where nothing runs on meanwhile, all are written.

use std::io::{self, BufWriter};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use memtrack_reader::analysis::Tally;
use memtrack_reader::live::{FollowProgress, LiveFollower, LiveWindow};
use memtrack_reader::symbols::Symbolizer;

use crate::export::{WindowRecords, WindowTotals};
use crate::live::picture::LivePicture;
use crate::live::received_window::NextWindow;
use crate::live::source::LiveSource;
use crate::live::subscription::WindowSubscription;
use crate::live_windows::message::Lag;
use crate::message;

/// Windows that may wait for whoever reads them.
const MOST_WAITING: usize = 4;
/// How long is read at a time.
const BUDGET: Duration = Duration::from_millis(100);
/// How long is waited for a window at a time.
const WAIT: Duration = Duration::from_secs(60);
/// How often the file is looked at while nothing is new.
const PAUSE: Duration = Duration::from_millis(20);

/// A window on its way to the writer.
struct WaitingWindow {
    picture: LivePicture,
    totals: WindowTotals,
}

/// Writes records until the recording ends.
///
/// # Errors
/// The capture cannot be read, or standard output cannot be written.
pub(super) fn run(source: &mut LiveSource, every: Duration, all: bool) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut writer = WindowWriter { records: WindowRecords::new(&mut out), symbolizer: Symbolizer::default() };
    let mut from_ns = 0;
    let subscription = if all { Some(source.subscribe_all(every)?) } else { source.subscribe(every) };
    if let Some(subscription) = subscription {
        match receive(subscription, &mut writer)? {
            Some(end_ns) => from_ns = end_ns,
            None => return writer.records.end(),
        }
    }
    let mut follower = LiveFollower::open(source.path(), Some(every))?;
    if from_ns > 0 {
        follower.end_first_at(0, from_ns);
    }
    let (sender, receiver) = sync_channel(MOST_WAITING);
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        let (gone, followed) = (&gone, &mut *source);
        let follower = scope.spawn(move || follow(followed, follower, from_ns, sender, gone));
        let written = receiver.iter().try_for_each(|WaitingWindow { picture, totals }| writer.write(picture, &totals));
        gone.store(true, Relaxed);
        drop(receiver);
        let followed =
            follower.join().unwrap_or_else(|_| Err(io::Error::other("the following thread panicked").into()));
        followed.and(written)
    })?;
    if let Some(why) = source.why_ended() {
        message::warning(why);
    }
    writer.records.end()
}

/// Looks up names and writes.
struct WindowWriter<'a> {
    records: WindowRecords<'a>,
    symbolizer: Symbolizer,
}

impl WindowWriter<'_> {
    fn write(&mut self, picture: LivePicture, totals: &WindowTotals) -> Result<()> {
        self.records.window(&picture.capture(&mut self.symbolizer)?, totals)
    }
}

/// Writes the windows of a recording; returns the end of the last one, if the recording was lost before it ended.
fn receive(mut subscription: WindowSubscription, writer: &mut WindowWriter<'_>) -> Result<Option<u64>> {
    let mut end_ns = 0;
    loop {
        let mut window = match subscription.next(WAIT)? {
            NextWindow::Window(window) => window,
            NextWindow::Nothing => continue,
            NextWindow::Lost => return Ok(Some(end_ns)),
        };
        end_ns = window.message.t1_ns;
        let (last, totals) = (window.message.last, WindowTotals::received(&window.message, window.skipped));
        let sums = std::mem::take(&mut window.sums);
        writer.write(subscription.picture(&window, sums), &totals)?;
        if last {
            return Ok(None);
        }
    }
}

fn follow(
    source: &mut LiveSource,
    mut follower: LiveFollower,
    from_ns: u64,
    sender: SyncSender<WaitingWindow>,
    gone: &AtomicBool,
) -> Result<()> {
    let waits = follower.is_complete();
    let mut skipped = 0;
    while !gone.load(Relaxed) {
        let progress = follower.poll(BUDGET)?;
        let may_grow = source.may_grow();
        if progress == FollowProgress::CaughtUp && !may_grow {
            follower.finish()?;
        }
        while let Some(window) = follower.take_window() {
            if window.to_ns <= from_ns {
                // It was written already.
                continue;
            }
            let last = window.last;
            let reaches_back = window.from_ns < from_ns;
            if reaches_back {
                // Sums in a file reach back to the beginning; from their next window on it is known what is new.
                skipped += 1;
            }
            if reaches_back && !last {
                continue;
            }
            let window = if reaches_back { window.levels_from(from_ns) } else { window };
            let totals = WindowTotals::of(&window, skipped, Lag::of(&mut follower)?);
            let picture = picture(&follower, window);
            let sent = if waits || last {
                sender.send(WaitingWindow { picture, totals }).map_err(|_| TrySendError::Disconnected(()))
            } else {
                sender.try_send(WaitingWindow { picture, totals }).map_err(|error| match error {
                    TrySendError::Full(_) => TrySendError::Full(()),
                    TrySendError::Disconnected(_) => TrySendError::Disconnected(()),
                })
            };
            match sent {
                Ok(()) => skipped = 0,
                Err(TrySendError::Full(())) => skipped += 1,
                Err(TrySendError::Disconnected(())) => return Ok(()),
            }
        }
        if follower.has_ended() {
            return Ok(());
        }
        if progress == FollowProgress::CaughtUp {
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn picture(follower: &LiveFollower, window: LiveWindow) -> LivePicture {
    let totals = window.totals;
    LivePicture::of(follower, window.groups.iter().map(|group| (group, Tally::default())), totals)
}
