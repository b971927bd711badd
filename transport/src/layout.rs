//! The layout of the shared memory.
//!
//! ```text
//! 0                 control page: ticket word, switches, information about the target
//! 4096              slot headers, 128 bytes each, `slot_count` of them
//! (page boundary)   segment memory: slot 0 segments 0..16, slot 1 segments 0..16, …
//! ```
//!
//! A *slot* belongs to one writing thread; the thread's number in the ticket word is its slot index plus one (the collector
//! is 0, a shared run has [`ticket::SHARED`]). A slot owns [`SEGMENTS_PER_SLOT`] segments. The thread fills one, then links it
//! to the free one with the lowest index, so that with a collector that keeps up most segments stay untouched and resident
//! memory small. With one that falls behind, threads wait when [`MOST_UNDRAINED`] bytes are finished. The *stream* of a slot is the chain of its segments; it outlives the thread: the next owner of the slot
//! continues it with a new segment.
//!
//! Invariant: the memory of a segment below its published fill level never changes until the collector has freed it.

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// First word of the control page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MTSHARED");
/// Raised by each change of this module: shim and collector must have the same layout.
pub const LAYOUT_VERSION: u32 = 26;
/// The size of the pages that this layout counts in, in bytes.
pub const PAGE: usize = 4096;
/// Bytes of a segment with its header. Less under Miri, which is a thousand times slower.
pub const SEGMENT_BYTES: usize = if cfg!(miri) { 16 } else { 128 } * 1024;
/// Bytes of a segment's header.
pub const SEGMENT_HEADER: usize = 64;
/// Record bytes that fit in a segment.
pub const SEGMENT_ROOM: usize = SEGMENT_BYTES - SEGMENT_HEADER;
/// Segments of a slot: 2 MiB, enough for 5 ms at 100 million events a second.
pub const SEGMENTS_PER_SLOT: usize = 16;
/// Bytes of finished segments of all threads that may wait for the collector. A thread that finishes one more waits until its
/// own are drained. The bound of the resident memory that a program gets from a collector that falls behind.
pub const MOST_UNDRAINED: u32 = 2 << 20;
/// The mask of all segments of a slot.
pub const ALL_SEGMENTS: u32 = (1 << SEGMENTS_PER_SLOT) - 1;
/// Words of the longest path of a socket.
pub const SOCKET_WORDS: usize = 14;
/// Words of the longest path of the library.
pub const LIBRARY_WORDS: usize = 64;
/// Maximum number of pending questions.
pub const QUESTIONS: usize = 64;
/// Numbers of slots to offer, in this order: later ones for processes with limited address space.
pub const SLOT_COUNTS: [u32; 4] = [4096, 512, 64, 8];

/// Values of [`ControlPage::state`].
pub mod state {
    /// The collector has created the memory, the target does not record yet.
    pub const READY: u32 = 0;
    /// The target records.
    pub const RECORDING: u32 = 1;
    /// The target has stopped recording; the reason is in [`super::ControlPage::stop_reason`].
    pub const STOPPED: u32 = 2;
    /// The collector accepts no more records.
    pub const CLOSED: u32 = 3;
}

/// Values of [`ControlPage::stop_reason`].
pub mod stop_reason {
    /// Nothing stopped it.
    pub const NONE: u32 = 0;
    /// The collector has ended.
    pub const COLLECTOR_GONE: u32 = 1;
    /// The collector did not free a segment within the longest wait.
    pub const COLLECTOR_STUCK: u32 = 2;
    /// Memory for the shim's own tables could not be allocated.
    pub const NO_MEMORY: u32 = 3;
    /// A thread entered seccomp's strict mode and records no longer; other threads go on.
    pub const STRICT_SECCOMP: u32 = 4;
    /// The process was detached from, as was asked for.
    pub const DETACHED: u32 = 5;
}

/// Values of [`ControlPage::python_allocators`].
pub mod python_allocators {
    /// Blocks of Python's allocators are not recorded.
    pub const OFF: u32 = 0;
    /// Requested by the collector.
    pub const WANTED: u32 = 1;
    /// Confirmed by the target.
    pub const TRACED: u32 = 2;
}

