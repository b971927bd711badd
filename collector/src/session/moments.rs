//! Moments of a running recording, for clients of its control socket: marks, positions, snapshots, and what is written by now.
//!
//! Invariant: each takes a ticket of its own, after everything that the process recorded before it was asked for.

use std::io;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use crossbeam_channel::Sender;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;
use memtrack_format::resident::AccountCause;
use memtrack_transport::clock::{ClockPairing, monotonic_ns};

use super::Session;
use crate::recording::describe;
use crate::session::drain_command::{RecordingMoment, RestMoment, TicketSpan};
use crate::session::watermarks::Watermark;
use crate::sink::SnapshotCopy;
use crate::sink::sink_queue::SinkQueue;

/// How often is looked whether a thread has left the hook that it was in, and for how long, in nanoseconds: the program may wait for
/// the drain.
const LOOKS: u32 = 16;
const LOOKED_NS: u64 = 5_000_000;
/// How long one waits here for the names of code, and how long without draining.
const CODE_PATIENCE_NS: u64 = 50_000_000;
const CODE_LOOK: Duration = Duration::from_millis(2);

impl Session {
    /// Names the present moment, with a tick of its own, and tells its time since the recording of the process began; if its
    /// objects are to be pictured, when it stands still.
    pub(crate) fn mark(&mut self, name: String, answer: Sender<Option<u64>>, queue: &SinkQueue) {
        if self.is_cut_off(queue) {
            // The one who asked may have lost patience.
            let _ = answer.send(None);
            return;
        }
        let tick = self.observer.tick(&self.area);
        self.observer.hand_over(queue);
        queue.mark(Mark { time_ns: tick.time_ns, name: name.clone() }, tick.ticket);
        self.dirty = true;
        self.ask_for_account(tick, AccountCause::Mark);
        let time_ns = tick.time_ns.saturating_sub(self.process.start.monotonic_ns.unwrap_or(tick.time_ns));
        self.pictures.mark(&name, self.observer.last_rss(), answer, time_ns);
    }

    /// Whether the capture could not be written; from then on others can ask for it, too.
    pub(crate) fn is_cut_off(&self, queue: &SinkQueue) -> bool {
        let Some(reason) = queue.failure() else { return false };
        if self.progress.set_cut_off(reason) {
            (self.told_cut_off)(reason);
        }
        true
    }

    /// Takes the ticket of the present moment: what this process has recorded before it was asked for has none that is later,
    /// and what it records from now on has later ones.
    pub(crate) fn position(&mut self, queue: &SinkQueue) -> RecordingMoment {
        self.counts.note_changes(&self.area, &mut self.observer);
        let ticket = self.observer.moment(&self.area).ticket;
        self.observer.hand_over(queue);
        self.dirty = true;
        // Of the tick the clocks are read once, perhaps with a pause between; by this the times of short spans are told.
        let ClockPairing { ticks, monotonic_ns, .. } = ClockPairing::measure(self.clock);
        RecordingMoment { ticket, ticks, monotonic_ns }
    }

    /// Takes the ticket of the present moment, and hands over everything that was recorded before it.
    pub(crate) fn rest(&mut self, queue: &mut SinkQueue) -> RestMoment {
        self.counts.note_changes(&self.area, &mut self.observer);
        let ticket = self.observer.moment(&self.area).ticket;
        // As in `position`.
        let ClockPairing { ticks, monotonic_ns: now, .. } = ClockPairing::measure(self.clock);
        let busy = self.still_busy(now);
        self.drain(true, queue);
        self.watermarks.drained(self.changed, false);
        self.observer.hand_over(queue);
        self.dirty = true;
        RestMoment { moment: RecordingMoment { ticket, ticks, monotonic_ns: now }, busy }
    }

    /// Hands over everything up to now, and asks the sink for a snapshot. Records with later tickets than the one that is
    /// taken here may be in it, and do not belong to it: so it holds no free of a block without the block.
    pub(crate) fn snapshot(
        &mut self,
        span: TicketSpan,
        answer: Sender<io::Result<SnapshotCopy>>,
        queue: &mut SinkQueue,
    ) {
        self.wait_for_account(AccountCause::Snapshot, queue);
        let now = monotonic_ns();
        self.counts.note_changes(&self.area, &mut self.observer);
        let last = self.observer.observe(&self.area, now);
        let busy = self.busy();
        self.drain(true, queue);
        self.observer.hand_over(queue);
        self.name_code(queue);
        if queue.wants_watermarks() {
            self.watermarks.skip_to(last, busy, queue);
        }
        self.read_processor_time();
        let known = describe::at_end(&self.area, &self.process, ClockPairing::measure(self.clock), &self.earlier);
        let mut process = Process {
            snapshot: span.end.is_none(),
            snapshot_ticket: Some(last),
            cpu_ns: self.cpu_ns,
            record_bytes: Some(queue.record_bytes),
            collector_cpu_ns: queue.processor_ns(),
            resident_peak: self.resident_peak(),
            ..known
        };
        process.update(&span.metadata(&self.process).encode());
        queue.snapshot(process, answer);
    }

    /// Writes out everything up to now, so that who follows the capture has it: its last watermark is this moment's. Answers when
    /// it is written, or cannot be.
    pub(crate) fn write_out(&mut self, answer: Sender<io::Result<()>>, queue: &mut SinkQueue) {
        // Of a process that has ended, everything was handed over.
        if !self.ended {
            let now = monotonic_ns();
            self.counts.note_changes(&self.area, &mut self.observer);
            let last = self.observer.observe(&self.area, now);
            let busy = self.still_busy(now);
            self.drain(true, queue);
            self.observer.hand_over(queue);
            self.name_code(queue);
            self.watermarks.skip_to(last, busy, queue);
        }
        queue.write_out(answer);
    }

    /// Passes a watermark on (its ticket, and who was busy then) that was taken before the last drain, if there is one, and one
    /// that was held back.
    pub(super) fn pass_watermark(&mut self, taken: Option<(u64, Vec<u32>)>, now: u64, queue: &SinkQueue) {
        let asked = self.area.control().asked.load(Acquire);
        let Self { watermarks, maps, .. } = self;
        let is_answered = |asked| maps.as_ref().is_none_or(|maps| maps.has_answered(asked));
        self.dirty |= watermarks.release(now, is_answered, queue);
        if let Some((ticket, busy)) = taken {
            self.observer.hand_over(queue);
            self.dirty |= watermarks.add(Watermark { ticket, busy, asked, time_ns: now }, is_answered, queue);
        }
    }

    /// Code that has run outside of loaded objects gets its names, as far as they come soon. Drains meanwhile.
    fn name_code(&mut self, queue: &mut SinkQueue) {
        let asked = self.area.control().asked.load(Acquire);
        let begun = monotonic_ns();
        while let Some(maps) = &mut self.maps {
            maps.catch_up(&self.area, CODE_LOOK, queue);
            if maps.has_answered(asked) || monotonic_ns().saturating_sub(begun) > CODE_PATIENCE_NS {
                break;
            }
            self.drain(true, queue);
        }
    }

    /// The streams that may still add records with tickets before the one that was just taken, without those that leave their hook
    /// at once: a watermark that names a stream keeps back everything since its last record, which may be long ago.
    fn still_busy(&mut self, now: u64) -> Vec<u32> {
        let mut busy = self.busy();
        for _ in 0..LOOKS {
            if busy.is_empty() || monotonic_ns().saturating_sub(now) > LOOKED_NS {
                break;
            }
            std::thread::yield_now();
            let later = self.busy();
            busy.retain(|stream| later.binary_search(stream).is_ok());
        }
        busy
    }
}
