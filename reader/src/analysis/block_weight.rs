//! What a block stands for where samples are recorded: itself, or all the allocations of which it is the sample.
//!
//! Invariant: a block's weight is the same whenever it is asked for, so sums take back what they had added.

use super::estimate::{SampleWeights, Variance};
use super::groups::Groups;
use super::live_block::LiveBlock;

/// Bytes and number for which so many bytes of a block stand; `whole`: it counts as an allocation.
#[inline]
pub(super) fn weight_of(
    weights: Option<SampleWeights>,
    groups: &Groups,
    block: &LiveBlock,
    bytes: u64,
    whole: bool,
) -> (u64, u64) {
    // Mappings are recorded always.
    let is_sample = || groups.row(block.group).is_some_and(|row| !row.allocator().is_mapping());
    match weights.filter(|_| is_sample()) {
        None => (bytes, u64::from(whole)),
        Some(weights) => weights.of(block.size, block.order),
    }
}

/// The variance that it brings; `None`: it stands for itself.
#[inline]
pub(super) fn variance_of(weights: Option<SampleWeights>, groups: &Groups, block: &LiveBlock) -> Option<Variance> {
    let weights = weights?;
    // Mappings are recorded always.
    let is_sample = !groups.row(block.group)?.allocator().is_mapping();
    is_sample.then(|| weights.variance(block.size))
}
