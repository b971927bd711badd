//! The C library's allocation functions.
//!
//! Invariant: sizes recorded are what the program asked for, not what it got.

use std::ffi::c_int;

use memtrack_format::Allocator;

use super::hook_macros::{
    allocates, allocates_sampled, frees, frees_sampled, reallocates, reallocates_sampled, stores,
};
use crate::interposition::got::Original;
use crate::recording::thread::Recorder;
use crate::recording::thread::{self, FreeOutcome};

allocates!(malloc = MALLOC(size) -> Malloc, size);
allocates_sampled!(malloc_sampled = MALLOC(size) or malloc -> Malloc, size);
// A product that overflows makes the real function fail, so a result means that it did not.
allocates!(calloc = CALLOC(count, size) -> Calloc, count.wrapping_mul(size));
allocates_sampled!(calloc_sampled = CALLOC(count, size) or calloc -> Calloc, count.wrapping_mul(size));
reallocates!(realloc = REALLOC(address, size) -> Realloc, Some(size));
reallocates_sampled!(realloc_sampled = REALLOC(address, size) or realloc -> Realloc);
reallocates!(reallocarray = REALLOCARRAY(address, count, size) -> Reallocarray, count.checked_mul(size));
stores!(posix_memalign = POSIX_MEMALIGN -> PosixMemalign);
allocates!(aligned_alloc = ALIGNED_ALLOC(alignment, size) -> AlignedAlloc, size);
allocates!(memalign = MEMALIGN(alignment, size) -> Memalign, size);
allocates!(valloc = VALLOC(size) -> Valloc, size);
allocates!(pvalloc = PVALLOC(size) -> Pvalloc, size);
frees!(fast free = FREE(address));
frees_sampled!(free_sampled = FREE(address) or free);
frees!(cfree = CFREE(address));
frees!(free_sized = FREE_SIZED(address, size));
frees!(free_aligned_sized = FREE_ALIGNED_SIZED(address, alignment, size));
