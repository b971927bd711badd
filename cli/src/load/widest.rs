//! Resident memory at the moment when most of it had no live block, found while the capture is replayed for its sums.
//!
//! Invariant: the sums are those of a replay alone.

use anyhow::Result;
use memtrack_format::resident::ResidentAccount;
use memtrack_reader::resident::{AccountOutline, LiveMoment, ResidentBreakdown, WidestScan};
use memtrack_reader::source::{self, ReadSummary};
use memtrack_reader::{Options, Replay};

use crate::reports::resident_moment::ResidentMoment;
use crate::terminal::Progress;

/// Replays a capture; and resident memory at the moment when most of it had no live block, before Python began to
/// finalize, if that is much.
///
/// # Errors
/// A capture that cannot be read.
pub(crate) fn widest_moment(
    file: &source::CaptureReader,
    options: &Options,
) -> Result<(ReadSummary, Replay, Option<ResidentMoment>)> {
    let mut accounts = Vec::new();
    file.accounts(|account| {
        accounts.push(AccountOutline::of(&account, file.account_ns(&account)));
        true
    })?;
    let mut scan = WidestScan::new(options, accounts);
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut scan, |bytes| progress.add(bytes))?;
    let (kept, replay) = scan.finish();
    let Some(kept) = kept else { return Ok((read, replay, None)) };
    let time_ns = kept.time_ns;
    let mut account = None;
    file.accounts(|next| {
        let is_due = file.account_ns(&next) <= time_ns;
        if is_due {
            account = Some(next);
        }
        is_due
    })?;
    let memory = account.map(|account| {
        let live = kept.moment(&account, &read.threads, &replay);
        moment_of(file, &account, &live)
    });
    Ok((read, replay, memory))
}

/// The account and the live blocks of a moment, joined.
pub(crate) fn moment_of(file: &source::CaptureReader, account: &ResidentAccount, live: &LiveMoment) -> ResidentMoment {
    let process = file.process();
    let knows_all = !process.began_late && process.fork_ticket.is_none();
    ResidentMoment {
        time_ns: file.account_ns(account),
        cause: account.cause,
        breakdown: ResidentBreakdown::of(account, live, knows_all),
        threads: account.threads.len(),
        knows_all,
    }
}
