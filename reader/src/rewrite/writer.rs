//! Writes events as records of a new capture: the inverse of reading.
//!
//! Each active thread has a segment. There may be many threads, so the segment of the one that was inactive for the
//! longest time is closed for another. Frames are written as changes of a thread's stack, and tickets keep the order of
//! the old capture.
//!
//! Invariant: memory grows with the tables of the capture, not with its events.

use std::io::{self, Write};

use memtrack_format::block::{BlockHeader, BlockKind};
use memtrack_format::mapped::{self, MappedFile};
use memtrack_format::marks::Mark;
use memtrack_format::meta::{LostBlocks, Process, RecordedClock};
use memtrack_format::observe::{Observation, ObservationWriter, Tick};
use memtrack_format::record::{
    AllocationCount, CodeHead, Encoder, LineTableFormat, LocationEncoder, MAX_RECORD, MAX_TEXT, ModuleRecord, RawFrame,
};
use memtrack_format::sources::FileLines;
use memtrack_format::symbols::ModuleSymbols;
use rustc_hash::{FxHashMap, FxHashSet};

use super::anonymize::Anonymizer;
use super::blocks::CaptureBlocks;
use super::codes::{CodeTable, position};
use super::strip::StripPlan;
use crate::event::{CountedAllocations, Event, EventKind, Snapshot, StackId, Thread, ThreadId};
use crate::frames::{FrameId, Frames};
use crate::native::{ModuleSource, NativeModule};
use crate::source::{Consumer, DataLoss, RunPosition};

/// Segments that are open at a time.
const STREAMS: usize = 64;
/// Bytes from which on a segment is closed.
const SEGMENT: usize = 1 << 19;
/// Bytes from which on observations are written.
const OBSERVATIONS: usize = 1 << 16;

/// A consumer of events that writes them as a capture.
#[derive(Debug)]
pub struct Rewriter<'a, W> {
    blocks: CaptureBlocks<W>,
    written: io::Result<()>,
    process: Process,
    plan: Option<&'a StripPlan>,
    names: Option<Anonymizer>,
    codes: CodeTable,
    /// Depth of each stack.
    depths: Vec<u32>,
    streams: Vec<SegmentStream>,
    /// The stream of each thread.
    places: FxHashMap<i32, usize>,
    place: RunPosition,
    /// How much higher tickets are than in the old capture: shared runs become one run per thread, in the order in
    /// which they were read.
    raised: u64,
    observations: ObservationWriter,
    last_tick: Tick,
    /// Number of further allocations to be marked as having truncated stacks.
    truncated: u64,
    /// The process has a new image from the next run on.
    replaced: bool,
    /// The first ticket of the current image.
    image: u64,
    /// Mapped files, by the first ticket of their image and the id of their code.
    mapped: FxHashMap<(u64, u32), MappedFile>,
}

/// A stream of segments; those of one thread, and then those of another.
#[derive(Debug)]
struct SegmentStream {
    tid: i32,
    segments: u32,
    open: Option<Box<OpenSegment>>,
    written: WrittenDefinitions,
    /// The ticket of its last event.
    used: u64,
}

/// The definitions in a stream.
#[derive(Debug, Default)]
struct WrittenDefinitions {
    codes: FxHashSet<u32>,
    located: FxHashSet<FrameId>,
}

#[derive(Debug)]
struct OpenSegment {
    encoder: Encoder,
    locator: LocationEncoder,
    bytes: Vec<u8>,
    stack: StackId,
    first_ticket: u64,
    ticket: u64,
    truncated: bool,
}

/// How definitions are written.
struct DefinitionWriter<'a> {
    frames: &'a Frames,
    codes: &'a mut CodeTable,
    names: Option<&'a mut Anonymizer>,
    depths: &'a [u32],
    image: u64,
    mapped: &'a mut FxHashMap<(u64, u32), MappedFile>,
}

