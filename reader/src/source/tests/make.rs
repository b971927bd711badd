//! Makes captures whose total order is known.

use crc32fast::hash as crc32;
use memtrack_collector::{FileSink, RecordPiece, Sink};
use memtrack_format::block::{BlockHeader, BlockKind, Codec};
use memtrack_format::header;
use memtrack_format::meta::{EndTimes, Process, RecordedClock, StartTimes};
use memtrack_format::observe::{Observation, ObservationWriter, Tick};
use memtrack_format::record::{AllocationCount, CallSite, CodeHead, Encoder, LineTableFormat, RawFrame};
use memtrack_format::record_columns::ColumnSplitter;
use memtrack_format::{Allocator, MapClass};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};

use crate::event::EventKind;

/// Start of the clocks: ticks of the stamping clock are two to the nanosecond.
pub(crate) const START_NS: u64 = 1_000_000;

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Alloc(u64),
    Free(u64),
    /// The thread's last free did not happen. What must be seen is not known then.
    FreeUndo,
    Map(u64),
    /// A mapping by pymalloc.
    Arena(u64),
    Push(u32),
    Pop,
    Move(u32),
    /// So many frames become the segment's only stack top.
    DefineTop(u32),
    /// It takes the place of so many frames.
    ReplaceTop(u32),
    /// Some time has passed, which the thread tells; of runs that are not shared, and not timed.
    Clock,
    /// A thread of a sampled recording has allocated so often.
    Counted(u64),
    NewSegment,
    /// Only for those who want to keep pieces at record borders.
    Cut,
}

/// What a ticket is taken for.
#[derive(Clone, Debug)]
pub(crate) enum HistoryStep {
    Run(usize, Vec<Act>),
    /// By several streams, which do this in this order.
    Shared(Vec<(usize, Act)>),
    Tick {
        snapshot: bool,
    },
}

/// What a reader must see; times are `None` where only order is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedItem {
    Event { tid: i32, kind: EventKind, address: u64, size: u64, stack: Vec<(String, u32)>, time_ns: u64 },
    Snapshot { time_ns: u64, rss: u64 },
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<HistoryStep>> {
    let act = prop_oneof![
        6 => (1u64..1 << 40).prop_map(Act::Alloc),
        6 => (1u64..1 << 40).prop_map(Act::Free),
        1 => (1u64..1 << 40).prop_map(Act::Map),
        3 => (0u32..6).prop_map(Act::Push),
        2 => Just(Act::Pop),
        2 => (0u32..50).prop_map(Act::Move),
        1 => (1u32..4).prop_map(Act::DefineTop),
        2 => (0u32..5).prop_map(Act::ReplaceTop),
        1 => Just(Act::NewSegment),
        1 => Just(Act::Cut),
    ];
    let own = prop_oneof![20 => act.clone(), 1 => Just(Act::Clock)];
    let run = (0usize..4, prop::collection::vec(own, 0..8)).prop_map(|(stream, acts)| HistoryStep::Run(stream, acts));
    let shared = prop::collection::vec((0usize..4, act), 0..16).prop_map(HistoryStep::Shared);
    let tick = any::<bool>().prop_map(|snapshot| HistoryStep::Tick { snapshot });
    prop::collection::vec(prop_oneof![5 => run, 1 => shared, 1 => tick], 0..60)
}

/// A piece of a segment, not yet in a file.
#[derive(Clone, Debug)]
pub(crate) struct EncodedPiece {
    pub(crate) stream: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) tickets: (u64, u64),
    pub(crate) bytes: Vec<u8>,
}

struct TestStream {
    number: usize,
    encoder: Encoder,
    bytes: Vec<u8>,
    at: usize,
    from: usize,
    segment: u32,
    first_ticket: u64,
    ticket: u64,
    stack: Vec<RawFrame>,
    top: Vec<RawFrame>,
}

/// A history as it is recorded, and as it must be read.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) pieces: Vec<EncodedPiece>,
    pub(crate) observations: Vec<Observation>,
    pub(crate) seen: Vec<ExpectedItem>,
    /// What was recorded when so many pieces had been made, in steps: (ticket, pieces, observations).
    pub(crate) rounds: Vec<(u64, usize, usize)>,
    now_ns: u64,
    floor_ns: u64,
}

pub(crate) fn tid(stream: usize) -> i32 {
    100 + stream as i32
}

