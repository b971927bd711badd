//! Takes ticks and memory snapshots, each with a ticket of its own.
//!
//! Invariant: the time of a tick is read before its ticket is taken, so an event with a later ticket was recorded after that
//! time. A tick whose two steps were far apart in time is taken again.

use std::sync::atomic::Ordering::SeqCst;

use memtrack_format::observe::{Observation, ObservationWriter, Tick};
use memtrack_format::record::AllocationCount;
use memtrack_transport::Area;
use memtrack_transport::area::FIRST_PAGES;
use memtrack_transport::clock::{ClockPairing, StampingClock, monotonic_ns};
use memtrack_transport::layout::{PAGE, SlotHeader, image, segments_offset, state, ticket};

use crate::recording::recording_progress::ResidentReading;
use crate::resident::OwnMemory;
use crate::sink::sink_queue::SinkQueue;
use crate::system::procfs::ResidentMemory;

/// A tick that took longer than this, in nanoseconds, is repeated.
const LOOSE_NS: u64 = 20_000;
const ATTEMPTS: u32 = 3;
/// Observations are handed over when they are this many bytes.
const FULL: usize = 32 * 1024;
/// Interval of snapshots of an idle process whose memory does not change, in nanoseconds.
const STILL_NS: u64 = 1_000_000_000;
/// Time between two readings of resident memory where there are fewer snapshots.
const READING_NS: u64 = 20_000_000;

/// Takes ticks and snapshots and collects them.
#[derive(Debug)]
pub(crate) struct Observer {
    writer: ObservationWriter,
    clock: StampingClock,
    resident: ResidentMemory,
    own: OwnMemory,
    /// Resident bytes of memtrack's private memory when they were last asked for.
    own_bytes: u64,
    interval_ns: u64,
    next_snapshot_ns: u64,
    last_rss: u64,
    /// Resident memory when it was last read, whether for a snapshot or not, and when it is to be read again.
    known_rss: u64,
    reading: ResidentReading,
    next_reading_ns: u64,
    last_snapshot_ns: u64,
    /// The time of the last tick.
    last_ns: u64,
    /// When the process ended, if it had when it was first looked at: all ticks are of that time.
    ended_at: Option<ClockPairing>,
    /// The word of the ticket that was taken last.
    word: u64,
    /// The kernel's high-water mark of resident memory when it was last read, and the process's own at that mark.
    seen_peak: u64,
    own_peak: u64,
    /// Slots that have come into use.
    pub(crate) used_slots: u32,
    /// Pages of segments that the target has touched.
    segment_pages: u64,
    /// The most that they were since the high-water mark was last read.
    most_segment_pages: u64,
}

impl Observer {
    pub(crate) fn new(resident: ResidentMemory, clock: StampingClock, interval_ns: u64) -> Self {
        Self {
            writer: ObservationWriter::default(),
            clock,
            own: OwnMemory::of(resident.pid),
            own_bytes: 0,
            resident,
            interval_ns,
            next_snapshot_ns: 0,
            last_rss: 0,
            known_rss: 0,
            reading: ResidentReading::default(),
            next_reading_ns: 0,
            last_snapshot_ns: 0,
            last_ns: 0,
            ended_at: None,
            word: 0,
            seen_peak: 0,
            own_peak: 0,
            used_slots: 0,
            segment_pages: 0,
            most_segment_pages: 0,
        }
    }

    /// The process ended at this time, before anything was observed, and all its events have their tickets.
    pub(crate) fn has_ended_at(&mut self, end: ClockPairing) {
        self.ended_at = Some(end);
    }

    /// Whether a thread has taken a ticket since the last one taken here. If not, the next event of each thread takes one, and
    /// records its time if that is unknown (see [`ControlPage::timed`](memtrack_transport::layout::ControlPage::timed)).
    pub(crate) fn is_behind(&self, area: &Area) -> bool {
        area.control().ticket.0.load(SeqCst) != self.word
    }

    /// Takes a ticket, as part of a snapshot where one is due, else as a tick. Returns its sequence number.
    pub(crate) fn observe(&mut self, area: &Area, now_ns: u64) -> u64 {
        match if self.due(now_ns) { self.read(area, now_ns) } else { None } {
            Some(rss) => self.snapshot(area, rss).ticket,
            None => self.tick(area).ticket,
        }
    }

    /// Takes the first snapshot; if the process has ended by now, with its resident memory from when it connected.
    pub(crate) fn observe_first(&mut self, area: &Area) {
        let first = self.resident.first.filter(|_| !is_beginning_late(area));
        let first = first.map(|bytes| bytes.saturating_sub(self.memtracks_bytes(area, bytes)));
        if let Some(rss) = self.rss(area).or(first) {
            self.snapshot(area, rss);
        }
    }

