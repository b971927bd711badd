//! A capture of a page, with the node in the page's call tree and the owner of each group.
//!
//! Invariant: each group of the capture has a node and a [`PageOwner`], in the order of groups. The owner is determined by
//! the recorded stack, so that it is unchanged if the call site is merged into a caller.

use memtrack_reader::analysis::{Group, Tally};
use memtrack_reader::origin::{Whose, whose};
use memtrack_reader::{StackId, View};

use super::VIEWS;
use crate::reports::capture_info::Capture;
use crate::reports::frameless::FramelessThreads;

/// Whose memory a group is; the numbers are those of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub(super) enum PageOwner {
    Own = 0,
    Libraries = 1,
    Standard = 2,
    Imports = 3,
    /// Of threads without Python code. What has the number between is known by its allocator.
    Frameless = 5,
}

impl PageOwner {
    const ALL: [Self; 5] = [Self::Own, Self::Libraries, Self::Standard, Self::Imports, Self::Frameless];

    fn of(whose: Whose) -> Self {
        match whose {
            Whose::Own => Self::Own,
            Whose::Libraries => Self::Libraries,
            Whose::Standard => Self::Standard,
            Whose::Imports => Self::Imports,
        }
    }
}

/// A capture, with the node and the owner of each of its groups.
#[derive(Debug)]
pub(super) struct PageSide<'a> {
    pub(super) capture: &'a Capture,
    pub(super) places: Vec<u32>,
    /// For each group and view of a difference: blocks that are matched with blocks of another function in the other
    /// capture. Empty otherwise.
    pub(super) matched_elsewhere: Vec<[Tally; VIEWS.len()]>,
    pub(super) owners: Vec<PageOwner>,
}

impl<'a> PageSide<'a> {
    /// A capture whose groups have these nodes, without matched blocks.
    pub(super) fn new(capture: &'a Capture, places: Vec<u32>) -> Self {
        let of_stack = whose(&capture.frames);
        let frameless = FramelessThreads::of(capture);
        let of_stack = |stack: StackId| of_stack.get(stack.0 as usize).copied().unwrap_or_default();
        let of_group = |group: Group| match frameless.has(group.stack, group.thread) {
            true => PageOwner::Frameless,
            false => PageOwner::of(of_stack(group.stack)),
        };
        let owners = capture.analysis.groups.iter().map(of_group).collect();
        Self { capture, places, owners, matched_elsewhere: Vec::new() }
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
pub(super) fn merge(capture: &mut Capture, places: &[u32], owners: &[PageOwner]) -> (Vec<u32>, Vec<PageOwner>) {
    let all = PageOwner::ALL;
    let number = |owner: &PageOwner| all.iter().position(|one| one == owner).unwrap_or(0) as u32;
    let keys = places.iter().zip(owners).map(|(place, owner)| place * all.len() as u32 + number(owner));
    let left = capture.analysis.merge_at(&keys.collect::<Vec<_>>()).into_iter();
    left.map(|key| (key / all.len() as u32, all[key as usize % all.len()])).unzip()
}

#[cfg(test)]
mod tests {
    use super::{PageOwner, PageSide, merge};
    use crate::reports::fixture;
    use memtrack_format::Allocator;
    use memtrack_reader::ThreadId;
    use memtrack_reader::analysis::Group;

    #[test]
    fn threads_without_python_code_are_not_the_standard_library() {
        let mut capture = fixture::capture();
        capture.info.process.pid = Some(100);
        let owner = |capture: &crate::reports::capture_info::Capture| PageSide::new(capture, vec![1; 4]).owners[2];
        assert_eq!(owner(&capture), PageOwner::Frameless);
        capture.info.process.native_traces = true;
        assert_eq!(owner(&capture), PageOwner::Standard);
    }

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
        let owners = PageSide::new(&capture, vec![1; 3]).owners;
        assert_eq!(owners, [PageOwner::Own, PageOwner::Imports, PageOwner::Own]);
        assert_eq!(merge(&mut capture, &[1; 3], &owners), (vec![1, 1], vec![PageOwner::Own, PageOwner::Imports]));
    }
}