impl TestStream {
    fn new(number: usize, timed: bool, ticket: u64) -> Self {
        let (encoder, bytes, stack, top) = (Encoder::new(timed), Vec::new(), Vec::new(), Vec::new());
        let (at, from, segment) = (0, 0, 0);
        Self { number, encoder, bytes, at, from, segment, first_ticket: ticket, ticket, stack, top }
    }

    fn begin(&mut self, now: u64) {
        self.bytes = vec![0; 1 << 16];
        self.top.clear();
        (self.from, self.first_ticket) = (0, self.ticket);
        self.at = self.encoder.begin(&mut self.bytes, 0, self.ticket, now, tid(self.number)).unwrap();
        if self.segment == 0 {
            for id in 0..6 {
                let name = format!("f{id}");
                let (name, lines) = (name.as_bytes(), LineTableFormat::Lnotab);
                let head = CodeHead { id, first_line: 10 * id, lines, lines_len: 4, name, file: b"app.py" };
                self.at = self.encoder.code(&mut self.bytes, self.at, &head).unwrap();
                // Line + 1 from offset 10 on, + 2 from 20 on.
                self.at = self.encoder.code_lines(&mut self.bytes, self.at, id, &[10, 1, 10, 2]).unwrap();
            }
        }
        for &frame in &self.stack {
            self.at = self.encoder.push(&mut self.bytes, self.at, frame).unwrap();
        }
    }

    fn cut(&mut self, out: &mut Vec<EncodedPiece>) {
        if self.at > self.from {
            out.push(EncodedPiece {
                stream: self.number as u32,
                segment: self.segment,
                offset: self.from as u32,
                tickets: (self.first_ticket, self.ticket),
                bytes: self.bytes[self.from..self.at].to_vec(),
            });
            (self.from, self.first_ticket) = (self.at, self.ticket);
        }
    }

    fn act(&mut self, act: Act, now: u64, out: &mut Vec<EncodedPiece>) -> Option<(EventKind, u64, u64)> {
        let (encoder, bytes, at) = (&mut self.encoder, &mut self.bytes, self.at);
        let size = 77;
        self.at = match act {
            Act::Alloc(address) => encoder.alloc(bytes, at, Allocator::Calloc, address, size, now),
            Act::Free(address) => encoder.free(bytes, at, address, now),
            Act::Map(address) => encoder.map(bytes, at, (Allocator::Mmap, MapClass::File), (address, size), now),
            Act::Arena(address) => {
                encoder.map(bytes, at, (Allocator::PymallocArena, MapClass::Heap), (address, size), now)
            }
            Act::Push(code) => {
                let frame = RawFrame { code, instruction: code };
                self.stack.push(frame);
                encoder.push(bytes, at, frame)
            }
            Act::Pop if self.stack.pop().is_some() => {
                encoder.pop(bytes, at, 1, self.stack.last().copied().unwrap_or(RawFrame::NONE))
            }
            Act::Move(instruction) if !self.stack.is_empty() => {
                self.stack.last_mut().unwrap().instruction = instruction;
                encoder.move_top(bytes, at, instruction)
            }
            Act::DefineTop(frames) if self.stack.len() >= frames as usize => {
                self.top = self.stack[self.stack.len() - frames as usize..].to_vec();
                encoder.define_top(bytes, at, 5, frames)
            }
            Act::ReplaceTop(popped) if !self.top.is_empty() && self.stack.len() >= popped as usize => {
                self.stack.truncate(self.stack.len() - popped as usize);
                self.stack.extend(&self.top);
                encoder.replace_top(bytes, at, popped, 5, CallSite::of(*self.top.last().unwrap()))
            }
            Act::Cut => {
                self.cut(out);
                Some(at)
            }
            Act::NewSegment => {
                self.cut(out);
                self.segment += 1;
                self.begin(now);
                Some(self.at)
            }
            Act::FreeUndo => encoder.free_undo(bytes, at),
            Act::Counted(allocations) => {
                let stretch = 7 << 32 | u64::from(tid(self.number).cast_unsigned());
                encoder.counted(bytes, at, &AllocationCount { stretch, allocations, bytes: allocations * size })
            }
            Act::Clock => encoder.clock(bytes, at, (START_NS + now / 2) / 1000),
            Act::Pop | Act::Move(_) | Act::DefineTop(_) | Act::ReplaceTop(_) => Some(at),
        }
        .unwrap();
        match act {
            Act::Alloc(address) => Some((EventKind::Alloc(Allocator::Calloc), address, size)),
            Act::Free(address) => Some((EventKind::Free, address, 0)),
            Act::Map(address) => Some((EventKind::Map(Allocator::Mmap, MapClass::File), address, size)),
            Act::Arena(address) => Some((EventKind::Map(Allocator::PymallocArena, MapClass::Heap), address, size)),
            _ => None,
        }
    }

