//! `memtrack live --jsonl`: a group of records for each window of time.
//!
//! One thread follows the capture, another looks up names and writes. Invariant: following never waits for whoever reads the
//! records: windows that come while [`MOST_WAITING`] wait are dropped, and the next one says how many. Only of a capture that
//! is complete, where nothing runs on meanwhile, all are written.

use std::io::{self, BufWriter, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use memtrack_reader::analysis::Tally;
use memtrack_reader::live::{FollowProgress, LiveFollower, LiveWindow};
use memtrack_reader::symbols::Symbolizer;

use crate::export::{WindowRecords, WindowTotals};
use crate::live::picture::LivePicture;
use crate::live::source::LiveSource;

/// Windows that may wait for whoever reads them.
const MOST_WAITING: usize = 4;
/// How long is read at a time.
const BUDGET: Duration = Duration::from_millis(100);
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
pub(super) fn run(source: &mut LiveSource, every: Duration) -> Result<()> {
    let follower = LiveFollower::open(source.path(), Some(every))?;
    let (sender, receiver) = sync_channel(MOST_WAITING);
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let written = write(&receiver, &mut BufWriter::new(io::stdout().lock()));
            gone.store(true, Relaxed);
            drop(receiver);
            written
        });
        let followed = follow(source, follower, sender, &gone);
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked").into()));
        followed.and(written)
    })
}

fn follow(
    source: &mut LiveSource,
    mut follower: LiveFollower,
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
            let last = window.last;
            let totals = WindowTotals::of(&window, skipped, follower.unread_bytes()?);
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
    LivePicture::of(follower, window.groups.into_iter().map(|group| (group, Tally::default())), totals)
}

fn write(receiver: &Receiver<WaitingWindow>, out: &mut dyn Write) -> Result<()> {
    let mut records = WindowRecords::new(out);
    let mut symbolizer = Symbolizer::default();
    for WaitingWindow { picture, totals } in receiver {
        records.window(&picture.capture(&mut symbolizer)?, &totals)?;
    }
    records.end()
}
