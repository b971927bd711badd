//! The result of reading a capture, as sums: what all reports are made of, and what an aggregated capture holds.
//!
//! The replay updates `GroupTotals` with each event, in one pass for all questions; [`Analysis`] is the result. It is
//! plain data with public fields, so that it can be saved, restored and constructed in tests.
//!
//! Invariant: every sum in a view belongs to one group (full stack, allocator, thread), and the sums of a view add up
//! to the total of its kind.

mod arenas;
mod block_weight;
mod breakdown;
mod calls;
mod curve;
mod detail;
pub mod diff;
mod estimate;
mod exact_moment;
mod failed;
mod flow;
mod group;
mod group_totals;
mod groups;
mod growth;
mod histogram;
mod interval_ends;
mod interval_tracker;
mod intervals;
mod lifetimes;
mod live_block;
mod mapped;
mod merge;
mod moment_index;
mod options;
pub mod ordering;
mod own;
mod peak_moves;
mod quiet;
mod running_flow;
mod sample_distances;
mod sampled_peak;
mod sampled_variances;
mod sampling_gaps;
mod selection;
mod shared_samples;
pub(crate) mod short_lived_sums;
mod since;
mod totals;

pub use breakdown::{AllocatorRow, Breakdown, FrameRow, ModuleRow, ThreadRow};
pub use calls::{CallNode, CallTree, KeyRow};
pub use curve::Curve;
pub use detail::Detail;
pub use estimate::{SampleWeights, Variance, ViewVariances, unseen_bytes};
pub use failed::{Failed, FailedGroup};
pub(crate) use flow::ExactFlow;
pub use flow::{GroupFlow, SiteWindow};
pub use group::{Group, Sum};
pub use groups::Groups;
pub use growth::{LiveSeries, UnendingGrowth};
pub use histogram::{SizeBin, SizeHistogram};
pub use interval_ends::difference_range;
pub use intervals::{Interval, Intervals};
pub use lifetimes::{Handovers, LIFETIME_BOUNDS_NS, Lifetimes};
pub use mapped::{Mapped, MappedGroup};
pub use options::{Options, UnknownBlocks};
pub use own::{BaselineMemory, kept};
pub use quiet::{CaptureRows, FunctionKey, MovedBlocks, ReducedRows};
pub use running_flow::{FlowMark, RunningFlow};
pub use sampling_gaps::SamplingGaps;
pub use selection::Selection;
pub use shared_samples::{RecordingPart, share_live, share_samples};
pub use totals::{ClassTotals, MappingTotals, Moment, Peak, Tally, Totals};

pub(crate) use estimate::{HALVES, Halves};
pub(crate) use group_totals::{GroupTotals, LiveSample};
pub(crate) use live_block::{LiveBlock, LivePart, ReleasedBlock};
pub(crate) use sampled_peak::excess;

use memtrack_format::Allocator;

use crate::event::{Snapshot, StackId, ThreadId};

/// The result of one pass over a capture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Analysis {
    /// Sums for each (stack, allocator, thread), in the order of their first allocation.
    pub groups: Groups,
    /// Sums over the whole capture.
    pub totals: Totals,
    /// Failed allocation calls.
    pub failed: Failed,
    /// Who made the mappings that are not heap.
    pub mapped: Mapped,
    /// The memory snapshots, in order.
    pub snapshots: Vec<Snapshot>,
    /// The snapshots at which allocations were live; present if [`Options::moments`](crate::Options) asked for it.
    pub intervals: Option<Intervals>,
    /// Statistics of each group, by its number; present if [`Options::details`](crate::Options) asked for them.
    pub details: Option<Vec<Detail>>,
    /// How exact the sums of each group are, by its number; present where they are estimates.
    pub variances: Option<Vec<ViewVariances>>,
    /// Of samples, how many more allocations were counted than estimated: see [`SamplingGaps::unaccounted`].
    pub unaccounted: u64,
    /// Whether event times are exact. Else they are those of the last tick, and the order by time is that of the
    /// snapshots.
    pub exact_times: bool,
    /// Whether it has several processes: their events are in the total order one process after the other, and in that of time by their
    /// times only.
    pub is_joined: bool,
    /// Live bytes over time; present if [`Options::moments`](crate::Options) asked for them.
    pub curve: Option<Curve>,
    /// What each group did in spans of time, in order; only of aggregated captures with windows (`run --window`).
    pub windows: Vec<SiteWindow>,
}

/// Which allocations a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// What was live when live bytes were at their maximum, at the first such moment.
    #[default]
    HighWaterMark,
    /// What was live when Python began to finalize, or at the last moment where that was not seen.
    Leaks,
    /// What was live at the last moment.
    LeaksAtExit,
    /// What the allocating thread freed again after at most `Options::temporary_threshold` further allocations.
    Temporary,
    /// Everything ever allocated.
    Allocated,
    /// The resident pages that blocks of one stack alone keep, and these blocks, at the moment when most of resident memory
    /// had no live block; empty where that moment was not looked for.
    Pinned,
    /// The Python objects that a picture has, each below the stack that allocated it and its type; empty where no picture was
    /// [added](Analysis::add_objects).
    Objects,
}

/// What one group contributes to a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The full call stack.
    pub stack: StackId,
    /// The allocating function.
    pub allocator: Allocator,
    /// The allocating thread.
    pub thread: ThreadId,
    /// Bytes requested.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
    /// Place in the total order of the earliest allocation that contributes.
    pub first_order: u64,
    /// Its time, in nanoseconds since recording began (the earliest of the contributors').
    pub first_time_ns: u64,
    /// Index of the first snapshot that shows one of the contributors; the number of snapshots when none came after.
    pub first_snapshot: u32,
    /// How exact bytes and number are.
    pub variance: Variance,
}

