//! Binds C library functions in the versions that old C libraries have, so that the shim loads there too.
//!
//! The linker takes the newest version on the machine it runs on, and glibc 2.34 gave new versions to everything it
//! moved out of libdl and libpthread. Each name here is hidden, so the program never sees it, and jumps to the old
//! version, which every later glibc still has. It serves the standard library and other crates too: the linker looks
//! here first. Functions that glibc 2.17 lacks are implemented by system calls.
//!
//! Invariant: no function needs a later version than glibc 2.17, and no other library than the C library and the
//! loader. A test of the built library checks this.

use std::arch::global_asm;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A jump to a function in an old version: on x86-64, and on aarch64, which begins with glibc 2.17.
macro_rules! old {
    ($name:literal, $version:literal) => {
        #[cfg(target_arch = "x86_64")]
        global_asm!(
            concat!(".symver memtrack_old_", $name, ", ", $name, "@", $version),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ": jmp qword ptr [rip + memtrack_old_", $name, "@GOTPCREL]"),
        );
        #[cfg(target_arch = "aarch64")]
        global_asm!(
            concat!(".symver memtrack_old_", $name, ", ", $name, "@GLIBC_2.17"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ": adrp x16, :got:memtrack_old_", $name),
            concat!("ldr x16, [x16, :got_lo12:memtrack_old_", $name, "]"),
            "br x16",
        );
    };
}

/// The same for what an old program that starts no thread may lack: where it does, the answer is 0 and nothing done.
macro_rules! old_or_none {
    ($name:literal, $version:literal) => {
        #[cfg(target_arch = "x86_64")]
        global_asm!(
            concat!(".weak memtrack_old_", $name),
            concat!(".symver memtrack_old_", $name, ", ", $name, "@", $version),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ": mov rax, qword ptr [rip + memtrack_old_", $name, "@GOTPCREL]"),
            "test rax, rax",
            "je 2f",
            "jmp rax",
            "2: ret",
        );
        #[cfg(target_arch = "aarch64")]
        global_asm!(
            concat!(".weak memtrack_old_", $name),
            concat!(".symver memtrack_old_", $name, ", ", $name, "@GLIBC_2.17"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ": adrp x16, :got:memtrack_old_", $name),
            concat!("ldr x16, [x16, :got_lo12:memtrack_old_", $name, "]"),
            "cbz x16, 2f",
            "br x16",
            "2: mov x0, xzr",
            "ret",
        );
    };
}

/// A function of this module under the C library's name.
macro_rules! own {
    ($name:literal = $function:ident) => {
        #[cfg(target_arch = "x86_64")]
        global_asm!(
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ": jmp {}"),
            sym $function,
        );
        #[cfg(target_arch = "aarch64")]
        global_asm!(
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ": b {}"),
            sym $function,
        );
    };
}

// In libdl before 2.34; the build script makes that a library to load.
old!("dlopen", "GLIBC_2.2.5");
old!("dlclose", "GLIBC_2.2.5");
old!("dlerror", "GLIBC_2.2.5");
old!("dlsym", "GLIBC_2.2.5");
old!("dlvsym", "GLIBC_2.2.5");
old!("dlinfo", "GLIBC_2.3.3");
old!("dladdr1", "GLIBC_2.3.3");

// In libpthread before 2.34.
old_or_none!("pthread_key_create", "GLIBC_2.2.5");
old_or_none!("pthread_key_delete", "GLIBC_2.2.5");
old_or_none!("pthread_setspecific", "GLIBC_2.2.5");
// Leaves the clock's number as it was, which is that of no thread.
old_or_none!("pthread_getcpuclockid", "GLIBC_2.2.5");

own!("gettid" = gettid);
own!("stat64" = stat);
own!("fstat64" = fstat);
own!("statx" = statx);

// Since 2.18. The standard library asks whether it is there, and uses a pthread key where it is not.
global_asm!(".hidden __cxa_thread_atexit_impl", ".globl __cxa_thread_atexit_impl", ".set __cxa_thread_atexit_impl, 0",);

// The tests of this library panic, and are unwound.
#[cfg(not(test))]
mod unwinder;

/// Since 2.30.
unsafe extern "C" fn gettid() -> c_int {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as c_int }
}

/// Since 2.33; inline before. The structure is the kernel's own on both architectures.
unsafe extern "C" fn stat(path: *const c_char, buffer: *mut libc::stat64) -> c_int {
    // SAFETY: the caller's arguments, for the call they are meant for.
    unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, buffer, 0) as c_int }
}

/// As [`stat`].
unsafe extern "C" fn fstat(descriptor: c_int, buffer: *mut libc::stat64) -> c_int {
    // SAFETY: the caller's arguments, for the call they are meant for.
    unsafe { libc::syscall(libc::SYS_fstat, descriptor, buffer) as c_int }
}

/// Since 2.28.
unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buffer: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, for the call they are meant for.
    unsafe { libc::syscall(libc::SYS_statx, directory, path, flags, mask, buffer) as c_int }
}