impl<'a, W: Write> Rewriter<'a, W> {
    /// Begins a capture of this process with these names of native code, without the events that `plan` drops, and
    /// anonymized if `names` is given. Native frames must be places.
    ///
    /// # Errors
    /// What the writer says.
    pub fn new(
        out: W,
        process: &Process,
        symbols: &[ModuleSymbols],
        plan: Option<&'a StripPlan>,
        mut names: Option<Anonymizer>,
    ) -> io::Result<Self> {
        let mut process = match &mut names {
            Some(names) => names.process(process),
            None => process.clone(),
        };
        // Times are nanoseconds since the start by now, whatever clock stamped them.
        let start = process.start.monotonic_ns.unwrap_or(0);
        process.start.monotonic_ns = Some(start);
        (process.start.clock, process.start.ticks) = (Some(RecordedClock::Monotonic), Some(start));
        process.end.ticks = process.end.monotonic_ns;
        // Later records were not read, and tickets are new ones.
        process.snapshot_ticket = None;
        process.span_ticket = None;
        let mut blocks = CaptureBlocks::new(out)?;
        match &mut names {
            Some(names) => blocks.symbols(&names.symbols(symbols))?,
            None => blocks.symbols(symbols)?,
        }
        blocks.process(&process, 0)?;
        Ok(Self {
            blocks,
            written: Ok(()),
            process,
            plan,
            names,
            codes: CodeTable::default(),
            depths: vec![0],
            streams: Vec::new(),
            places: FxHashMap::default(),
            place: RunPosition { ticket: 0, thread: ThreadId(0), tid: 0 },
            raised: 0,
            observations: ObservationWriter::default(),
            last_tick: Tick::default(),
            truncated: 0,
            replaced: false,
            image: 0,
            mapped: FxHashMap::default(),
        })
    }

    /// Writes source lines of frames, but into no capture without names.
    ///
    /// # Errors
    /// What the writer says.
    pub fn sources(&mut self, files: &[FileLines]) -> io::Result<()> {
        if self.names.is_some() { Ok(()) } else { self.blocks.sources(files) }
    }

    /// Writes the marks.
    ///
    /// # Errors
    /// What the writer says.
    pub fn marks(&mut self, marks: &[Mark]) -> io::Result<()> {
        let marks = self.names.as_mut().map_or_else(|| marks.to_vec(), |names| names.marks(marks));
        self.blocks.marks(&marks)
    }

    /// Writes what is left, the names of threads, and what was lost before; the writer.
    ///
    /// # Errors
    /// What the writer said first.
    pub fn finish(mut self, threads: &[Thread], lost: DataLoss, complete: bool) -> io::Result<W> {
        self.written?;
        if self.replaced {
            self.blocks.process(&self.process, self.last_tick.ticket.max(self.place.ticket).saturating_add(1))?;
        }
        for stream in 0..self.streams.len() {
            close(&mut self.streams[stream], stream, &mut self.blocks)?;
        }
        for thread in threads.iter().filter(|thread| !thread.name.is_empty()) {
            let name = self.names.as_mut().map_or_else(|| thread.name.clone(), |names| names.thread(&thread.name));
            self.observations.add(&Observation::Thread { tid: thread.tid, name });
        }
        for Thread { tid, counted, .. } in threads {
            if let Some(CountedAllocations { bytes, count }) = *counted {
                let stretch = u64::from(tid.cast_unsigned());
                self.observations.add(&Observation::Counted(AllocationCount { stretch, allocations: count, bytes }));
            }
        }
        observe(&mut self.observations, &mut self.blocks)?;
        for ((ticket, _), file) in &self.mapped {
            let header =
                BlockHeader { first_ticket: *ticket, last_ticket: *ticket, ..BlockHeader::plain(BlockKind::Mapped) };
            self.blocks.block(header, &mapped::encode(std::slice::from_ref(file)))?;
        }
        let lost_before =
            |before: Option<u64>, now: u64| Some(before.unwrap_or(0).saturating_add(now)).filter(|lost| *lost > 0);
        let process = Process {
            lost: LostBlocks {
                count: lost_before(self.process.lost.count, lost.blocks),
                bytes: lost_before(self.process.lost.bytes, lost.bytes),
            },
            ..Process::default()
        };
        self.blocks.process(&process, 0)?;
        self.blocks.finish(complete)
    }

