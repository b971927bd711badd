//! The writer side of a slot: writes a thread's records to segments in shared memory.
//!
//! Everything here belongs to the thread that owns the slot; only what `transport` lays out is shared. A record is
//! published by one release store of the segment's fill level. When a segment is full, or the slot has a new thread,
//! the next free segment begins with the whole stack, so that the reader can decode it on its own.
//!
//! Invariant: `wire` is the stack as the bytes of the current segment describe it.

use std::hint::cold_path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memtrack_format::WritableBytes;
use memtrack_format::record::{Encoder, MAX_RECORD, ModuleRecord, RawFrame};
use memtrack_transport::clock::{StampingClock, monotonic_ns};
use memtrack_transport::layout::{SEGMENT_ROOM, SegmentHeader, SlotHeader};
use memtrack_transport::{Area, futex, segment_chain};

use crate::events::event_time::EventTime;
use crate::events::order::{EventBlock, WriterTurn};
use crate::events::sampled_timer::SAMPLED_ONE_IN;
use crate::events::stack_model::MAX_DEPTH;
use crate::platform::allocator_statistics;
use crate::platform::errno::Errno;
use crate::platform::own_memory;
use crate::platform::seccomp::{self, OwnCall};

mod next_segment;
mod stack_writer;
mod wait;

pub(crate) use self::wait::collector_gone;

/// The writing end of one slot. What every record needs stands together at its start.
#[repr(C)]
pub(crate) struct Ring {
    home: SlotLocation,
    turn: WriterTurn,
    segment: RingSegment,
    tid: i32,
    number: u32,
    depth: usize,
    truncated: bool,
    encoder: Encoder,
    wire: [RawFrame; MAX_DEPTH as usize],
}

/// The fields of a slot that never change.
#[derive(Clone, Copy)]
struct SlotLocation {
    /// The word of the area's control page that says who wrote last.
    ticket: &'static AtomicU64,
    /// When a time was recorded last.
    known: &'static AtomicU64,
    area: &'static Area,
    slot: &'static SlotHeader,
    index: u32,
    timed: bool,
    clock: StampingClock,
}

/// A time that is to be recorded.
#[derive(Clone, Copy)]
struct PendingClock {
    ticks: u64,
    monotonic_us: u64,
}

/// The segment that is being written, or [`RingSegment::NONE`].
#[derive(Clone, Copy)]
struct RingSegment {
    header: &'static SegmentHeader,
    room: NonNull<u8>,
    at: usize,
}

impl RingSegment {
    /// No segment: no record finds room in it.
    const NONE: Self = Self { header: &NOWHERE, room: NonNull::dangling(), at: usize::MAX };
    /// The last place at which a record may begin.
    const LAST: usize = SEGMENT_ROOM - MAX_RECORD;
    /// The last place at which two may follow each other.
    const LAST_OF_TWO: usize = Self::LAST - MAX_RECORD;

    const fn is_some(&self) -> bool {
        self.at <= SEGMENT_ROOM
    }
}

/// The current segment, which has room for a record. Its address is loaded by [`LateRoom::bytes`] only, so that the fast
/// path keeps no register for it.
pub(crate) struct LateRoom<'a> {
    segment: &'a RingSegment,
    room: SegmentRoom,
}

impl LateRoom<'_> {
    /// The segment's bytes.
    #[inline(always)]
    pub(crate) const fn bytes(&mut self) -> &mut SegmentRoom {
        self.room = SegmentRoom(self.segment.room);
        &mut self.room
    }
}

/// The bytes of a segment. Not a slice, because the collector may be copying the published part; the ring writes above
/// that part only.
pub(crate) struct SegmentRoom(NonNull<u8>);

impl WritableBytes for SegmentRoom {
    #[inline(always)]
    fn length(&self) -> usize {
        SEGMENT_ROOM
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        if at > SEGMENT_ROOM.checked_sub(N)? {
            return None;
        }
        // SAFETY: inside of the segment, which has N bytes from there on.
        let place = unsafe { self.0.add(at) };
        // SAFETY: this thread alone writes the segment, and the collector reads only what is published, which is below.
        unsafe { place.cast().write_unaligned(bytes) };
        Some(())
    }

