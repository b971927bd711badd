//! `memtrack keep-sums`: reads a capture, so that its sums are kept for the first report.
//!
//! A Tracker ends without a summary, and its program goes on. So the recorder starts this beside both, with what no other
//! process wants of the processors. Invariant: at most one runs for each recorder, and nobody waits for it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Result;
use memtrack_collector::RecordingSummary;

use super::final_summary;
use crate::args::running::KeepSumsArgs;
use crate::load::LEAST_RECORD_BYTES;
use crate::sums_cache::SumsCache;
use crate::sys::run_when_idle;

/// Reads the capture.
///
/// # Errors
/// It cannot be read.
pub(crate) fn run(options: &KeepSumsArgs) -> Result<u8> {
    run_when_idle();
    final_summary::read_for_reports(std::slice::from_ref(&options.capture))?;
    Ok(0)
}

/// Starts it for what a Tracker has recorded, one after the other.
#[derive(Debug, Default)]
pub(super) struct SumsKeeper(Option<Child>);

impl SumsKeeper {
    /// Starts it for the capture of a recording that has ended, unless it still reads another one.
    pub(super) fn start(&mut self, captures: &[PathBuf]) {
        let [capture] = captures else { return };
        if self.0.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        let Ok(program) = std::env::current_exe() else { return };
        // Nothing of the program's is kept open: who reads its output waits for the end of that.
        let mut command = Command::new(program);
        command.arg("keep-sums").arg("--").arg(capture);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.0 = command.spawn().ok();
    }
}

/// Whether the sums of a recording are worth it: it takes long to read, but no longer than after `memtrack run`.
pub(super) fn is_worth_it(summary: &RecordingSummary) -> bool {
    summary.record_bytes >= LEAST_RECORD_BYTES && final_summary::is_read_back(summary) && SumsCache::of_user().is_some()
}
