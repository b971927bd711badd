//! `memtrack resident`: where the resident memory of a process is, to the page.
//!
//! Invariant: nothing is printed before the capture was read.

use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::args::ResidentArgs;
use crate::load::{Request, of_one_recording, search};
use crate::output::ReportOutput;
use crate::reports::display::DisplayOptions;
use crate::reports::resident::ResidentReport;
use crate::resident_memory::{AccountMoment, account_at, no_account, resident_memory};
use crate::what_if;

/// Prints the report.
///
/// # Errors
/// A capture that cannot be read or has no account, or an output that cannot be written.
pub(crate) fn run(options: &ResidentArgs) -> Result<u8> {
    let display = DisplayOptions { all_frames: options.all_frames, ..DisplayOptions::default() };
    let search = search(&options.debug_dir);
    let request = Request { paths: &options.captures, display, search, without_columns: true, ..Request::default() };
    let paths = of_one_recording(request.paths)?;
    let [path] = &paths[..] else {
        let first = paths.first().map(|path| format!(", such as '{}'", path.display())).unwrap_or_default();
        bail!("resident shows one process at a time: pass one of the {} captures{first}", paths.len());
    };
    let file = request.open(path)?;
    let Some((capture, memory, peak)) = resident_memory(&file, &request, &options.at)? else {
        match no_account(&file)? {}
    };
    capture.info.warn();
    let what_if = match &options.what_if[..] {
        [] => None,
        settings => {
            let account = account_at(&file, request.paths, &options.at)?.context("the account is gone")?;
            let at_peak = options.at == AccountMoment::Peak;
            Some(what_if::measure(&file, &account, at_peak, capture.analysis.totals.peak.bytes, settings)?)
        }
    };
    // Of another moment than that of most memory, nobody expects the most.
    let missed = peak.filter(|_| options.at == AccountMoment::Peak);
    let report = ResidentReport::new(&capture, &memory).with_what_if(what_if).with_peak(missed);
    let mut out = ReportOutput::printed(options.output.of(&options.captures))?;
    if options.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        let format = options.text.colors.text_format(&out);
        report.text((options.text.rows, options.pinned), options.at.when(memory.cause), format, &mut out)?;
    }
    out.finish()?;
    Ok(0)
}
