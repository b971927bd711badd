//! Resident memory of a capture at one moment: its account, joined with the blocks that were live then.
//!
//! Invariant: the capture that is returned is that of the moment; no later event is in its sums.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use memtrack_format::resident::{AccountCause, ResidentAccount};
use memtrack_reader::query::units::UnitError;
use memtrack_reader::resident::{AllocatorTrace, MomentScan};
use memtrack_reader::{Options, columns, source};

use crate::load::bounds::{MarkedCaptures, TimeBound};
use crate::load::widest::moment_of;
use crate::load::{Request, capture_info};
use crate::reports::capture_info::{Capture, CaptureInfo};
use crate::reports::presentation::Presentation;
use crate::reports::resident::{ResidentMoment, ResidentPeak};
use crate::terminal::Progress;

impl AccountMoment {
    /// In words; `cause` is that of the account that was found.
    pub(crate) fn when(&self, cause: AccountCause) -> &'static str {
        match self {
            Self::Peak => "at the account of most resident memory",
            Self::End if cause == AccountCause::End => "at the end",
            Self::End => "at the last account before the end of the program",
            Self::At(_) => "at the last account up to then",
        }
    }
}

/// The moment of an account.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AccountMoment {
    /// Of most resident memory.
    Peak,
    /// Of the end.
    End,
    /// The last one at a time or before it.
    At(TimeBound),
}

impl FromStr for AccountMoment {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text {
            "peak" => Ok(Self::Peak),
            "end" => Ok(Self::End),
            text => text.parse().map(Self::At),
        }
    }
}

/// Reads a capture up to the moment of an account, and the peak of its resident memory, if it is known; `None`: it has none at that
/// moment.
///
/// # Errors
/// A capture that cannot be read, or that has not the mark.
pub(crate) fn resident_memory(
    file: &source::CaptureReader,
    request: &Request<'_>,
    moment: &AccountMoment,
) -> Result<Option<(Capture, ResidentMoment, Option<ResidentPeak>)>> {
    if file.aggregated() {
        return Ok(None);
    }
    let Some(account) = account_at(file, request.paths, moment)? else { return Ok(None) };
    let time_ns = file.account_ns(&account);
    let options = Options {
        exact_times: file.has_timestamps(),
        unknown_blocks: file.unknown_blocks(),
        sample_bytes: file.sample_bytes(),
        ..Options::default()
    };
    let mut trace = AllocatorTrace::default();
    trace.add_account(&account);
    let mut scan = MomentScan::new(&options, time_ns, trace);
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut scan, |bytes| progress.add(bytes))?;
    let peak = ResidentPeak::of(scan.most_resident(), file.process().resident_peak);
    let (live, replay) = scan.finish(&account, &read.threads);
    let memory = moment_of(file, &account, &live);
    let info = CaptureInfo { unknown_frames: read.unknown_frames, ..capture_info(file, read.lost) };
    let mut capture = Capture {
        info,
        analysis: replay.into_analysis(),
        frames: read.frames,
        threads: read.threads,
        shown: Presentation::default(),
    };
    columns::keep_where_several(&mut capture.frames);
    capture.fold_beside(&request.display)?;
    Ok(Some((capture, memory, peak)))
}

/// The account of a moment.
///
/// # Errors
/// As for [`resident_memory`].
pub(crate) fn account_at(
    file: &source::CaptureReader,
    paths: &[PathBuf],
    moment: &AccountMoment,
) -> Result<Option<ResidentAccount>> {
    let mut found = None::<ResidentAccount>;
    let until = match moment {
        AccountMoment::At(bound) => {
            let marked = MarkedCaptures::default();
            marked.times(file, paths)?.own_ns(bound.ns(file, paths, &marked)?)
        }
        AccountMoment::Peak | AccountMoment::End => u64::MAX,
    };
    file.accounts(|account| {
        if file.account_ns(&account) > until {
            return false;
        }
        let is_more = |before: &ResidentAccount| account.resident_bytes() > before.resident_bytes();
        if *moment != AccountMoment::Peak || found.as_ref().is_none_or(is_more) {
            found = Some(account);
        }
        true
    })?;
    Ok(found)
}

/// Why a capture has no account of a moment.
///
/// # Errors
/// Always: the reason.
pub(crate) fn no_account(file: &source::CaptureReader) -> Result<Infallible> {
    let (path, process) = (file.path().display(), file.process());
    let mut has_any = false;
    file.accounts(|_| {
        has_any = true;
        false
    })?;
    if file.aggregated() {
        bail!(
            "{path}: an aggregated capture has no individual blocks to compare with pages; record without --aggregate"
        );
    }
    if has_any {
        bail!("{path}: the first account of resident memory was taken later; 'memtrack resident --at peak' shows one");
    }
    if let Some(note) = &process.resident_note {
        let note = String::from_utf8_lossy(note);
        bail!(
            "{path}: no account of resident memory: the program's pages could not be read ({note}); a program of another user, \
             or with more rights than memtrack, is read only by root"
        );
    }
    if !file.complete() && !file.is_growing() {
        bail!("{path}: no account of resident memory: the recording was interrupted before one was written");
    }
    if process.stripped.count.is_some() || process.anonymized {
        bail!(
            "{path}: no account of resident memory: 'memtrack strip' and 'anonymize' leave it out; use the original capture"
        );
    }
    if process.fork_ticket.is_some() {
        bail!(
            "{path}: no account of resident memory: a forked child that ends within {} has none, unless it touches {} of its memory",
            "30 ms",
            "4 MiB"
        );
    }
    bail!(
        "{path}: no account of resident memory: the program ended within {} without an exit that memtrack could see (a signal, or \
         a direct system call), or was recorded for the limit of a test or by an earlier version",
        "30 ms"
    )
}
