//! `memtrack transform heaptrack`: every event, in the format of `heaptrack_interpret`, for heaptrack_gui and
//! heaptrack_print.
//!
//! Events are written as they are read; only live blocks and the tables are kept in memory. A partly unmapped mapping
//! is written as freed, and its rest as allocated again, because the format only has whole blocks. Invariant: a line
//! refers only to earlier lines, and each free refers to an allocation.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};

use memtrack_format::MapClass;
use memtrack_reader::source::Consumer;
use memtrack_reader::{Event, EventKind, FrameId, Frames, Snapshot, StackId, ThreadId};
use rustc_hash::FxHashMap;

use crate::address_ranges::{AddressRange, AddressRanges, page_end};
use crate::reports::NO_STACK;
use crate::reports::capture_info::{CaptureInfo, visible};

/// The versions of heaptrack and of its file format; all numbers are hexadecimal.
const VERSIONS: &str = "10000 1";
/// Resident memory is written in pages.
const PAGE: u64 = 4096;

/// Selects the allocations that are written.
pub(crate) type Keep<'a> = &'a dyn Fn(&Event) -> bool;

/// Writes events. After the first write error it writes nothing more; reading goes on.
pub(crate) struct HeaptrackWriter<'a, W> {
    out: W,
    pub(crate) written: io::Result<()>,
    keep: Keep<'a>,
    tables: HeaptrackTables,
    blocks: FxHashMap<u64, u64>,
    /// Heap mappings by start address.
    mappings: BTreeMap<u64, HeapMapping>,
    last_ends: FxHashMap<ThreadId, Vec<EndedBlock>>,
    /// The classes of all mappings, kept or not.
    classes: AddressRanges<MapClass>,
    /// What each thread's last unmap ended of them.
    unmapped: FxHashMap<ThreadId, Vec<AddressRange<MapClass>>>,
    /// The class of what each thread has resized or moved last.
    remapped: FxHashMap<ThreadId, MapClass>,
    time_ms: u64,
}

#[derive(Clone, Copy)]
struct HeapMapping {
    end: u64,
    stack: u64,
    number: u64,
}

/// What a thread's last free or unmap ended, to restore it if the call failed.
#[derive(Clone, Copy)]
enum EndedBlock {
    Block(u64, u64),
    Part(u64, HeapMapping),
}

impl<'a, W: Write> HeaptrackWriter<'a, W> {
    /// Writes the head of the file.
    pub(crate) fn new(info: &CaptureInfo, keep: Keep<'a>, mut out: W) -> Self {
        let mut tables = HeaptrackTables::default();
        let title = visible(&info.title());
        let mut written = writeln!(out, "v {VERSIONS}\nX {title}\nI {PAGE:x} 0");
        if written.is_ok() {
            written = tables.module(&info.executable().unwrap_or_else(|| title.clone()), &mut out);
        }
        Self {
            out,
            written,
            keep,
            tables,
            blocks: FxHashMap::default(),
            mappings: BTreeMap::new(),
            last_ends: FxHashMap::default(),
            classes: AddressRanges::default(),
            unmapped: FxHashMap::default(),
            remapped: FxHashMap::default(),
            time_ms: 0,
        }
    }

    /// Writes the time of the last event; returns the output.
    pub(crate) fn finish(mut self, end_ns: u64) -> io::Result<W> {
        self.time(end_ns);
        self.written.map(|()| self.out)
    }

    fn write(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) {
        if self.written.is_ok() {
            self.written = write(&mut self.out);
        }
    }

