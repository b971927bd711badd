//! Thread names, and programs that replace themselves.
//!
//! Invariant: no guard is held over an exec. One that succeeds never returns, and in a child made by vfork it would
//! leave the guard closed in the parent, whose memory the child runs in.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

use super::trampoline::call_with_array;
use crate::interposition::got::Original;
use crate::platform::environment;
use crate::platform::environment::Environment;
use crate::platform::recording_switch;
use crate::platform::seccomp;
use crate::process::child_environment::hand_on;
use crate::process::fork;
use crate::process::preload_check;
use crate::recording::thread;

/// Longest name of a thread that the kernel keeps, without the zero.
const NAME_LENGTH: usize = 15;
/// The process that is recorded; another number means a child that only borrows its memory.
static RECORDED_PROCESS: AtomicI32 = AtomicI32::new(0);

type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type SetName = unsafe extern "C" fn(libc::pthread_t, *const c_char) -> c_int;

pub(super) static PRCTL: Original<Prctl> = Original::new();
pub(super) static PTHREAD_SETNAME: Original<SetName> = Original::new();

/// Notes the calling process as the recorded one: at start-up, and in a fork child once it records on its own.
pub(crate) fn note_process() {
    RECORDED_PROCESS.store(std::process::id().cast_signed(), Ordering::Relaxed);
}

/// Takes four more words, as every variant of the variadic function does; those not given are passed on unread.
pub(super) unsafe extern "C" fn prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    let real = PRCTL.get();
    // SAFETY: the caller's arguments, for the function it meant.
    let result = seccomp::watch(option, second, || unsafe { real(option, second, third, fourth, fifth) });
    if option == libc::PR_SET_NAME && result == 0 {
        // SAFETY: no preconditions.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        record_name(thread as i32, second as *const c_char);
    }
    result
}

pub(super) unsafe extern "C" fn pthread_setname(thread: libc::pthread_t, name: *const c_char) -> c_int {
    let real = PTHREAD_SETNAME.get();
    // SAFETY: the caller's arguments, for the function it meant.
    let result = unsafe { real(thread, name) };
    if result == 0
        && let Some(id) = system_id(thread)
    {
        record_name(id, name);
    }
    result
}

/// The system's number of a thread, out of the number of its processor clock (`!tid << 3 | 6`), which is public.
fn system_id(thread: libc::pthread_t) -> Option<i32> {
    let mut clock = 0;
    // SAFETY: a thread that could just be named, and a place to store its clock.
    let error = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) };
    (error == 0 && clock & 7 == 6).then_some(!(clock >> 3))
}

fn record_name(thread: i32, name: *const c_char) {
    let Some(mut recorder) = thread::enter() else {
        return;
    };
    // SAFETY: the call that was given this name succeeded, so it is readable and ends in zero or is long enough.
    let length = unsafe { libc::strnlen(name, NAME_LENGTH) };
    // SAFETY: that many bytes have just been read.
    recorder.thread_name(thread, unsafe { std::slice::from_raw_parts(name.cast(), length) });
}

/// Runs `exec`, between the two records that tell of it, with an environment in which the new program is recorded, if
/// it takes the place of a recorded one or all children are recorded, and can load the library. It comes back only if it
/// failed.
fn replace_program(
    environment: Environment,
    can_load: impl FnOnce() -> bool,
    exec: impl FnOnce(Environment) -> c_int,
) -> c_int {
    let own = RECORDED_PROCESS.load(Ordering::Relaxed) == std::process::id().cast_signed();
    let followed = fork::is_followed();
    let recorded = own && thread::enter().is_some_and(|mut recorder| recorder.exec_begins());
    // The child of a vfork, which is no process of its own before it has called this.
    let new = !own && followed && recording_switch::is_on();
    if new {
        fork::expect_child();
    }
    let is_wanted = (recorded || followed) && can_load();
    let result = if is_wanted { hand_on(environment, exec) } else { exec(environment) };
    if new {
        fork::forget_child();
    }
    if own && let Some(mut recorder) = thread::enter() {
        recorder.exec_failed();
    }
    result
}

