//! A recording that rests now and then: sums of what was recorded since it did last, without an end of the recording or a further
//! file. The limits of tests are judged by them.
//!
//! Invariant: a sum is given only of a capture that was read wholly, up to the rest.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use memtrack_collector::control::protocol::SpanRequest;
use memtrack_collector::{RecordingHandle, RecordingMoment};
use memtrack_reader::spans::{FollowedSpans, SpanSum, TimeSpan};
use serde_json::{Value, json};

use crate::control::spans::OpenSpans;

/// The rests of a recording.
#[derive(Default)]
pub(super) struct RecordingRests {
    /// The last one; `None`: there was none, or it had no answer.
    last: Option<RecordingMoment>,
    /// The one before it.
    before: Option<RecordingMoment>,
    /// Reads the capture of the recording.
    spans: Option<FollowedSpans>,
}

impl RecordingRests {
    /// The process records nothing now: for each span of CLOCK_MONOTONIC, which lie between the last rest and this one, the number
    /// of allocations, their bytes, the most of these at once, and those that are left; and how long the capture is by now.
    ///
    /// # Errors
    /// It is not written, or cannot be read.
    pub(super) fn rest(&mut self, recording: &RecordingHandle, capture: &Path, spans: &[(u64, u64)]) -> Result<Value> {
        self.before = self.last.take();
        let moment = recording.written_position().map_err(|reason| anyhow!("{}: {reason}", capture.display()))?;
        self.last = Some(moment);
        let reader = match &mut self.spans {
            Some(reader) => reader,
            none => none.insert(FollowedSpans::open(capture)?),
        };
        let spans: Vec<_> = spans.iter().map(|&(from_ns, to_ns)| TimeSpan { from_ns, to_ns }).collect();
        let sums = reader.next(&spans, (moment.ticks, moment.monotonic_ns))?;
        if reader.has_lost() {
            bail!("{}: the capture is damaged", capture.display());
        }
        let sums: Vec<_> = sums.iter().map(of_span).collect();
        Ok(json!({ "sums": sums, "bytes": reader.read_bytes() }))
    }

    /// Begins a span at the last rest but one.
    ///
    /// # Errors
    /// There was none, or why there will be no such file.
    pub(super) fn begin_span(&self, spans: &OpenSpans, span: SpanRequest) -> Result<()> {
        spans.begin_at(0, span, || self.before)
    }
}

/// The sums of a span, as the process is told them.
pub(super) fn of_span(sum: &SpanSum) -> (u64, u64, u64, u64) {
    (sum.count, sum.bytes, sum.peak_bytes, sum.kept_bytes)
}
