//! longjmp and its variants, which can leave a hook, for example from a handler of a SIGSEGV that was raised inside
//! free.
//!
//! A thread that jumps out of a hook never returns to it. So its guard is released, and the thread goes on recording in
//! a new segment, since the last record may be half written. Invariant: outside of hooks, nothing is done.

use std::ffi::c_int;

use crate::interposition::got::Original;
use crate::recording::thread;

type Jump = unsafe extern "C" fn(buffer: usize, value: c_int);

macro_rules! jumps {
    ($($name:ident = $original:ident;)*) => {$(
        pub(crate) static $original: Original<Jump> = Original::new();

        pub(crate) unsafe extern "C" fn $name(buffer: usize, value: c_int) {
            thread::leave_hook();
            let real = $original.get();
            // SAFETY: the caller's arguments, for the function it meant. It does not return.
            unsafe { real(buffer, value) }
        }
    )*};
}

jumps! {
    longjmp = LONGJMP;
    underscore_longjmp = UNDERSCORE_LONGJMP;
    siglongjmp = SIGLONGJMP;
    longjmp_checked = LONGJMP_CHECKED;
}
