//! A target inside the test process, which does the real handshake and writes slots as the shim does.
//!
//! Invariant: it follows the protocol of [`memtrack_transport::layout`]; tests that break it say so.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use memtrack_transport::handshake::{Hello, receive_memory};
use memtrack_transport::layout::{ALL_SEGMENTS, SEGMENT_ROOM, SegmentHeader, SlotHeader, registration, state, ticket};
use memtrack_transport::{Area, barrier, futex};

/// What takes so long hangs, on a busy machine, too.
pub(crate) const HANGS: Duration = Duration::from_secs(120);

pub(crate) struct FakeTarget {
    pub(crate) area: Arc<Area>,
}

impl FakeTarget {
    /// Shakes hands, without beginning to record.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(HANGS))?;
        let pid = std::process::id().cast_signed();
        Hello { pid, ppid: 1, fork: None }.send(&stream)?;
        let (memory, slots) = receive_memory(&stream)?;
        Ok(Self { area: Arc::new(Area::open(memory.as_fd(), slots)?) })
    }

    /// Shakes hands and begins.
    pub(crate) fn start(socket: &Path) -> Self {
        let target = Self::connect(socket).unwrap();
        barrier::register();
        target.area.control().registration.store(registration::DONE, Release);
        target.area.control().state.store(state::RECORDING, Release);
        target
    }

    /// The writer of the calling thread.
    pub(crate) fn writer(&self) -> FakeWriter {
        // SAFETY: returns a number.
        let tid = unsafe { libc::gettid() };
        let free = |&slot: &u32| self.area.slot(slot).unwrap().owner.compare_exchange(0, tid, SeqCst, SeqCst).is_ok();
        let slot = (0..self.area.slot_count()).find(free).unwrap();
        self.area.control().note_claimed(slot);
        assert!(self.area.ensure_mapped(slot).is_ok());
        self.area.slot(slot).unwrap().owners.fetch_add(1, Relaxed);
        FakeWriter { area: Arc::clone(&self.area), slot, begun: false }
    }
}

pub(crate) struct FakeWriter {
    area: Arc<Area>,
    pub(crate) slot: u32,
    begun: bool,
}

impl FakeWriter {
    /// Records the bytes that `record` makes of the ticket sequence, as one event.
    pub(crate) fn event(&mut self, record: impl FnOnce(u64) -> Vec<u8>) -> u64 {
        let area = Arc::clone(&self.area);
        let slot = area.slot(self.slot).unwrap();
        slot.busy.store(1, Relaxed);
        std::sync::atomic::compiler_fence(SeqCst);
        let (sequence, taken) = self.ticket();
        let bytes = record(sequence);
        let mut at = self
            .header(slot)
            .filter(|header| self.begun && header.fill.load(Relaxed) as usize + bytes.len() <= SEGMENT_ROOM);
        if at.is_none() {
            self.begin_segment(slot, sequence);
            at = self.header(slot);
        }
        let header = at.unwrap();
        if taken {
            header.last_ticket.store(sequence, Release);
        }
        self.append(slot, header, &bytes);
        slot.busy.store(0, Release);
        sequence
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.event(|_| bytes.to_vec());
    }

    fn header(&self, slot: &SlotHeader) -> Option<&SegmentHeader> {
        self.area.segment(self.slot, slot.current.load(Relaxed).checked_sub(1)?)
    }

    fn ticket(&self) -> (u64, bool) {
        let control = self.area.control();
        let me = u64::from(self.slot) + 1;
        let mut seen = control.ticket.0.load(Relaxed);
        if seen & 0xffff == me {
            return (ticket::sequence(seen), false);
        }
        while let Err(other) = control.ticket.0.compare_exchange(seen, ticket::next(seen, me), SeqCst, SeqCst) {
            seen = other;
        }
        if control.sleeping.0.load(SeqCst) == 1 && control.sleeping.0.swap(0, SeqCst) == 1 {
            futex::wake(&control.sleeping.0);
        }
        (ticket::sequence(seen) + 1, true)
    }

    fn begin_segment(&mut self, slot: &SlotHeader, sequence: u64) {
        let control = self.area.control();
        while slot.taken.load(SeqCst) == ALL_SEGMENTS {
            control.waits.fetch_add(1, Relaxed);
            slot.waiting.store(1, SeqCst);
            futex::wait(&slot.taken, ALL_SEGMENTS, Duration::from_secs(1));
            slot.waiting.store(0, SeqCst);
        }
        let index = slot.taken.load(SeqCst).trailing_ones();
        slot.taken.fetch_or(1 << index, SeqCst);
        let header = self.area.segment(self.slot, index).unwrap();
        let earlier = self.header(slot);
        header.fill.store(0, Relaxed);
        header.next.store(0, Relaxed);
        header.number.store(earlier.map_or(0, |earlier| earlier.number.load(Relaxed) + 1), Relaxed);
        header.first_ticket.store(sequence, Relaxed);
        header.last_ticket.store(sequence, Relaxed);
        if let Some(earlier) = earlier {
            earlier.next.store(index + 1, Release);
        }
        slot.current.store(index + 1, Release);
        self.begun = true;
    }

    fn append(&self, slot: &SlotHeader, header: &SegmentHeader, bytes: &[u8]) {
        let room = self.area.segment_room(self.slot, slot.current.load(Acquire) - 1).unwrap();
        let fill = header.fill.load(Relaxed) as usize;
        assert!(fill + bytes.len() <= SEGMENT_ROOM);
        // SAFETY: in the segment's room, as was just checked.
        let to = unsafe { room.add(fill) };
        // SAFETY: the bytes fit into the rest of the segment, and only the owner of the slot writes here.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        header.fill.store((fill + bytes.len()) as u32, Release);
    }
}
