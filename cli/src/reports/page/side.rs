//! A capture of a page, with the node in the page's call tree and the owner of each group.
//!
//! Invariant: each group of the capture has a node and a [`Whose`], in the order of groups. The owner is determined by
//! the recorded stack, so that it is unchanged if the call site is merged into a caller.

use memtrack_reader::analysis::Tally;
use memtrack_reader::origin::{Whose, whose};
use memtrack_reader::{StackId, View};

use super::VIEWS;
use crate::reports::capture_info::Capture;

/// A capture, with the node and the owner of each of its groups.
#[derive(Debug)]
pub(super) struct PageSide<'a> {
    pub(super) capture: &'a Capture,
    pub(super) places: Vec<u32>,
    /// For each group and view of a difference: blocks that are matched with blocks of another function in the other
    /// capture. Empty otherwise.
    pub(super) matched_elsewhere: Vec<[Tally; VIEWS.len()]>,
    pub(super) whose: Vec<Whose>,
}

impl<'a> PageSide<'a> {
    /// A capture whose groups have these nodes, without matched blocks.
    pub(super) fn new(capture: &'a Capture, places: Vec<u32>) -> Self {
        let of_stack = whose(&capture.frames);
        let of_group = |stack: StackId| of_stack.get(stack.0 as usize).copied().unwrap_or_default();
        let whose = capture.analysis.groups.iter().map(|group| of_group(group.stack)).collect();
        Self { capture, places, whose, matched_elsewhere: Vec::new() }
    }

    /// Sets the matched blocks of a view. `rows` has an entry for each group with allocations in the view.
    pub(super) fn match_elsewhere(&mut self, number: usize, view: View, rows: &[Tally]) {
        let groups = &self.capture.analysis.groups;
        self.matched_elsewhere.resize_with(groups.iter().count(), Default::default);
        let has_row = groups.iter().map(|group| (group.sum(view).count, group.sum(view).bytes) != (0, 0));
        let with_row = self.matched_elsewhere.iter_mut().zip(has_row).filter(|(_, has_row)| *has_row);
        with_row.zip(rows).for_each(|((matched_elsewhere, _), row)| matched_elsewhere[number] = *row);
    }
}

/// Merges the groups of a capture with the same node, allocator, thread and owner; returns the nodes and owners of the
/// remaining groups.
pub(super) fn merge(capture: &mut Capture, places: &[u32], whose: &[Whose]) -> (Vec<u32>, Vec<Whose>) {
    let number = |whose: &Whose| Whose::ALL.iter().position(|one| one == whose).unwrap_or(0);
    let keys: Vec<u32> =
        places.iter().zip(whose).map(|(place, whose)| place * Whose::ALL.len() as u32 + number(whose) as u32).collect();
    let left = capture.analysis.merge_at(&keys).into_iter();
    left.map(|key| (key / Whose::ALL.len() as u32, Whose::ALL[key as usize % Whose::ALL.len()])).unzip()
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_reader::ThreadId;
    use memtrack_reader::analysis::Group;
    use memtrack_reader::origin::Whose;

    use super::{PageSide, merge};
    use crate::reports::fixture;

    #[test]
    fn groups_of_one_place_stay_apart_where_their_owners_differ() {
        let mut capture = fixture::empty();
        let mut stack = |files: &[&str]| {
            let mut id = |file: &&str| {
                let (function, file) = (capture.frames.name_id("f").unwrap(), capture.frames.name_id(file).unwrap());
                capture.frames.frame_id(function, file, 1).unwrap()
            };
            let ids: Vec<_> = files.iter().map(&mut id).collect();
            capture.frames.stack_of(&ids).unwrap()
        };
        let import = "<frozen importlib._bootstrap>";
        let stacks = [stack(&["/srv/app.py"]), stack(&["/srv/app.py", import]), stack(&["/srv/app.py", "/srv/a.py"])];
        for stack in stacks {
            capture.analysis.groups.push(&Group::new(stack, Allocator::Malloc, ThreadId(0)));
        }
        let whose = PageSide::new(&capture, vec![1; 3]).whose;
        assert_eq!(whose, [Whose::Own, Whose::Imports, Whose::Own]);
        assert_eq!(merge(&mut capture, &[1; 3], &whose), (vec![1, 1], vec![Whose::Own, Whose::Imports]));
    }
}
