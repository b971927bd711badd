//! What is held whatever the program does, told apart from what it holds by its own calls.
//!
//! Where every block of Python's allocators is recorded, a leak report of the smallest script has thousands of rows: type
//! objects, interned strings, the modules of the start-up. The interpreter's own blocks are those without any Python frame.
//! What imports hold is what [`whose`] puts down to them, the modules that the interpreter imports when it starts among it.
//! What the interpreter keeps from the program's own calls, as a free list does, stays with those calls: that such a block
//! is not in use is nothing an allocator could tell.
//!
//! Invariant: no allocation is in both, and none that own code or a library asked for outside imports is in either.

use memtrack_format::Allocator;

use super::{GroupRow, Tally};
use crate::event::StackId;
use crate::frames::Frames;
use crate::origin::{Whose, whose};

/// The baseline memory, in two disjoint parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaselineMemory {
    /// The interpreter's own.
    pub interpreter: Tally,
    /// What imports hold.
    pub imports: Tally,
}

/// The baseline memory among these rows, without arenas of Python's allocators, whose content is unknown.
#[must_use]
pub fn kept(rows: &[GroupRow], frames: &Frames) -> BaselineMemory {
    let whose = whose(frames);
    let mut kept = BaselineMemory::default();
    for row in rows.iter().filter(|row| !row.allocator.is_python_arena()) {
        match whose.get(row.stack.0 as usize) {
            Some(Whose::Imports) => kept.imports += row.tally(),
            Some(Whose::Standard) if is_interpreters(row.allocator, row.stack, frames) => {
                kept.interpreter += row.tally();
            }
            _ => {}
        }
    }
    kept
}

fn is_interpreters(allocator: Allocator, stack: StackId, frames: &Frames) -> bool {
    let is_python = |frame| frames.module_id(frame).is_none();
    allocator.python_domain().is_some() && !frames.leaf_to_root(stack).any(is_python)
}

#[cfg(test)]
mod tests {
    use super::{BaselineMemory, kept};
    use crate::analysis::GroupRow;
    use crate::event::StackId;
    use crate::frames::Frames;
    use memtrack_format::Allocator;

    #[test]
    fn only_what_no_code_of_the_program_had_part_in() {
        const NONE: (u64, u64) = (0, 0);
        const INTERPRETER: (u64, u64) = (100, 0);
        const IMPORTS: (u64, u64) = (0, 100);
        const IMPORT: &str = "<frozen importlib._bootstrap>";
        const PROGRAM: &str = "/usr/bin/python3.11";
        let library = "/usr/lib/python3.11/os.py";
        for (files, allocator, expected) in [
            (&[][..], Allocator::PymallocMalloc, INTERPRETER),
            (&[], Allocator::PymallocMallocRaw, INTERPRETER),
            (&[], Allocator::Malloc, NONE),
            (&[library], Allocator::PymallocMalloc, NONE),
            (&["/app/start.py"], Allocator::PymallocMalloc, NONE),
            (&[IMPORT, library], Allocator::PymallocRealloc, IMPORTS),
            (&[IMPORT, library], Allocator::Mmap, IMPORTS),
            (&[IMPORT, library], Allocator::PymallocArena, NONE),
            (&[IMPORT, "/app/start.py", library], Allocator::PymallocMalloc, NONE),
            (&["/app/start.py", IMPORT, library], Allocator::PymallocMalloc, IMPORTS),
            (&["/app/start.py", "<frozen importlib._bootstrap_external>"], Allocator::PymallocMalloc, IMPORTS),
            (&[PROGRAM], Allocator::PymallocMalloc, INTERPRETER),
            (&[PROGRAM, IMPORT, PROGRAM, library, "/usr/lib/python3.11/lib-dynload/x.so"], Allocator::Malloc, IMPORTS),
            (&[PROGRAM, IMPORT, "/app/start.py", PROGRAM], Allocator::PymallocMalloc, NONE),
        ] {
            let (frames, row) = example(files, allocator);
            let BaselineMemory { interpreter, imports } = kept(&[row], &frames);
            assert_eq!((interpreter.bytes, imports.bytes), expected, "{files:?} {allocator:?}");
            assert_eq!(interpreter.count + imports.count, (expected.0 + expected.1) / 50);
        }
    }

    /// Two allocations of 50 bytes by functions in these files, outermost first; native ones in objects.
    fn example(files: &[&str], allocator: Allocator) -> (Frames, GroupRow) {
        let mut frames = Frames::new();
        let stack = files.iter().fold(StackId::EMPTY, |parent, file| {
            let frame = frames.frame_named("f", file, 1).unwrap();
            if file.ends_with(".so") || *file == "/usr/bin/python3.11" {
                frames.set_module(frame, file).unwrap();
            }
            frames.stack_id(parent, frame).unwrap()
        });
        (frames, GroupRow::example(stack, allocator, 100, 2))
    }
}
