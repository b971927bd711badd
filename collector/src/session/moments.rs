//! Moments of a running recording, for clients of its control socket: marks, positions and snapshots.
//!
//! Invariant: each takes a ticket of its own, after everything that the process recorded before it was asked for.

use std::io;

use crossbeam_channel::Sender;
use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;
use memtrack_format::resident::AccountCause;
use memtrack_transport::clock::{ClockPairing, monotonic_ns};

use super::Session;
use crate::describe;
use crate::drain_command::{RecordingMoment, TicketSpan};
use crate::sink::SnapshotCopy;
use crate::sink_queue::SinkQueue;

impl Session {
    /// Names the present moment, with a tick of its own, and tells its time since the recording of the process began; if its
    /// objects are to be pictured, when it stands still.
    pub(crate) fn mark(&mut self, name: String, answer: Sender<Option<u64>>, queue: &SinkQueue) {
        if queue.failed() {
            self.progress.set_cut_off();
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

    /// Takes the ticket of the present moment: what this process has recorded before it was asked for has none that is later,
    /// and what it records from now on has later ones.
    pub(crate) fn position(&mut self, queue: &SinkQueue) -> RecordingMoment {
        let (tick, ticks) = self.observer.moment(&self.area);
        self.observer.hand_over(queue);
        self.dirty = true;
        RecordingMoment { ticket: tick.ticket, ticks, monotonic_ns: tick.time_ns }
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
        let last = self.observer.observe(&self.area, now);
        let busy = self.busy();
        self.drain(true, queue);
        self.observer.hand_over(queue);
        if queue.wants_watermarks() {
            queue.watermark(last, busy);
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
}
