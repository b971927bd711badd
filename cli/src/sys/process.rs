//! Starts the program, waits for it, and sends it signals.
//!
//! posix_spawn blocks every signal until exec and resets memtrack's handlers in the child, so that no signal is lost
//! or handled twice around the start. Invariant: a signal is sent only while the process is known to be unreaped.

use std::ffi::{CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::early_signals::program_has_ended;
use super::limits::ResourceLimits;
use super::{initial_state, kill};

/// glibc's internal signals. Its posix_spawn would leave them ignored in the child, unlike fork and exec.
const LIBRARY_SIGNALS: [i32; 2] = [32, 33];

/// Minimum CPU time of any process from fork to exit, in nanoseconds.
const LEAST_CHILD_NS: u64 = 10_000;
/// Processors that memtrack's few threads have run on until it starts the program, at most.
const MOST_PROCESSORS: u64 = 8;

/// A program that is about to be started.
#[derive(Debug)]
pub(crate) struct Spawn {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

/// A started process.
#[derive(Debug)]
pub(crate) struct Child {
    pid: i32,
    /// Whether the process is unreaped, so that its id is still its own.
    alive: Mutex<bool>,
    /// Peak resident memory of memtrack in bytes when the process was forked: the kernel includes it in the child's
    /// peak.
    inherited_peak: Option<u64>,
}

/// The result of a reaped process.
#[derive(Clone, Debug)]
pub(crate) struct Reaped {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// Its own CPU time in nanoseconds.
    pub(crate) own_ns: Option<u64>,
    /// CPU time including all descendants that were waited for.
    pub(crate) all_ns: u64,
    /// Its peak resident memory in bytes, if the kernel's value is known to be its own.
    pub(crate) resident_peak: Option<u64>,
    /// The name of its first thread.
    pub(crate) name: Option<String>,
    /// Its resource limits at the end.
    pub(crate) limits: ResourceLimits,
}

/// The exit status that a shell would report: 128+N for signal N.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(shell_status_of_signal)).unwrap_or(0);
    (code & 0xff) as u8
}

/// The exit status that a shell would report for a process that this signal ended.
pub(super) fn shell_status_of_signal(signal: i32) -> i32 {
    128 + signal
}

impl Spawn {
    /// Prepares to start the file at `path`.
    ///
    /// # Errors
    /// `InvalidInput` if the path, an argument or a variable contains a NUL byte.
    pub(crate) fn new(
        path: &Path,
        arguments: &[OsString],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<Self> {
        let environment = environment.into_iter().map(|(name, value)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).map_err(io::Error::from)
        });
        Ok(Self {
            path: CString::new(path.as_os_str().as_bytes())?,
            arguments: arguments
                .iter()
                .map(|argument| CString::new(argument.clone().into_vec()))
                .collect::<Result<_, _>>()?,
            environment: environment.collect::<io::Result<_>>()?,
        })
    }

    /// Starts it with the standard descriptors, signal mask and ignored signals that memtrack was started with.
    ///
    /// # Errors
    /// An error of execve, such as `NotFound`, `PermissionDenied` or ENOEXEC.
    pub(crate) fn start(&self) -> io::Result<Child> {
        let mut attributes = SpawnAttributes::new()?;
        let mut actions = SpawnFileActions::new()?;
        let sigpipe = (!initial_state::sigpipe_was_ignored()).then_some(libc::SIGPIPE);
        attributes.reset_to_default(sigpipe.into_iter().chain(LIBRARY_SIGNALS))?;
        initial_state::closed_descriptors().try_for_each(|descriptor| actions.close(descriptor))?;
        let arguments = pointers(&self.arguments);
        let environment = pointers(&self.environment);
        let mut pid = 0;
        // SAFETY: the path, both arrays and what they point to, attributes and actions outlive the call.
        check(unsafe {
            libc::posix_spawn(
                &raw mut pid,
                self.path.as_ptr(),
                actions.0.as_ptr(),
                attributes.0.as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
            )
        })?;
        let inherited_peak = memtrack_collector::resident_peak(std::process::id().cast_signed());
        Ok(Child { pid, alive: Mutex::new(true), inherited_peak })
    }
}