    fn put_text(&mut self, at: usize, text: &[u8]) -> Option<()> {
        if at > SEGMENT_ROOM.checked_sub(text.len())? {
            return None;
        }
        // SAFETY: inside of the segment, which has as many bytes from there on as the text.
        let place = unsafe { self.0.add(at) };
        // SAFETY: this thread alone writes above what is published, and the caller's text does not lie in the segment.
        unsafe { place.as_ptr().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Some(())
    }
}

/// Dummy segment header, used when no segment is current.
static NOWHERE: SegmentHeader = SegmentHeader {
    fill: AtomicU32::new(0),
    next: AtomicU32::new(0),
    number: AtomicU32::new(0),
    start: AtomicU32::new(0),
    has_code: AtomicU32::new(0),
    first_ticket: AtomicU64::new(0),
    last_ticket: AtomicU64::new(0),
};

/// A sampled duration that is longer was interrupted by other processes, in ticks.
const LONGEST_SAMPLE: u64 = 1 << 17;

impl Ring {
    /// Makes the ring of a slot in memory that is all zeroes, in place: it is larger than a small thread's stack.
    ///
    /// # Safety
    /// `place` must be valid for writes of a `Ring`, and zeroed.
    pub(crate) unsafe fn make(place: *mut Self, area: &'static Area, slot: &'static SlotHeader, index: u32) {
        let control = area.control();
        let clock = StampingClock::from_number(control.clock.load(Relaxed));
        let timed = control.timestamps.load(Relaxed) != 0;
        // SAFETY: a field of the caller's memory.
        let home = unsafe { &raw mut (*place).home };
        // SAFETY: the caller's promise.
        unsafe {
            home.write(SlotLocation {
                ticket: &control.ticket.0,
                known: &control.timed.0,
                area,
                slot,
                index,
                timed,
                clock,
            })
        };
        // SAFETY: a field of the caller's memory.
        let segment = unsafe { &raw mut (*place).segment };
        // SAFETY: the caller's promise.
        unsafe { segment.write(RingSegment::NONE) };
        // The other fields are zero, which is their start; the encoder sets itself when its first segment begins.
    }

    /// Forgets everything: the slot is a new one, of the same number, in memory that may have other settings.
    pub(crate) fn forget(&mut self) {
        let control = self.home.area.control();
        self.home.timed = control.timestamps.load(Relaxed) != 0;
        self.home.clock = StampingClock::from_number(control.clock.load(Relaxed));
        self.segment = RingSegment::NONE;
        self.number = 0;
    }

    /// As [`Ring::forget`], and gives memory back.
    pub(crate) fn begin_again(&mut self) {
        self.forget();
        self.depth = 0;
        let (wire, encoder) = (NonNull::from(&mut self.wire), NonNull::from(&mut self.encoder));
        // SAFETY: frames of no stack, of which none is looked at.
        unsafe { own_memory::give_back_within(wire.cast(), size_of_val(&self.wire)) };
        // SAFETY: zeroes are an encoder's start, of which a page may keep what it holds: the next segment sets it anew.
        unsafe { own_memory::give_back_within(encoder.cast(), size_of::<Encoder>()) };
    }

    /// Begins a run, whose ticket divides what came before a fork from what comes after it.
    pub(crate) fn begin_run(&mut self) -> u64 {
        self.switch();
        self.publish();
        self.turn.sequence()
    }

    /// The slot belongs to this thread from now on.
    pub(crate) fn take_over(&mut self, tid: i32) {
        self.tid = tid;
        self.depth = 0;
        self.truncated = false;
        self.encoder.set_timed(self.home.timed);
        self.home.slot.owners.fetch_add(1, Relaxed);
        // A slot's index is below that of the number that no writer has.
        self.turn.begin(self.home.index.wrapping_add(1) as u16);
        let pending = self.pending_clock(self.home.clock.now());
        self.turn.begin_own(self.home.ticket);
        self.wake_sleeper();
        self.next_segment();
        self.write_clock_record(pending);
    }

    /// The thread is about to wait for others.
    pub(crate) fn synchronize_before_wait(&mut self) {
        self.turn.synchronize_before_wait();
    }

    /// The system's id of the thread that owns the slot.
    pub(crate) const fn tid(&self) -> i32 {
        self.tid
    }

    /// The slot's number.
    pub(crate) const fn index(&self) -> u32 {
        self.home.index
    }

    /// The number of the segment that is written.
    pub(crate) const fn segment_number(&self) -> u32 {
        self.number
    }

    /// No less than the bytes of all blocks and mappings in it.
    pub(crate) const fn most_bytes(&self) -> u64 {
        self.encoder.most_bytes()
    }

    /// Where its records begin.
    pub(crate) fn first_record(&self) -> usize {
        self.segment.header.start.load(Relaxed) as usize
    }

