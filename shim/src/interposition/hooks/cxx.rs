//! C++ `operator new` and `operator delete`, in all the forms compilers call.
//!
//! They are hooked although most implementations call malloc, because a program can define its own. Invariant:
//! `std::bad_alloc` does not unwind through a frame of the shim.

use memtrack_format::Allocator;

use super::hook_macros::{allocates, frees, frees_sampled, throws, throws_sampled};
use super::trampoline::attempt_or_jump;
use crate::interposition::got::Original;
use crate::recording::thread::Recorder;
use crate::recording::thread::{self, FreeOutcome};

/// Stands for `std::nothrow`, an object without state that only selects the overload.
static NOTHROW: u8 = 0;

throws!(new, try_new = NEW or NEW_NOTHROW(size));
throws!(new_array, try_new_array = NEW_ARRAY or NEW_ARRAY_NOTHROW(size));
throws!(new_aligned, try_new_aligned = NEW_ALIGNED or NEW_ALIGNED_NOTHROW(size, alignment));
throws!(new_array_aligned, try_new_array_aligned = NEW_ARRAY_ALIGNED or NEW_ARRAY_ALIGNED_NOTHROW(size, alignment));
allocates!(new_nothrow = NEW_NOTHROW(size, tag) -> OperatorNew, size);
allocates!(new_array_nothrow = NEW_ARRAY_NOTHROW(size, tag) -> OperatorNew, size);
allocates!(new_aligned_nothrow = NEW_ALIGNED_NOTHROW(size, alignment, tag) -> OperatorNew, size);
allocates!(new_array_aligned_nothrow = NEW_ARRAY_ALIGNED_NOTHROW(size, alignment, tag) -> OperatorNew, size);

frees!(fast delete = DELETE(address));
frees!(fast delete_sized = DELETE_SIZED(address, size));
// The C++ library's own only, which call malloc and free once, and nothing else that is hooked.
throws_sampled!(new_sampled, try_new_sampled = NEW or try_new);
throws_sampled!(new_array_sampled, try_new_array_sampled = NEW_ARRAY or try_new_array);
frees_sampled!(delete_sampled = DELETE(address) or delete);
frees_sampled!(delete_sized_sampled = DELETE_SIZED(address, size) or delete_sized);
frees_sampled!(delete_array_sampled = DELETE_ARRAY(address) or delete_array);
frees_sampled!(delete_array_sized_sampled = DELETE_ARRAY_SIZED(address, size) or delete_array_sized);

frees!(delete_nothrow = DELETE_NOTHROW(address, tag));
frees!(delete_aligned = DELETE_ALIGNED(address, alignment));
frees!(delete_sized_aligned = DELETE_SIZED_ALIGNED(address, size, alignment));
frees!(delete_aligned_nothrow = DELETE_ALIGNED_NOTHROW(address, alignment, tag));
frees!(fast delete_array = DELETE_ARRAY(address));
frees!(fast delete_array_sized = DELETE_ARRAY_SIZED(address, size));
frees!(delete_array_nothrow = DELETE_ARRAY_NOTHROW(address, tag));
frees!(delete_array_aligned = DELETE_ARRAY_ALIGNED(address, alignment));
frees!(delete_array_sized_aligned = DELETE_ARRAY_SIZED_ALIGNED(address, size, alignment));
frees!(delete_array_aligned_nothrow = DELETE_ARRAY_ALIGNED_NOTHROW(address, alignment, tag));
