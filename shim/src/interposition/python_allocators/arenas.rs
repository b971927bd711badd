//! Which mappings are arenas of Python's own allocators.
//!
//! Without `--trace-python-allocators` the mappings that pymalloc and the bundled mimalloc cut objects from are all
//! that is seen of small objects. They stay mapped while one object in them lives, so they must not be mistaken for
//! what the program holds. pymalloc maps by the function that `PyObject_GetArenaAllocator` names, which also maps the
//! chunks of the interpreter's stack: those have other sizes. mimalloc has no such name; it is part of the
//! interpreter's object and asks for unreserved memory, which nothing else there does. (Where the system does not
//! overcommit it asks for memory as everybody does, and its mappings are not told apart.)
//!
//! Invariant: a mapping is called an arena only if the return address of the call and its arguments prove it.

#![expect(clippy::disallowed_types, reason = "an interpreter is found outside of hooks")]

use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use libc::c_void;
use libloading::os::unix::Library;
use memtrack_format::Allocator;

use crate::platform::dladdr::object_range;
use crate::platform::symbol_tables::is_defined;
use crate::stacks::python::version_hex;

/// The function that maps an arena and does little else is shorter than this, in bytes; measured in 3.8 to 3.15: 48.
const LONGEST_FUNCTION: usize = 128;
/// The first version whose arenas are found by a radix tree, and larger for it.
const FIRST_WITH_LARGE_ARENAS: u8 = 10;
const SMALL: usize = 256 << 10;
const LARGE: usize = 1 << 20;
/// With huge pages, which 3.15 can be built for.
const HUGE: usize = 2 << 20;

/// `PyObjectArenaAllocator`: the same in every version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ArenaFunctions {
    context: *mut c_void,
    alloc: usize,
    free: usize,
}

/// What tells an arena from other mappings.
#[derive(Debug)]
struct Arenas {
    /// Return addresses into the function by which pymalloc maps.
    pymalloc: Range<usize>,
    /// The object that the interpreter is in, and mimalloc with it.
    interpreter: Range<usize>,
}

/// Set once, for good.
static ARENAS: AtomicPtr<Arenas> = AtomicPtr::new(null_mut());

/// The allocator whose arena the program maps by a call that returns to `caller`; `None` for other private anonymous
/// memory.
pub(crate) fn arena_allocator(caller: usize, length: usize, flags: c_int) -> Option<Allocator> {
    // SAFETY: null, or set once to memory that is never freed.
    let arenas = unsafe { ARENAS.load(Acquire).as_ref() }?;
    let [_, minor, ..] = version_hex().to_be_bytes();
    arenas.allocator(minor, caller, length, flags)
}

impl Arenas {
    fn allocator(&self, minor: u8, caller: usize, length: usize, flags: c_int) -> Option<Allocator> {
        if self.pymalloc.contains(&caller) {
            let is_arena =
                if minor < FIRST_WITH_LARGE_ARENAS { length == SMALL } else { matches!(length, LARGE | HUGE) };
            return is_arena.then_some(Allocator::PymallocArena);
        }
        let is_mimalloc = flags & libc::MAP_NORESERVE != 0 && self.interpreter.contains(&caller);
        is_mimalloc.then_some(Allocator::MimallocArena)
    }
}

/// From now on the arenas of the interpreter in `library` are known. Call it outside of hooks.
pub(super) fn interpreter_found(library: &Library) {
    type ArenaGetter = unsafe extern "C" fn(*mut ArenaFunctions);
    const NAME: &CStr = c"PyObject_GetArenaAllocator";
    if !is_defined(NAME) {
        return;
    }
    // SAFETY: the documented type of this function in every version.
    let Ok(getter) = (unsafe { library.get::<ArenaGetter>(NAME) }) else { return };
    let mut functions = ArenaFunctions { context: null_mut(), alloc: 0, free: 0 };
    // SAFETY: copies three words to the place it is given, whether or not an interpreter runs.
    unsafe { getter(&raw mut functions) };
    let arenas = Arenas {
        pymalloc: functions.alloc..functions.alloc.saturating_add(LONGEST_FUNCTION),
        interpreter: object_range(*getter as usize),
    };
    ARENAS.store(Box::into_raw(Box::new(arenas)), Release);
}

#[cfg(test)]
mod tests {
    use super::{Arenas, LARGE, SMALL};
    use libc::{MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE};
    use memtrack_format::Allocator::{MimallocArena, PymallocArena};

    #[test]
    fn caller_size_and_flags_prove_an_arena() {
        const PLAIN: i32 = MAP_PRIVATE | MAP_ANONYMOUS;
        let arenas = Arenas { pymalloc: 0x2000..0x2080, interpreter: 0x1000..0x9000 };
        assert_eq!(arenas.allocator(9, 0x2019, SMALL, PLAIN), Some(PymallocArena));
        assert_eq!(arenas.allocator(9, 0x2019, LARGE, PLAIN), None);
        assert_eq!(arenas.allocator(10, 0x2019, LARGE, PLAIN), Some(PymallocArena));
        assert_eq!(arenas.allocator(10, 0x2019, 16 << 10, PLAIN), None, "a chunk of the interpreter's stack");
        assert_eq!(arenas.allocator(10, 0x3000, LARGE, PLAIN), None, "mmap.mmap");
        assert_eq!(arenas.allocator(13, 0x3000, 64 << 20, PLAIN | MAP_NORESERVE), Some(MimallocArena));
        assert_eq!(arenas.allocator(13, 0x9000, 64 << 20, PLAIN | MAP_NORESERVE), None, "another library's");
    }
}