    /// Notes the kernel's current high-water mark of resident memory. If it has risen since the last call, memtrack's resident
    /// pages are subtracted: of the shared memory the most since that call, which are at least as many as there were at the
    /// mark; of its private memory the least, so the peak may have what was added since.
    pub(crate) fn note_peak(&mut self, area: &Area, peak: u64) {
        if is_beginning_late(area) {
            return;
        }
        // An earlier recording's memory may be in the mark, until it rises.
        let before = area.control().programs_peak.load(SeqCst);
        if self.seen_peak == 0 && before != 0 {
            (self.seen_peak, self.own_peak) = (peak, before.min(peak));
        }
        if peak > self.seen_peak {
            self.seen_peak = peak;
            let since = (self.most_segment_pages.saturating_sub(self.segment_pages)) * PAGE as u64;
            let resident = self.resident.bytes().unwrap_or(peak);
            self.own.count_now(area, resident);
            let shared = self.memtracks_bytes(area, resident).saturating_sub(self.own_bytes);
            let private = self.own.take_least().max(inherited_bytes(area, peak));
            self.own_peak = self.own_peak.max(peak.saturating_sub(shared + since + private));
        }
        self.most_segment_pages = self.segment_pages;
        self.own.take_least();
    }

    /// Resident memory at the last snapshot, without memtrack's own; 0 before the first.
    pub(crate) fn last_rss(&self) -> u64 {
        self.last_rss
    }

    /// Resident memory of now, without memtrack's own, however seldom there are snapshots: limits are watched by it.
    pub(crate) fn resident_now(&mut self, area: &Area, now_ns: u64) -> u64 {
        if now_ns >= self.next_reading_ns {
            self.read(area, now_ns);
        }
        self.known_rss
    }

    /// The last reading of it.
    pub(crate) fn reading(&self) -> ResidentReading {
        self.reading
    }

    fn read(&mut self, area: &Area, now_ns: u64) -> Option<u64> {
        let rss = self.rss(area);
        self.known_rss = rss.unwrap_or(self.known_rss);
        let private = self.resident.private_bytes().map(|bytes| bytes.saturating_sub(self.own_bytes));
        if let Some((rss, private)) = rss.zip(private) {
            self.reading = ResidentReading { time_ns: now_ns, rss, private };
        }
        self.next_reading_ns = now_ns.saturating_add(READING_NS);
        rss
    }

    /// Pages of segments that are resident in the target.
    pub(crate) fn segment_pages(&self) -> u64 {
        self.segment_pages
    }

    /// Notes pages of segments that the target has touched, and those that were given back.
    pub(crate) fn note_segment_pages(&mut self, new: u64, discarded: u64) {
        self.segment_pages += new;
        self.most_segment_pages = self.most_segment_pages.max(self.segment_pages);
        self.segment_pages = self.segment_pages.saturating_sub(discarded);
    }

    /// The peak of resident memory without memtrack's own, as far as it is known.
    pub(crate) fn peak(&self) -> Option<u64> {
        (self.own_peak > 0).then_some(self.own_peak)
    }

    /// Takes a snapshot of an idle process if one is due and its memory has changed.
    pub(crate) fn observe_idle(&mut self, area: &Area, now_ns: u64) {
        if !self.due(now_ns) {
            return;
        }
        let still = now_ns.saturating_sub(self.last_snapshot_ns) < STILL_NS;
        match self.read(area, now_ns) {
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

    /// Notes what a thread has allocated so far.
    pub(crate) fn counted(&mut self, count: AllocationCount) {
        self.writer.add(&Observation::Counted(count));
    }

    /// Whether enough was collected to hand it over.
    pub(crate) fn is_full(&self) -> bool {
        self.writer.len() >= FULL
    }

    /// Whether anything was collected that was not handed over.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.writer.is_empty()
    }

    /// Hands over what was collected; `false`: nothing was.
    pub(crate) fn hand_over(&mut self, queue: &SinkQueue) -> bool {
        if self.writer.is_empty() {
            return false;
        }
        queue.observations(self.writer.take());
        true
    }

    fn due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_snapshot_ns
    }

    /// Resident bytes of the target without memtrack's own; `None` if unknown, or if another program may be running by now.
    fn rss(&mut self, area: &Area) -> Option<u64> {
        if area.control().image.load(SeqCst) == image::IN_EXEC || is_beginning_late(area) {
            return None;
        }
        let resident = self.resident.bytes()?;
        Some(resident.saturating_sub(self.memtracks_bytes(area, resident)))
    }

    /// Bytes of the shared memory, of memtrack's library and of its private memory that are resident in the target, which has so
    /// many in all.
    fn memtracks_bytes(&mut self, area: &Area, resident: u64) -> u64 {
        self.own_bytes = self.own.bytes(area, resident);
        let shared = (self.segment_pages + header_pages(area.slot_count(), self.used_slots)) * PAGE as u64;
        shared + self.resident.library + self.own_bytes
    }

    /// Reads the resident memory of memtrack's library again. What was added since the last reading came with the first
    /// events, so it is in the peak.
    pub(crate) fn read_library_memory(&mut self, pid: i32) {
        let before = self.resident.library;
        self.resident.read_library_memory(pid);
        self.own_peak = self.own_peak.saturating_sub(self.resident.library.saturating_sub(before));
    }