    /// The stream of the thread at hand.
    fn stream(&mut self) -> io::Result<usize> {
        let tid = self.place.tid;
        if let Some(&known) = self.places.get(&tid) {
            self.streams[known].used = self.place.ticket;
            return Ok(known);
        }
        let new = || SegmentStream { tid, segments: 0, open: None, written: WrittenDefinitions::default(), used: 0 };
        let place = if self.streams.len() < STREAMS {
            self.streams.push(new());
            self.streams.len() - 1
        } else {
            let resting = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.used);
            let place = resting.map_or(0, |(place, _)| place);
            close(&mut self.streams[place], place, &mut self.blocks)?;
            self.places.remove(&self.streams[place].tid);
            self.streams[place].tid = tid;
            place
        };
        self.streams[place].used = self.place.ticket;
        self.places.insert(tid, place);
        Ok(place)
    }

    fn write(&mut self, event: &Event, frames: &Frames) -> io::Result<()> {
        if self.replaced {
            self.replaced = false;
            for stream in 0..self.streams.len() {
                close(&mut self.streams[stream], stream, &mut self.blocks)?;
                // Code objects are those of an image.
                self.streams[stream].written = WrittenDefinitions::default();
            }
            self.image = self.place.ticket;
            self.blocks.process(&self.process, self.image)?;
        }
        self.measure(frames);
        let makes = matches!(event.kind, EventKind::Alloc(_) | EventKind::Map(..) | EventKind::FailedAlloc(_));
        let truncated = makes && self.truncated > 0;
        self.truncated -= u64::from(truncated);
        let place = self.stream()?;
        let time = event.time_ns.saturating_add(self.process.start.ticks.unwrap_or(0));
        let timed = self.process.timestamps;
        let Self { streams, codes, names, depths, place: now, mapped, image, .. } = self;
        let stream = &mut streams[place];
        let segment = stream.open.get_or_insert_with(|| Box::new(OpenSegment::new(now, time, timed)));
        segment.switch(now.ticket);
        if makes {
            segment.truncate(truncated);
            let names = names.as_mut();
            let mut describe = DefinitionWriter { frames, codes, names, depths, image: *image, mapped };
            segment.stack(event.stack, &mut describe, &mut stream.written);
        }
        segment.event(event, time);
        if segment.bytes.len() >= SEGMENT {
            close(stream, place, &mut self.blocks)?;
        }
        Ok(())
    }

    /// Computes the depths of new stacks.
    fn measure(&mut self, frames: &Frames) {
        for node in frames.stacks_from(StackId(self.depths.len() as u32)) {
            let depth = self.depths.get(node.parent.0 as usize).copied().unwrap_or(0);
            self.depths.push(depth.saturating_add(1));
        }
    }

    fn observe(&mut self, observation: &Observation) {
        self.observations.add(observation);
        if self.observations.len() >= OBSERVATIONS && self.written.is_ok() {
            self.written = observe(&mut self.observations, &mut self.blocks);
        }
    }
}

fn observe<W: Write>(observations: &mut ObservationWriter, blocks: &mut CaptureBlocks<W>) -> io::Result<()> {
    let (payload, first_ticket, last_ticket) = observations.take();
    if payload.is_empty() {
        return Ok(());
    }
    blocks.block(BlockHeader { first_ticket, last_ticket, ..BlockHeader::plain(BlockKind::Observations) }, &payload)
}

fn close<W: Write>(stream: &mut SegmentStream, place: usize, blocks: &mut CaptureBlocks<W>) -> io::Result<()> {
    let Some(segment) = stream.open.take() else { return Ok(()) };
    let header = BlockHeader {
        stream: u32::try_from(place).unwrap_or(u32::MAX),
        segment: stream.segments,
        first_ticket: segment.first_ticket,
        last_ticket: segment.ticket,
        ..BlockHeader::plain(BlockKind::Records)
    };
    stream.segments = stream.segments.wrapping_add(1);
    blocks.block(header, &segment.bytes)
}

