//! A recording that rests now and then: sums of what was recorded since it did last, without an end of the recording or a further
//! file. The limits of tests are judged by them.
//!
//! They are computed and told by the thread that drains: each further thread, and the file, would have the process wait longer.
//! Invariant: a sum is given only of records that were read wholly, up to the rest.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail};
use memtrack_collector::control::protocol::SpanRequest;
use memtrack_collector::{Follower, RecordPiece, RecordingHandle, RecordingMoment, RestMoment};
use memtrack_format::meta::Process;
use memtrack_reader::spans::{FollowedSpans, RunningSpans, SpanSum, TimeSpan};
use serde::Deserialize;
use serde_json::{Value, json};

use super::peer_answer::Answer;
use crate::control::spans::OpenSpans;

/// The size of a recording after which another one is to begin.
const LARGE: u64 = u64::MAX;

/// What the process says of a rest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RestRequest {
    /// Times of CLOCK_MONOTONIC, between the last rest and this one.
    times: Vec<u64>,
    /// The moment of the last rest, if it was not told of that: its ticket, and its time on the stamping clock and on CLOCK_MONOTONIC.
    after: Option<(u64, u64, u64)>,
}

impl RestRequest {
    fn after(&self) -> Option<RecordingMoment> {
        self.after.map(|(ticket, ticks, monotonic_ns)| RecordingMoment { ticket, ticks, monotonic_ns })
    }
}

/// The rests of a recording.
#[derive(Debug, Default)]
pub(super) struct RecordingRests {
    known: Arc<KnownRests>,
    /// Ends when the last rest was answered.
    under_way: Option<Receiver<()>>,
    /// Reads the capture of the recording.
    spans: Option<FollowedSpans>,
}

/// What the draining thread knows of them.
#[derive(Debug, Default)]
struct KnownRests(Mutex<Rests>);

#[derive(Debug, Default)]
struct Rests {
    /// The last one; `None`: there was none, or it had no answer.
    last: Option<RecordingMoment>,
    /// The one before it.
    before: Option<RecordingMoment>,
    running: RunningSpans,
}

impl RecordingRests {
    /// What follows the recording.
    pub(super) fn follower(&self) -> Arc<dyn Follower> {
        Arc::clone(&self.known) as Arc<dyn Follower>
    }

    /// The process records nothing now. It is told how much was recorded by now, and for each span between two of its times, and for
    /// those before and after them, the number of allocations, their bytes, the most of these at once, and those that are left; or 0
    /// alone: it is to ask for what was written.
    pub(super) fn rest(&mut self, recording: &RecordingHandle, request: RestRequest, socket: &Arc<UnixStream>) {
        let (ends, under_way) = channel();
        let answer = RestAnswer { socket: Arc::clone(socket), numbers: None, _ends: ends };
        let known = Arc::clone(&self.known);
        self.under_way = Some(under_way);
        recording.rest(move |moment| answer.send(known.rest(moment, &request)));
    }

    /// Waits until the last rest was answered: answers come in the order of requests.
    pub(super) fn wait(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            // It ends without a message.
            let _ = under_way.recv();
        }
    }

    /// The same as [`Self::rest`] for the last rest, after everything was written and read.
    ///
    /// # Errors
    /// It is not written, or cannot be read.
    pub(super) fn written(&mut self, recording: &RecordingHandle, capture: &Path, times: &[u64]) -> Result<Value> {
        let moment = recording.written_position().map_err(|reason| anyhow!("{}: {reason}", capture.display()))?;
        let begin_ns = {
            let mut rests = self.known.lock();
            rests.last = Some(moment);
            rests.before.map_or(0, |before| before.monotonic_ns)
        };
        let reader = match &mut self.spans {
            Some(reader) => reader,
            none => none.insert(FollowedSpans::open(capture)?),
        };
        let sums = reader.next(&spans_between(begin_ns, times), (moment.ticks, moment.monotonic_ns))?;
        if reader.has_lost() {
            bail!("{}: the capture is damaged", capture.display());
        }
        // The next test begins another.
        Ok(json!(numbers(LARGE, &sums)))
    }

    /// Begins a span at the last rest but one.
    ///
    /// # Errors
    /// There was none, or why there will be no such file.
    pub(super) fn begin_span(&self, spans: &OpenSpans, span: SpanRequest) -> Result<()> {
        let before = self.known.lock().before;
        spans.begin_at(0, span, || before)
    }
}

impl KnownRests {
    fn lock(&self) -> MutexGuard<'_, Rests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rest(&self, moment: Option<RestMoment>, request: &RestRequest) -> Option<Vec<u64>> {
        let mut rests = self.lock();
        rests.before = request.after().or(rests.last);
        rests.last = None;
        let RestMoment { moment, busy } = moment?;
        rests.last = Some(moment);
        let now = (moment.ticks, moment.monotonic_ns);
        // A thread that is in a hook still may add records, without which a sum is too small.
        if !busy.is_empty() {
            return None;
        }
        // Of rests that were not told of here there are records that nobody has asked for.
        let begin_ns = request.after().map_or(0, |after| after.monotonic_ns);
        let sums = rests.running.next(&spans_between(begin_ns, &request.times), now, (moment.ticket, &busy))?;
        Some(numbers(rests.running.record_bytes(), &sums))
    }
}

impl Follower for KnownRests {
    fn process(&self, process: &Process) {
        self.lock().running.process(process);
    }

    fn records(&self, piece: &RecordPiece<'_>) {
        self.lock().running.records(piece.stream, piece.segment, piece.offset, piece.bytes);
    }

    fn observations(&self, payload: &[u8]) {
        self.lock().running.observations(payload);
    }

    fn replaced(&self, _ticket: u64) {
        self.lock().running.give_up();
    }
}

/// The answer to a rest. Where the draining thread has ended, it says that it is to be asked for what was written, too.
struct RestAnswer {
    socket: Arc<UnixStream>,
    numbers: Option<Vec<u64>>,
    /// Nobody waits for a further answer before.
    _ends: Sender<()>,
}

impl RestAnswer {
    fn send(mut self, numbers: Option<Vec<u64>>) {
        self.numbers = numbers;
    }
}

impl Drop for RestAnswer {
    fn drop(&mut self) {
        let numbers = self.numbers.take().unwrap_or_else(|| vec![0]);
        Answer::to(&self.socket).send(&json!({ "ok": numbers }));
    }
}

/// The spans between these times, and those before, from that begin on, and after them.
fn spans_between(begin_ns: u64, times: &[u64]) -> Vec<TimeSpan> {
    let begins = std::iter::once(begin_ns).chain(times.iter().copied());
    let ends = times.iter().copied().chain([u64::MAX]);
    begins.zip(ends).map(|(from_ns, to_ns)| TimeSpan { from_ns, to_ns }).collect()
}

/// What the process is told.
fn numbers(record_bytes: u64, sums: &[SpanSum]) -> Vec<u64> {
    let sums = sums.iter().flat_map(|sum| [sum.count, sum.bytes, sum.peak_bytes, sum.kept_bytes]);
    std::iter::once(record_bytes).chain(sums).collect()
}

/// The sums of a span, as the process is told them.
pub(super) fn of_span(sum: &SpanSum) -> (u64, u64, u64, u64) {
    (sum.count, sum.bytes, sum.peak_bytes, sum.kept_bytes)
}
