//! Decodes the records of one group of segments into compact events: the part of reading that runs in parallel.
//!
//! Stacks become nodes of a tree that is local to the group (node 0 is the empty stack), so that an event has one
//! number; the merge maps each new node to a [`StackId`](crate::StackId) once. A segment is decoded in batches of
//! bounded size, because a few bytes can be many events.
//!
//! Invariant: the batches of a segment have its events in the order of recording, and each node of an event is in its
//! batch's `nodes` or in those of an earlier batch.

use std::hint::cold_path;
use std::num::NonZeroU64;

use memtrack_format::record::{
    AllocationCount, BlockRecord, CodeHead, Decoder, FieldSource, LineTableFormat, MAX_TEXT, ModuleRecord, PlacedTop,
    RawFrame, Record,
};

use crate::analysis::short_lived_sums::ShortLivedSums;
use crate::decoded_run::Compact;
use crate::event::EventKind;
use crate::lines::SourcePosition;
use crate::native::{self, NativeModule};

use super::segment_nodes::{Nodes, SegmentNode};
use super::thread_names::NameSource;
use super::top_nodes::StackTopNodes;

/// Events with one ticket, from `start` to the start of the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketRun {
    pub(super) ticket: u64,
    pub(super) start: usize,
    /// CLOCK_MONOTONIC, if the run says that it began at this time.
    pub(super) began_us: Option<NonZeroU64>,
    /// How many times more its events come, one time behind the other.
    pub(super) again: u64,
}

impl TicketRun {
    pub(super) const fn new(ticket: u64, start: usize) -> Self {
        Self { ticket, start, began_us: None, again: 0 }
    }
}

/// A definition in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Definition {
    Code(CodeDescription),
    Module(u32, NativeModule),
    Lines { id: u32, bytes: Vec<u8> },
    Located { frame: RawFrame, position: SourcePosition },
    ThreadName { tid: i32, name: Vec<u8>, source: NameSource },
    Counted(AllocationCount),
}

/// A code object without its line table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CodeDescription {
    pub(super) id: u32,
    pub(super) first_line: u32,
    pub(super) lines: LineTableFormat,
    pub(super) lines_len: u32,
    pub(super) name: Vec<u8>,
    pub(super) file: Vec<u8>,
}

/// How a segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) ticket: u64,
    pub(super) tid: i32,
    pub(super) timed: bool,
}

/// A part of a segment.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) events: Vec<Compact>,
    /// Ticks of the stamping clock for each event; empty in segments that are not timed.
    pub(super) times: Vec<u64>,
    pub(super) runs: Vec<TicketRun>,
    /// For each run the sums of its short-lived blocks, where they are asked for and worth it; may be cut short.
    pub(super) sums: Vec<Option<Box<ShortLivedSums>>>,
    /// Nodes that are new in this batch.
    pub(super) nodes: Vec<SegmentNode>,
    pub(super) definitions: Vec<Definition>,
    /// Present in the first batch of a segment.
    pub(super) begin: Option<Begin>,
    /// Allocations whose stack is cut.
    pub(super) truncated: u64,
    /// The last ticket that the segment has shown.
    pub(super) last_ticket: u64,
}

impl Batch {
    /// Empties it and keeps its memory for the next.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.times.clear();
        self.runs.clear();
        self.sums.clear();
        self.nodes.clear();
        self.definitions.clear();
        (self.begin, self.truncated, self.last_ticket) = (None, 0, 0);
    }
}

/// How far a call of [`SegmentReader::decode`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeProgress {
    /// The batch is full; the records go on.
    Full,
    /// To the end of the records.
    End,
    /// To what is no record: it and what follows cannot be read, so many bytes.
    Damaged { left: usize },
}