impl<W: Write> Consumer for Rewriter<'_, W> {
    fn event(&mut self, event: &Event, frames: &Frames) {
        if self.written.is_ok() && self.plan.is_none_or(|plan| plan.keeps(event.order)) {
            self.written = self.write(event, frames);
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        let ticks = snapshot.time_ns.saturating_add(self.process.start.ticks.unwrap_or(0));
        let tick = self.last_tick;
        self.observe(&Observation::Snapshot { tick, ticks, rss: snapshot.rss_bytes });
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.truncated = self.truncated.saturating_add(count);
    }

    fn run(&mut self, place: &RunPosition) {
        let shared = place.ticket.saturating_add(self.raised) == self.place.ticket && place.tid != self.place.tid;
        self.raised += u64::from(shared);
        self.place = RunPosition { ticket: place.ticket.saturating_add(self.raised), ..*place };
    }

    fn tick(&mut self, ticket: u64, time_ns: u64) {
        let time_ns = time_ns.saturating_add(self.process.start.monotonic_ns.unwrap_or(0));
        self.last_tick = Tick { ticket: ticket.saturating_add(self.raised), time_ns };
        self.observe(&Observation::Tick(self.last_tick));
    }

    fn replaced(&mut self) {
        self.replaced = true;
    }
}

impl OpenSegment {
    fn new(place: &RunPosition, ticks: u64, timed: bool) -> Self {
        let mut segment = Self {
            encoder: Encoder::new(timed),
            locator: LocationEncoder::default(),
            bytes: Vec::new(),
            stack: StackId::EMPTY,
            first_ticket: place.ticket,
            ticket: place.ticket,
            truncated: false,
        };
        segment.put(0, |encoder, bytes, at| encoder.begin(bytes, at, place.ticket, ticks, place.tid));
        segment.locator.begin();
        segment
    }

    /// Appends a record whose texts have `texts` bytes together.
    fn put(&mut self, texts: usize, write: impl FnOnce(&mut Encoder, &mut [u8], usize) -> Option<usize>) {
        let at = self.bytes.len();
        self.bytes.resize(at + MAX_RECORD + texts, 0);
        let end = write(&mut self.encoder, &mut self.bytes, at).unwrap_or(at);
        self.bytes.truncate(end);
    }

    fn switch(&mut self, ticket: u64) {
        if self.ticket != ticket {
            self.ticket = ticket;
            self.put(0, |encoder, bytes, at| encoder.switch(bytes, at, ticket));
        }
    }

    fn truncate(&mut self, truncated: bool) {
        if self.truncated != truncated {
            self.truncated = truncated;
            self.put(0, |encoder, bytes, at| encoder.truncated(bytes, at, truncated));
        }
    }

    fn event(&mut self, event: &Event, time: u64) {
        let Event { kind, address, size, .. } = *event;
        self.put(0, |encoder, bytes, at| match kind {
            EventKind::Alloc(allocator) => encoder.alloc(bytes, at, allocator, address, size, time),
            EventKind::Free => encoder.free(bytes, at, address, time),
            EventKind::FreeUndo => encoder.free_undo(bytes, at),
            EventKind::Map(allocator, class) => encoder.map(bytes, at, (allocator, class), (address, size), time),
            EventKind::Unmap => encoder.unmap(bytes, at, address, size, time),
            EventKind::RemapFrom => encoder.remap_from(bytes, at, address, size, time),
            EventKind::UnmapUndo => encoder.unmap_undo(bytes, at),
            EventKind::FailedAlloc(allocator) => encoder.failed_alloc(bytes, at, allocator, size, time),
            EventKind::SampleDistance => encoder.sample_distance(bytes, at, size),
            EventKind::Finalizing => encoder.finalizing(bytes, at),
            EventKind::Exec => encoder.exec(bytes, at, false),
        });
    }

