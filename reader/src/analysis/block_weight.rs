//! What a block stands for where samples are recorded: itself, or all the allocations of which it is the sample.
//!
//! Invariant: a block's weight is the same whenever it is asked for, so sums take back what they had added.

use super::estimate::{HALVES, Halves, SampleWeights, Variance};
use super::groups::Groups;
use super::live_block::LiveBlock;
use super::sample_distances::SampleDistances;

/// What a block adds to sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWeight {
    /// Bytes and number.
    pub(super) tally: (u64, u64),
    /// Bytes in each half.
    pub(super) halves: Halves,
    /// The variance of its bytes.
    pub(super) variance: f64,
    /// It stands for itself, or nearly so.
    pub(super) is_certain: bool,
}

impl BlockWeight {
    /// Its bytes, if they are known exactly.
    pub(super) fn certain_bytes(&self) -> u64 {
        if self.is_certain { self.tally.0 } else { 0 }
    }
}

/// Bytes and number for which so many bytes of a block stand; `whole`: it counts as an allocation.
#[inline]
pub(super) fn weight_of(
    distances: Option<&SampleDistances>,
    groups: &Groups,
    block: &LiveBlock,
    bytes: u64,
    whole: bool,
) -> (u64, u64) {
    match distances.and_then(|distances| weights_of(distances, groups, block)) {
        None => (bytes, u64::from(whole)),
        Some(weights) => weights.of(block.size, block.order),
    }
}

/// The variance that it brings; `None`: it stands for itself.
#[inline]
pub(super) fn variance_of(distances: Option<&SampleDistances>, groups: &Groups, block: &LiveBlock) -> Option<Variance> {
    weights_of(distances?, groups, block).map(|weights| weights.variance(block.size))
}

/// What a part of a block adds to the sums of a peak that is estimated.
pub(super) fn peak_weight_of(
    distances: &SampleDistances,
    groups: &Groups,
    block: &LiveBlock,
    bytes: u64,
    whole: bool,
) -> BlockWeight {
    match weights_of(distances, groups, block) {
        None => {
            BlockWeight { tally: (bytes, u64::from(whole)), halves: [bytes; HALVES], variance: 0.0, is_certain: true }
        }
        Some(weights) => BlockWeight {
            tally: weights.of(block.size, block.order),
            halves: weights.halves(block.size, block.order),
            variance: weights.variance(block.size).bytes.into(),
            is_certain: weights.is_nearly_certain(block.size),
        },
    }
}

/// By what the block was sampled. Mappings are recorded always.
#[inline]
fn weights_of(distances: &SampleDistances, groups: &Groups, block: &LiveBlock) -> Option<SampleWeights> {
    let row = groups.row(block.group).filter(|row| !row.allocator().is_mapping())?;
    Some(distances.at(row.thread, block.order))
}
