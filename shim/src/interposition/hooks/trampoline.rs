//! Bodies of hooks in assembly, for hooks that must leave no frame or need their caller's address.
//!
//! Invariant: where the real function is jumped to, registers and stack are as the program left them, so it cannot tell
//! that it was not called directly: exceptions unwind to the program, and its return address is the program's.

/// Calls `attempt` with the same first two arguments; returns its result unless that is 0, then goes on into `original`.
#[cfg(target_arch = "x86_64")]
macro_rules! attempt_or_jump {
    ($attempt:ident, $original:ident) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call {attempt}",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "test rax, rax",
            "jz 2f",
            "ret",
            "2:",
            "jmp qword ptr [rip + {original}]",
            ".cfi_endproc",
            attempt = sym $attempt,
            original = sym $original,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! attempt_or_jump {
    ($attempt:ident, $original:ident) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, -32]!",
            ".cfi_adjust_cfa_offset 32",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "stp x0, x1, [sp, 16]",
            "bl {attempt}",
            "mov x9, x0",
            "ldp x0, x1, [sp, 16]",
            "ldp x29, x30, [sp], 32",
            ".cfi_adjust_cfa_offset -32",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x9, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "adrp x16, {original}",
            "ldr x16, [x16, :lo12:{original}]",
            "br x16",
            ".cfi_endproc",
            attempt = sym $attempt,
            original = sym $original,
        )
    };
}

/// Calls `answer` with the same first three arguments; it gives a result and whether that is one. Returns the result if
/// so, else goes on into `original`.
#[cfg(target_arch = "x86_64")]
macro_rules! answer_or_jump {
    ($answer:ident, $original:ident) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "call {answer}",
            "mov rcx, rdx",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "test rcx, rcx",
            "jz 2f",
            "ret",
            "2:",
            "jmp qword ptr [rip + {original}]",
            ".cfi_endproc",
            answer = sym $answer,
            original = sym $original,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! answer_or_jump {
    ($answer:ident, $original:ident) => {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, -48]!",
            ".cfi_adjust_cfa_offset 48",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "stp x0, x1, [sp, 16]",
            "str x2, [sp, 32]",
            "bl {answer}",
            "mov x9, x0",
            "mov x10, x1",
            "ldp x0, x1, [sp, 16]",
            "ldr x2, [sp, 32]",
            "ldp x29, x30, [sp], 48",
            ".cfi_adjust_cfa_offset -48",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x10, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "adrp x16, {original}",
            "ldr x16, [x16, :lo12:{original}]",
            "br x16",
            ".cfi_endproc",
            answer = sym $answer,
            original = sym $original,
        )
    };
}

/// Goes on into `function(first, second, caller's address)`.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_with_caller {
    ($function:ident) => {
        std::arch::naked_asm!("mov rdx, [rsp]", "jmp {function}", function = sym $function)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_with_caller {
    ($function:ident) => {
        std::arch::naked_asm!("mov x2, x30", "b {function}", function = sym $function)
    };
}

/// Goes on into `function(first, second, fourth << 32 | third, caller's address, fifth, sixth)`, the third and the
/// fourth argument having 32 bits: so there is no word more to pass, and no frame.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_with_caller_for_fourth {
    ($function:ident) => {
        std::arch::naked_asm!(
            "mov edx, edx",
            "shl rcx, 32",
            "or rdx, rcx",
            "mov rcx, [rsp]",
            "jmp {function}",
            function = sym $function,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_with_caller_for_fourth {
    ($function:ident) => {
        std::arch::naked_asm!(
            "mov w2, w2",
            "orr x2, x2, x3, lsl 32",
            "mov x3, x30",
            "b {function}",
            function = sym $function,
        )
    };
}

/// If the first argument is 0, goes on into `function(second, third, caller's address)`, else into `original`.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_with_caller_if_zero {
    ($function:ident, $original:ident) => {
        std::arch::naked_asm!(
            "test rdi, rdi",
            "jnz 2f",
            "mov rdi, rsi",
            "mov esi, edx",
            "mov rdx, [rsp]",
            "jmp {function}",
            "2:",
            "jmp qword ptr [rip + {original}]",
            function = sym $function,
            original = sym $original,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_with_caller_if_zero {
    ($function:ident, $original:ident) => {
        std::arch::naked_asm!(
            "cbnz x0, 2f",
            "mov x0, x1",
            "mov w1, w2",
            "mov x2, x30",
            "b {function}",
            "2:",
            "adrp x16, {original}",
            "ldr x16, [x16, :lo12:{original}]",
            "br x16",
            function = sym $function,
            original = sym $original,
        )
    };
}

/// Goes on into `function` if the first argument is one of five numbers below 4096, else into `original`. The compiler would call it,
/// and not jump, where arguments are on the stack.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_for_numbers {
    ([$first:expr, $second:expr, $third:expr, $fourth:expr, $fifth:expr], $function:ident, $original:ident) => {
        std::arch::naked_asm!(
            "cmp rdi, {first}",
            "je 2f",
            "cmp rdi, {second}",
            "je 2f",
            "cmp rdi, {third}",
            "je 2f",
            "cmp rdi, {fourth}",
            "je 2f",
            "cmp rdi, {fifth}",
            "je 2f",
            "jmp qword ptr [rip + {original}]",
            "2:",
            "jmp {function}",
            first = const $first,
            second = const $second,
            third = const $third,
            fourth = const $fourth,
            fifth = const $fifth,
            function = sym $function,
            original = sym $original,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_for_numbers {
    ([$first:expr, $second:expr, $third:expr, $fourth:expr, $fifth:expr], $function:ident, $original:ident) => {
        std::arch::naked_asm!(
            "cmp x0, {first}",
            "b.eq 2f",
            "cmp x0, {second}",
            "b.eq 2f",
            "cmp x0, {third}",
            "b.eq 2f",
            "cmp x0, {fourth}",
            "b.eq 2f",
            "cmp x0, {fifth}",
            "b.eq 2f",
            "adrp x16, {original}",
            "ldr x16, [x16, :lo12:{original}]",
            "br x16",
            "2:",
            "b {function}",
            first = const $first,
            second = const $second,
            third = const $third,
            fourth = const $fourth,
            fifth = const $fifth,
            function = sym $function,
            original = sym $original,
        )
    };
}

/// Calls `function(first, array of the further arguments)`. Those that came in registers are put right below those that
/// the caller has put on the stack, which makes one array of them all.
#[cfg(target_arch = "x86_64")]
macro_rules! call_with_array {
    ($function:ident) => {
        std::arch::naked_asm!(
            "pop r10",
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "mov rsi, rsp",
            "push r10",
            "call {function}",
            "pop r10",
            "add rsp, 40",
            "push r10",
            "ret",
            function = sym $function,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! call_with_array {
    ($function:ident) => {
        std::arch::naked_asm!(
            "sub sp, sp, 80",
            "stp x29, x30, [sp]",
            "stp x1, x2, [sp, 24]",
            "stp x3, x4, [sp, 40]",
            "stp x5, x6, [sp, 56]",
            "str x7, [sp, 72]",
            "add x1, sp, 24",
            "bl {function}",
            "ldp x29, x30, [sp]",
            "add sp, sp, 80",
            "ret",
            function = sym $function,
        )
    };
}

pub(crate) use {
    answer_or_jump, attempt_or_jump, call_with_array, jump_for_numbers, jump_with_caller, jump_with_caller_for_fourth,
    jump_with_caller_if_zero,
};