    /// Copies the segment's records from this place on, as many as there are; `false`: there are no such, or they find no room. The
    /// collector may have given back the memory of those that it has: they are zeroes then, which are no records.
    pub(crate) fn copy_records(&self, from: usize, into: &mut [u8]) -> bool {
        let count = self.segment.at.checked_sub(from).filter(|count| *count <= into.len() && self.segment.is_some());
        let Some(count) = count else { return false };
        // SAFETY: inside of the segment, since what begins there ends in it.
        let place = unsafe { self.segment.room.add(from) };
        // SAFETY: so many bytes were written from there on, by this thread, which does not record now; and there is room for them.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(place.as_ptr(), count) };
        true
    }

    /// The slot's shared header.
    pub(crate) const fn slot(&self) -> &'static SlotHeader {
        self.home.slot
    }

    /// Frames on the current stack.
    pub(crate) const fn depth(&self) -> usize {
        self.depth
    }

    /// Where the next record will be: a segment, and a place in it.
    #[cfg(feature = "verify-marks")]
    pub(crate) const fn place(&self) -> (u32, usize) {
        (self.number, self.segment.at)
    }

    /// The frame at this place of the current stack, from the root.
    pub(crate) fn frame_at(&self, place: usize) -> Option<RawFrame> {
        self.wire.get(..self.depth).and_then(|wire| wire.get(place)).copied()
    }

    /// Describes a loaded object, before the first frame in it.
    #[cold]
    pub(crate) fn define_module(&mut self, module: &ModuleRecord<'_>) {
        self.put(move |encoder, bytes, at| encoder.module(bytes, at, module));
    }

    /// The place of the next event in the order of all, and its time in ticks (0 where times are not recorded).
    pub(crate) fn next_place_and_time(&mut self) -> u64 {
        let time = self.time();
        if self.turn.is_mine(self.home.ticket) { time } else { self.switch() }
    }

    /// The time of an event that is about to be recorded; `None`: reading it takes a call.
    #[inline(always)]
    pub(crate) fn time_at_once<const TIMED: bool>(&self) -> Option<EventTime> {
        if TIMED { self.home.clock.now_at_once().map(EventTime::read) } else { Some(EventTime::UNREAD) }
    }

    /// As [`Ring::next_place_and_time`], for an event of this block, where it is known whether times are recorded;
    /// reads the time if that has not been done.
    #[inline(always)]
    pub(crate) fn next_place<const TIMED: bool>(&mut self, block: EventBlock, time: EventTime) -> EventTime {
        // Before the ticket is read: an event's time is then not later than the next tick of the collector's.
        let time = if TIMED && time.is_unread() { EventTime::read(self.home.clock.now()) } else { time };
        if self.turn.is_mine(self.home.ticket) {
            return time;
        }
        cold_path();
        if self.turn.share(self.home.ticket, block) { time } else { EventTime::read(self.interrupted(block)) }
    }

    /// Whether an event of this block can be appended to the current run.
    #[inline(always)]
    pub(crate) fn is_in_turn(&mut self, block: EventBlock) -> bool {
        self.turn.is_mine(self.home.ticket) || {
            cold_path();
            self.turn.share(self.home.ticket, block)
        }
    }

    /// Whether records carry times.
    pub(crate) const fn is_timed(&self) -> bool {
        self.home.timed
    }

    /// Another thread wrote since, or a shared run is over. Returns the time.
    #[cold]
    #[inline(never)]
    fn interrupted(&mut self, block: EventBlock) -> u64 {
        let answer = &self.home.area.control().allocator;
        if allocator_statistics::is_asked(answer) {
            allocator_statistics::answer(answer);
        }
        let now = self.home.clock.now();
        if self.time_is_missing(now) {
            return self.switch();
        }
        self.turn.interrupted(self.home.ticket, block, now);
        self.write_switch_record();
        self.time()
    }

    /// Another thread wrote since: a new run begins. Returns the time.
    #[cold]
    #[inline(never)]
    fn switch(&mut self) -> u64 {
        let pending = self.pending_clock(self.home.clock.now());
        self.turn.begin_own(self.home.ticket);
        self.write_switch_record();
        self.write_clock_record(pending);
        self.time()
    }

    /// Whether the last recorded time is too long ago to stand for what happens now: nobody has recorded for a while,
    /// or the collector is late. Read before a ticket is taken: the time that is found is that of an earlier one, then.
    #[inline(always)]
    fn time_is_missing(&self, now: u64) -> bool {
        let SlotLocation { known, clock, timed, .. } = self.home;
        !timed && now.saturating_sub(known.load(Acquire)) > clock.half_a_millisecond()
    }

