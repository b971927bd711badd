//! Sums of what a capture's process allocated in spans of time: for `transform records`, and for a recorder that a plugin of
//! pytest asks.
//!
//! Invariant: the sums are those of all allocations; where these are not known one by one, it is an error.

use anyhow::{Result, bail};
use memtrack_reader::source::CaptureReader;
use memtrack_reader::spans::{SpanReplay, SpanSums, TimeSpan};

/// The spans, of CLOCK_MONOTONIC, in nanoseconds since the recording began.
///
/// # Errors
/// The capture holds no events.
pub(crate) fn of_recording(file: &CaptureReader, spans: &[TimeSpan]) -> Result<Vec<TimeSpan>> {
    if file.aggregated() {
        bail!("{}: an aggregated capture holds no events, only sums of allocations", file.path().display());
    }
    let start_ns = file.process().start.monotonic_ns.unwrap_or(0);
    let since = |ns: u64| ns.saturating_sub(start_ns);
    Ok(spans.iter().map(|span| TimeSpan { from_ns: since(span.from_ns), to_ns: since(span.to_ns) }).collect())
}

/// The sums of spans of CLOCK_MONOTONIC.
///
/// # Errors
/// A capture that cannot be read, or that holds no events.
pub(crate) fn of_capture(file: &CaptureReader, spans: &[TimeSpan]) -> Result<SpanSums> {
    let mut replay = SpanReplay::new(SpanSums::new(of_recording(file, spans)?));
    file.read(&mut replay, |_| ())?;
    Ok(replay.finish())
}
