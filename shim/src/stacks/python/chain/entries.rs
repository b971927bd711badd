//! Finds the frames at which C code entered an evaluation loop; used to merge Python and native stacks.
//!
//! Each evaluation loop keeps something of its own in its C frame: from 3.12 on the frame that stands for the entry, in
//! 3.10 and 3.11 a record that the thread state leads to. Its address tells the C frame. In 3.8 and 3.9 there is nothing
//! of that kind: there, the caller says which C frames execute the loop's function.
//!
//! Invariant: reads what [`Chain::update`] has just read, and the records on this thread's stack.

use super::super::interpreter;
use super::super::layout::{Layout, OWNER_ENTRY};
use super::super::raw_memory::{byte, word};
use super::Chain;

/// A place at which C code entered an evaluation loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EvaluationEntry {
    /// An address in the loop's C frame.
    pub(crate) address: usize,
    /// Shown frames that are older.
    pub(crate) shown: u32,
}

/// In a thread state, the innermost loop's record, and in that the one around it.
const RECORD_310: [usize; 2] = [48, 8];
const RECORD_311: [usize; 2] = [56, 16];
/// In a frame of 3.11: the byte that is 1 when C code entered it.
const IS_ENTRY: usize = 68;

/// From this version on the frame at the root is the thread state's own.
const FIRST_WITH_BASE: u8 = 15;

impl Chain {
    /// Gives the entries that have at least `from` older shown frames, the newest first. Where the interpreter keeps no
    /// addresses, `loops` gives those of the C frames that execute the loop's function.
    pub(crate) fn entries(
        &self,
        from: u32,
        mut loops: impl FnMut() -> Option<usize>,
        mut give: impl FnMut(EvaluationEntry),
    ) {
        let Some(layout) = interpreter::interpreter().map(|python| python.layout) else { return };
        let minor = layout.minor;
        let mut record = match minor {
            10 => Some((self.state, RECORD_310)),
            11 => Some((self.state, RECORD_311)),
            _ => None,
        };
        for position in (0..self.length).rev() {
            let detail = self.details.get(position);
            let frame = self.links.get(position.wrapping_add(1)).previous;
            let shown = detail.shown.wrapping_sub(u32::from(detail.id != 0));
            if detail.shown < from {
                break;
            }
            if shown < from || !self.is_entry(layout, position, frame) {
                continue;
            }
            let address = match minor {
                8 | 9 => loops(),
                10 | 11 => next_record(&mut record),
                _ => Some(frame),
            };
            let Some(address) = address else { break };
            give(EvaluationEntry { address, shown });
        }
    }

    fn is_entry(&self, layout: &Layout, position: usize, frame: usize) -> bool {
        match layout.minor {
            8..=10 => true,
            // SAFETY: a field of a frame that was just reached from this thread's newest.
            11 => unsafe { byte(frame.wrapping_add(IS_ENTRY)) != 0 },
            _ => {
                let owner = layout.incomplete_frame.map_or(0, |fields| fields.owner);
                let is_hidden = self.details.get(position).id == 0;
                // The thread state's own frame is no loop's.
                is_hidden
                    && (layout.minor < FIRST_WITH_BASE || self.links.get(position).previous != 0)
                    // SAFETY: a field of a frame that was just reached from this thread's newest.
                    && unsafe { byte(frame.wrapping_add(owner)) >= OWNER_ENTRY }
            }
        }
    }
}

/// The record that the place leads to, from which the next one is reached.
fn next_record(place: &mut Option<(usize, [usize; 2])>) -> Option<usize> {
    let (holder, [first, next]) = (*place)?;
    // SAFETY: the thread's own state, or a record on its stack that a loop which still runs has put there.
    let address = unsafe { word(holder.wrapping_add(first)) };
    *place = (address != 0).then_some((address, [next, next]));
    (address != 0).then_some(address)
}
