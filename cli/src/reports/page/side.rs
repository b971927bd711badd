//! A capture of a page, and where in the page's call tree its allocations belong.
//!
//! Invariant: there is a place for each group of the capture, in their order.

use crate::reports::facts::Capture;

/// A capture and the place of each of its groups in the tree.
#[derive(Debug)]
pub(super) struct Side<'a> {
    pub(super) capture: &'a Capture,
    pub(super) places: Vec<u32>,
}
