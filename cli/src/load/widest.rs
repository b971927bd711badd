//! Resident memory at the moment when most of it had no live block, found while the capture is replayed for its sums.
//!
//! Invariant: the sums are those of a replay alone.

use anyhow::Result;
use memtrack_format::resident::ResidentAccount;
use memtrack_reader::resident::{
    AccountOutline, AccountOutlines, AllocatorTrace, ClassesAt, FullestScan, LiveMoment, ProcessFacts,
    ResidentBreakdown, WidestScan,
};
use memtrack_reader::source::{self, ReadSummary};
use memtrack_reader::{Options, Replay};

use crate::reports::resident_moment::ResidentMoment;
use crate::terminal::Progress;

/// Moments at which resident memory is divided into classes, for a page; and pieces that their accounts may have in all.
const BANDS: usize = 64;
const MOST_RUNS: usize = 1 << 20;

/// What a capture says about resident memory.
#[derive(Debug, Default)]
pub(crate) struct ResidentFindings {
    /// The moment when most of it had no live block, before Python began to finalize, if that is much.
    pub(crate) widest: Option<ResidentMoment>,
    /// Its classes over time, if they were asked for.
    pub(crate) bands: Vec<ClassesAt>,
}

/// An account, and what was live at its moment, by the groups of the replay.
pub(super) struct AccountedMoment {
    account: ResidentAccount,
    pub(super) live: LiveMoment,
}

impl AccountedMoment {
    /// Both joined.
    pub(super) fn joined(self, file: &source::CaptureReader) -> ResidentMoment {
        moment_of(file, &self.account, &self.live)
    }
}

/// Replays a capture; with the moment when most of resident memory had no live block, and its classes over time if `with_bands`.
///
/// # Errors
/// A capture that cannot be read.
pub(super) fn widest_moment(
    file: &source::CaptureReader,
    options: &Options,
    with_bands: bool,
) -> Result<(ReadSummary, Replay, Option<AccountedMoment>, Vec<ClassesAt>)> {
    let (mut accounts, mut trace) = (AccountOutlines::default(), AllocatorTrace::default());
    file.accounts(|account| {
        trace.add_account(&account);
        accounts.add(&account, file.account_ns(&account));
        true
    })?;
    let peak = file.process().resident_peak;
    let accounts = accounts.finish(peak);
    let bands = if with_bands { band_accounts(file, &accounts)? } else { Vec::new() };
    let mut scan = WidestScan::new(options, accounts, trace).with_bands(bands, ProcessFacts::of(file.process()));
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut scan, |bytes| progress.add(bytes))?;
    let (kept, bands, replay) = scan.finish();
    let Some(kept) = kept else { return Ok((read, replay, None, bands)) };
    let time_ns = kept.time_ns;
    let mut account = None;
    file.accounts(|next| {
        let is_due = file.account_ns(&next) <= time_ns;
        if is_due {
            account = Some(next);
        }
        is_due
    })?;
    let Some(account) = account else { return Ok((read, replay, None, bands)) };
    let live = kept.moment(&account, &read.threads, &replay);
    let live = with_fullest(file, live, &account, &replay)?;
    Ok((read, replay, Some(AccountedMoment { live, account }), bands))
}

/// The moment, with what its large blocks had in memory at other accounts: at this one they may be half filled.
fn with_fullest(
    file: &source::CaptureReader,
    live: LiveMoment,
    account: &ResidentAccount,
    replay: &Replay,
) -> Result<LiveMoment> {
    let mut scan = FullestScan::new(&live, account, file.account_ns(account));
    if scan.is_empty() {
        return Ok(live);
    }
    file.accounts(|next| {
        scan.add(&next, file.account_ns(&next));
        true
    })?;
    let peak = file.process().resident_peak.map(|resident| (resident, replay.totals().peak.bytes));
    let peak_ns = replay.totals().peak.at.map(|at| at.time_ns);
    Ok(scan.finish(live, replay.snapshots(), peak, peak_ns))
}

/// The accounts of a few moments, by time, evenly chosen of all, with the last one; fewer where they are large.
fn band_accounts(file: &source::CaptureReader, all: &[AccountOutline]) -> Result<Vec<(u64, ResidentAccount)>> {
    let step = all.len().div_ceil(BANDS).max(1);
    let (mut number, mut runs, mut taken) = (0, 0, Vec::new());
    file.accounts(|account| {
        number += 1;
        let of_account = account.mappings.iter().map(|mapping| mapping.runs.len()).sum::<usize>();
        if (all.len() - number.min(all.len())).is_multiple_of(step) && runs + of_account <= MOST_RUNS {
            runs += of_account;
            taken.push((file.account_ns(&account), account));
        }
        true
    })?;
    Ok(taken)
}

/// The account and the live blocks of a moment, joined.
pub(crate) fn moment_of(file: &source::CaptureReader, account: &ResidentAccount, live: &LiveMoment) -> ResidentMoment {
    let process = ProcessFacts::of(file.process());
    ResidentMoment {
        time_ns: file.account_ns(account),
        cause: account.cause,
        breakdown: ResidentBreakdown::of(account, live, process),
        threads: account.threads.len(),
        knows_all: process.knows_all,
    }
}
