//! `run --live`: prints a line of figures up to once a second while the program runs.
//!
//! Output is plain lines because the terminal belongs to the program. Invariant: the capture is the same as without
//! `--live`; if live figures fail, only they stop.

use std::io;
use std::time::{Duration, Instant};

use memtrack_collector::{RecordPiece, Sink, SnapshotCopy};
use memtrack_format::mapped::MappedFile;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;
use memtrack_reader::{Analysis, Frames, View};
use rustc_hash::FxHashMap;

use super::process_replay::ProcessReplay;
use crate::message;
use crate::reports::display::named;
use crate::units::{count, duration, size};

/// Minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);
/// Lines are computed at most 1/n of the time.
const TIME_PART: u32 = 20;

/// Forwards everything to another sink, and prints live figures.
pub(super) struct LiveSink {
    inner: Box<dyn Sink>,
    /// `None` after the replay has failed.
    running: Option<ProcessReplay>,
    next: Instant,
    /// The last line, which is not repeated.
    told: String,
}

impl LiveSink {
    pub(super) fn new(inner: Box<dyn Sink>) -> Self {
        Self { inner, running: Some(ProcessReplay::new(None)), next: Instant::now() + INTERVAL, told: String::new() }
    }

    fn print_figures(&mut self) {
        let begun = Instant::now();
        let Some(now) = self.running.as_ref().filter(|_| begun >= self.next).and_then(ProcessReplay::now) else {
            return;
        };
        let told = figures(&now.analysis, now.frames);
        let time = duration(now.analysis.totals.end_time_ns);
        if told != self.told {
            message::note(format_args!("live {} after {time}: {told}", now.process.pid.unwrap_or(0)));
        }
        self.told = told;
        self.next = Instant::now() + INTERVAL.max(begun.elapsed() * TIME_PART);
    }
}

impl Sink for LiveSink {
    fn process(&mut self, process: &Process) -> io::Result<()> {
        self.running.iter_mut().for_each(|running| running.process(process));
        self.inner.process(process)
    }

    fn records(&mut self, piece: &RecordPiece<'_>) -> io::Result<()> {
        self.running.iter_mut().for_each(|running| running.records(piece));
        self.inner.records(piece)
    }

    fn observations(&mut self, payload: &[u8], first_ticket: u64, last_ticket: u64) -> io::Result<()> {
        self.running.iter_mut().for_each(|running| running.observations(payload));
        self.inner.observations(payload, first_ticket, last_ticket)
    }

    fn mapped(&mut self, files: &[MappedFile]) -> io::Result<()> {
        self.running.iter_mut().for_each(|running| running.mapped(files));
        self.inner.mapped(files)
    }

    fn objects(&mut self, payload: &[u8], ticket: u64) -> io::Result<()> {
        self.inner.objects(payload, ticket)
    }

    fn mark(&mut self, mark: &Mark, ticket: u64) -> io::Result<()> {
        self.inner.mark(mark, ticket)
    }

    fn wants_watermarks(&self) -> bool {
        true
    }

    fn watermark(&mut self, before_ticket: u64, busy: &[u32]) -> io::Result<()> {
        let told = self.running.as_mut().map_or(Ok(()), |running| running.watermark(before_ticket, busy));
        if let Err(error) = told {
            message::warning(format_args!("live output stopped: {error}"));
            self.running = None;
        }
        self.inner.watermark(before_ticket, busy)
    }

    fn replaced(&mut self, ticket: u64) -> io::Result<()> {
        self.running.iter_mut().for_each(|running| running.replaced(ticket));
        self.inner.replaced(ticket)
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        self.print_figures();
        self.inner.checkpoint()
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.inner.write_out()
    }

    fn hurry(&mut self, hurry: bool) {
        self.inner.hurry(hurry);
    }

    fn snapshot(&mut self, process: &Process) -> io::Result<SnapshotCopy> {
        self.inner.snapshot(process)
    }

    fn finish(&mut self, complete: bool) -> io::Result<()> {
        self.running = None;
        self.inner.finish(complete)
    }
}

/// Live memory, and the function that allocated most of it. Native frames are not symbolized before the end, so their
/// nearest Python caller is named.
fn figures(analysis: &Analysis, frames: &Frames) -> String {
    let totals = &analysis.totals;
    let live = totals.leaked_at_exit;
    let mut text = format!(
        "{} live in {} allocations, peak {}, resident {}",
        size(live.bytes),
        count(live.count),
        size(totals.peak.bytes),
        totals.resident_last().map_or("not sampled".into(), size)
    );
    let mut sums = FxHashMap::default();
    for row in analysis.view(View::LeaksAtExit) {
        if let Some(frame) = frames.leaf_to_root(row.stack).find(|frame| frames.native(*frame).is_none()) {
            *sums.entry(frame).or_insert(0_u64) += row.bytes;
        }
    }
    // Of equal sums, the first one wins.
    if let Some((frame, bytes)) = sums.into_iter().max_by_key(|(frame, bytes)| (*bytes, std::cmp::Reverse(frame.0))) {
        text.push_str(&format!("; most: {} by {}", size(bytes), named(frames, frame)));
    }
    text
}

#[cfg(test)]
mod tests {
    use memtrack_reader::Analysis;
    use memtrack_reader::analysis::Tally;

    use super::figures;
    use crate::reports::fixture;

    #[test]
    fn what_is_live_and_who_holds_most_of_it() {
        let capture = fixture::capture();
        let mut analysis = capture.analysis;
        analysis.totals.leaked_at_exit = Tally { bytes: 2_000, count: 1_200, ..Tally::default() };
        analysis.groups.change_all(|group| group.leaked_at_exit = group.peak);
        let told = figures(&analysis, &capture.frames);
        assert!(
            told.starts_with("2.00 kB live in 1,200 allocations, peak 1.51 MB, resident 8.39 MB; most: 1.50 MB by ")
        );
        assert!(told.ends_with("Reader.read at /home/user/project/application/app.py:7"), "{told}");
        assert!(!figures(&Analysis::default(), &capture.frames).contains("most"));
    }
}