    /// A line of a character and a number. Nearly all lines are of this form; `write!` would dominate the time of the
    /// export.
    fn line(&mut self, sign: u8, number: u64) {
        let mut line = [b'\n'; 19];
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1) as usize;
        for (place, digit) in line[2..2 + digits].iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(number >> (4 * place)) as usize & 15];
        }
        (line[0], line[1]) = (sign, b' ');
        self.write(|out| out.write_all(&line[..digits + 3]));
    }

    fn time(&mut self, time_ns: u64) {
        let time_ms = time_ns / 1_000_000;
        if time_ms > self.time_ms {
            self.time_ms = time_ms;
            self.write(|out| writeln!(out, "c {time_ms:x}"));
        }
    }

    /// Begins an allocation of this size; returns its number.
    fn begin(&mut self, size: u64, stack: u64) -> u64 {
        let (number, new) = self.tables.allocation(size, stack);
        if new {
            self.write(|out| writeln!(out, "a {size:x} {stack:x}"));
        }
        self.line(b'+', number);
        number
    }

    fn end(&mut self, number: u64) {
        self.line(b'-', number);
    }

    fn stack(&mut self, stack: StackId, frames: &Frames) -> u64 {
        let Self { tables, out, written, .. } = self;
        match tables.stack(stack, frames, out) {
            Ok(number) => number,
            Err(error) => {
                if written.is_ok() {
                    *written = Err(error);
                }
                0
            }
        }
    }

    fn allocate(&mut self, event: &Event, frames: &Frames) {
        if let Some(replaced) = self.blocks.remove(&event.address) {
            self.end(replaced);
        }
        if (self.keep)(event) {
            let stack = self.stack(event.stack, frames);
            let number = self.begin(event.size, stack);
            self.blocks.insert(event.address, number);
        }
    }

    fn free(&mut self, event: &Event) {
        let ended = self.blocks.remove(&event.address);
        ended.into_iter().for_each(|number| self.end(number));
        let last = self.last_ends.entry(event.thread).or_default();
        last.clear();
        last.extend(ended.map(|number| EndedBlock::Block(event.address, number)));
    }

    fn map(&mut self, event: &Event, class: MapClass, frames: &Frames) {
        let from = || self.remapped.get(&event.thread).copied().unwrap_or(MapClass::Heap);
        let class = if class == MapClass::Inherited { from() } else { class };
        self.cut(event);
        self.classes.cut(event.address, event.size);
        self.classes.add(event.address, event.size, class);
        if class == MapClass::Heap && event.size > 0 && (self.keep)(event) {
            let stack = self.stack(event.stack, frames);
            let number = self.begin(event.size, stack);
            let end = event.address.saturating_add(event.size);
            self.mappings.insert(event.address, HeapMapping { end, stack, number });
        }
    }

    fn unmap(&mut self, event: &Event) {
        if event.kind == EventKind::RemapFrom {
            // One that was not seen is most likely memory of the heap, as in a replay.
            self.remapped.insert(event.thread, self.classes.at(event.address).unwrap_or(MapClass::Heap));
        }
        let ended = self.cut(event);
        self.last_ends.insert(event.thread, ended);
        self.unmapped.insert(event.thread, self.classes.cut(event.address, event.size));
    }

    /// Ends the mappings in the event's range; the parts before and after it stay.
    fn cut(&mut self, event: &Event) -> Vec<EndedBlock> {
        if event.size == 0 {
            return Vec::new();
        }
        let (start, end) = (event.address, page_end(event.address, event.size));
        let hit: Vec<_> = self.mappings.range(..end).rev().take_while(|(_, mapping)| mapping.end > start).collect();
        let hit: Vec<(u64, HeapMapping)> = hit.into_iter().map(|(at, mapping)| (*at, *mapping)).collect();
        for (at, mapping) in &hit {
            self.mappings.remove(at);
            self.end(mapping.number);
            self.resume(*at, start, mapping.stack);
            self.resume(end, mapping.end, mapping.stack);
        }
        let part = |(at, mapping): (u64, HeapMapping)| {
            EndedBlock::Part(at.max(start), HeapMapping { end: mapping.end.min(end), ..mapping })
        };
        hit.into_iter().map(part).collect()
    }

    fn resume(&mut self, start: u64, end: u64, stack: u64) {
        if start < end {
            let number = self.begin(end - start, stack);
            self.mappings.insert(start, HeapMapping { end, stack, number });
        }
    }

    fn undo(&mut self, event: &Event) {
        if event.kind == EventKind::UnmapUndo {
            self.classes.restore(self.unmapped.remove(&event.thread).unwrap_or_default());
        }
        for ended in self.last_ends.remove(&event.thread).unwrap_or_default() {
            match ended {
                EndedBlock::Block(address, number) => {
                    if let Entry::Vacant(place) = self.blocks.entry(address) {
                        place.insert(number);
                        self.line(b'+', number);
                    }
                }
                EndedBlock::Part(start, part) => self.resume(start, part.end, part.stack),
            }
        }
    }
}

