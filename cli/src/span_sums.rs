//! Sums of what a capture's process allocated in spans of time: for `transform records`, and for a recorder that a plugin of
//! pytest asks.
//!
//! Invariant: the sums are those of all allocations; where these are not known one by one, it is an error.

use anyhow::{Result, bail};
use memtrack_reader::source::{CaptureReader, ReadSummary};
use memtrack_reader::spans::{LiveAtEnds, LiveRow, SpanReplay, SpanSums, TimeSpan};

/// The spans, of CLOCK_MONOTONIC, in nanoseconds since the recording began.
///
/// # Errors
/// The capture holds no events, or none with exact times: a span of some milliseconds would have nearly nothing.
pub(crate) fn of_recording(file: &CaptureReader, spans: &[TimeSpan]) -> Result<Vec<TimeSpan>> {
    if file.aggregated() {
        bail!("{}: an aggregated capture holds no events, only sums of allocations", file.path().display());
    }
    if !file.has_timestamps() {
        bail!(
            "{}: was recorded without exact times, which figures of spans need; record with --allocation-timestamps",
            file.path().display()
        );
    }
    let start_ns = file.process().start.monotonic_ns.unwrap_or(0);
    let since = |ns: u64| ns.saturating_sub(start_ns);
    Ok(spans.iter().map(|span| TimeSpan { from_ns: since(span.from_ns), to_ns: since(span.to_ns) }).collect())
}

/// The sums of spans of CLOCK_MONOTONIC.
///
/// # Errors
/// A capture that cannot be read, or that holds no events with exact times.
pub(crate) fn of_capture(file: &CaptureReader, spans: &[TimeSpan]) -> Result<SpanSums> {
    let mut replay = SpanReplay::new(SpanSums::new(of_recording(file, spans)?));
    file.read(&mut replay, |_| ())?;
    let mut sums = replay.finish();
    let of_ended = sums.spans.iter_mut().filter(|(span, _)| has_ended(file, span.to_ns));
    of_ended.for_each(|(_, sum)| sum.kept_bytes = 0);
    Ok(sums)
}

/// What is live at the end of each span of CLOCK_MONOTONIC, with what was read.
///
/// # Errors
/// As of [`of_capture`].
pub(crate) fn live_at_ends(file: &CaptureReader, spans: &[TimeSpan]) -> Result<(Vec<LiveRow>, ReadSummary)> {
    let spans = of_recording(file, spans)?;
    let mut replay = SpanReplay::new(LiveAtEnds::new(spans.clone()));
    let read = file.read(&mut replay, |_| ())?;
    let mut rows = replay.finish().rows;
    rows.retain(|row| spans.get(row.span).is_none_or(|span| !has_ended(file, span.to_ns)));
    Ok((rows, read))
}

/// Whether the process had ended at this time since the recording began: what it held then is nobody's any more.
fn has_ended(file: &CaptureReader, at_ns: u64) -> bool {
    let process = file.process();
    !process.ran_on && process.lived_ns().is_some_and(|lived_ns| lived_ns <= at_ns)
}