    /// What [`Ring::write_clock_record`] has to write for the run that begins next.
    fn pending_clock(&self, now: u64) -> Option<PendingClock> {
        self.time_is_missing(now).then(|| PendingClock { ticks: now, monotonic_us: monotonic_ns() / 1000 })
    }

    /// Records the time at which the current run began, which is this thread's own.
    fn write_clock_record(&mut self, pending: Option<PendingClock>) {
        let Some(PendingClock { ticks, monotonic_us }) = pending else { return };
        self.put(move |encoder, bytes, at| encoder.clock(bytes, at, monotonic_us));
        // After the ticket: who finds this takes a later one.
        self.home.known.store(ticks, Release);
    }

    /// The time, where times are recorded.
    fn time(&self) -> u64 {
        if self.home.timed { self.home.clock.now() } else { 0 }
    }

    /// Writes the switch record of a new run.
    fn write_switch_record(&mut self) {
        self.wake_sleeper();
        let sequence = self.turn.sequence();
        self.put(move |encoder, bytes, at| encoder.switch(bytes, at, sequence));
        segment_chain::begin_run(self.segment.header, sequence);
    }

    fn wake_sleeper(&self) {
        if self.home.area.control().sleeping.0.load(Relaxed) != 0 {
            self.wake_collector();
        }
    }

    #[cold]
    fn wake_collector(&self) {
        let sleeping = &self.home.area.control().sleeping.0;
        // Where it may not be woken, it looks by itself, ten times a second or oftener.
        if sleeping.swap(0, AcqRel) != 0 && seccomp::may(OwnCall::Futex) {
            let _errno = Errno::keep();
            futex::wake(sleeping);
        }
    }

    /// Writes one record; begins a new segment where this one has no room for it.
    #[inline(always)]
    pub(crate) fn put<W: Fn(&mut Encoder, &mut SegmentRoom, usize) -> Option<usize> + Copy>(&mut self, write: W) {
        if !self.try_put(write) {
            cold_path();
            self.put_in_next(write);
        }
    }

    /// Writes one record without texts and publishes it, with what was put before.
    #[inline(always)]
    pub(crate) fn record<W: Fn(&mut Encoder, &mut SegmentRoom, usize) -> Option<usize>>(&mut self, write: W) {
        if self.segment.at > RingSegment::LAST {
            cold_path();
            self.make_room();
        }
        if self.try_put(write) {
            self.publish();
        }
    }

    /// Where the next record goes, and what writes it, if the segment has room for one without texts. What was written
    /// counts after [`Ring::written`].
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Option<(&mut Encoder, LateRoom<'_>, usize)> {
        let at = self.segment.at;
        if at > RingSegment::LAST {
            cold_path();
            return None;
        }
        let room = LateRoom { segment: &self.segment, room: SegmentRoom(NonNull::dangling()) };
        Some((&mut self.encoder, room, at))
    }

    /// Where the records in the segment end.
    pub(crate) fn position(&self) -> usize {
        self.segment.at
    }

    /// A record has been written, up to here; it is published.
    #[inline(always)]
    pub(crate) fn written(&mut self, at: usize) {
        self.segment.at = at;
        self.publish();
    }

    #[inline(always)]
    fn try_put<W: Fn(&mut Encoder, &mut SegmentRoom, usize) -> Option<usize>>(&mut self, write: W) -> bool {
        let Some((encoder, mut room, at)) = self.room() else { return false };
        match write(encoder, room.bytes(), at) {
            Some(at) => {
                self.segment.at = at;
                true
            }
            None => false,
        }
    }

    /// What was put is for the collector to see.
    #[inline(always)]
    pub(crate) fn publish(&self) {
        segment_chain::publish(self.segment.header, self.segment.at as u32);
    }

    /// Notes a sampled duration, from `begun` until now, for all those that were not timed.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_sampled(&self, begun: u64, of: fn(&SlotHeader) -> &AtomicU64) {
        let ticks =
            self.home.clock.now().wrapping_sub(begun).min(LONGEST_SAMPLE).wrapping_mul(u64::from(SAMPLED_ONE_IN));
        add(of(self.home.slot), ticks);
    }
}

/// Adds to a counter of a slot, on which its owner alone counts.
#[inline(always)]
pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(number), Relaxed);
}
