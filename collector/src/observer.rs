//! Ticks and memory snapshots: the collector as a writer of the ticket word.
//!
//! Invariant: the time of a tick is read before its ticket is taken, so an event with a later ticket was recorded after
//! that time; and hardly later, because a reading that was interrupted is made again.

use std::sync::atomic::Ordering::SeqCst;

use memtrack_format::observe::{Observation, Tick, Writer};
use memtrack_transport::Area;
use memtrack_transport::clock::{Clock, monotonic_ns};
use memtrack_transport::layout::{PAGE, image, ticket};

use crate::output::Output;
use crate::proc::Resident;

/// A tick that took longer than this, in nanoseconds, is taken again.
const LOOSE_NS: u64 = 20_000;
const ATTEMPTS: u32 = 3;
/// Observations are handed over when they are this many bytes.
const FULL: usize = 32 * 1024;
/// Between snapshots of an idle process whose memory does not change, in nanoseconds.
const STILL_NS: u64 = 1_000_000_000;

/// Takes ticks and snapshots and collects them.
#[derive(Debug)]
pub(crate) struct Observer {
    writer: Writer,
    clock: Clock,
    resident: Resident,
    interval_ns: u64,
    next_snapshot_ns: u64,
    last_rss: u64,
    last_snapshot_ns: u64,
    /// Pages of the shared memory that the target has touched.
    pub(crate) shared_pages: u64,
}

impl Observer {
    pub(crate) fn new(pid: i32, clock: Clock, interval_ns: u64) -> Self {
        Self {
            writer: Writer::default(),
            clock,
            resident: Resident::of(pid),
            interval_ns,
            next_snapshot_ns: 0,
            last_rss: 0,
            last_snapshot_ns: 0,
            shared_pages: 0,
        }
    }

    /// Takes a ticket, as part of a snapshot where one is due, else as a tick. Returns its sequence number.
    pub(crate) fn observe(&mut self, area: &Area, now_ns: u64) -> u64 {
        match self.due(now_ns).then(|| self.rss(area)).flatten() {
            Some(rss) => self.snapshot(area, rss),
            None => self.tick(area),
        }
    }

    /// Takes a snapshot of an idle process, where one is due and says something new.
    pub(crate) fn observe_idle(&mut self, area: &Area, now_ns: u64) {
        if !self.due(now_ns) {
            return;
        }
        let still = now_ns.saturating_sub(self.last_snapshot_ns) < STILL_NS;
        match self.rss(area) {
            Some(rss) if !(still && rss == self.last_rss) => {
                self.snapshot(area, rss);
            }
            _ => self.next_snapshot_ns = now_ns.saturating_add(self.interval_ns),
        }
    }

    /// Notes the name of a thread.
    pub(crate) fn thread(&mut self, tid: i32, name: String) {
        self.writer.add(&Observation::Thread { tid, name });
    }

    /// Whether enough was collected to hand it over.
    pub(crate) fn is_full(&self) -> bool {
        self.writer.len() >= FULL
    }

    /// Hands over what was collected; `false`: nothing was.
    pub(crate) fn hand_over(&mut self, output: &Output) -> bool {
        if self.writer.is_empty() {
            return false;
        }
        output.observations(self.writer.take());
        true
    }

    fn due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_snapshot_ns
    }

    /// Resident bytes of the target without memtrack's; `None` when they would be another program's, or are not known.
    fn rss(&self, area: &Area) -> Option<u64> {
        if area.control().image.load(SeqCst) == image::IN_EXEC {
            return None;
        }
        Some(self.resident.bytes()?.saturating_sub(self.shared_pages * PAGE as u64))
    }

    fn tick(&mut self, area: &Area) -> u64 {
        let (tick, _) = take(area, self.clock);
        self.writer.add(&Observation::Tick(tick));
        tick.ticket
    }

    fn snapshot(&mut self, area: &Area, rss: u64) -> u64 {
        let (tick, ticks) = take(area, self.clock);
        self.writer.add(&Observation::Snapshot { tick, ticks, rss });
        self.last_rss = rss;
        self.last_snapshot_ns = tick.time_ns;
        self.next_snapshot_ns = tick.time_ns.saturating_add(self.interval_ns);
        tick.ticket
    }
}

/// Takes a ticket with its time: the tick, and the stamping clock at it.
fn take(area: &Area, clock: Clock) -> (Tick, u64) {
    let mut attempt = 1;
    loop {
        let (ticks, time_ns) = (clock.now(), monotonic_ns());
        let ticket = take_ticket(area);
        if attempt == ATTEMPTS || monotonic_ns().saturating_sub(time_ns) < LOOSE_NS {
            return (Tick { ticket, time_ns }, ticks);
        }
        attempt += 1;
    }
}

fn take_ticket(area: &Area) -> u64 {
    let word = &area.control().ticket.0;
    let mut seen = word.load(SeqCst);
    loop {
        let mine = ticket::next(seen, ticket::COLLECTOR);
        match word.compare_exchange_weak(seen, mine, SeqCst, SeqCst) {
            Ok(_) => return ticket::sequence(mine),
            Err(other) => seen = other,
        }
    }
}
