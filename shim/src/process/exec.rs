//! Programs that replace themselves: the exec family.
//!
//! Invariant: no guard is held over an exec. One that succeeds never returns, and in a child made by vfork it would
//! leave the guard closed in the parent, whose memory the child runs in.

use std::ffi::c_int;

use super::child_environment::with_child_environment;
use super::fork;
use super::preload_check;
use super::recorded_process;
use crate::interposition::got::Original;
use crate::interposition::hooks::trampoline::call_with_array;
use crate::platform::environment;
use crate::platform::environment::ExecEnvironment;
use crate::platform::recording_switch;
use crate::recording::thread;

/// Runs `exec`, between the two records that tell of it, with an environment in which the new program is recorded, if
/// it takes the place of a recorded one or all children are recorded, and can load the library. It comes back only if it
/// failed.
fn replace_program(
    environment: ExecEnvironment,
    can_load: impl FnOnce() -> bool,
    exec: impl FnOnce(ExecEnvironment) -> c_int,
) -> c_int {
    let own = recorded_process::is_this();
    let followed = fork::is_followed();
    let recorded = own && thread::enter().is_some_and(|mut recorder| recorder.exec_begins());
    // The child of a vfork, which is no process of its own before it has called this.
    let new = !own && followed && recording_switch::is_on();
    if new {
        fork::expect_child();
    }
    let is_wanted = (recorded || followed) && can_load();
    let result = if is_wanted { with_child_environment(environment, exec) } else { exec(environment) };
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

replaces!(execve = EXECVE(path, arguments, environment), environment as ExecEnvironment, preload_check::at(path as _) =>
          EXECVE(path, arguments));
replaces!(execv = EXECV(path, arguments), environment::current(), preload_check::at(path as _) => EXECVE(path, arguments));
replaces!(execvp = EXECVP(file, arguments), environment::current(), preload_check::named(file as _) =>
          EXECVPE(file, arguments));
replaces!(execvpe = EXECVPE(file, arguments, environment), environment as ExecEnvironment, preload_check::named(file as _) =>
          EXECVPE(file, arguments));
replaces!(fexecve = FEXECVE(file, arguments, environment), environment as ExecEnvironment,
          preload_check::in_file(file as c_int, b"") => FEXECVE(file, arguments));

type Execveat = unsafe extern "C" fn(c_int, usize, usize, ExecEnvironment, c_int) -> c_int;
pub(super) static EXECVEAT: Original<Execveat> = Original::new();

pub(super) unsafe extern "C" fn execveat(
    directory: c_int,
    path: usize,
    arguments: usize,
    environment: ExecEnvironment,
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
