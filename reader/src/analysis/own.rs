//! What is held whatever the program does, told apart from what it holds by its own calls.
//!
//! Where every block of Python's allocators is recorded, a leak report of the smallest script has thousands of rows: type
//! objects, interned strings, the modules of the start-up. The interpreter's own are known by their stack: it has no
//! Python frame, or its Python frames begin in the import machinery, as only an import by the interpreter itself does,
//! and never leave the standard library. What imports hold is what the import machinery allocated itself, for whomever:
//! the code of modules with its interned names and constants, which stay as long as the module. What the interpreter
//! keeps from the program's own calls, as a free list does, stays with those calls: that such a block is not in use is
//! nothing an allocator could tell. Native frames are looked through, so that the figures are the same with `--native`.
//!
//! Invariant: a row whose innermost Python frame is of the program or of an installed package is never counted.

use memtrack_format::Allocator;

use super::{GroupRow, Tally};
use crate::event::StackId;
use crate::frames::{FrameId, Frames};
use crate::modules::Modules;

/// The source of the import machinery, as every version calls it.
const IMPORT: &str = "<frozen importlib._bootstrap>";

/// What is held whatever the program does. No allocation is in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The interpreter's own.
    pub interpreter: Tally,
    /// The code of imported modules.
    pub imports: Tally,
}

/// The rows' blocks of Python's allocators that are not the program's.
#[must_use]
pub fn kept(rows: &[GroupRow], frames: &Frames) -> Kept {
    let mut modules = Modules::default();
    let mut kept = Kept::default();
    for row in rows.iter().filter(|row| is_python(row.allocator)) {
        if is_own(row.stack, frames, &mut modules) {
            kept.interpreter.add(row.bytes, row.count);
        } else if is_import(row.stack, frames) {
            kept.imports.add(row.bytes, row.count);
        }
    }
    kept
}

/// Whether the import machinery itself allocated it: its two modules have names of this form in every version.
fn is_import(stack: StackId, frames: &Frames) -> bool {
    python_frames(stack, frames)
        .next()
        .is_some_and(|leaf| frames.file(leaf).starts_with("<frozen importlib._bootstrap"))
}

/// Innermost first.
fn python_frames(stack: StackId, frames: &Frames) -> impl Iterator<Item = FrameId> + '_ {
    frames.leaf_to_root(stack).filter(|&frame| frames.module_id(frame).is_none())
}

fn is_python(allocator: Allocator) -> bool {
    allocator.python_domain().is_some()
}

fn is_own(stack: StackId, frames: &Frames, modules: &mut Modules) -> bool {
    match python_frames(stack, frames).last() {
        Some(root) => {
            let mut files = python_frames(stack, frames);
            frames.file(root) == IMPORT && files.all(|frame| modules.of_frame(frames, frame).is_none())
        }
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{IMPORT, Kept, kept};
    use crate::analysis::GroupRow;
    use crate::event::{StackId, ThreadId};
    use crate::frames::Frames;
    use memtrack_format::Allocator;

    #[test]
    fn only_what_no_code_of_the_program_had_part_in() {
        const NONE: (u64, u64) = (0, 0);
        const INTERPRETER: (u64, u64) = (100, 0);
        const IMPORTS: (u64, u64) = (0, 100);
        const PROGRAM: &str = "/usr/bin/python3.so";
        let library = "/usr/lib/python3.11/os.py";
        for (files, allocator, expected) in [
            (&[][..], Allocator::PymallocMalloc, INTERPRETER),
            (&[], Allocator::PymallocMallocRaw, INTERPRETER),
            (&[], Allocator::Malloc, NONE),
            (&[IMPORT, library], Allocator::PymallocRealloc, INTERPRETER),
            (&[IMPORT, library], Allocator::Mmap, NONE),
            (&[IMPORT, "/app/start.py", library], Allocator::PymallocMalloc, NONE),
            (&["/app/start.py", IMPORT, library], Allocator::PymallocMalloc, NONE),
            (&["/app/start.py", IMPORT], Allocator::PymallocCallocMem, IMPORTS),
            (&["/app/start.py", "<frozen importlib._bootstrap_external>"], Allocator::PymallocMalloc, IMPORTS),
            (&["/app/start.py", IMPORT], Allocator::Malloc, NONE),
            (&[PROGRAM], Allocator::PymallocMalloc, INTERPRETER),
            (&[PROGRAM, IMPORT, PROGRAM, library, "/lib/extension.so"], Allocator::PymallocMalloc, INTERPRETER),
            (&[PROGRAM, "/app/start.py", PROGRAM, IMPORT, "/lib/extension.so"], Allocator::PymallocMalloc, IMPORTS),
            (&[PROGRAM, IMPORT, "/app/start.py", PROGRAM], Allocator::PymallocMalloc, NONE),
        ] {
            let (frames, row) = example(files, allocator);
            let Kept { interpreter, imports } = kept(&[row], &frames);
            assert_eq!((interpreter.bytes, imports.bytes), expected, "{files:?} {allocator:?}");
            assert_eq!(interpreter.count + imports.count, (expected.0 + expected.1) / 50);
        }
    }

    /// Two allocations of 50 bytes by functions in these files, outermost first; native ones in objects.
    fn example(files: &[&str], allocator: Allocator) -> (Frames, GroupRow) {
        let mut frames = Frames::new();
        let stack = files.iter().fold(StackId::EMPTY, |parent, file| {
            let (function, file_id) = (frames.name_id("f").unwrap(), frames.name_id(file).unwrap());
            let frame = frames.frame_id(function, file_id, 1).unwrap();
            if file.ends_with(".so") {
                frames.set_module(frame, file).unwrap();
            }
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
        (frames, row)
    }
}
