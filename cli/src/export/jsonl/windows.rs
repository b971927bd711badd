//! Records of windows of time: those of [`Jsonl`](super::Jsonl) with the scope `window`.
//!
//! Before the first window stands `meta`; each window is `string_table`, `frame_table`, `agg` (kind `frame`, then kind
//! `stack`), and `window` with its totals, which is its last record; after the last window stands `end`. The entries of a
//! window have `live` (at its end), `allocated` and `freed` (in it). Invariant: a window refers to no record of another one.

use std::io::Write;

use anyhow::Result;
use memtrack_reader::live::{LiveTotals, LiveWindow};
use serde_json::{Value, json};

use super::{JsonLines, NumberedSums, meta, run_id};
use crate::live::picture::{ALLOCATED, FREED, LIVE};
use crate::live_windows::message::{Lag, SummedCounts, WindowMessage};
use crate::reports::capture_info::Capture;
use crate::reports::estimates::RangedTally;

/// Names of the sums of an entry.
const SUMS: [&str; 3] = ["live", "allocated", "freed"];

/// The totals of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowTotals {
    from_ns: u64,
    to_ns: u64,
    events: u64,
    totals: LiveTotals,
    /// Windows that were dropped before it.
    skipped: u64,
    /// What was written and not read when it was made.
    lag: Lag,
    /// The processes whose sum it is; `None`: it is that of one.
    processes: Option<SummedCounts>,
}

impl WindowTotals {
    /// Those of a window; `skipped`: how many were dropped before it.
    pub(crate) fn of(window: &LiveWindow, skipped: u64, lag: Lag) -> Self {
        let &LiveWindow { from_ns, to_ns, events, totals, .. } = window;
        Self { from_ns, to_ns, events, totals, skipped, lag, processes: None }
    }

    /// Those of a window that a recording has sent.
    pub(crate) fn received(window: &WindowMessage, skipped: u64) -> Self {
        let &WindowMessage { t0_ns, t1_ns, events, lag, processes, .. } = window;
        Self { from_ns: t0_ns, to_ns: t1_ns, events, totals: window.totals(), skipped, lag, processes }
    }
}

/// Writes the records of windows.
pub(crate) struct WindowRecords<'a> {
    lines: JsonLines<'a>,
}

impl<'a> WindowRecords<'a> {
    /// Writes nothing yet.
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { lines: JsonLines { out, written: 0, run_id: String::new() } }
    }

    /// Writes a window.
    pub(crate) fn window(&mut self, capture: &Capture, window: &WindowTotals) -> Result<()> {
        let lines = &mut self.lines;
        if lines.written == 0 {
            lines.run_id = run_id(capture);
            lines.write("meta", about(capture))?;
        }
        let total = |_, sum| RangedTally::from(sum).with_unseen(capture);
        let sums = NumberedSums::named(&SUMS, capture, [LIVE, ALLOCATED, FREED, ALLOCATED], total);
        lines.tables(&sums, &capture.frames)?;
        let (t0_ms, t1_ms) = (window.from_ns / 1_000_000, window.to_ns / 1_000_000);
        lines.aggregates(&sums, &json!({"scope": "window", "t0_ms": t0_ms, "t1_ms": t1_ms}))?;
        lines.write("window", totals(window, &sums, (t0_ms, t1_ms)))?;
        lines.out.flush()?;
        Ok(())
    }

    /// Writes the last record.
    pub(crate) fn end(mut self) -> Result<()> {
        let records = self.lines.written;
        self.lines.write("end", json!({"records": records}))?;
        self.lines.out.flush()?;
        Ok(())
    }
}

/// What is known while the program runs.
fn about(capture: &Capture) -> Value {
    let mut known = meta(capture, memtrack_reader::View::Leaks);
    if let Some(fields) = known.as_object_mut() {
        for later in [
            "leaked",
            "temporary_threshold",
            "duration_ms",
            "complete",
            "lost_blocks",
            "lost_bytes",
            "frees_of_earlier_blocks",
        ] {
            fields.remove(later);
        }
    }
    known
}

fn totals(window: &WindowTotals, sums: &NumberedSums, (t0_ms, t1_ms): (u64, u64)) -> Value {
    let [live, allocated, freed, _] = sums.totals.map(|total| sums.total(total));
    let WindowTotals { events, totals, skipped, lag, processes, .. } = window;
    let mut record = json!({
        "scope": "window",
        "t0_ms": t0_ms,
        "t1_ms": t1_ms,
        "events": events,
        "live": live,
        "allocated": allocated,
        "freed": freed,
        "peak_bytes": totals.peak_bytes,
        "rss_bytes": (totals.rss_bytes > 0).then_some(totals.rss_bytes),
        "behind_bytes": lag.bytes,
        "behind_events": lag.events,
        "behind_ms": lag.ms,
        "skipped": skipped,
    });
    if let Some(SummedCounts { running, missing }) = processes {
        record["processes"] = json!(running);
        record["missing_processes"] = json!(missing);
    }
    record
}
