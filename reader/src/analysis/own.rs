//! What the interpreter holds on its own account, told apart from what the program made it hold.
//!
//! Where every block of Python's allocators is recorded, a leak report of the smallest script has thousands of rows: type
//! objects, interned strings, the modules of the start-up. They are known by their stack: it has no Python frame, or it
//! begins in the import machinery, as only an import by the interpreter itself does, and never leaves the standard
//! library. What the interpreter keeps from the program's own calls, as a free list does, stays with those calls: that
//! such a block is not in use is nothing an allocator could tell.
//!
//! Invariant: a row with a frame of the program or of an installed package is never counted.

use memtrack_format::Allocator;

use super::{GroupRow, Tally};
use crate::event::StackId;
use crate::frames::Frames;
use crate::modules::{Module, Modules};

/// The source of the import machinery, as every version calls it.
const IMPORT: &str = "<frozen importlib._bootstrap>";

/// The rows' blocks of Python's allocators that the interpreter made on its own account.
#[must_use]
pub fn of_interpreter(rows: &[GroupRow], frames: &Frames) -> Tally {
    let mut modules = Modules::default();
    let mut sum = Tally::default();
    for row in rows.iter().filter(|row| is_python(row.allocator) && is_own(row.stack, frames, &mut modules)) {
        sum.add(row.bytes, row.count);
    }
    sum
}

fn is_python(allocator: Allocator) -> bool {
    matches!(allocator, Allocator::PymallocMalloc | Allocator::PymallocCalloc | Allocator::PymallocRealloc)
}

fn is_own(stack: StackId, frames: &Frames, modules: &mut Modules) -> bool {
    match frames.leaf_to_root(stack).last() {
        Some(root) => frames.file(root) == IMPORT && modules.of_stack(frames, stack) == Module::default(),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{IMPORT, of_interpreter};
    use crate::analysis::{GroupRow, Tally};
    use crate::event::{StackId, ThreadId};
    use crate::frames::Frames;
    use memtrack_format::Allocator;

    #[test]
    fn only_what_no_code_of_the_program_had_part_in() {
        let mut frames = Frames::new();
        let library = "/usr/lib/python3.11/os.py";
        let mut sums = Vec::new();
        for (files, allocator, own) in [
            (&[][..], Allocator::PymallocMalloc, true),
            (&[], Allocator::Malloc, false),
            (&[IMPORT, library], Allocator::PymallocRealloc, true),
            (&[IMPORT, library], Allocator::Mmap, false),
            (&[IMPORT, "/app/start.py", library], Allocator::PymallocMalloc, false),
            (&["/app/start.py", IMPORT, library], Allocator::PymallocMalloc, false),
            (&["/usr/lib/python3.11/runpy.py", IMPORT], Allocator::PymallocCalloc, false),
        ] {
            let stack = files.iter().fold(StackId::EMPTY, |parent, file| {
                let (function, file) = (frames.name_id("f").unwrap(), frames.name_id(file).unwrap());
                let frame = frames.frame_id(function, file, 1).unwrap();
                frames.stack_id(parent, frame).unwrap()
            });
            let row = GroupRow {
                stack,
                allocator,
                thread: ThreadId(0),
                bytes: 100,
                count: 2,
                first_order: 0,
                first_time_ns: 0,
                first_snapshot: 0,
            };
            sums.push((row, if own { Tally { bytes: 100, count: 2 } } else { Tally::default() }));
        }
        for (row, expected) in sums {
            assert_eq!(of_interpreter(&[row], &frames), expected, "{row:?}");
        }
    }
}
