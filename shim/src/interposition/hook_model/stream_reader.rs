//! The reader of the model's streams: follows a slot as the collector does, and decodes what it has read.
//!
//! Invariant: it reads nothing but what is published.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::{Decoder, Record};
use memtrack_transport::segment_chain::ChainReader;
use memtrack_transport::{Area, futex};

use super::ModelEvent;

/// Follows the stream of one slot.
pub(super) struct StreamReader {
    slot: u32,
    chain: ChainReader,
    copied: u32,
    bytes: Vec<u8>,
    decoder: Decoder,
}

impl StreamReader {
    /// Of a slot that nothing was read of.
    pub(super) fn new(slot: u32) -> Self {
        Self { slot, chain: ChainReader::default(), copied: 0, bytes: Vec::new(), decoder: Decoder::new() }
    }

    /// Reads what is published, and gives finished segments back.
    pub(super) fn read(&mut self, area: &Area) {
        let slot = area.slot(self.slot).unwrap();
        while self.chain.has_begun(slot) {
            let segment = self.chain.segment();
            let level = self.chain.look(area.segment(self.slot, segment).unwrap()).unwrap();
            self.copied = self.copied.max(level.start);
            area.copy_records(self.slot, segment, self.copied, level.fill, &mut self.bytes);
            self.copied = level.fill;
            if level.next == 0 {
                return;
            }
            area.control().note_drained(level.fill - level.start);
            if self.chain.advance(slot, level.next).unwrap() {
                futex::wake(&slot.taken);
            }
            self.copied = 0;
        }
    }

    /// What was read since the last time.
    pub(super) fn take_events(&mut self) -> Vec<ModelEvent> {
        let bytes = std::mem::take(&mut self.bytes);
        let (mut at, mut events) = (0, Vec::new());
        while let Some((record, next)) = self.decoder.next(&bytes, at).unwrap() {
            at = next;
            events.extend(event_of(&record));
        }
        events
    }
}

/// `None`: it is about the stream itself.
fn event_of(record: &Record<'_>) -> Option<ModelEvent> {
    match *record {
        Record::Alloc { allocator, address, size, .. } => {
            Some(ModelEvent::Alloc(allocator, address as usize, size as usize))
        }
        Record::Free { address, .. } => Some(ModelEvent::Free(address as usize)),
        Record::FreeUndo => Some(ModelEvent::FreeUndo),
        Record::FailedAlloc { allocator, size, .. } => Some(ModelEvent::FailedAlloc(allocator, size as usize)),
        Record::ThreadName { name, .. } => Some(ModelEvent::Name(name.len())),
        Record::Begin { .. } | Record::Switch { .. } | Record::Clock { .. } => None,
        other => panic!("{other:?}"),
    }
}

/// Reads while `run` runs, and when it has returned all that is left.
pub(super) fn read_during<R>(area: &'static Area, readers: &mut [StreamReader], run: impl FnOnce() -> R) -> R {
    // Relaxed, so that nothing but the protocol orders what writers and readers do.
    let is_over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                readers.iter_mut().for_each(|reader| reader.read(area));
                std::thread::yield_now();
            }
        });
        let result = run();
        is_over.store(true, Relaxed);
        result
    });
    readers.iter_mut().for_each(|reader| reader.read(area));
    result
}
