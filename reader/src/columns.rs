//! Removes columns of frames where they distinguish nothing.
//!
//! A capture has the column of every frame (CPython 3.11 and later), so calls in one line are different stacks during
//! the replay. A reader needs a column only if the line has several calls. So afterwards all other columns are removed,
//! and reports without room for columns remove all of them. Stacks that become equal are merged with their sums.
//!
//! Invariant: no sum of a whole analysis changes, only the number of groups.

use rustc_hash::FxHashMap;

use crate::analysis::Analysis;
use crate::error::Error;
use crate::frames::{Frame, Frames, NameId};

/// A line of a function.
type FunctionLine = (NameId, NameId, u32);

/// Keeps columns only in lines with several columns. In other lines no two frames differ by their column alone, so no
/// stack and no group changes.
pub fn keep_where_several(frames: &mut Frames) {
    let several = lines_with_several(frames);
    let keeps = |frame: &Frame| frame.column == 0 || several.get(&line_of(frame)).is_some_and(Option::is_none);
    if !frames.frames().iter().all(keeps) {
        frames.relabel(|frame| if keeps(&frame) { frame } else { Frame { column: 0, ..frame } });
    }
}

fn line_of(frame: &Frame) -> FunctionLine {
    (frame.function, frame.file, frame.line)
}

/// For each line its column, or `None` if there are several.
fn lines_with_several(frames: &Frames) -> FxHashMap<FunctionLine, Option<u32>> {
    let mut columns: FxHashMap<FunctionLine, Option<u32>> = FxHashMap::default();
    for frame in frames.frames() {
        let column = columns.entry(line_of(frame)).or_insert(Some(frame.column));
        if *column != Some(frame.column) {
            *column = None;
        }
    }
    columns
}

/// Removes all columns and merges stacks that become equal.
///
/// # Errors
/// [`Error::TooMany`], which tables that are no larger than those before cannot run into.
pub fn drop_all(analysis: &mut Analysis, frames: &mut Frames) -> Result<(), Error> {
    if frames.frames().iter().all(|frame| frame.column == 0) {
        return Ok(());
    }
    // Both tables are in memory for a while, but their indices, which take most of it, only once.
    frames.forget_stack_ids();
    let mut merged = Frames::new();
    let stacks = merged.take_over(frames, |frame| Frame { column: 0, ..frame })?;
    *frames = merged;
    analysis
        .merge_groups(|group| (stacks.get(group.stack.0 as usize).copied().unwrap_or(group.stack), group.allocator));
    Ok(())
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::{drop_all, keep_where_several};
    use crate::analysis::{Analysis, Group, Sum, View};
    use crate::event::ThreadId;
    use crate::frames::{Frame, Frames};

    /// Leaves at (line, column) below one caller, each with an allocation of so many bytes.
    fn example(places: &[(u32, u32, u64)]) -> (Analysis, Frames) {
        let (mut frames, mut analysis) = (Frames::new(), Analysis::default());
        let [main, work, file] = ["main", "work", "app.py"].map(|name| frames.name_id(name).unwrap());
        for (order, &(line, column, bytes)) in (0..).zip(places) {
            let caller = frames.id_of(Frame { function: main, file, line: 90, column: 5 }).unwrap();
            let leaf = frames.id_of(Frame { function: work, file, line, column }).unwrap();
            let stack = frames.stack_of(&[caller, leaf]).unwrap();
            let sum = Sum { bytes, count: 1, first_order: order, first_time_ns: 10 * order };
            let group = Group::new(stack, Allocator::Malloc, ThreadId(0));
            analysis.groups.push(&Group { allocated: sum, peak: sum, ..group });
        }
        (analysis, frames)
    }

    /// (line, column, bytes, first order) of each group's leaf, and the caller's column.
    fn leaves(analysis: &Analysis, frames: &Frames) -> Vec<((u32, u32), u64, u64, u32)> {
        let rows = analysis.view(View::Allocated).into_iter();
        rows.map(|row| {
            let stack = frames.root_to_leaf(row.stack);
            let [caller, leaf] = [0, 1].map(|at: usize| frames.frame(stack[at]));
            ((leaf.line, leaf.column), row.bytes, row.first_order, caller.column)
        })
        .collect()
    }

    const PLACES: [(u32, u32, u64); 5] = [(7, 9, 100), (8, 3, 20), (7, 30, 1), (9, 0, 5), (9, 4, 6)];

    #[test]
    fn columns_stay_where_a_line_has_several() {
        let (analysis, mut frames) = example(&PLACES);
        keep_where_several(&mut frames);
        let expected =
            [((7, 9), 100, 0, 0), ((8, 0), 20, 1, 0), ((7, 30), 1, 2, 0), ((9, 0), 5, 3, 0), ((9, 4), 6, 4, 0)];
        assert_eq!(leaves(&analysis, &frames), expected);
    }

    #[test]
    fn stacks_that_differ_in_columns_alone_become_one() {
        let (mut analysis, mut frames) = example(&PLACES);
        drop_all(&mut analysis, &mut frames).unwrap();
        assert_eq!(leaves(&analysis, &frames), [((7, 0), 101, 0, 0), ((8, 0), 20, 1, 0), ((9, 0), 11, 3, 0)]);
        assert_eq!((frames.frames().len(), frames.stacks().len()), (4, 4));
    }

    #[test]
    fn what_has_no_columns_is_left_as_it_is() {
        let (mut analysis, mut frames) = example(&[(7, 9, 1)]);
        drop_all(&mut analysis, &mut frames).unwrap();
        let before = (analysis.clone(), frames.frames().to_vec());
        keep_where_several(&mut frames);
        assert_eq!((analysis, frames.frames().to_vec()), before);
    }
}