/// Values of [`ControlPage::image`].
pub mod image {
    /// The program that connected is running.
    pub const RUNNING: u32 = 0;
    /// It has called an exec function that has not returned (and does not, if it succeeds).
    pub const IN_EXEC: u32 = 1;
}

/// Values of [`ControlPage::registration`].
pub mod registration {
    /// It is not known yet whether a [barrier](crate::barrier) reaches the target's threads without delay.
    pub const UNDER_WAY: u32 = 0;
    /// One does.
    pub const DONE: u32 = 1;
    /// None does.
    pub const REFUSED: u32 = 2;
}

/// Values of [`ControlPage::account_request`].
pub mod account_request {
    /// Nobody waits.
    pub const NONE: u32 = 0;
    /// The process is about to end, and waits until its resident memory was read.
    pub const AT_END: u32 = 1;
    /// Its interpreter begins to finalize, and waits for the same.
    pub const AT_FINALIZATION: u32 = 2;
    /// It need not wait.
    pub const DONE: u32 = 3;
}

/// Values of [`AllocatorAnswer::state`].
pub mod allocator_answer {
    /// Nothing is asked; collector.
    pub const NONE: u32 = 0;
    /// The collector asks, and a thread of the target that allocates is to answer; collector.
    pub const ASKED: u32 = 1;
    /// A thread does so; target.
    pub const BEGUN: u32 = 2;
    /// The answer is there; target.
    pub const DONE: u32 = 3;
}

/// What the target's allocator says of itself.
#[repr(C)]
#[derive(Debug)]
pub struct AllocatorAnswer {
    /// One of [`allocator_answer`].
    pub state: AtomicU32,
    /// Number of the allocator in the format (`StatisticsSource`); 0: none that can be asked; target, before it records.
    pub source: AtomicU32,
    /// When it was asked: CLOCK_MONOTONIC, in nanoseconds; target.
    pub time_ns: AtomicU64,
    /// How long the answer took, in nanoseconds; target.
    pub cost_ns: AtomicU64,
    /// The figures in the order of the format (`AllocatorFigures`), in bytes; [`AllocatorAnswer::UNKNOWN`]: none; target.
    pub figures: [AtomicU64; 6],
}

impl AllocatorAnswer {
    /// The value of a figure that the allocator does not have.
    pub const UNKNOWN: u64 = u64::MAX;
}

/// Ranges of memory of memtrack's own, at most.
pub const OWN_RANGES: usize = 64;

/// A range of addresses, which stays mapped.
#[repr(C)]
#[derive(Debug)]
pub struct OwnRange {
    /// First address; 0: there is none.
    start: AtomicU64,
    length: AtomicU64,
}

impl OwnRange {
    /// Target: it has this one.
    pub fn tell(&self, start: u64, length: u64) {
        self.length.store(length, Relaxed);
        self.start.store(start, Release);
    }

    /// Collector: the range, if there is one.
    pub fn get(&self) -> Option<Range<u64>> {
        let start = self.start.load(Acquire);
        (start != 0).then(|| start..start.saturating_add(self.length.load(Relaxed)))
    }
}

