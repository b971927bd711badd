//! The options of a replay: which optional results to compute, and facts about the capture.
//!
//! Invariant: an option changes no sum that it does not mention.

use std::num::NonZeroU64;

use memtrack_format::meta::Process;

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
    /// Keep for each group, too, the most that was live of it since [`Replay::begin_window`](crate::Replay::begin_window).
    pub window_peaks: bool,
    /// Only samples of allocations were recorded, this many bytes apart on the average; sums are estimates.
    pub sample_bytes: Option<NonZeroU64>,
    /// Which allocations are counted.
    pub selection: Selection,
    /// Event times are exact; else they are those of the last tick.
    pub exact_times: bool,
    /// What a free is counted as whose block's allocation was not recorded.
    pub unknown_blocks: UnknownBlocks,
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
            window_peaks: false,
            sample_bytes: None,
            selection: Selection::default(),
            exact_times: false,
            unknown_blocks: UnknownBlocks::Unmatched,
            shared_peak: false,
        }
    }
}

/// Where blocks and mappings come from that are freed without a recorded allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownBlocks {
    /// Everything was recorded from the program's start: such a free has no explanation.
    #[default]
    Unmatched,
    /// The process was forked: its parent had allocated them.
    Inherited,
    /// Recording began while the process was running: they are from before.
    Earlier,
}

impl UnknownBlocks {
    /// Those of a process's first image.
    #[must_use]
    pub fn of(process: &Process) -> Self {
        match (process.fork_ticket, process.began_late) {
            (Some(_), _) => Self::Inherited,
            (None, true) => Self::Earlier,
            (None, false) => Self::Unmatched,
        }
    }
}
