//! One word of thread-local storage, reached in two instructions.
//!
//! It exists because the hook path may use no `thread_local!`: the general-dynamic model calls into the loader, and
//! anything with a destructor allocates. The word is declared in assembly as initial-exec and hidden, which is right for
//! a library that is there from the program's start.
//!
//! It is a pointer, or a small number in its place. Invariant: the word of a new thread is null.

#[cfg(miri)]
pub(crate) use interpreted::{get, set};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("memtrack records on x86_64 and aarch64");

core::arch::global_asm!(
    ".pushsection .tbss.memtrack_thread_word,\"awT\",@nobits",
    ".globl memtrack_thread_word",
    ".hidden memtrack_thread_word",
    ".type memtrack_thread_word,@object",
    ".size memtrack_thread_word,8",
    ".p2align 3",
    "memtrack_thread_word:",
    ".zero 8",
    ".popsection",
);

/// The same for Miri, which runs no assembly.
#[cfg(miri)]
mod interpreted {
    use std::cell::Cell;

    std::thread_local!(static WORD: Cell<*const ()> = const { Cell::new(std::ptr::null()) });

    pub(crate) fn get() -> *const () {
        WORD.get()
    }

    pub(crate) fn set(value: *const ()) {
        WORD.set(value);
    }
}

/// Where the word lies, from the thread pointer on.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn offset() -> usize {
    let offset: usize;
    // SAFETY: reads the word's offset from the thread pointer out of the global offset table.
    unsafe {
        core::arch::asm!("mov {}, qword ptr [rip + memtrack_thread_word@GOTTPOFF]", out(reg) offset, options(pure, readonly, nostack, preserves_flags));
    }
    offset
}

/// This thread's word.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) fn get() -> *const () {
    let word: *const ();
    // SAFETY: the word lives as long as the thread, and only this thread uses it.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[{}]", out(reg) word, in(reg) offset(), options(readonly, nostack, preserves_flags))
    };
    word
}

/// Sets this thread's word.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) fn set(value: *const ()) {
    // SAFETY: the word lives as long as the thread, and only this thread uses it.
    unsafe {
        core::arch::asm!("mov qword ptr fs:[{}], {}", in(reg) offset(), in(reg) value, options(nostack, preserves_flags))
    };
}

/// Where this thread's word lies.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn place() -> *mut *const () {
    let place: *mut *const ();
    // SAFETY: reads the word's offset from the thread pointer and adds the thread pointer.
    unsafe {
        core::arch::asm!(
            "adrp {p}, :gottprel:memtrack_thread_word",
            "ldr {p}, [{p}, :gottprel_lo12:memtrack_thread_word]",
            "mrs {t}, tpidr_el0",
            "add {p}, {p}, {t}",
            p = out(reg) place, t = out(reg) _, options(pure, readonly, nostack, preserves_flags)
        );
    }
    place
}

/// This thread's word.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
pub(crate) fn get() -> *const () {
    // SAFETY: the word lives as long as the thread, and only this thread uses it.
    unsafe { place().read() }
}

/// Sets this thread's word.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
pub(crate) fn set(value: *const ()) {
    // SAFETY: the word lives as long as the thread, and only this thread uses it.
    unsafe { place().write(value) }
}