impl<W: Write> Consumer for HeaptrackWriter<'_, W> {
    fn event(&mut self, event: &Event, frames: &Frames) {
        self.time(event.time_ns);
        match event.kind {
            EventKind::Alloc(_) => self.allocate(event, frames),
            EventKind::Free => self.free(event),
            EventKind::Map(_, class) => self.map(event, class, frames),
            EventKind::Unmap | EventKind::RemapFrom => self.unmap(event),
            EventKind::FreeUndo | EventKind::UnmapUndo => self.undo(event),
            EventKind::FailedAlloc(_) | EventKind::SampleDistance | EventKind::Finalizing | EventKind::Exec => {}
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.time(snapshot.time_ns);
        let pages = snapshot.rss_bytes / PAGE;
        self.write(|out| writeln!(out, "R {pages:x}"));
    }

    fn replaced(&mut self) {
        let blocks = std::mem::take(&mut self.blocks).into_values();
        let mappings = std::mem::take(&mut self.mappings).into_values().map(|mapping| mapping.number);
        (self.classes, self.unmapped, self.remapped) = Default::default();
        for number in blocks.chain(mappings) {
            self.end(number);
        }
    }
}

/// Maximum number of remembered (size, stack) pairs; the table is then cleared, and pairs are written again.
const REMEMBERED: usize = 1 << 20;

/// The tables of the file. Numbers start at 1, except those of allocations.
#[derive(Default)]
struct HeaptrackTables {
    strings: FxHashMap<String, u64>,
    places: FxHashMap<Option<FrameId>, u64>,
    stacks: FxHashMap<StackId, u64>,
    allocations: FxHashMap<(u64, u64), u64>,
    next_allocation: u64,
    traces: u64,
    module: u64,
}

impl HeaptrackTables {
    fn module(&mut self, name: &str, out: &mut impl Write) -> io::Result<()> {
        self.module = self.string(name, out)?;
        Ok(())
    }

