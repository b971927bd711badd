//! The sentinel that has just proven the older frames of a chain, for what else follows from it.
//!
//! Invariant: a sentinel is given only after [`Chain::update`](super::Chain::update) in the same hook, and only while it
//! stands.

use super::super::interpreter;
use super::super::layout::SentinelKind;
use super::super::raw_memory::half;
use super::Chain;

/// A sentinel that stands: its frame waits in the same call as when it was made, and so does the evaluation loop that runs
/// the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandingSentinel {
    /// No other sentinel of the process has this number.
    pub(crate) number: usize,
    /// How many of the chain are older.
    pub(crate) older: usize,
    /// Shown frames up to and with the one that has it.
    pub(crate) shown: u32,
}

impl Chain {
    /// The newest sentinel of the frames that were just compared.
    #[inline(always)]
    pub(crate) fn standing_sentinel(&self) -> Option<StandingSentinel> {
        let (place, sentinels) = self.span.floor_below(usize::MAX)?;
        let older = sentinels.checked_sub(1)?;
        let sentinel = self.span.sentinel();
        let layout = interpreter::interpreter()?.layout;
        let position = self.links.get(place).position;
        let is_of_frame = sentinel.position == position || !matches!(layout.sentinel_kind, SentinelKind::ResultSlot(_));
        let shown = self.links.get(place).detail.shown;
        // Where a trace function runs, none counts.
        let stands = is_of_frame && sentinel.stands_as(&layout.sentinel_kind)
            // SAFETY: a field of the state from which this update reached its frames.
            && unsafe { half(self.state.wrapping_add(layout.tracing)) } == 0;
        stands.then_some(StandingSentinel { number: sentinel.number(), older, shown })
    }
}
