//! What a replay keeps, and what is known of the capture before it is read.
//!
//! Invariant: options never change a sum that they do not mention.

use super::Selection;

/// What to look at, and what is known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many further allocations of its thread a temporary allocation may outlive.
    pub temporary_threshold: u32,
    /// Keep live bytes over time, and what was live at so many moments, or a few more: costs memory and time. Each snapshot is a moment; or of each few
    /// neighbours, where there are too many, the one with the largest heap.
    pub moments: u32,
    /// The number of snapshots that are to come, where it is known: by that it is told which are too many.
    pub snapshots: u64,
    /// Keep [details](super::Detail) of each group: costs memory and time.
    pub details: bool,
    /// The single allocations to look at.
    pub selection: Selection,
    /// Event times are exact, not those of the tick before.
    pub exact_times: bool,
    /// The process was forked: what it frees without having allocated it, it has inherited.
    pub forked: bool,
    /// The sums of the peak are of what was live at that of several processes together: see [`crate::together`].
    pub shared_peak: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            temporary_threshold: 1,
            moments: 0,
            snapshots: 0,
            details: false,
            selection: Selection::default(),
            exact_times: false,
            forked: false,
            shared_peak: false,
        }
    }
}
