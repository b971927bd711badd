//! Static probes (USDT) that tracers such as bpftrace attach to: `otel_memory:alloc` and `otel_memory:free`.
//!
//! OpenTelemetry's proposal for memory profiles names them. A probe is a nop, which a tracer replaces by a breakpoint, and a note
//! (`.note.stapsdt`) that says where the nop and its arguments are. While nobody listens, it costs the load of a counter that the
//! kernel raises for each listener (its semaphore).
//!
//! Invariant: a probe reads what it is given, and changes no memory.

use std::arch::asm;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

/// Listeners of `alloc`, counted by the kernel.
#[unsafe(link_section = ".probes")]
static ALLOC_LISTENERS: AtomicU16 = AtomicU16::new(0);
/// The same of `free`.
#[unsafe(link_section = ".probes")]
static FREE_LISTENERS: AtomicU16 = AtomicU16::new(0);

/// A nop and the note of a probe with this name and these arguments; the operands follow. Sections and fields as in
/// systemtap's `sys/sdt.h`: type 3, the place, a base address (0: nothing moves the library's sections apart), the semaphore, provider,
/// name and arguments.
macro_rules! probe {
    ($name:literal, $arguments:literal, $($operands:tt)*) => {
        asm!(
            "990: nop",
            ".pushsection .note.stapsdt,\"?\",\"note\"",
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            "993: .8byte 990b, 0, {listeners}",
            ".asciz \"otel_memory\"",
            concat!(".asciz \"", $name, "\""),
            concat!(".asciz \"", $arguments, "\""),
            "994: .balign 4",
            ".popsection",
            $($operands)*
            options(readonly, nostack, preserves_flags)
        )
    };
}

/// A block of `size` bytes was sampled; `weight`: how many bytes it stands for, which is asked for where somebody listens.
#[inline]
pub(crate) fn alloc(address: usize, size: usize, weight: impl FnOnce() -> u64) {
    if ALLOC_LISTENERS.load(Relaxed) != 0 {
        let weight = weight();
        // SAFETY: a nop; where a tracer has put a breakpoint, the kernel goes on behind it with all registers as they were.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            probe!("alloc", "8@%rdi 8@%rsi 8@%rdx", listeners = sym ALLOC_LISTENERS, in("rdi") address, in("rsi") size, in("rdx") weight,);
        }
        // SAFETY: the same.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            probe!("alloc", "8@x0 8@x1 8@x2", listeners = sym ALLOC_LISTENERS, in("x0") address, in("x1") size, in("x2") weight,);
        }
    }
}

/// A sampled block is freed.
#[inline]
pub(crate) fn free(address: usize) {
    if FREE_LISTENERS.load(Relaxed) != 0 {
        // SAFETY: as in `alloc`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            probe!("free", "8@%rdi", listeners = sym FREE_LISTENERS, in("rdi") address,);
        }
        // SAFETY: the same.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            probe!("free", "8@x0", listeners = sym FREE_LISTENERS, in("x0") address,);
        }
    }
}
