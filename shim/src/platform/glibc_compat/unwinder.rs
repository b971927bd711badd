//! An unwinder that finds no frames, in place of the C compiler's.
//!
//! The standard library wants one for panic backtraces, and its library would have to be loaded into every recorded
//! process. No panic leaves this library, and native stacks are unwound in `stacks/native`.
//!
//! Invariant: whoever unwinds through a frame of this library finds no landing pad there, and goes on.

use std::arch::global_asm;
use std::ffi::c_int;

own!("_Unwind_Backtrace" = end_of_stack);
own!("_Unwind_GetDataRelBase" = nothing);
own!("_Unwind_GetIP" = nothing);
own!("_Unwind_GetIPInfo" = nothing);
own!("_Unwind_GetLanguageSpecificData" = nothing);
own!("_Unwind_GetRegionStart" = nothing);
own!("_Unwind_GetTextRelBase" = nothing);
own!("_Unwind_Resume" = stop);
own!("_Unwind_SetGR" = nothing);
own!("_Unwind_SetIP" = nothing);

/// `_URC_END_OF_STACK`: no frame is visited.
extern "C" fn end_of_stack() -> c_int {
    5
}

/// Nothing that could be asked of a frame.
extern "C" fn nothing() -> usize {
    0
}

/// After a landing pad, so never.
extern "C" fn stop() -> ! {
    std::process::abort()
}
