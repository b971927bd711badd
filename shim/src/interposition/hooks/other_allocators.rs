//! The allocators that programs bring along under names of their own: jemalloc, mimalloc, tcmalloc.
//!
//! Invariant: each is hooked as a whole library or not at all, so a block is seen both when it comes and when it goes.

use std::ffi::c_int;

use memtrack_format::Allocator;

use super::hook_macros::{allocates, frees, reallocates, stores, throws};
use super::trampoline::attempt_or_jump;
use crate::interposition::got::Original;
use crate::recording::thread;

/// Stands for `std::nothrow`, an object without state that only selects the overload.
static NOTHROW: u8 = 0;

allocates!(je_malloc = JE_MALLOC(size) -> Malloc, size);
allocates!(je_calloc = JE_CALLOC(count, size) -> Calloc, count.wrapping_mul(size));
reallocates!(je_realloc = JE_REALLOC(address, size) -> Realloc, Some(size));
stores!(je_posix_memalign = JE_POSIX_MEMALIGN -> PosixMemalign);
allocates!(je_aligned_alloc = JE_ALIGNED_ALLOC(alignment, size) -> AlignedAlloc, size);
allocates!(je_memalign = JE_MEMALIGN(alignment, size) -> Memalign, size);
allocates!(je_valloc = JE_VALLOC(size) -> Valloc, size);
frees!(je_free = JE_FREE(address));
allocates!(je_mallocx = JE_MALLOCX(size, flags) -> Malloc, size);
reallocates!(je_rallocx = JE_RALLOCX(address, size, flags) -> Realloc, Some(size));
frees!(je_dallocx = JE_DALLOCX(address, flags));
frees!(je_sdallocx = JE_SDALLOCX(address, size, flags));

allocates!(mallocx = MALLOCX(size, flags) -> Malloc, size);
reallocates!(rallocx = RALLOCX(address, size, flags) -> Realloc, Some(size));
frees!(dallocx = DALLOCX(address, flags));
frees!(sdallocx = SDALLOCX(address, size, flags));

allocates!(mi_malloc = MI_MALLOC(size) -> Malloc, size);
allocates!(mi_malloc_small = MI_MALLOC_SMALL(size) -> Malloc, size);
allocates!(mi_zalloc = MI_ZALLOC(size) -> Calloc, size);
allocates!(mi_zalloc_small = MI_ZALLOC_SMALL(size) -> Calloc, size);
allocates!(mi_calloc = MI_CALLOC(count, size) -> Calloc, count.wrapping_mul(size));
allocates!(mi_mallocn = MI_MALLOCN(count, size) -> Malloc, count.wrapping_mul(size));
reallocates!(mi_realloc = MI_REALLOC(address, size) -> Realloc, Some(size));
reallocates!(mi_reallocn = MI_REALLOCN(address, count, size) -> Realloc, count.checked_mul(size));
reallocates!(mi_rezalloc = MI_REZALLOC(address, size) -> Realloc, Some(size));
reallocates!(mi_recalloc = MI_RECALLOC(address, count, size) -> Realloc, count.checked_mul(size));
stores!(mi_posix_memalign = MI_POSIX_MEMALIGN -> PosixMemalign);
allocates!(mi_aligned_alloc = MI_ALIGNED_ALLOC(alignment, size) -> AlignedAlloc, size);
allocates!(mi_memalign = MI_MEMALIGN(alignment, size) -> Memalign, size);
allocates!(mi_valloc = MI_VALLOC(size) -> Valloc, size);
allocates!(mi_pvalloc = MI_PVALLOC(size) -> Pvalloc, size);
allocates!(mi_malloc_aligned = MI_MALLOC_ALIGNED(size, alignment) -> AlignedAlloc, size);
allocates!(mi_zalloc_aligned = MI_ZALLOC_ALIGNED(size, alignment) -> AlignedAlloc, size);
allocates!(mi_calloc_aligned = MI_CALLOC_ALIGNED(count, size, alignment) -> AlignedAlloc, count.wrapping_mul(size));
reallocates!(mi_realloc_aligned = MI_REALLOC_ALIGNED(address, size, alignment) -> Realloc, Some(size));
frees!(mi_free = MI_FREE(address));
frees!(mi_free_size = MI_FREE_SIZE(address, size));
frees!(mi_free_aligned = MI_FREE_ALIGNED(address, alignment));
frees!(mi_free_size_aligned = MI_FREE_SIZE_ALIGNED(address, size, alignment));

allocates!(tc_malloc = TC_MALLOC(size) -> Malloc, size);
allocates!(tc_calloc = TC_CALLOC(count, size) -> Calloc, count.wrapping_mul(size));
reallocates!(tc_realloc = TC_REALLOC(address, size) -> Realloc, Some(size));
stores!(tc_posix_memalign = TC_POSIX_MEMALIGN -> PosixMemalign);
allocates!(tc_memalign = TC_MEMALIGN(alignment, size) -> Memalign, size);
allocates!(tc_valloc = TC_VALLOC(size) -> Valloc, size);
allocates!(tc_pvalloc = TC_PVALLOC(size) -> Pvalloc, size);
frees!(tc_free = TC_FREE(address));
frees!(tc_free_sized = TC_FREE_SIZED(address, size));
frees!(tc_cfree = TC_CFREE(address));
throws!(tc_new, try_tc_new = TC_NEW or TC_NEW_NOTHROW(size));
throws!(tc_newarray, try_tc_newarray = TC_NEWARRAY or TC_NEWARRAY_NOTHROW(size));
allocates!(tc_new_nothrow = TC_NEW_NOTHROW(size, tag) -> OperatorNew, size);
allocates!(tc_newarray_nothrow = TC_NEWARRAY_NOTHROW(size, tag) -> OperatorNew, size);
frees!(tc_delete = TC_DELETE(address));
frees!(tc_delete_sized = TC_DELETE_SIZED(address, size));
frees!(tc_delete_nothrow = TC_DELETE_NOTHROW(address, tag));
frees!(tc_deletearray = TC_DELETEARRAY(address));
frees!(tc_deletearray_sized = TC_DELETEARRAY_SIZED(address, size));
frees!(tc_deletearray_nothrow = TC_DELETEARRAY_NOTHROW(address, tag));