    /// Writes the changes of the stack, and the definitions that are new in this stream.
    fn stack(&mut self, target: StackId, describe: &mut DefinitionWriter<'_>, written: &mut WrittenDefinitions) {
        let (popped, pushed) = describe.difference(self.stack, target);
        let left = pushed.last().map_or(target, |&first| describe.parent(first));
        let newest = describe.newest(left);
        if popped > 0 {
            self.put(0, |encoder, bytes, at| encoder.pop(bytes, at, popped, newest));
        }
        for stack in pushed.into_iter().rev() {
            let Some(node) = describe.frames.node(stack) else { continue };
            let frame = describe.codes.frame(node.frame, describe.frames);
            if written.codes.insert(frame.code) {
                match describe.frames.place(node.frame) {
                    Some((module, _)) => self.module(module, frame.code, describe),
                    None => self.code(node.frame, frame.code, describe),
                }
            }
            if describe.frames.native(node.frame).is_none() && written.located.insert(node.frame) {
                self.locator.put(&mut self.bytes, frame, &position(node.frame, describe.frames));
            }
            self.put(0, |encoder, bytes, at| encoder.push(bytes, at, frame));
        }
        self.stack = target;
    }

    fn module(&mut self, module: &NativeModule, code: u32, describe: &mut DefinitionWriter<'_>) {
        let module = match &mut describe.names {
            Some(names) => names.module(module),
            None => module.clone(),
        };
        let build_id = module.identity();
        let NativeModule { path, bias, start, end, source, .. } = module;
        let mut head = ModuleRecord { id: code, bias, start, end, path: &path, build_id: &build_id };
        if source == ModuleSource::Maps {
            // Of this module the process itself said nothing but where it is.
            (head.path, head.build_id) = (&[], &[]);
            self.put(0, |encoder, bytes, at| encoder.module(bytes, at, &head));
            let file = MappedFile { codes: vec![code], bias, start, end, path, build_id };
            describe.mapped.entry((describe.image, code)).or_insert(file);
        } else {
            self.put(2 * MAX_TEXT, |encoder, bytes, at| encoder.module(bytes, at, &head));
        }
    }

    fn code(&mut self, id: FrameId, code: u32, describe: &mut DefinitionWriter<'_>) {
        let (name, file) = (describe.frames.function(id), describe.frames.file(id));
        let (name, file) = match &mut describe.names {
            Some(names) => (names.function(name), names.file(file)),
            None => (name.to_owned(), file.to_owned()),
        };
        let head = CodeHead {
            id: code,
            first_line: describe.frames.frame(id).line,
            lines: LineTableFormat::Locations,
            lines_len: 0,
            name: name.as_bytes(),
            file: file.as_bytes(),
        };
        self.put(2 * MAX_TEXT, |encoder, bytes, at| encoder.code(bytes, at, &head));
    }
}

impl DefinitionWriter<'_> {
    fn parent(&self, stack: StackId) -> StackId {
        self.frames.node(stack).map_or(StackId::EMPTY, |node| node.parent)
    }

    fn depth(&self, stack: StackId) -> u32 {
        self.depths.get(stack.0 as usize).copied().unwrap_or(0)
    }

    /// The number of frames to pop, and the stacks after each push, newest first.
    fn difference(&self, from: StackId, to: StackId) -> (u32, Vec<StackId>) {
        let (mut old, mut new, mut popped, mut pushed) = (from, to, 0, Vec::new());
        while old != new {
            let (old_depth, new_depth) = (self.depth(old), self.depth(new));
            if old_depth >= new_depth {
                old = self.parent(old);
                popped += 1;
            }
            if new_depth >= old_depth {
                pushed.push(new);
                new = self.parent(new);
            }
        }
        (popped, pushed)
    }

    fn newest(&mut self, stack: StackId) -> RawFrame {
        self.frames.node(stack).map_or(RawFrame::NONE, |node| self.codes.frame(node.frame, self.frames))
    }
}