    fn string(&mut self, text: &str, out: &mut impl Write) -> io::Result<u64> {
        if text.is_empty() {
            return Ok(0);
        }
        let next = self.strings.len() as u64 + 1;
        match self.strings.entry(text.into()) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                writeln!(out, "s {}", visible(text))?;
                Ok(*new.insert(next))
            }
        }
    }

    /// The number of a frame, written as an instruction pointer: frames have no address, so their number is used.
    fn place(&mut self, frame: Option<FrameId>, frames: &Frames, out: &mut impl Write) -> io::Result<u64> {
        if let Some(known) = self.places.get(&frame) {
            return Ok(*known);
        }
        let place = |id| (frames.function(id), frames.file(id), frames.frame(id).line);
        let (function, file, line) = frame.map_or((NO_STACK, "", 0), place);
        let (function, file) = (self.string(function, out)?, self.string(file, out)?);
        let number = self.places.len() as u64 + 1;
        writeln!(out, "i {number:x} {:x} {function:x} {file:x} {line:x}", self.module)?;
        self.places.insert(frame, number);
        Ok(number)
    }

    /// The number of a stack; writes new ones, callers first.
    fn stack(&mut self, stack: StackId, frames: &Frames, out: &mut impl Write) -> io::Result<u64> {
        let mut unknown = Vec::new();
        let mut at = stack;
        let mut parent = 0;
        while let Some(node) = frames.node(at) {
            if let Some(known) = self.stacks.get(&at) {
                parent = *known;
                break;
            }
            unknown.push((at, Some(node.frame)));
            at = node.parent;
        }
        if stack == StackId::EMPTY {
            if let Some(known) = self.stacks.get(&stack) {
                return Ok(*known);
            }
            unknown.push((stack, None));
        }
        for (id, frame) in unknown.into_iter().rev() {
            let place = self.place(frame, frames, out)?;
            writeln!(out, "t {place:x} {parent:x}")?;
            self.traces += 1;
            parent = self.traces;
            self.stacks.insert(id, parent);
        }
        Ok(parent)
    }

    /// The number of allocations of this size and stack, and whether it is new.
    fn allocation(&mut self, size: u64, stack: u64) -> (u64, bool) {
        if self.allocations.len() >= REMEMBERED {
            self.allocations.clear();
        }
        match self.allocations.entry((size, stack)) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(new) => {
                let number = *new.insert(self.next_allocation);
                self.next_allocation += 1;
                (number, true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HeaptrackWriter;
    use crate::reports::capture_info::CaptureInfo;
    use memtrack_format::{Allocator, MapClass};
    use memtrack_reader::source::Consumer;
    use memtrack_reader::{Event, EventKind, Frames, StackId, ThreadId};

    fn written(script: &[(EventKind, u64, u64)], keep: &dyn Fn(&Event) -> bool) -> String {
        let mut frames = Frames::new();
        let (function, file) = (frames.name_id("work").unwrap(), frames.name_id("app.py").unwrap());
        let frame = frames.frame_id(function, file, 26).unwrap();
        let stack = frames.stack_of(&[frame]).unwrap();
        let info = CaptureInfo { file: "capture.bin".into(), ..CaptureInfo::default() };
        let mut writer = HeaptrackWriter::new(&info, keep, Vec::new());
        for (order, &(kind, address, size)) in (0..).zip(script) {
            let stack = if address == 0x9000 { StackId::EMPTY } else { stack };
            let time_ns = order * 1_000_000;
            writer.event(&Event { kind, address, size, stack, thread: ThreadId(0), order, time_ns }, &frames);
        }
        let text = String::from_utf8(writer.finish(0).unwrap()).unwrap();
        text.lines().skip(4).collect::<Vec<_>>().join("\n")
    }

    const ALLOC: EventKind = EventKind::Alloc(Allocator::Malloc);
    const MAP: EventKind = EventKind::Map(Allocator::Mmap, MapClass::Heap);

    #[test]
    fn tables_come_before_they_are_used() {
        let script = [(ALLOC, 0x1000, 16), (EventKind::Free, 0x1000, 0), (ALLOC, 0x1000, 16), (ALLOC, 0x9000, 1)];
        let expected = "\
s work\ns app.py\ni 1 1 2 3 1a\nt 1 0\na 10 1\n+ 0\nc 1\n- 0\nc 2\n+ 0\nc 3\ns <no stack>\ni 2 1 4 0 0\nt 2 0\na 1 2\n+ 1";
        assert_eq!(written(&script, &|_| true), expected);
    }

    #[test]
    fn parts_of_mappings_go_on() {
        let script = [(MAP, 0x10_0000, 0x3000), (EventKind::Unmap, 0x10_1000, 0x1000), (EventKind::UnmapUndo, 0, 0)];
        let text = written(&script, &|_| true);
        assert!(text.ends_with("a 3000 1\n+ 0\nc 1\n- 0\na 1000 1\n+ 1\n+ 1\nc 2\n+ 1"), "{text}");
    }

    /// As `mremap` of a mapping from before an attach, and of address space that was reserved.
    #[test]
    fn a_mapping_that_was_resized_has_the_class_that_it_had() {
        let inherited = EventKind::Map(Allocator::Mremap, MapClass::Inherited);
        let (from, reserved) = (EventKind::RemapFrom, EventKind::Map(Allocator::Mmap, MapClass::Reserved));
        let unknown = [(from, 0x10_0000, 0x1000), (inherited, 0x20_0000, 0x2000)];
        assert!(written(&unknown, &|_| true).ends_with("a 2000 1\n+ 0"), "{}", written(&unknown, &|_| true));
        let left_out = [(MAP, 0x10_0000, 0x1000), unknown[0], unknown[1]];
        assert!(written(&left_out, &|event| event.size > 0x1000).ends_with("a 2000 1\n+ 0"));
        let of_reserved = [
            (reserved, 0x10_0000, 0x1000),
            (from, 0x10_0000, 0x1000),
            (EventKind::UnmapUndo, 0, 0),
            unknown[0],
            unknown[1],
        ];
        assert_eq!(written(&of_reserved, &|_| true), "c 1\nc 2\nc 3\nc 4");
    }

    #[test]
    fn frees_of_what_is_left_out_are_left_out_too() {
        let script = [(ALLOC, 0x1000, 16), (EventKind::Free, 0x1000, 0), (EventKind::Free, 0x5000, 0)];
        assert_eq!(written(&script, &|event| event.size > 16), "c 1\nc 2");
    }
}
