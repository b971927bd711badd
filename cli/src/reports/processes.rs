//! The processes of a report about several captures.
//!
//! Invariant: rows add up to the report's totals, except per-process peaks, which are not simultaneous; a single capture
//! has no rows.

use memtrack_reader::analysis::Tally;
use serde_json::{Value, json};

use super::capture_info::{Capture, ProcessRow};
use crate::text::{TextTable, column};
use crate::units::{count, size};

impl ProcessRow {
    /// The row of a single capture.
    pub(crate) fn of(capture: &Capture) -> Self {
        let (info, totals) = (&capture.info, &capture.analysis.totals);
        Self {
            file: info.file.to_string_lossy().into_owned(),
            title: info.title(),
            command_line: info.command_line(),
            pid: info.process.pid,
            ppid: info.process.ppid,
            forked: info.process.fork_ticket.is_some(),
            inherited_frees: totals.inherited_frees,
            allocated: totals.allocations,
            peak_bytes: info.own_peak_bytes,
            at_peak: None,
            leaked: totals.leaked,
            killed: info.kill_reason(),
        }
    }

    /// Its name in reports that separate processes.
    pub(crate) fn name(&self) -> String {
        format!("process {}: {}", self.number(), self.title)
    }

    /// Its id.
    pub(super) fn number(&self) -> String {
        self.pid.map_or("?".into(), |pid| pid.to_string())
    }
}

/// All rows as JSON.
pub(super) fn json(rows: &[ProcessRow]) -> Value {
    let tally = |tally: Tally| json!({"count": tally.count, "bytes": tally.bytes});
    rows.iter()
        .map(|row| {
            json!({
                "file": row.file, "command_line": row.command_line, "pid": row.pid, "ppid": row.ppid,
                "forked": row.forked, "inherited_frees": row.inherited_frees,
                "allocations": tally(row.allocated), "peak": {"bytes": row.peak_bytes},
                "at_peak": row.at_peak.map(|tally| json!({"bytes": tally.bytes, "allocations": tally.count})),
                "leaked": tally(row.leaked),
            })
        })
        .collect()
}

/// The rows with the highest peaks, as text.
pub(super) fn table(rows: &[ProcessRow], limit: usize) -> TextTable {
    let mut sorted: Vec<&ProcessRow> = rows.iter().collect();
    sorted.sort_by_key(|row| std::cmp::Reverse((row.at_peak.map(|tally| tally.bytes), row.peak_bytes)));
    let mut table = TextTable::new(["At the peak", "Own peak", "Live", "Allocations", "Process"].map(column));
    for row in sorted {
        let [at_peak, own] = [row.at_peak.map(|tally| tally.bytes), row.peak_bytes];
        let known = |bytes: Option<u64>| bytes.map_or("?".into(), size);
        let (live, process) = (size(row.leaked.bytes), format!("{} {}", row.number(), row.title));
        table.row([known(at_peak), known(own), live, count(row.allocated.count), process].map(Into::into));
    }
    table.first(limit)
}
