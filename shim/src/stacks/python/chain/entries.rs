//! Finds the frames at which C code entered an evaluation loop; used to merge Python and native stacks.
//!
//! Each evaluation loop keeps something of its own in its C frame: from 3.12 on the frame that stands for the entry, in
//! 3.10 and 3.11 a record that the thread state leads to. Its address tells the C frame. In 3.8 and 3.9 there is nothing
//! of that kind: there, the C frames have to be counted that execute the loop's function.
//!
//! A frame may be on the stack without a loop: where an exception is thrown into a generator that waits for another one,
//! up to 3.12 its frame only stands there while the other one is resumed.
//!
//! Invariant: reads what [`Chain::update`] has just read, and the records on this thread's stack.

use super::super::interpreter;
use super::super::layout::{Layout, OWNER_ENTRY};
use super::super::raw_memory::{byte, half, word};
use super::Chain;

/// A place at which C code entered an evaluation loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EvaluationEntry {
    /// An address in the loop's C frame; 0 where the interpreter keeps none.
    pub(crate) address: usize,
    /// Shown frames that are older.
    pub(crate) shown: u32,
}

/// Where a thread state has the innermost loop's record.
const RECORD_310: usize = 48;
const RECORD_311: usize = 56;
/// In a record: the one of the loop around it, and in 3.11 the newest frame that its loop runs.
const AROUND_310: usize = 8;
const AROUND_311: usize = 16;
const RUNS_311: usize = 8;
/// In a frame up to 3.10: what is set while a generator's frame waits, or a trace function runs, and the generator.
const WAITS_AT: usize = 72;
const WAITS_AT_310: usize = 80;
const GENERATOR: usize = 96;
const GENERATOR_310: usize = 88;

/// From this version on the frame at the root is the thread state's own.
const FIRST_WITH_BASE: u8 = 15;

impl Chain {
    /// Gives the entries that have at least `from` older shown frames, the newest first.
    pub(crate) fn entries(&self, from: u32, mut give: impl FnMut(EvaluationEntry)) {
        let Some(layout) = interpreter::interpreter().map(|python| python.layout) else { return };
        // Without frames the thread may have no state.
        if self.length == 0 {
            return;
        }
        let mut records = LoopRecords::of(layout.minor, self.state);
        // SAFETY: a field of the thread's own state.
        let is_traced = layout.minor <= 10 && unsafe { half(self.state.wrapping_add(layout.tracing)) } != 0;
        for position in (0..self.length).rev() {
            let detail = self.links.get(position).detail;
            let frame = self.links.get(position.wrapping_add(1)).previous;
            let shown = detail.shown.wrapping_sub(u32::from(detail.id != 0));
            if detail.shown < from {
                break;
            }
            let is_entry = match layout.minor {
                8..=10 => is_traced || !waits(layout.minor, frame),
                11 => records.is_entry(self.links.get(position).previous),
                _ => self.stands_for_entry(layout, position, frame),
            };
            if shown < from || !is_entry {
                continue;
            }
            let address = match layout.minor {
                8 | 9 => Some(0),
                10 | 11 => records.next(),
                _ => Some(frame),
            };
            let Some(address) = address else { break };
            give(EvaluationEntry { address, shown });
        }
    }

    /// Whether the frame is no code's, but stands for an entry, in 3.12 and later.
    fn stands_for_entry(&self, layout: &Layout, position: usize, frame: usize) -> bool {
        let owner = layout.incomplete_frame.map_or(0, |fields| fields.owner);
        let is_hidden = self.links.get(position).detail.id == 0;
        // The thread state's own frame is no loop's.
        is_hidden
            && (layout.minor < FIRST_WITH_BASE || self.links.get(position).previous != 0)
            // SAFETY: a field of a frame that was just reached from this thread's newest.
            && unsafe { byte(frame.wrapping_add(owner)) >= OWNER_ENTRY }
    }
}

/// Whether a frame of 3.8 to 3.10 is a generator's that waits for another one, into which an exception is thrown.
fn waits(minor: u8, frame: usize) -> bool {
    let generator = if minor == 10 { GENERATOR_310 } else { GENERATOR };
    // SAFETY: a field of a frame that was just reached from this thread's newest.
    if unsafe { word(frame.wrapping_add(generator)) } == 0 {
        return false;
    }
    if minor == 10 {
        // SAFETY: as above.
        (unsafe { half(frame.wrapping_add(WAITS_AT_310)) }).cast_signed() >= 0
    } else {
        // SAFETY: as above.
        (unsafe { word(frame.wrapping_add(WAITS_AT)) }) != 0
    }
}

/// The records of the loops of 3.10 and 3.11, the innermost first.
struct LoopRecords {
    record: usize,
    around: usize,
    /// In 3.11, the newest frame that the loop around runs; what that loop runs may have got frames without one of its own.
    below: usize,
    minor: u8,
}

impl LoopRecords {
    fn of(minor: u8, state: usize) -> Self {
        let mut records = Self { record: 0, around: 0, below: 0, minor };
        let place = match minor {
            10 => RECORD_310,
            11 => RECORD_311,
            _ => return records,
        };
        // SAFETY: a field of the thread's own state.
        records.go_to(unsafe { word(state.wrapping_add(place)) });
        records
    }

    fn go_to(&mut self, record: usize) {
        self.record = record;
        let next = if self.minor == 10 { AROUND_310 } else { AROUND_311 };
        // SAFETY: a record on the thread's stack that a loop which still runs has put there, or the thread state's own.
        self.around = if record == 0 { 0 } else { unsafe { word(record.wrapping_add(next)) } };
        let runs = self.around.wrapping_add(RUNS_311);
        // SAFETY: as above.
        self.below = if self.minor == 10 || self.around == 0 { 0 } else { unsafe { word(runs) } };
    }

    /// Whether a frame with this caller is the first one of the loop.
    const fn is_entry(&self, caller: usize) -> bool {
        self.record != 0 && caller == self.below
    }

    /// The loop's record; the one around it is the next.
    fn next(&mut self) -> Option<usize> {
        let record = self.record;
        self.go_to(self.around);
        (record != 0).then_some(record)
    }
}