/// The first page. Each word names the side that writes it: target or collector.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ControlPage {
    /// [`MAGIC`]; collector.
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`]; collector.
    pub version: AtomicU32,
    /// Number of slots; collector.
    pub slot_count: AtomicU32,
    /// 1: every event carries its time; collector.
    pub timestamps: AtomicU32,
    /// 1: the target may write sentinels into frames of the interpreter; collector.
    pub frame_marks: AtomicU32,
    /// A [`crate::clock::StampingClock`] as a number; collector.
    pub clock: AtomicU32,
    /// Process id of the collector, as the target sees it; collector.
    pub collector_pid: AtomicI32,
    /// When its process was started, in the clock ticks of `/proc/PID/stat`; 0: unknown; collector.
    pub collector_started: AtomicU64,
    /// One of [`state`]; target, but [`state::CLOSED`] is the collector's.
    pub state: AtomicU32,
    /// One of [`stop_reason`]; target.
    pub stop_reason: AtomicU32,
    /// One of [`image`]; target.
    pub image: AtomicU32,
    /// Process id of the target; target.
    pub pid: AtomicI32,
    /// `PY_VERSION_HEX` of the interpreter that was found, 0 for none; target.
    pub python_version: AtomicU32,
    /// Length of `python_note`; target.
    pub python_note_len: AtomicU32,
    /// One of [`python_allocators`]; collector, then target.
    pub python_allocators: AtomicU32,
    /// 1: native call stacks are to be recorded; collector.
    pub native: AtomicU32,
    /// 1: the target's children are to be recorded, too; collector.
    pub follow: AtomicU32,
    /// Children that the target has begun to start, if children are recorded; target, by addition.
    pub children: AtomicU32,
    /// Events of threads without a slot, which are not recorded; target, by addition.
    pub events_without_slot: AtomicU64,
    /// How often threads waited for a free segment; target, by addition.
    pub waits: AtomicU64,
    /// Total time of these waits, in nanoseconds; target, by addition.
    pub wait_ns: AtomicU64,
    /// Time that the shim took to start, in nanoseconds; target, once.
    pub start_ns: AtomicU64,
    /// Why Python frames are not recorded: a short UTF-8 text; target.
    pub python_note: [AtomicU64; 16],
    /// Name of Python's allocator (`pymalloc`, `malloc`, …), NUL-padded; target.
    pub python_allocator: [AtomicU64; 4],
    /// Path of the collector's socket, NUL-padded, for a process that did not find it in its environment; all zero: none.
    /// Collector, before the target knows of the memory.
    pub socket: [AtomicU64; SOCKET_WORDS],
    /// Path of the library for the programs that the target starts, NUL-padded, where the target has loaded it without one; all zero:
    /// none. Collector, before the target knows of the memory.
    pub library: [AtomicU64; LIBRARY_WORDS],
    /// 1: recording began in a process that was already running; target.
    pub began_late: AtomicU32,
    /// One of [`registration`]; target, possibly after it has begun to record.
    pub registration: AtomicU32,
    /// How many bytes of its next segment a thread is to use, 0 for all; collector.
    pub segment_room: AtomicU32,
    /// Number of questions asked so far; target, by addition.
    pub asked: AtomicU32,
    /// How often the target has begun to unmap memory or to map over it, or has mapped some, if native stacks are recorded;
    /// target, by addition.
    pub map_changes: AtomicU32,
    /// Only samples of allocations are recorded, this many bytes apart on the average; 0: all are; collector.
    pub sample_bytes: AtomicU64,
    /// The first distance, with which a forked child begins, too; collector.
    pub first_sample_bytes: AtomicU64,
    /// One of [`account_request`] (a futex word); target, but [`account_request::DONE`] is the collector's.
    pub account_request: AtomicU32,
    /// 1: the collector also reads the objects of the process when it waits by [`account_request`], which takes longer;
    /// collector.
    pub pictured_at_end: AtomicU32,
    /// 1: the collector changes `sample_bytes`, and the target says of each sample which distance it was taken by; collector.
    pub sample_varies: AtomicU32,
    /// 1: the collector has the memory, also where the target has made it; collector.
    pub adopted: AtomicU32,
    /// 1: the target is a fork child that is about to end, so soon that it waits for no account; target.
    pub ends_early: AtomicU32,
    /// Its processor time then, in nanoseconds; target, before `ends_early`.
    pub end_cpu_ns: AtomicU64,
    /// The most resident memory that it had, in bytes; target, before `ends_early`.
    pub end_peak: AtomicU64,
    /// CLOCK_MONOTONIC when the target was about to end, in nanoseconds; 0: it has not said so; target.
    pub end_ns: AtomicU64,
    /// The most resident memory that a process which was recorded before had outside of recordings, in bytes; 0: it was not recorded
    /// before; target.
    pub programs_peak: AtomicU64,
    /// Bytes of `own_ranges` that are in use, whether in memory or not; target.
    pub own_bytes: AtomicU64,
    /// The resident memory of a forked child when it began, in bytes; target, before the collector knows of the child.
    pub inherited_rss: AtomicU64,
    /// How much of it was its parent's memory of memtrack's own; target, likewise.
    pub inherited_own: AtomicU64,
    /// Where the target has memory of memtrack's own that is not shared; target.
    pub own_ranges: [OwnRange; OWN_RANGES],
    /// What the collector asks of the target's allocator.
    pub allocator: AllocatorAnswer,
    /// Pages of code on native stacks that belong to no loaded object; see [`Question`].
    pub questions: [Question; QUESTIONS],
    /// The ticket word, `sequence << 16 | writer`: the last run and its writer; both sides, by CAS.
    pub ticket: CacheLine<AtomicU64>,
    /// 1 while the collector sleeps until a record is written (a futex word); set by the collector, cleared by its waker.
    pub sleeping: CacheLine<AtomicU32>,
    /// The stamping clock at the last moment whose time is recorded, set after its ticket was taken: by the collector at its
    /// ticks, and by a thread of the target that records the time itself, because this is too long ago.
    pub timed: CacheLine<AtomicU64>,
    /// Record bytes in finished segments that are not drained, of all threads; added by the target, subtracted by the collector.
    pub undrained: CacheLine<AtomicU32>,
    /// No slot below this one is free (a hint); both sides.
    pub slot_hint: CacheLine<AtomicU32>,
    /// Only slots below this one have been claimed: the collector looks at no others, which have no memory yet; target, which
    /// raises it before the first record of a slot.
    pub claimed_slots: AtomicU32,
    /// How many rounds the collector has begun, modulo 2^32: at least ten a second while it drains; collector.
    pub rounds: CacheLine<AtomicU32>,
}

impl ControlPage {
    /// Target: a slot was claimed.
    pub fn note_claimed(&self, slot: u32) {
        self.claimed_slots.fetch_max(slot.saturating_add(1), AcqRel);
    }

    /// Collector: names its socket to the target. `false`: the path is too long, and none is named.
    pub fn set_socket(&self, path: &[u8]) -> bool {
        store_path(&self.socket, path)
    }

    /// Target: the path of the collector's socket, followed by zeroes.
    pub fn socket(&self) -> [u8; SOCKET_WORDS * 8] {
        let mut path = [0; SOCKET_WORDS * 8];
        load_path(&self.socket, &mut path);
        path
    }

    /// Collector: names the library to the target. `false`: the path is too long, and none is named.
    pub fn set_library(&self, path: &[u8]) -> bool {
        store_path(&self.library, path)
    }

    /// Target: the path of the library, followed by zeroes.
    pub fn library(&self) -> [u8; LIBRARY_WORDS * 8] {
        let mut path = [0; LIBRARY_WORDS * 8];
        load_path(&self.library, &mut path);
        path
    }

    /// Collector: so many record bytes of a finished segment are drained. Before the segment is given back, so that a thread
    /// that waits for it finds this. The target may have overwritten the number, which then stays 0.
    pub fn note_drained(&self, bytes: u32) {
        let _ = self.undrained.0.fetch_update(Relaxed, Relaxed, |undrained| Some(undrained.saturating_sub(bytes)));
    }
}

/// Stores a path that is shorter than the words, and zeroes behind it.
fn store_path(words: &[AtomicU64], path: &[u8]) -> bool {
    if path.len() >= words.len() * 8 {
        return false;
    }
    for (at, word) in words.iter().enumerate() {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(path.iter().skip(at * 8)).for_each(|(to, from)| *to = *from);
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
    true
}

fn load_path(words: &[AtomicU64], path: &mut [u8]) {
    for (bytes, word) in path.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
}

/// A question of the target: which file does this page of code belong to? The collector looks into `/proc/PID/maps`.
///
/// The target claims a free entry, writes the page, then its id. The collector reads the maps and then takes the id out by
/// CAS. Before the target unmaps the page it withdraws the question, so an answer is never about a later mapping.
#[repr(C)]
#[derive(Debug)]
pub struct Question {
    /// The id of the page in records; 0: free; [`Question::CLAIMED`]: being written; both sides, by CAS.
    pub code: AtomicU32,
    /// Its first address; target.
    pub page: AtomicU64,
}

impl Question {
    /// Value of [`Question::code`] while a thread writes the entry.
    pub const CLAIMED: u32 = u32::MAX;
}

/// A value on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CacheLine<T>(pub T);

/// The header of a slot. Counters are of all owners so far.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct SlotHeader {
    /// Thread id of the owner, 0 for none: claimed by the target with a CAS; when that thread has ended, released by the
    /// collector or claimed by a new thread of the target.
    pub owner: AtomicI32,
    /// Not 0 while the owner is inside a hook: a record may be under way; target.
    pub busy: AtomicU32,
    /// Index of the segment that is being written, plus one; 0 before the first; target.
    pub current: AtomicU32,
    /// Bit i is set while segment i is in use (a futex word); set by the target, cleared by the collector. Zeroes, as memory
    /// begins, are a slot whose segments are all free.
    pub taken: AtomicU32,
    /// 1 while the owner waits for a change of `taken`; target.
    pub waiting: AtomicU32,
    /// Number of threads that have owned this slot so far; target.
    pub owners: AtomicU32,
    /// Where allocations are sampled, the owner's allocations in this stretch, sampled or not; target. Beside `busy`,
    /// so that such an allocation touches one line of the header.
    pub allocations: AtomicU64,
    /// Their bytes; target.
    pub allocated_bytes: AtomicU64,
    /// Native frames that were unchanged since the previous record; target.
    pub native_kept: AtomicU64,
    /// How often the fast comparison of the Python stack could not tell what had changed; target.
    pub python_compared: AtomicU64,
    /// How often, of these, more than the newest frame's instruction had changed; target.
    pub python_changed: AtomicU64,
    /// Native frames that were unwound; target.
    pub native_unwound: AtomicU64,
    /// How often the native stack had changed since the previous record; target.
    pub native_changed: AtomicU64,
    /// Native frames that were then written or compared; target.
    pub native_levels: AtomicU64,
    /// Addresses without a cached unwind rule; target.
    pub native_learned: AtomicU64,
    /// Time of the full comparisons of Python stacks, in ticks of the stamping clock, estimated from samples; target.
    pub python_ticks: AtomicU64,
    /// Additional time of changed native stacks, estimated in the same way; target.
    pub native_ticks: AtomicU64,
    /// Where allocations are sampled, the number of this owner's stretch: see
    /// `AllocationCount` of the format; target.
    pub stretch: AtomicU64,
    /// Sampled allocations; target.
    pub samples: AtomicU64,
}

/// The header of a segment.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SegmentHeader {
    /// Record bytes that are published; target.
    pub fill: AtomicU32,
    /// Index of the segment that follows, plus one; 0 while this one is being written; target.
    pub next: AtomicU32,
    /// Number of this segment in the slot's stream, from 0; target.
    pub number: AtomicU32,
    /// Offset of the first record: a thread among many uses the end of a segment only; target.
    pub start: AtomicU32,
    /// 1: a code object is described in it; target.
    pub has_code: AtomicU32,
    /// Ticket sequence at the first record; target.
    pub first_ticket: AtomicU64,
    /// Ticket sequence of the newest run begun in it; target.
    pub last_ticket: AtomicU64,
}

const _: () = assert!(size_of::<ControlPage>() == PAGE, "the control page is one page");
const _: () = assert!(size_of::<SlotHeader>() == 128, "a slot header is two cache lines");
const _: () = assert!(size_of::<SegmentHeader>() == SEGMENT_HEADER, "SEGMENT_HEADER is the header's size");

/// The ticket word: `sequence << 16 | writer`.
pub mod ticket {
    /// The writer number of the collector.
    pub const COLLECTOR: u64 = 0;
    /// The writer number of shared runs. No slot has it.
    pub const SHARED: u64 = 0xffff;

    /// The sequence number of a ticket word.
    #[inline]
    #[must_use]
    pub const fn sequence(word: u64) -> u64 {
        word >> 16
    }

    /// The writer number of a ticket word.
    #[inline]
    #[must_use]
    pub const fn writer(word: u64) -> u64 {
        word & 0xffff
    }

    /// The word that follows `word` when `writer` takes the next number.
    #[inline]
    #[must_use]
    pub const fn next(word: u64, writer: u64) -> u64 {
        (sequence(word).wrapping_add(1) << 16) | (writer & 0xffff)
    }
}

/// Offset of the segment memory in bytes, for this many slots.
#[must_use]
pub const fn segments_offset(slot_count: u32) -> usize {
    (PAGE + slot_count as usize * size_of::<SlotHeader>()).next_multiple_of(PAGE)
}

/// Size of the shared memory in bytes, for this many slots.
#[must_use]
pub const fn total_bytes(slot_count: u32) -> usize {
    segments_offset(slot_count) + slot_count as usize * SEGMENTS_PER_SLOT * SEGMENT_BYTES
}