impl GroupRow {
    /// Bytes and number.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally { bytes: self.bytes, count: self.count, variance: self.variance }
    }

    /// A row of the first thread, the first in capture order.
    #[cfg(test)]
    pub(crate) fn example(stack: StackId, allocator: Allocator, bytes: u64, count: u64) -> Self {
        let (thread, first_order, first_time_ns, first_snapshot) = (ThreadId(0), 0, 0, 0);
        let variance = Variance::default();
        Self { stack, allocator, thread, bytes, count, first_order, first_time_ns, first_snapshot, variance }
    }
}

impl Analysis {
    /// The groups that contribute to `view`, in the order of their first allocation.
    #[must_use]
    pub fn view(&self, view: View) -> Vec<GroupRow> {
        self.rows(view).collect()
    }

    /// The same one by one: there may be many millions.
    pub fn rows(&self, view: View) -> impl Iterator<Item = GroupRow> + '_ {
        self.groups.iter().enumerate().filter_map(move |(number, group)| self.row(number, &group, view))
    }

    /// How exact the sums of a group are in a view.
    #[must_use]
    pub fn variance(&self, group: usize, view: View) -> Variance {
        let variances = self.variances.as_ref().and_then(|variances| variances.get(group));
        variances.map_or_else(Variance::default, |variances| variances.of(view))
    }

    /// Widens the intervals by what the samples cannot show. Mappings are all recorded.
    pub fn note_gaps(&mut self, gaps: &SamplingGaps) {
        self.unaccounted = gaps.all_unaccounted();
        let Self { groups, variances, .. } = self;
        for (group, variances) in groups.iter().zip(variances.iter_mut().flatten()) {
            if !group.allocator.is_mapping() {
                // Its smallest blocks may be live, and those that were sampled not.
                let smallest = variances.of(View::Allocated).unseen_of_smallest();
                variances.change(|view, variance| {
                    let sum = group.sum(view);
                    let variance = gaps.of_sum(variance, (sum.bytes, sum.count), group.thread);
                    if view == View::Allocated { variance } else { variance.with_unseen((0, smallest)) }
                });
            }
        }
    }

    /// All sums were multiplied by this.
    pub fn scale_variances(&mut self, factor: f64) {
        for variances in self.variances.iter_mut().flatten() {
            *variances = variances.scaled(factor);
        }
    }

    /// How exact the sums of a view over all groups are.
    #[must_use]
    pub fn whole_variance(&self, view: View) -> Variance {
        let mut whole = Variance::default();
        self.variances.iter().flatten().for_each(|variances| whole += variances.of(view));
        whole
    }

    /// Sets the pages that each of these groups keeps, with its blocks in them.
    pub fn set_pinned(&mut self, groups: &[(u32, Tally)]) {
        for (number, Tally { bytes, count, .. }) in groups {
            self.groups.change(*number as usize, |group| {
                group.pinned = Sum { bytes: *bytes, count: *count, ..group.allocated };
            });
        }
    }

    /// Adds objects: groups that have nothing in any other view.
    pub fn add_objects(&mut self, groups: impl IntoIterator<Item = Group>) {
        groups.into_iter().for_each(|group| self.groups.push(&group));
        let number = self.groups.len();
        if let Some(details) = &mut self.details {
            details.resize_with(number, Detail::default);
        }
        if let Some(variances) = &mut self.variances {
            variances.resize_with(number, ViewVariances::default);
        }
    }

    /// Removes the peak: this process had ended before the common peak of several processes.
    pub(crate) fn drop_peak(&mut self) {
        self.groups.change_all(|group| group.peak = Sum::default());
        for variances in self.variances.iter_mut().flatten() {
            *variances = variances.with(View::HighWaterMark, Variance::EXACT);
        }
        self.totals.peak = Peak::default();
    }

    fn row(&self, number: usize, group: &Group, view: View) -> Option<GroupRow> {
        let sum = group.sum(view);
        (sum.count > 0 || sum.bytes > 0).then(|| GroupRow {
            stack: group.stack,
            allocator: group.allocator,
            thread: group.thread,
            bytes: sum.bytes,
            count: sum.count,
            first_order: sum.first_order,
            first_time_ns: sum.first_time_ns,
            first_snapshot: self.first_snapshot(sum),
            variance: self.variance(number, view),
        })
    }

    /// With exact times this is the first snapshot that is not earlier than the contributor. A thread may be delayed
    /// between reading the clock and taking its ticket, and the order by snapshot must not contradict the order by
    /// time.
    fn first_snapshot(&self, sum: &Sum) -> u32 {
        let before = if self.exact_times {
            self.snapshots.partition_point(|snapshot| snapshot.time_ns < sum.first_time_ns)
        } else if self.is_joined {
            // The time is that of the process's last snapshot before.
            self.snapshots.partition_point(|snapshot| snapshot.time_ns <= sum.first_time_ns)
        } else {
            snapshots_before(&self.snapshots, sum.first_order)
        };
        u32::try_from(before).unwrap_or(u32::MAX)
    }
}

/// The number of snapshots taken before the event with this order, and so the index of the first that can show it.
pub(crate) fn snapshots_before(snapshots: &[Snapshot], order: u64) -> usize {
    snapshots.partition_point(|snapshot| snapshot.order <= order)
}
