//! Sums of spans of a recording, of the records as they are drained: nothing of them has to be written and read for that.
//!
//! What was not asked for yet waits, decoded. Invariant: the sums are those of [`FollowedSpans`](super::FollowedSpans), or none are
//! given; and no more than [`MOST`] bytes of records wait.

use memtrack_format::meta::Process;
use memtrack_format::observe::ObservationReader;

use super::{SpanReplay, SpanSum, SpanSums, TimeSpan};
use crate::source::Online;

/// The most bytes of records of which sums are kept ready: a million events, which take some tens of MB decoded.
const MOST: usize = 2 << 20;

/// A recording of which spans are wanted one after the other.
#[derive(Debug, Default)]
pub struct RunningSpans {
    process: Process,
    /// `None` before the process is known, and after it was given up.
    online: Option<Online>,
    /// Bytes of records since the last sums.
    waiting: usize,
    /// Bytes of all records.
    all: u64,
    /// The file has to be read: more has come than is kept, or what cannot be read here.
    is_given_up: bool,
}

impl RunningSpans {
    /// Metadata of the process.
    pub fn process(&mut self, process: &Process) {
        self.process.update(&process.encode());
        if self.online.is_none() && !self.is_given_up {
            self.online = Some(Online::new(self.process.start.monotonic_ns.unwrap_or(0)));
        }
    }

    /// Bytes of a stream, as [`Online::records`] takes them.
    pub fn records(&mut self, stream: u32, segment: u32, offset: u32, bytes: &[u8]) {
        self.waiting += bytes.len();
        self.all += bytes.len() as u64;
        if self.waiting > MOST {
            self.give_up();
        }
        if let Some(online) = &mut self.online {
            online.records(stream, segment, offset, bytes);
        }
    }

    /// The payload of an observations block.
    pub fn observations(&mut self, payload: &[u8]) {
        if let Some(online) = &mut self.online {
            ObservationReader::new(payload).for_each(|observation| online.observe(&observation));
        }
    }

    /// From now on only the file tells of the recording.
    pub fn give_up(&mut self) {
        (self.online, self.is_given_up) = (None, true);
    }

    /// The sums of spans of CLOCK_MONOTONIC that come after all for which it was asked before, of the records up to this ticket and
    /// without those of the busy streams, as for [`Online::watermark`]. What was allocated before the first plays no part. `now`: the present moment on the stamping clock and on that
    /// of the spans. `None`: the file has to be read.
    pub fn next(&mut self, spans: &[TimeSpan], now: (u64, u64), (ticket, busy): (u64, &[u32])) -> Option<Vec<SpanSum>> {
        self.waiting = 0;
        let online = self.online.as_mut()?;
        let start_ns = self.process.start.monotonic_ns?;
        online.measure(&self.process, now);
        let since = |ns: u64| ns.saturating_sub(start_ns);
        let spans = spans.iter().map(|span| TimeSpan { from_ns: since(span.from_ns), to_ns: since(span.to_ns) });
        let mut replay = SpanReplay::new(SpanSums::new(spans));
        let emitted = online.watermark(ticket, busy, &mut replay);
        let lost = online.lost();
        if emitted.is_err() || lost.blocks > 0 || lost.bytes > 0 {
            self.give_up();
            return None;
        }
        Some(replay.finish().spans.into_iter().map(|(_, sum)| sum).collect())
    }

    /// Bytes of all records so far.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        self.all
    }
}
