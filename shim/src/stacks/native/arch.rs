//! Unwinding, the part that depends on the processor: register numbers, the form of return addresses, and signal frames
//! that have no unwind table.
//!
//! Invariant: code for other processors is not compiled; memory is read through [`StackMemory`] only.

use super::rule::UnwindRule;
use super::stack_memory::StackMemory;

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{FRAME, STACK, VENDOR, return_address, signal_rule};

#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::{FRAME, STACK, VENDOR, return_address, signal_rule};

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{StackMemory, UnwindRule};
    use gimli::Vendor;

    /// The frame pointer's number in unwind tables.
    pub(in super::super) const FRAME: u16 = 6;
    /// The stack pointer's.
    pub(in super::super) const STACK: u16 = 7;
    /// Selects the vendor-specific CFA instructions of the unwind tables.
    pub(in super::super) const VENDOR: Vendor = Vendor::Default;

    /// The address that a saved word stands for.
    #[inline(always)]
    pub(in super::super) const fn return_address(word: usize) -> usize {
        word
    }

    /// The C library has a table for its trampoline.
    pub(in super::super) const fn signal_rule(_pc: usize, _stack: &mut StackMemory) -> Option<UnwindRule> {
        None
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::super::rule::{Base, RuleKind, SavedPlace};
    use super::{StackMemory, UnwindRule};
    use gimli::Vendor;

    /// The frame pointer's number in unwind tables.
    pub(in super::super) const FRAME: u16 = 29;
    /// The stack pointer's.
    pub(in super::super) const STACK: u16 = 31;
    /// Whose instructions the tables may have: one says that return addresses are signed.
    pub(in super::super) const VENDOR: Vendor = Vendor::AArch64;
    /// `mov x8, #139` and `svc #0`, a call of rt_sigreturn: the kernel's trampoline, which has no table on purpose.
    const TRAMPOLINE: usize = 0xd400_0001_d280_1168;
    /// Where the kernel's signal frame has x29, the stack pointer and the address: behind 128 bytes of siginfo and 176
    /// of the context's head there are the address of a fault and 31 registers.
    const SAVED_FRAME: i64 = 544;
    const SAVED_STACK: i64 = 560;
    const SAVED_ADDRESS: i64 = 568;

    /// The address that a saved word stands for: its upper bits may be a signature (pointer authentication). The address
    /// space that Linux gives programs unless they ask for more has 48 bits.
    #[inline(always)]
    pub(in super::super) const fn return_address(word: usize) -> usize {
        word & 0x0000_ffff_ffff_ffff
    }

    /// How to leave a signal handler that returns to `pc`, if the kernel's trampoline is there.
    pub(in super::super) fn signal_rule(pc: usize, stack: &mut StackMemory) -> Option<UnwindRule> {
        let saved = |offset| SavedPlace::new(Base::Stack, offset);
        let first = stack.word(pc & !7)?;
        let code = if pc & 4 == 0 { first } else { (first >> 32) | (stack.word((pc & !7).wrapping_add(8))? << 32) };
        if code != TRAMPOLINE {
            return None;
        }
        let (cfa, back, frame) = (saved(SAVED_STACK)?, saved(SAVED_ADDRESS)?, saved(SAVED_FRAME)?);
        Some(UnwindRule { cfa, back, frame, cfa_is_read: true, kind: RuleKind::Signal, ..UnwindRule::default() })
    }
}