impl Spawn {
    /// Executes the program in place of memtrack, with the inherited state. Returns only on error.
    pub(crate) fn replace(&self) -> io::Error {
        if !initial_state::sigpipe_was_ignored() {
            // SAFETY: sets a disposition back to the default; no handler is involved.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        }
        for descriptor in initial_state::closed_descriptors() {
            // SAFETY: a standard descriptor, which nobody owns; nothing is written from here on.
            unsafe { libc::close(descriptor) };
        }
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        let (arguments, environment) = (arguments.as_ptr().cast(), environment.as_ptr().cast());
        // SAFETY: the path, both arrays and what they point to outlive the call. Handlers are reset by it.
        unsafe { libc::execve(self.path.as_ptr(), arguments, environment) };
        io::Error::last_os_error()
    }
}

/// How long a stop for a call in the process takes.
const STOPPED: std::time::Duration = std::time::Duration::from_millis(1);

impl Child {
    /// A child that an earlier image of this process has started and has not reaped.
    pub(crate) fn of_earlier_image(pid: i32) -> Self {
        Self { pid, alive: Mutex::new(true), inherited_peak: None }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the process is in memtrack's process group.
    pub(crate) fn is_in_this_group(&self) -> bool {
        // SAFETY: takes a number only.
        let theirs = unsafe { libc::getpgid(self.pid) };
        // SAFETY: no arguments, cannot fail.
        theirs == unsafe { libc::getpgrp() }
    }

    /// Sends a signal; false if the process has ended.
    pub(crate) fn signal(&self, signal: i32) -> bool {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if *alive {
            kill(self.pid, signal);
        }
        *alive
    }

    /// Waits for the end of the process without reaping it, so that its pid is not reused.
    ///
    /// # Errors
    /// waitid fails.
    pub(crate) fn wait_for_end(&self) -> io::Result<()> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let id = self.pid.cast_unsigned();
        loop {
            // SAFETY: waitid writes to a live local.
            let result = unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
            if result == 0 {
                // SAFETY: all zeroes is a valid value.
                let how = unsafe { info.assume_init_ref() }.si_code;
                if matches!(how, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
                    return Ok(());
                }
                // Its parent's other threads see it stop while one of them calls a function in it.
                std::thread::sleep(STOPPED);
                continue;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Reaps the process and returns its result; waits for its end if necessary.
    ///
    /// # Errors
    /// wait4 fails.
    pub(crate) fn reap(&self) -> io::Result<Reaped> {
        self.wait_for_end()?;
        let own_ns = memtrack_collector::processor_ns(self.pid);
        let limits = ResourceLimits::of(self.pid);
        let name = memtrack_collector::last_name(self.pid);
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: wait4 writes to live locals; the process has ended, so that it does not wait.
        if unsafe { libc::wait4(self.pid, &raw mut status, 0, usage.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        *alive = false;
        program_has_ended();
        // SAFETY: all zeroes is a valid value.
        let usage = unsafe { usage.assume_init() };
        let all_ns = nanoseconds(usage.ru_utime).saturating_add(nanoseconds(usage.ru_stime));
        // The kernel's peak is the maximum over the process, memtrack's image before the exec, and all children that
        // the process has waited for.
        let has_waited = own_ns.is_none_or(|own_ns| all_ns.saturating_sub(own_ns) > LEAST_CHILD_NS);
        let peak = u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024);
        let certain = |inherited: u64| inherited.saturating_add(kernel_count_error());
        let is_own = !has_waited && self.inherited_peak.is_some_and(|inherited| peak > certain(inherited));
        let (status, resident_peak) = (ExitStatus::from_raw(status), is_own.then_some(peak));
        Ok(Reaped { status, own_ns, all_ns, resident_peak, name, limits })
    }
}

/// How far the kernel's count of resident bytes at an exec can be from the sum in /proc, as of Linux 6.2 (measured: up to
/// 0.75 MB on two processors): each processor keeps changes of three counters (file, anonymous, shared) to itself until
/// they are max(32, 2 per processor) pages.
fn kernel_count_error() -> u64 {
    // SAFETY: both calls read a constant of the system.
    let [processors, page] =
        [libc::_SC_NPROCESSORS_ONLN, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    let processors = u64::try_from(processors).unwrap_or(1);
    let pages = (2 * processors).max(32) * processors.min(MOST_PROCESSORS) * 3;
    pages * u64::try_from(page).unwrap_or(4096)
}

fn nanoseconds(time: libc::timeval) -> u64 {
    let (seconds, rest) = (time.tv_sec.unsigned_abs(), time.tv_usec.unsigned_abs());
    seconds.saturating_mul(1_000_000).saturating_add(rest).saturating_mul(1000)
}

struct SpawnAttributes(Box<MaybeUninit<libc::posix_spawnattr_t>>);

impl SpawnAttributes {
    fn new() -> io::Result<Self> {
        let mut attributes = Box::new(MaybeUninit::uninit());
        // SAFETY: initializes what the pointer refers to.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        Ok(Self(attributes))
    }

    fn reset_to_default(&mut self, signals: impl Iterator<Item = i32>) -> io::Result<()> {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        let bits = signals.fold(0, |bits, signal| bits | 1_u64 << (signal - 1));
        // sigaddset refuses glibc's internal signals.
        // SAFETY: the set is an array of words on Linux, the first of which has the signals up to 64.
        unsafe { set.as_mut_ptr().cast::<u64>().write(bits) };
        // SAFETY: both were initialized.
        check(unsafe { libc::posix_spawnattr_setsigdefault(self.0.as_mut_ptr(), set.as_ptr()) })?;
        // SAFETY: the attributes were initialized; the flag fits in its type.
        check(unsafe {
            libc::posix_spawnattr_setflags(self.0.as_mut_ptr(), libc::POSIX_SPAWN_SETSIGDEF as libc::c_short)
        })
    }
}

impl Drop for SpawnAttributes {
    fn drop(&mut self) {
        // SAFETY: initialized by new, destroyed once.
        unsafe { libc::posix_spawnattr_destroy(self.0.as_mut_ptr()) };
    }
}

struct SpawnFileActions(Box<MaybeUninit<libc::posix_spawn_file_actions_t>>);

impl SpawnFileActions {
    fn new() -> io::Result<Self> {
        let mut actions = Box::new(MaybeUninit::uninit());
        // SAFETY: initializes what the pointer refers to.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        Ok(Self(actions))
    }

    fn close(&mut self, descriptor: i32) -> io::Result<()> {
        // SAFETY: the actions were initialized.
        check(unsafe { libc::posix_spawn_file_actions_addclose(self.0.as_mut_ptr(), descriptor) })
    }
}

impl Drop for SpawnFileActions {
    fn drop(&mut self) {
        // SAFETY: initialized by new, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(self.0.as_mut_ptr()) };
    }
}

/// A null-terminated array, as execve takes it.
fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings.iter().map(|string| string.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

fn check(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests {
    use super::{Spawn, shell_status};
    use std::path::Path;

    fn run(script: &str) -> u8 {
        let arguments = ["sh", "-c", script].map(Into::into);
        let spawn = Spawn::new(Path::new("/bin/sh"), &arguments, [("A".into(), "b c".into())]).unwrap();
        shell_status(spawn.start().unwrap().reap().unwrap().status)
    }

    #[test]
    fn status_signal_and_environment() {
        assert_eq!(run("exit 7"), 7);
        assert_eq!(run("kill -9 $$"), 137);
        assert_eq!(run("test \"$A\" = 'b c'"), 0);
    }

    #[test]
    fn a_signal_after_the_end_is_not_sent() {
        let spawn = Spawn::new(Path::new("/bin/sleep"), &["sleep".into(), "60".into()], []).unwrap();
        let child = spawn.start().unwrap();
        assert!(child.signal(libc::SIGTERM));
        assert_eq!(shell_status(child.reap().unwrap().status), 128 + libc::SIGTERM as u8);
        assert!(!child.signal(libc::SIGTERM));
    }

    #[test]
    fn the_most_memory_is_told_where_it_is_the_programs_own() {
        let reaped = |script: &str| {
            let arguments = ["sh", "-c", script].map(Into::into);
            Spawn::new(Path::new("/bin/sh"), &arguments, []).unwrap().start().unwrap().reap().unwrap()
        };
        // A shell whose variable takes more memory than the test process.
        const GROWS: &str = "x=01234567; i=0; while [ $i -lt 25 ]; do x=$x$x; i=$((i+1)); done";
        let peak = reaped(GROWS).resident_peak.unwrap();
        assert!(peak > 256 << 20, "{peak}");
        assert_eq!(reaped(&format!("({GROWS}); true")).resident_peak, None);
        assert_eq!(reaped(":").resident_peak, None);
    }

    #[test]
    fn failures_are_told() {
        let missing = Spawn::new(Path::new("/no/such/file"), &["x".into()], []).unwrap();
        assert_eq!(missing.start().unwrap_err().kind(), std::io::ErrorKind::NotFound);
        assert!(Spawn::new(Path::new("/bin/sh"), &["a\0b".into()], []).is_err());
    }
}
