//! The options of a replay: which optional results to compute, and facts about the capture.
//!
//! Invariant: an option changes no sum that it does not mention.

use super::Selection;

/// The options of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many further allocations of its thread a temporary allocation may outlive.
    pub temporary_threshold: u32,
    /// Compute live bytes over time, and which allocations were live at about this many moments; costs memory and time.
    /// Each snapshot is a moment; if there are too many, the one with the largest heap of every few neighbours is.
    pub moments: u32,
    /// The number of snapshots in the capture, if known, from which the number of neighbours per moment follows.
    pub snapshots: u64,
    /// Compute the [details](super::Detail) of each group; costs memory and time.
    pub details: bool,
    /// Keep for each group what has ended of it, so that [`Replay::flows`](crate::Replay::flows) can be asked at any time.
    pub flows: bool,
    /// Which allocations are counted.
    pub selection: Selection,
    /// Event times are exact; else they are those of the last tick.
    pub exact_times: bool,
    /// The process was forked: a free without an allocation is counted as inherited.
    pub forked: bool,
    /// The peak is the common one of several processes: see [`crate::together`].
    pub shared_peak: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            temporary_threshold: 1,
            moments: 0,
            snapshots: 0,
            details: false,
            flows: false,
            selection: Selection::default(),
            exact_times: false,
            forked: false,
            shared_peak: false,
        }
    }
}
