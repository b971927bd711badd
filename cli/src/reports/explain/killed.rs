//! Programs that were ended by SIGKILL, but for a limit of processor time, and allocations that failed.
//!
//! Invariant: what held memory then is what was live at the last recorded moment.

use std::path::Path;

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::copies::LargeBlock;
use super::{
    Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, noise, size_about, size_of, whole_file,
};
use crate::reports::capture_info::{Capture, PERHAPS_KILLED, ProcessRow, quoted_path};
use crate::reports::failed;
use crate::reports::source::Sources;
use crate::units::{duration, size};

const MEANING: &str = "The kernel kills so when a limit of memory or of processor time is reached; a user or a supervisor can \
                       send the signal, too. The end of 'memtrack run' says which, where the system tells.";
/// Number of lines.
const MOST: usize = 3;
/// The last part of the recording in which growth is looked at.
const LAST: usize = 8;

/// One finding at most.
pub(super) fn findings(rows: &LineRows<'_>, last: Option<&LargeBlock>, sources: &mut Sources) -> Vec<Finding> {
    let capture = rows.capture;
    let failed = failed::text(capture);
    if let Some(finding) = of_processes(capture) {
        return vec![finding];
    }
    let killed = capture.info.kill_reason();
    let is_killed = killed.is_some();
    if !is_killed && failed.is_none() {
        return Vec::new();
    }
    // A program that goes on without the memory may have been prepared for that.
    let has_failed = capture.info.process.exit_status != Some(0);
    let totals = &capture.analysis.totals;
    let live = Tally { variance: capture.analysis.whole_variance(View::LeaksAtExit), ..totals.leaked_at_exit };
    let title = match (killed, &failed) {
        (Some(reason), _) => format!("{reason}; {} live after {}", size_of(live), duration(totals.end_time_ns)),
        (None, failed) => format!("Memory was refused: {}", failed.as_deref().unwrap_or_default()),
    };
    let mut evidence: Vec<Evidence> = growing_last(rows, sources).into_iter().collect();
    evidence.extend(last.filter(|_| is_killed).map(|last| last.as_request(totals.end_time_ns)));
    evidence.extend(holders(rows, sources));
    if let Some(failed) = failed.filter(|_| is_killed) {
        evidence.push(Evidence { text: format!("refused before: {failed}"), ..Evidence::default() });
    }
    if totals.rss_last_bytes > 0 {
        let text = format!("resident memory {} at the last snapshot", size(totals.rss_last_bytes));
        evidence.push(Evidence { text, tally: Evidence::exact(totals.rss_last_bytes, 0), ..Evidence::default() });
    }
    vec![Finding {
        kind: FindingKind::Killed,
        severity: if has_failed { Severity::Warning } else { Severity::Note },
        title,
        bytes: live.bytes,
        weight: if has_failed { u64::MAX } else { live.bytes },
        evidence,
        meaning: if is_killed {
            MEANING
        } else {
            "A limit of address space, data, or the control group was reached, or the size asked for was wrong."
        }
        .into(),
        advice: "Look at what grew last, then at what held most. 'memtrack run --snapshot-above' keeps a capture from \
                 before the end."
            .into(),
        command: command(capture, "table --leaks --at-exit"),
    }]
}

/// Of several processes, those that were killed.
fn of_processes(capture: &Capture) -> Option<Finding> {
    let all = &capture.info.processes;
    let mut killed: Vec<(&ProcessRow, &str)> =
        all.iter().filter_map(|process| Some((process, process.killed.as_deref()?))).collect();
    killed.sort_by_key(|(process, _)| std::cmp::Reverse(process.leaked.bytes));
    let (most, reason) = *killed.first()?;
    let is_of_all = killed.iter().all(|(_, other)| *other == reason);
    let of = |(process, reason): &(&ProcessRow, &str)| {
        let how = if is_of_all { String::new() } else { format!("{reason}: ") };
        let text = format!("{} live: {how}process {}: ", in_blocks(process.leaked), process.number());
        let command_line = Some(process.title.clone());
        Evidence { text, command_line, tally: process.leaked, ..Evidence::default() }
    };
    let is_certain = !killed.iter().any(|(_, reason)| reason.starts_with(PERHAPS_KILLED));
    let reason = match (is_of_all, is_certain) {
        (true, _) => reason,
        (false, true) => "ended by SIGKILL",
        (false, false) => "ended by SIGKILL, or perhaps so",
    };
    Some(Finding {
        kind: FindingKind::Killed,
        severity: Severity::Warning,
        title: format!("{} of {} processes: {reason}", killed.len(), all.len()),
        bytes: killed.iter().fold(0, |sum, (process, _)| sum.saturating_add(process.leaked.bytes)),
        weight: u64::MAX,
        evidence: killed.iter().take(MOST).map(of).collect(),
        meaning: MEANING.into(),
        advice: "Look at one of them alone: at what grew last, then at what held most.".into(),
        command: format!("memtrack explain {}", quoted_path(Path::new(whole_file(&most.file)))),
    })
}

/// What held most at the end.
fn holders(rows: &LineRows<'_>, sources: &mut Sources) -> Vec<Evidence> {
    let capture = rows.capture;
    let mut all: Vec<_> = rows.rows.iter().filter(|row| row.leaked.tally.bytes > 0).collect();
    all.sort_by_key(|row| std::cmp::Reverse(row.leaked.tally.bytes));
    let of = |row: &&super::rows::LineRow| {
        let tally = row.leaked.tally;
        let text = format!("held {}: {}", in_blocks(tally), row.name(capture));
        Evidence { text, tally, place: row.place(row.leaked, capture, sources), ..Evidence::default() }
    };
    all.iter().take(MOST).map(of).collect()
}

/// The line that grew most in the last eighth of the recording.
fn growing_last(rows: &LineRows<'_>, sources: &mut Sources) -> Option<Evidence> {
    let series = rows.series.as_ref()?;
    let last = series.times_ns.len().checked_sub(1)?;
    let from = last - last / LAST;
    let grown = |live: &[u64]| live[last].saturating_sub(live[from]);
    let most = rows.rows.iter().zip(&series.parts).max_by_key(|(_, live)| grown(live))?;
    let (row, bytes) = (most.0, grown(most.1));
    let span = series.times_ns[last] - series.times_ns[from];
    let text = format!(
        "grew most in the last {}: {}, {}",
        duration(span),
        row.name(rows.capture),
        size_about(bytes, noise(row.leaked.tally))
    );
    let place = row.place(row.leaked, rows.capture, sources);
    (bytes > noise(row.leaked.tally)).then_some(Evidence {
        text,
        tally: Evidence::exact(bytes, 0),
        place,
        ..Evidence::default()
    })
}