    fn frames(&self) -> Vec<(String, u32)> {
        let line = |frame: &RawFrame| 10 * frame.code + [0, 1, 3][(frame.instruction as usize / 10).min(2)];
        self.stack.iter().map(|frame| (format!("f{}", frame.code), line(frame))).collect()
    }
}

impl History {
    /// Plays the steps. In timed ones every event is one nanosecond after the one before.
    pub(crate) fn of(steps: &[HistoryStep], timed: bool) -> Self {
        let mut history = Self::default();
        let mut streams: Vec<Option<TestStream>> = (0..4).map(|_| None).collect();
        for (ticket, step) in (1..).zip(steps) {
            history.now_ns += 1;
            match step {
                HistoryStep::Tick { snapshot } => history.tick(ticket, *snapshot),
                HistoryStep::Run(number, acts) => {
                    history.enter(&mut streams[*number], *number, ticket, timed);
                    acts.iter().for_each(|&act| history.act(streams[*number].as_mut(), act, timed));
                }
                HistoryStep::Shared(acts) => history.share(&mut streams, ticket, acts, timed),
            }
            history.rounds.push((ticket, history.pieces.len(), history.observations.len()));
        }
        for stream in streams.iter_mut().flatten() {
            stream.cut(&mut history.pieces);
        }
        history
    }

    fn tick(&mut self, ticket: u64, snapshot: bool) {
        let tick = Tick { ticket, time_ns: START_NS + self.now_ns };
        self.floor_ns = self.now_ns;
        let rss = 4096 * ticket;
        self.observations.push(if snapshot {
            self.seen.push(ExpectedItem::Snapshot { time_ns: self.now_ns, rss });
            Observation::Snapshot { tick, ticks: 2 * self.now_ns, rss }
        } else {
            Observation::Tick(tick)
        });
    }

    /// Without times the order of such a run is that of the streams.
    fn share(&mut self, streams: &mut [Option<TestStream>], ticket: u64, acts: &[(usize, Act)], timed: bool) {
        let mut acts = acts.to_vec();
        if !timed {
            acts.sort_by_key(|&(number, _)| number);
        }
        for (number, act) in acts {
            self.enter(&mut streams[number], number, ticket, timed);
            self.act(streams[number].as_mut(), act, timed);
        }
    }

    fn enter(&self, place: &mut Option<TestStream>, number: usize, ticket: u64, timed: bool) {
        if let Some(stream) = place.as_mut().filter(|stream| stream.ticket != ticket) {
            let (encoder, bytes) = (&mut stream.encoder, &mut stream.bytes);
            stream.at = encoder.switch(bytes, stream.at, ticket).unwrap();
            stream.ticket = ticket;
        }
        place.get_or_insert_with(|| {
            let mut stream = TestStream::new(number, timed, ticket);
            stream.begin(2 * self.now_ns);
            stream
        });
    }

    fn act(&mut self, stream: Option<&mut TestStream>, act: Act, timed: bool) {
        self.now_ns += 1;
        let Some(stream) = stream else { return };
        if matches!(act, Act::Clock) {
            if timed {
                return;
            }
            self.now_ns += 1500;
            self.floor_ns = self.floor_ns.max(self.now_ns / 1000 * 1000);
        }
        let Some((kind, address, size)) = stream.act(act, 2 * self.now_ns, &mut self.pieces) else { return };
        let time_ns = if timed { self.now_ns } else { self.floor_ns };
        let tid = tid(stream.number);
        self.seen.push(ExpectedItem::Event { tid, kind, address, size, stack: stream.frames(), time_ns });
    }

