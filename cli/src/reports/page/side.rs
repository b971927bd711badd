//! A capture of a page, and where in the page's call tree its allocations belong.
//!
//! Invariant: there is a place for each group of the capture, in their order.

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::VIEWS;
use crate::reports::facts::Capture;

/// A capture and the place of each of its groups in the tree.
#[derive(Debug)]
pub(super) struct Side<'a> {
    pub(super) capture: &'a Capture,
    pub(super) places: Vec<u32>,
    /// Of a difference, for each view and group: the blocks that another function has in the other capture. They are
    /// there, but no news. Empty else.
    pub(super) set_off: Vec<[Tally; VIEWS.len()]>,
}

impl<'a> Side<'a> {
    /// A capture in whose groups nothing is set off.
    pub(super) fn new(capture: &'a Capture, places: Vec<u32>) -> Self {
        Self { capture, places, set_off: Vec::new() }
    }

    /// Takes over what was set off of the rows of a view: those of the groups that have something in it.
    pub(super) fn set_off(&mut self, number: usize, view: View, rows: &[Tally]) {
        let groups = &self.capture.analysis.groups;
        self.set_off.resize_with(groups.iter().count(), Default::default);
        let has_row = groups.iter().map(|group| (group.sum(view).count, group.sum(view).bytes) != (0, 0));
        let with_row = self.set_off.iter_mut().zip(has_row).filter(|(_, has_row)| *has_row);
        with_row.zip(rows).for_each(|((set_off, _), row)| set_off[number] = *row);
    }
}