/// The state between the batches of one segment.
#[derive(Debug, Default)]
pub(super) struct SegmentReader {
    pub(super) decoder: Decoder,
    nodes: Nodes,
    top_nodes: StackTopNodes,
    /// The nodes of the stack's oldest frames; what is missing is interned when an event needs it.
    pub(super) path: Vec<u32>,
    /// The newest of them; 0: there is none.
    node: u32,
    pub(super) begin: Option<Begin>,
    pub(super) ticket: u64,
    ticks: u64,
    truncated: bool,
}

impl SegmentReader {
    /// Whether the records that come next carry times.
    pub(super) fn is_timed(&self) -> bool {
        self.decoder.is_timed()
    }

    /// Decodes these records, until the batch has `limit` events or they end; they may follow others in the batch.
    pub(super) fn decode<'a>(
        &mut self,
        records: &mut impl FieldSource<'a>,
        batch: &mut Batch,
        limit: usize,
    ) -> DecodeProgress {
        if batch.runs.is_empty() {
            batch.runs.push(TicketRun::new(self.ticket, 0));
        }
        // Clones, of which no reference is passed on in the loop: they stay in registers.
        let mut fields = records.clone();
        let length = fields.length();
        let damaged = |offset| DecodeProgress::Damaged { left: length - offset };
        let progress = loop {
            if batch.events.len() >= limit && !fields.is_at_end() {
                break DecodeProgress::Full;
            }
            if self.begin.is_some() {
                match self.decoder.read_block(&mut fields) {
                    Ok(Some(block)) => {
                        self.block(&block, batch);
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => break damaged(error.offset),
                }
            }
            let (mut rare, offset) = (fields.clone(), fields.offset());
            match self.decoder.read(&mut rare) {
                Ok(Some(record)) if !self.record(&record, batch) => break damaged(offset),
                Ok(Some(_)) => fields = rare,
                Ok(None) => break DecodeProgress::End,
                Err(error) => break damaged(error.offset),
            }
        };
        *records = fields;
        batch.last_ticket = self.ticket;
        progress
    }

    #[inline(always)]
    fn block(&mut self, block: &BlockRecord, batch: &mut Batch) {
        let &BlockRecord { allocator, address, size, time } = block;
        if self.truncated {
            cold_path();
            batch.truncated += u64::from(allocator.is_some());
        }
        let node = self.node(batch);
        let kind = allocator.map_or(EventKind::Free, EventKind::Alloc);
        batch.events.push(Compact { address, size, node, kind, short_lived: false });
        if let Some(ticks) = time {
            self.ticks = ticks;
            batch.times.push(ticks);
        }
    }

    /// Handles a record that is no Alloc or Free; `false`: the record is invalid here.
    fn record(&mut self, record: &Record<'_>, batch: &mut Batch) -> bool {
        if self.begin.is_none() && !matches!(record, Record::Begin { .. }) {
            return false;
        }
        match *record {
            Record::Switch { ticket } => self.switch(batch, ticket),
            Record::Clock { monotonic_us } => self.clock(batch, monotonic_us),
            Record::Truncated(truncated) => self.truncated = truncated,
            Record::Begin { ticket, ticks, tid, timed } => {
                return self.begin(batch, Begin { ticket, tid, timed }, ticks);
            }
            _ => self.rare(record, batch),
        }
        true
    }

    /// A segment of the group begins; all are of one thread, and timed or not.
    fn begin(&mut self, batch: &mut Batch, begin: Begin, ticks: u64) -> bool {
        match self.begin {
            None => (self.begin, batch.begin) = (Some(begin), Some(begin)),
            Some(first) if (first.tid, first.timed) == (begin.tid, begin.timed) => {
                self.truncated = false;
            }
            Some(_) => return false,
        }
        self.ticks = ticks;
        self.switch(batch, begin.ticket);
        true
    }

    fn rare(&mut self, record: &Record<'_>, batch: &mut Batch) {
        match *record {
            Record::Map { allocator, class, address, length, time } => {
                batch.truncated += u64::from(self.truncated);
                self.event(batch, EventKind::Map(allocator, class), address, length, time);
            }
            Record::Unmap { address, length, time } => self.event(batch, EventKind::Unmap, address, length, time),
            Record::RemapFrom { address, length, time } => {
                self.event(batch, EventKind::RemapFrom, address, length, time);
            }
            Record::FreeUndo => self.undo(batch, EventKind::FreeUndo, &[EventKind::Free]),
            Record::UnmapUndo => self.undo(batch, EventKind::UnmapUndo, &[EventKind::Unmap, EventKind::RemapFrom]),
            Record::FailedAlloc { allocator, size, time } => {
                batch.truncated += u64::from(self.truncated);
                self.event(batch, EventKind::FailedAlloc(allocator), 0, size, time);
            }
            Record::SampleDistance(bytes) => self.event(batch, EventKind::SampleDistance, 0, bytes, None),
            Record::Finalizing => self.event(batch, EventKind::Finalizing, 0, 0, None),
            Record::ExecBegins => self.event(batch, EventKind::Exec, 0, 0, None),
            Record::Located { frame, position } => batch.definitions.push(Definition::Located { frame, position }),
            Record::Module(ref module) => batch.definitions.push(Definition::Module(module.id, native(module))),
            Record::Code(ref head) => batch.definitions.push(Definition::Code(CodeDescription::from(head))),
            Record::CodeLines { id, bytes } => {
                batch.definitions.push(Definition::Lines { id, bytes: bytes.to_vec() });
            }
            Record::Counted(count) => batch.definitions.push(Definition::Counted(count)),
            Record::ThreadName { tid, name } => {
                let source = NameSource::Program(self.ticket);
                batch.definitions.push(Definition::ThreadName { tid, name: cut(name), source });
            }
            Record::PythonName { tid, name } => {
                let source = NameSource::Python(self.ticket);
                batch.definitions.push(Definition::ThreadName { tid, name: cut(name), source });
            }
            // The events that follow an Exec say the same; all others are not met here.
            _ => {}
        }
    }

    fn event(&mut self, batch: &mut Batch, kind: EventKind, address: u64, size: u64, time: Option<u64>) {
        let node = self.node(batch);
        batch.events.push(Compact { address, size, node, kind, short_lived: false });
        if self.begin.is_some_and(|begin| begin.timed) {
            self.ticks = time.unwrap_or(self.ticks);
            batch.times.push(self.ticks);
        }
    }

    /// Removes an undone event if it is the last one and still in the batch; so its effect is never seen, whatever
    /// other threads did in between. Else the replay undoes it.
    fn undo(&mut self, batch: &mut Batch, undo: EventKind, undone: &[EventKind]) {
        if batch.events.pop_if(|event| undone.contains(&event.kind)).is_none() {
            self.event(batch, undo, 0, 0, None);
            return;
        }
        let end = batch.events.len();
        batch.times.truncate(end);
        for run in batch.runs.iter_mut().rev().take_while(|run| run.start > end) {
            run.start = end;
        }
    }

    /// The node of the current stack.
    #[inline(always)]
    fn node(&mut self, batch: &mut Batch) -> u32 {
        let (unchanged, depth) = (self.decoder.take_unchanged_frames(), self.decoder.stack().len());
        if unchanged != depth || self.path.len() != depth {
            self.node = self.changed_node(batch, unchanged);
        }
        self.node
    }

    /// The same after a change of all but the oldest frames. Mostly a stack top is where it was before.
    #[inline(always)]
    fn changed_node(&mut self, batch: &mut Batch, unchanged: usize) -> u32 {
        self.path.truncate(unchanged);
        let top = self.decoder.placed_top();
        if let Some(top) = top
            && self.path.len() == top.below
            && let Some(node) = self.top_nodes.put_back(&top, &mut self.path)
        {
            return node;
        }
        self.new_node(batch, top)
    }

    /// The same frame by frame; notes the nodes of a top.
    #[inline(never)]
    fn new_node(&mut self, batch: &mut Batch, top: Option<PlacedTop>) -> u32 {
        let Some(top) = top.filter(|top| self.path.len() <= top.below) else {
            return self.node_of(batch, usize::MAX);
        };
        let _ = self.node_of(batch, top.below);
        if let Some(node) = self.top_nodes.put_back(&top, &mut self.path) {
            return node;
        }
        let node = self.node_of(batch, usize::MAX);
        self.top_nodes.note(&top, &self.path);
        node
    }

    /// The node of so many of the oldest frames, some of which have nodes.
    #[inline(always)]
    fn node_of(&mut self, batch: &mut Batch, frames: usize) -> u32 {
        let stack = self.decoder.stack();
        let stack = stack.get(..frames).unwrap_or(stack);
        let mut node = self.path.last().copied().unwrap_or(0);
        while let Some(&frame) = stack.get(self.path.len()) {
            node = self.nodes.intern(&mut batch.nodes, SegmentNode { parent: node, frame });
            self.path.push(node);
        }
        node
    }

    #[inline]
    fn switch(&mut self, batch: &mut Batch, ticket: u64) {
        self.ticket = ticket;
        let start = batch.events.len();
        match batch.runs.last_mut() {
            Some(run) if run.start == start && run.began_us.is_none() => run.ticket = ticket,
            _ => batch.runs.push(TicketRun::new(ticket, start)),
        }
    }

    fn clock(&self, batch: &mut Batch, monotonic_us: u64) {
        let (start, began_us) = (batch.events.len(), NonZeroU64::new(monotonic_us));
        match batch.runs.last_mut() {
            Some(run) if run.start == start && run.ticket == self.ticket => run.began_us = began_us,
            _ => batch.runs.push(TicketRun { began_us, ..TicketRun::new(self.ticket, start) }),
        }
    }
}