    /// A capture of this history; `shuffle` says in which order the pieces stand (empty: as they were made), `split`
    /// where they are cut again.
    pub(crate) fn file(&self, shuffle: &[u16], split: usize) -> Vec<u8> {
        let mut pieces: Vec<EncodedPiece> = self.pieces.iter().flat_map(|piece| piece.split(split)).collect();
        let mut file = header::encode().to_vec();
        push_block(&mut file, BlockHeader::plain(BlockKind::Process), &process().encode());
        let mut writer = ObservationWriter::default();
        self.observations.iter().for_each(|observation| writer.add(observation));
        let (observed, first_ticket, last_ticket) = writer.take();
        push_block(
            &mut file,
            BlockHeader { first_ticket, last_ticket, ..BlockHeader::plain(BlockKind::Observations) },
            &observed,
        );
        for (i, &with) in (1..pieces.len()).rev().zip(shuffle.iter().cycle()) {
            pieces.swap(i, usize::from(with) % (i + 1));
        }
        for piece in &pieces {
            push_block(&mut file, piece.header(), &piece.bytes);
        }
        push_block(&mut file, BlockHeader::plain(BlockKind::End), &[]);
        file
    }
}

impl History {
    /// A capture of this history as the collector writes it, with a checkpoint after each so many pieces.
    pub(crate) fn collected(&self, every: usize) -> Vec<u8> {
        self.collected_of(&process(), every)
    }

    /// The same, of this process.
    pub(crate) fn collected_of(&self, process: &Process, every: usize) -> Vec<u8> {
        let mut file = Vec::new();
        let mut sink = FileSink::new(&mut file).unwrap();
        sink.process(process).unwrap();
        let mut writer = ObservationWriter::default();
        self.observations.iter().for_each(|observation| writer.add(observation));
        let (observed, first_ticket, last_ticket) = writer.take();
        sink.observations(&observed, first_ticket, last_ticket).unwrap();
        for (i, piece) in (1..).zip(&self.pieces) {
            let &EncodedPiece { stream, segment, offset, tickets: (first_ticket, last_ticket), ref bytes } = piece;
            sink.records(&RecordPiece { stream, segment, offset, first_ticket, last_ticket, has_code: true, bytes })
                .unwrap();
            if i % every == 0 {
                sink.checkpoint().unwrap();
            }
        }
        sink.finish(true).unwrap();
        drop(sink);
        file
    }
}

impl EncodedPiece {
    pub(crate) fn header(&self) -> BlockHeader {
        let (first_ticket, last_ticket) = self.tickets;
        let (stream, segment, offset) = (self.stream, self.segment, self.offset);
        BlockHeader { stream, segment, offset, first_ticket, last_ticket, ..BlockHeader::plain(BlockKind::Records) }
    }

    fn split(&self, len: usize) -> Vec<Self> {
        let part = |(i, bytes): (usize, &[u8])| Self {
            offset: self.offset + (i * len) as u32,
            bytes: bytes.to_vec(),
            ..self.clone()
        };
        self.bytes.chunks(len).enumerate().map(part).collect()
    }
}

pub(crate) fn process() -> Process {
    Process {
        pid: Some(7),
        start: StartTimes {
            clock: Some(RecordedClock::Tsc),
            ticks: Some(0),
            monotonic_ns: Some(START_NS),
            ..StartTimes::default()
        },
        end: EndTimes { ticks: Some(2_000_000), monotonic_ns: Some(START_NS + 1_000_000), alive_ns: None },
        ..Process::default()
    }
}

/// The blocks in each of the ways that there are, whether that helps or not.
pub(crate) fn push_block(file: &mut Vec<u8>, header: BlockHeader, payload: &[u8]) {
    match file.len() % 5 {
        with @ (0 | 1) if header.kind == BlockKind::Records => push_columns(file, header, payload, with == 0),
        2 | 3 => push_stored(file, Codec::Lz4, header, payload, &lz4_flex::block::compress(payload)),
        _ => push_stored(file, Codec::Stored, header, payload, payload),
    }
}

/// A block of columns, sorted as records with times or without.
pub(crate) fn push_columns(file: &mut Vec<u8>, header: BlockHeader, payload: &[u8], timed: bool) {
    let mut splitter = ColumnSplitter::default();
    let stored = lz4_flex::block::compress(splitter.split(payload, timed).unwrap());
    push_stored(file, Codec::Lz4Columns, header, payload, &stored);
}

fn push_stored(file: &mut Vec<u8>, codec: Codec, header: BlockHeader, payload: &[u8], stored: &[u8]) {
    let (raw_len, stored_len) = (payload.len() as u32, stored.len() as u32);
    file.extend(BlockHeader { codec, raw_len, stored_len, payload_crc: crc32(stored), ..header }.encode());
    file.extend(stored);
}
