//! Sums of what one thread has recorded between two rests of a recording, of the records as they stand in its ring. Of a small test they
//! are known so before the collector would have woken up.
//!
//! It decodes one segment, from its first record on. Invariant: the sums are those that the reader has of the same spans, or none are
//! given.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use memtrack_format::record::Decoder;
use memtrack_transport::layout::SEGMENT_ROOM;

use super::live_sizes::LiveSizes;
use super::most_bytes::{Recorded, of_ring, recorded};
use super::span_sums::{RecordedSpans, RecordedSum, SPANS};

/// The most bytes of records: of more the recorder has the sums as soon as the process would.
const MOST: usize = 16 << 10;

/// A segment, as far as it was decoded.
struct DecodedSegment {
    decoder: Decoder,
    live: LiveSizes,
    /// The slot of the segment, and its number.
    segment: Option<(usize, u32)>,
    /// Up to where it was decoded; `None`: a part of it is gone, or could not be decoded.
    at: Option<usize>,
    bytes: [u8; SEGMENT_ROOM],
}

/// Used by one call at a time.
struct DecodedCell(UnsafeCell<DecodedSegment>);

// SAFETY: who uses it promises to be the only one.
unsafe impl Sync for DecodedCell {}

/// Too large for a stack.
static DECODED: DecodedCell = DecodedCell(UnsafeCell::new(DecodedSegment {
    decoder: Decoder::new(),
    live: LiveSizes::new(),
    segment: None,
    at: None,
    bytes: [0; SEGMENT_ROOM],
}));
/// Another recording has begun, whose segments have the same numbers.
static IS_ANOTHER: AtomicBool = AtomicBool::new(false);

/// Recording begins once more.
pub(super) fn begin_again() {
    IS_ANOTHER.store(true, Relaxed);
}

/// The sums of the spans before, between and after two moments, in ticks of the stamping clock, of what was recorded between the last
/// two rests; `None`: they are not known here.
///
/// # Safety
/// Recording is off, no thread is inside a hook, and nobody else calls this or [`super::most_bytes`].
pub(crate) unsafe fn between_rests(moments: &[u64; SPANS - 1]) -> Option<[RecordedSum; SPANS]> {
    // SAFETY: the caller's promise.
    let decoded = unsafe { &mut *DECODED.0.get() };
    match recorded() {
        Recorded::Nothing => Some([RecordedSum::default(); SPANS]),
        Recorded::InOneSegment { slot, from } => decoded.sums(slot, from, moments),
        Recorded::Other => None,
    }
}

impl DecodedSegment {
    fn sums(&mut self, slot: usize, from: usize, moments: &[u64; SPANS - 1]) -> Option<[RecordedSum; SPANS]> {
        let (number, first, end) = of_ring(slot, |ring| (ring.segment_number(), ring.first_record(), ring.position()))?;
        if IS_ANOTHER.swap(false, Relaxed) || self.segment != Some((slot, number)) {
            (self.segment, self.at) = (Some((slot, number)), Some(first));
        }
        if end.checked_sub(from)? > MOST {
            return None;
        }
        // It is taken back where all of this can be decoded.
        let begin = self.at.take()?;
        let length = end.checked_sub(begin)?;
        let bytes = self.bytes.get_mut(..length)?;
        if !of_ring(slot, |ring| ring.copy_records(begin, bytes))? {
            return None;
        }
        let mut sums = RecordedSpans::new(moments, &mut self.live);
        let (mut at, mut is_known) = (0, true);
        while let Some((record, next)) = self.decoder.next(bytes, at).ok()? {
            if begin.wrapping_add(at) >= from {
                is_known &= sums.add(&record).is_some();
            }
            at = next;
        }
        self.at = Some(end);
        is_known.then(|| sums.finish())
    }
}
