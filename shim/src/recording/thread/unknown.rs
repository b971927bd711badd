//! Hides a number from the compiler's reasoning: a tail call whose result the compiler knew would keep it in a saved register.
//!
//! Invariant: the number stays the same.

/// The same number, of which the compiler knows nothing. `std::hint::black_box` writes it to the stack and reads it again.
#[cfg(not(miri))]
#[inline(always)]
pub(super) fn unknown(mut number: usize) -> usize {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("/* {} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags)) };
    number
}

/// As above, for Miri, which runs no assembly.
#[cfg(miri)]
pub(super) fn unknown(number: usize) -> usize {
    std::hint::black_box(number)
}