/// A function of the exec family, all of whose arguments are words, as a call of one that is given an environment.
macro_rules! replaces {
    ($name:ident = $original:ident($($argument:ident),+), $environment:expr, $can_load:expr =>
     $real:ident($($given:ident),+)) => {
        pub(super) static $original: Original<unsafe extern "C" fn($($argument: usize),+) -> c_int> = Original::new();

        pub(super) unsafe extern "C" fn $name($($argument: usize),+) -> c_int {
            let real = $real.get();
            replace_program($environment, || $can_load, |environment| {
                let environment = environment as usize;
                // SAFETY: the caller's arguments, with an environment that outlives the call.
                unsafe { real($($given),+, environment) }
            })
        }
    };
}

replaces!(execve = EXECVE(path, arguments, environment), environment as Environment, preload_check::at(path as _) =>
          EXECVE(path, arguments));
replaces!(execv = EXECV(path, arguments), environment::current(), preload_check::at(path as _) => EXECVE(path, arguments));
replaces!(execvp = EXECVP(file, arguments), environment::current(), preload_check::named(file as _) =>
          EXECVPE(file, arguments));
replaces!(execvpe = EXECVPE(file, arguments, environment), environment as Environment, preload_check::named(file as _) =>
          EXECVPE(file, arguments));
replaces!(fexecve = FEXECVE(file, arguments, environment), environment as Environment,
          preload_check::in_file(file as c_int, b"") => FEXECVE(file, arguments));

type Execveat = unsafe extern "C" fn(c_int, usize, usize, Environment, c_int) -> c_int;
pub(super) static EXECVEAT: Original<Execveat> = Original::new();

pub(super) unsafe extern "C" fn execveat(
    directory: c_int,
    path: usize,
    arguments: usize,
    environment: Environment,
    flags: c_int,
) -> c_int {
    let real = EXECVEAT.get();
    // A path below a directory is looked at only by its own name.
    let can_load = || preload_check::at(path as _);
    // SAFETY: the caller's arguments, with an environment that outlives the call.
    let exec = |environment| unsafe { real(directory, path, arguments, environment, flags) };
    replace_program(environment, can_load, exec)
}

/// The forms with the new program's arguments as their own, up to a null: made an array, as `execv` wants it.
macro_rules! listed {
    ($name:ident = $original:ident, $with_array:ident) => {
        pub(super) static $original: Original<unsafe extern "C" fn()> = Original::new();

        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            call_with_array!($with_array)
        }
    };
}

listed!(execl = EXECL, execl_with_array);
listed!(execlp = EXECLP, execlp_with_array);
listed!(execle = EXECLE, execle_with_array);

unsafe extern "C" fn execl_with_array(path: usize, arguments: usize) -> c_int {
    // SAFETY: the caller's arguments, as an array that ends in null.
    unsafe { execv(path, arguments) }
}

unsafe extern "C" fn execlp_with_array(file: usize, arguments: usize) -> c_int {
    // SAFETY: the caller's arguments, as an array that ends in null.
    unsafe { execvp(file, arguments) }
}

/// After the null comes the environment.
unsafe extern "C" fn execle_with_array(path: usize, arguments: *const usize) -> c_int {
    let mut after = arguments;
    loop {
        // SAFETY: the array is read up to its null.
        let word = unsafe { *after };
        // SAFETY: behind a word of the array there is a word: another one, or the environment.
        after = unsafe { after.add(1) };
        if word == 0 {
            break;
        }
    }
    // SAFETY: the word after the null.
    let environment = unsafe { *after };
    // SAFETY: the caller's arguments, as an array that ends in null.
    unsafe { execve(path, arguments as usize, environment) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_system_number_is_read_from_its_clock() {
        // SAFETY: no preconditions.
        let handle = unsafe { libc::pthread_self() };
        // SAFETY: no preconditions.
        let expected = unsafe { libc::gettid() };
        assert_eq!(system_id(handle), Some(expected));
    }
}
