//! Sums of spans of a capture that is being written: each part of it is read once, when its spans are asked for.
//!
//! Invariant: the sums are those of [`SpanSums`] of the capture up to its last watermark.

use std::path::Path;

use super::{SpanReplay, SpanSum, SpanSums, TimeSpan};
use crate::error::Error;
use crate::source::{FollowStep, FollowedCapture};

/// A capture that is being written, of which spans are wanted one after the other.
#[derive(Debug)]
pub struct FollowedSpans {
    capture: FollowedCapture,
}

impl FollowedSpans {
    /// Opens the capture; nothing but its header needs to be written.
    ///
    /// # Errors
    /// It cannot be opened, or is none.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { capture: FollowedCapture::open(path)? })
    }

    /// The sums of spans of CLOCK_MONOTONIC that come after all for which it was asked before. What was allocated before them plays no
    /// part, so nothing is kept from one call to the next. `now`: the present moment on the stamping clock and on that of the spans.
    ///
    /// # Errors
    /// The capture cannot be read.
    pub fn next(&mut self, spans: &[TimeSpan], now: (u64, u64)) -> Result<Vec<SpanSum>, Error> {
        // When the recording began is known with its first block.
        let mut before = SpanReplay::new(SpanSums::default());
        while self.capture.process().start.monotonic_ns.is_none() {
            if self.capture.step(&mut before)? != FollowStep::Block {
                break;
            }
        }
        self.capture.measure(now);
        let start_ns = self.capture.process().start.monotonic_ns.unwrap_or(0);
        let since = |ns: u64| ns.saturating_sub(start_ns);
        let spans = spans.iter().map(|span| TimeSpan { from_ns: since(span.from_ns), to_ns: since(span.to_ns) });
        let mut replay = SpanReplay::new(SpanSums::new(spans));
        while self.capture.step(&mut replay)? == FollowStep::Block {}
        Ok(replay.finish().spans.into_iter().map(|(_, sum)| sum).collect())
    }

    /// Whether a part of the capture could not be read.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        let lost = self.capture.lost();
        lost.blocks > 0 || lost.bytes > 0
    }

    /// How much of the file was read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.capture.read_bytes()
    }
}