fn native(module: &ModuleRecord<'_>) -> NativeModule {
    let ModuleRecord { bias, start, end, path, build_id, id: _ } = *module;
    let source = native::ModuleSource::Process;
    let module = NativeModule { path: cut(path), bias, start, end, source, ..NativeModule::default() };
    module.with_identity(&cut(build_id))
}

impl From<&CodeHead<'_>> for CodeDescription {
    fn from(head: &CodeHead<'_>) -> Self {
        let CodeHead { id, first_line, lines, lines_len, name, file } = *head;
        Self { id, first_line, lines, lines_len, name: cut(name), file: cut(file) }
    }
}

/// The shim truncates texts to this length; a longer text is invalid.
fn cut(text: &[u8]) -> Vec<u8> {
    text[..text.len().min(MAX_TEXT)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::{Batch, DecodeProgress, SegmentReader, TicketRun};
    use crate::event::EventKind;
    use memtrack_format::Allocator;
    use memtrack_format::record::{Encoder, RecordBytes};

    #[test]
    fn what_did_not_happen_is_taken_out_across_a_switch() {
        let mut bytes = vec![0; 4096];
        let mut encoder = Encoder::new(true);
        let at = encoder.begin(&mut bytes, 0, 1, 100, 7).unwrap();
        let at = encoder.alloc(&mut bytes, at, Allocator::Malloc, 0x1000, 64, 110).unwrap();
        let at = encoder.free(&mut bytes, at, 0x1000, 120).unwrap();
        let at = encoder.switch(&mut bytes, at, 5).unwrap();
        let at = encoder.free_undo(&mut bytes, at).unwrap();
        let end = encoder.alloc(&mut bytes, at, Allocator::Calloc, 0x2000, 32, 130).unwrap();

        let mut batch = Batch::default();
        let mut records = RecordBytes::at(&bytes[..end], 0);
        let progress = SegmentReader::default().decode(&mut records, &mut batch, usize::MAX);
        assert_eq!(progress, DecodeProgress::End);
        let kinds: Vec<_> = batch.events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Alloc(Allocator::Malloc), EventKind::Alloc(Allocator::Calloc)]);
        assert_eq!(batch.times, [110, 130]);
        assert_eq!(batch.runs, [TicketRun::new(1, 0), TicketRun::new(5, 1)]);
    }
}