    /// Takes a tick. Its time is later than that of every earlier one, so it divides the events exactly.
    pub(crate) fn tick(&mut self, area: &Area) -> Tick {
        let (tick, _) = self.take(area);
        self.writer.add(&Observation::Tick(tick));
        tick
    }

    /// Takes a tick at which a span begins or ends, or the process is about to end, with a snapshot if resident memory is known.
    pub(crate) fn moment(&mut self, area: &Area) -> Tick {
        if let Some(resident) = self.resident.bytes() {
            self.own.count_now(area, resident);
        }
        match self.rss(area) {
            Some(rss) => self.snapshot(area, rss),
            None => self.tick(area),
        }
    }

    fn snapshot(&mut self, area: &Area, rss: u64) -> Tick {
        let (tick, ticks) = self.take(area);
        self.writer.add(&Observation::Snapshot { tick, ticks, rss });
        (self.last_rss, self.known_rss) = (rss, rss);
        self.last_snapshot_ns = tick.time_ns;
        self.next_snapshot_ns = tick.time_ns.saturating_add(self.interval_ns);
        tick
    }

    /// Takes a ticket with its time, which is later than the last one: the tick, and the stamping clock at it.
    fn take(&mut self, area: &Area) -> (Tick, u64) {
        if let Some(end) = self.ended_at {
            self.word = take_ticket(area);
            return (Tick { ticket: ticket::sequence(self.word), time_ns: end.monotonic_ns }, end.ticks);
        }
        let mut attempt = 1;
        loop {
            let (ticks, time_ns) = (self.clock.now(), monotonic_ns());
            if time_ns <= self.last_ns {
                continue;
            }
            self.word = take_ticket(area);
            if attempt == ATTEMPTS || monotonic_ns().saturating_sub(time_ns) < LOOSE_NS {
                area.control().timed.0.store(ticks, SeqCst);
                self.last_ns = time_ns;
                return (Tick { ticket: ticket::sequence(self.word), time_ns }, ticks);
            }
            attempt += 1;
        }
    }
}

/// Pages of the headers (control page and slots) that are resident in the target if it uses this many slots. The first are
/// in memory from the beginning, so the kernel maps them with the first page that faults; the others are those of used slots.
fn header_pages(slots: u32, used: u32) -> u64 {
    let touched = PAGE + used as usize * size_of::<SlotHeader>();
    let mapped = touched.div_ceil(PAGE).max(FIRST_PAGES);
    mapped.min(segments_offset(slots) / PAGE) as u64
}

/// How much of memtrack's private memory a forked child had of its parent's at this high-water mark, if it is still that of its
/// beginning.
fn inherited_bytes(area: &Area, peak: u64) -> u64 {
    /// What the child may have touched by the time, and what the kernel counts inexactly.
    const SLACK: u64 = 1 << 20;
    let at_begin = area.control().inherited_rss.load(SeqCst);
    if peak <= at_begin + SLACK { area.control().inherited_own.load(SeqCst) } else { 0 }
}

/// Whether recording is just beginning in a process that runs already: it may have memory of an earlier recording, and has not
/// said where.
fn is_beginning_late(area: &Area) -> bool {
    area.control().began_late.load(SeqCst) != 0 && area.control().state.load(SeqCst) == state::READY
}

/// Takes the next ticket; returns its word.
fn take_ticket(area: &Area) -> u64 {
    let word = &area.control().ticket.0;
    let mut seen = word.load(SeqCst);
    loop {
        let mine = ticket::next(seen, ticket::COLLECTOR);
        match word.compare_exchange_weak(seen, mine, SeqCst, SeqCst) {
            Ok(_) => return mine,
            Err(other) => seen = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_PAGES, header_pages, take_ticket};
    use memtrack_transport::Area;
    use memtrack_transport::layout::PAGE;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::SeqCst;

    /// Resident pages of the mapping that begins at this address.
    fn resident_pages(start: usize) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = maps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
        let rss = mapping.into_iter().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024 / PAGE as u64
    }

    #[test]
    fn the_resident_headers_of_a_target_are_known() {
        let (_ours, file) = Area::create(4096, &std::env::temp_dir()).unwrap();
        let theirs = Area::open(file.as_fd(), 4096).unwrap();
        let start = std::ptr::from_ref(theirs.control()).addr();
        for used in [1, 30, 700] {
            (0..used).for_each(|slot| theirs.slot(slot).unwrap().owner.store(1, SeqCst));
            let (expected, found) = (header_pages(4096, used), resident_pages(start));
            assert!(expected.abs_diff(found) <= FIRST_PAGES as u64, "{used} slots: {expected}, really {found}");
        }
        assert_eq!(header_pages(8, 8), 2);
    }

    #[test]
    fn tickets_follow_whoever_wrote_last() {
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        area.control().ticket.0.store(41 << 16 | 3, SeqCst);
        assert_eq!(take_ticket(&area), 42 << 16);
        assert_eq!(area.control().ticket.0.load(SeqCst), 42 << 16);
    }
}
