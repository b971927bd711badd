//! Mappings of the process's memory: mmap, munmap, mremap.
//!
//! Invariant: a range that may go is recorded before the call, since another thread can get it at once; a call that
//! failed is taken back, and changes nothing.

use std::ffi::c_int;

use memtrack_format::{Allocator, MapClass};

use super::trampoline::jump_with_caller_for_fourth;
use crate::interposition::got::Original;
use crate::interposition::python_allocators;
use crate::platform::file_system;
use crate::recording::thread;
use crate::stacks::native;

/// What a failed mapping returns.
const FAILED: usize = usize::MAX;
/// Keep the old range mapped, without its pages (`linux/mman.h`).
const MREMAP_DONTUNMAP: c_int = 4;

type Mmap = unsafe extern "C" fn(usize, usize, c_int, c_int, c_int, usize) -> usize;

pub(crate) static MMAP: Original<Mmap> = Original::new();
pub(crate) static MMAP64: Original<Mmap> = Original::new();
pub(crate) static MUNMAP: Original<unsafe extern "C" fn(usize, usize) -> c_int> = Original::new();
pub(crate) static MREMAP: Original<unsafe extern "C" fn(usize, usize, usize, c_int, usize) -> usize> = Original::new();

/// `mmap` and `mmap64`, which are one function where an offset has 64 bits. The allocator is derived from the return
/// address.
macro_rules! maps {
    ($name:ident = $original:ident, $from:ident) => {
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(
            wish: usize,
            length: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: usize,
        ) -> usize {
            jump_with_caller_for_fourth!($from)
        }

        unsafe extern "C" fn $from(
            wish: usize,
            length: usize,
            protection_and_flags: u64,
            caller: usize,
            file: c_int,
            offset: usize,
        ) -> usize {
            let [protection, flags] = halves(protection_and_flags);
            let real = $original.get();
            if flags & libc::MAP_FIXED != 0 {
                native::unmaps(wish, length);
            }
            let recorder = thread::enter();
            // SAFETY: the caller's arguments, for the function it meant.
            let result = unsafe { real(wish, length, protection, flags, file, offset) };
            if result != FAILED {
                // Within another hook only what was known of the place is forgotten.
                let is_code = protection & libc::PROT_EXEC != 0 && recorder.is_some();
                native::maps(result, length, is_code, flags & libc::MAP_ANONYMOUS == 0);
            }
            let Some(mut recorder) = recorder else { return result };
            if result != FAILED {
                let class = class(protection, flags, || file_system::is_on_disk(file));
                let allocator = match class {
                    MapClass::Heap => {
                        python_allocators::arena_allocator(caller, length, flags).unwrap_or(Allocator::Mmap)
                    }
                    _ => Allocator::Mmap,
                };
                recorder.map(allocator, result, length, class);
            } else if class(protection, flags, || false) == MapClass::Heap {
                recorder.failed(Allocator::Mmap, length);
            }
            result
        }
    };
}

maps!(mmap = MMAP, mmap_from);
maps!(mmap64 = MMAP64, mmap64_from);

/// The lower and the upper half of a word that holds two numbers.
const fn halves(word: u64) -> [c_int; 2] {
    [(word as u32).cast_signed(), ((word >> 32) as u32).cast_signed()]
}

/// What a new mapping is for. `is_on_disk`: whether its file is no memory itself.
fn class(protection: c_int, flags: c_int, is_on_disk: impl FnOnce() -> bool) -> MapClass {
    let private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    match (private, flags & libc::MAP_ANONYMOUS != 0) {
        (false, false) if is_on_disk() => MapClass::File,
        (false, _) => MapClass::Shared,
        (true, false) => MapClass::File,
        (true, true) if protection == libc::PROT_NONE => MapClass::Reserved,
        (true, true) => MapClass::Heap,
    }
}

pub(crate) unsafe extern "C" fn munmap(address: usize, length: usize) -> c_int {
    let real = MUNMAP.get();
    native::unmaps(address, length);
    let Some(mut recorder) = thread::enter() else {
        // SAFETY: the caller's arguments, for the function it meant.
        return unsafe { real(address, length) };
    };
    recorder.unmap(address, length);
    // SAFETY: the caller's arguments, for the function it meant.
    let result = unsafe { real(address, length) };
    if result != 0 {
        recorder.unmap_undo();
    }
    result
}

/// The fifth argument is there only with MREMAP_FIXED; otherwise whatever the register holds is passed on unread.
pub(crate) unsafe extern "C" fn mremap(old: usize, from: usize, to: usize, flags: c_int, wish: usize) -> usize {
    let real = MREMAP.get();
    native::unmaps(old, from);
    if flags & libc::MREMAP_FIXED != 0 {
        native::unmaps(wish, to);
    }
    let Some(mut recorder) = thread::enter() else {
        // SAFETY: the caller's arguments, for the function it meant.
        return unsafe { real(old, from, to, flags, wish) };
    };
    recorder.remap_from(old, from);
    // SAFETY: the caller's arguments, for the function it meant.
    let result = unsafe { real(old, from, to, flags, wish) };
    if result == FAILED {
        recorder.unmap_undo();
        // Without leave to move, it asks for no memory but for that place.
        if flags & libc::MREMAP_MAYMOVE != 0 {
            recorder.failed(Allocator::Mremap, to);
        }
        return result;
    }
    native::maps(result, to, false, false);
    recorder.map(Allocator::Mremap, result, to, MapClass::Inherited);
    if flags & MREMAP_DONTUNMAP != 0 {
        // Only private anonymous memory can be moved that way; its old range is such memory still.
        recorder.map(Allocator::Mremap, old, from, MapClass::Heap);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE};
    use libc::{PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE};

    #[test]
    fn two_numbers_of_one_word() {
        assert_eq!(halves(0x8000_0022_0000_0003), [3, 0x8000_0022_u32.cast_signed()]);
        assert_eq!(halves(0x0000_0022_ffff_ffff), [-1, 0x22]);
    }

    #[test]
    fn mappings_are_classed_by_what_they_hold() {
        let classed = |protection, flags| [true, false].map(|is_on_disk| class(protection, flags, || is_on_disk));
        let both = |protection, flags, expected| assert_eq!(classed(protection, flags), [expected; 2]);
        both(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, MapClass::Heap);
        both(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, MapClass::Heap);
        both(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, MapClass::Reserved);
        both(PROT_READ | PROT_EXEC, MAP_PRIVATE, MapClass::File);
        both(PROT_NONE, MAP_PRIVATE, MapClass::File);
        both(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, MapClass::Shared);
        // A file of a disk is one however it is mapped.
        assert_eq!(classed(PROT_READ, MAP_SHARED), [MapClass::File, MapClass::Shared]);
        assert_eq!(classed(PROT_READ, MAP_SHARED_VALIDATE), [MapClass::File, MapClass::Shared]);
    }
}
