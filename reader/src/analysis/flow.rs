//! What a group has allocated and freed in a span of time, and what it holds then.
//!
//! Invariant: over the whole recording, `live` is `allocated` less `freed`.

use memtrack_format::Allocator;

use super::Tally;
use crate::event::{StackId, ThreadId};

/// The sums of one stack, thread and allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFlow {
    /// The full call stack.
    pub stack: StackId,
    /// The allocating thread.
    pub thread: ThreadId,
    /// The allocating function.
    pub allocator: Allocator,
    /// What was allocated.
    pub allocated: Tally,
    /// What has ended of all that the group has ever allocated.
    pub freed: Tally,
    /// What is live at the end.
    pub live: Tally,
    /// The most bytes that were live at a moment, and the blocks then; `None`: it is not kept, see
    /// [`Options::window_peaks`](super::Options::window_peaks).
    pub peak: Option<Tally>,
}

/// The most that each group had live at a moment since the present window began.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowPeaks(Vec<Tally>);

impl WindowPeaks {
    /// A window begins; what is live then, by group.
    pub(super) fn begin(&mut self, live: impl Iterator<Item = Tally>) {
        self.0.clear();
        self.0.extend(live);
    }

    /// The group has this live after an allocation.
    #[inline]
    pub(super) fn raise(&mut self, group: u32, live: Tally) {
        let group = group as usize;
        if group >= self.0.len() {
            self.0.resize(group + 1, Tally::default());
        }
        if let Some(peak) = self.0.get_mut(group).filter(|peak| peak.bytes < live.bytes) {
            *peak = live;
        }
    }

    /// That of a group.
    pub(super) fn of(&self, group: u32) -> Tally {
        self.0.get(group as usize).copied().unwrap_or_default()
    }
}
