//! A helper process that detects whether a signal was sent to memtrack only, or to its whole process group or cgroup.
//!
//! `kill -- -GROUP`, and a supervisor that signals every process of a control group (systemd), reach the program
//! directly. If memtrack forwarded such a signal, the program would receive it twice, and many servers exit at once at
//! the second one. The signal itself does not show how it was sent. So an idle process waits in the same process group
//! and control group: a signal that it receives as well was sent to all.
//!
//! Its command line is its name and the program's words, so that a signal sent by name (`pkill -f app.py`) reaches it if
//! it reaches the program, but not if it is meant for memtrack. It keeps no descriptor but its end of a pipe, and ends
//! with memtrack. Invariant: without the probe, or when in doubt, a signal is forwarded: the program gets each one at
//! least once.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::initial_state;

/// Time within which both processes are sent a signal that is sent to all.
const LONGEST: Duration = Duration::from_millis(50);
/// How long a busy machine may let the probe wait for a processor before it reports a signal that it was sent.
const BUSY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);
/// The name of the process, in place of memtrack's.
const NAME: &std::ffi::CStr = c"signal-probe";
/// The pid of the probe, once it runs.
static PID: AtomicI32 = AtomicI32::new(0);
/// Bytes of a report: the number of a signal and the pid of its sender.
const REPORT: usize = 8;

/// The running probe process.
#[derive(Debug)]
pub(super) struct SignalProbe {
    reports: File,
    /// Signals that the probe received: number, sender, and time of reading.
    received: Vec<(i32, i32, Instant)>,
}

impl SignalProbe {
    /// Starts the probe. Must be called by a thread that lives as long as memtrack, because PR_SET_PDEATHSIG refers to
    /// the parent thread. `target_words`: number of memtrack's arguments, at the end, that name the program.
    ///
    /// # Errors
    /// pipe2 or fork fails.
    pub(super) fn start(target_words: usize) -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: writes two descriptors to a live local.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let [reports, end] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: initializes a live local.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // Block all signals before the fork: memtrack's handlers must not run in the probe.
        // SAFETY: the first set was initialized; the second is written.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        let (parent, front) = (std::process::id().cast_signed(), initial_state::arguments_before(target_words));
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            watch(end.as_raw_fd(), all.as_ptr(), parent, front);
        }
        let error = io::Error::last_os_error();
        // SAFETY: the set is the one that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
        PID.store(pid.max(0), Relaxed);
        if pid < 0 { Err(error) } else { Ok(Self { reports: reports.into(), received: Vec::new() }) }
    }

    /// Whether the probe was sent this signal by this sender within [`LONGEST`] of now. Several signals within that time
    /// count as one.
    pub(super) fn has_received(&mut self, signal: i32, sender: i32) -> bool {
        let begun = Instant::now();
        loop {
            // Before reading: the probe reports before it waits again.
            let is_over = begun.elapsed() > LONGEST && (is_waiting(signal) || begun.elapsed() > BUSY);
            self.read();
            self.received.retain(|(.., when)| begun.saturating_duration_since(*when) < LONGEST);
            // The entry is kept: `timeout` signals both the process that it started and its group, which may arrive as
            // one signal at the program and as two at memtrack.
            if self.received.iter().any(|(number, from, _)| (*number, *from) == (signal, sender)) {
                return true;
            }
            if is_over {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn read(&mut self) {
        let mut report = [0; REPORT];
        while self.reports.read_exact(&mut report).is_ok() {
            let [signal, sender] = [0, 4].map(|at| {
                let bytes = report.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                i32::from_ne_bytes(bytes.unwrap_or_default())
            });
            self.received.push((signal, sender, Instant::now()));
        }
    }
}

/// Whether the probe waits for a signal and has not been sent this one; it does, too, where that cannot be told.
fn is_waiting(signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", PID.load(Relaxed))) else { return true };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_pending = |name| {
        let mask = field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        mask & (1 << (signal - 1)) != 0
    };
    !field("State:").is_some_and(|state| state.starts_with('R')) && !is_pending("SigPnd:") && !is_pending("ShdPnd:")
}

/// Kills and reaps the probe, so that no zombie remains.
pub(crate) fn stop() {
    let pid = PID.swap(0, Relaxed);
    if pid > 0 {
        super::kill(pid, libc::SIGKILL);
        // SAFETY: a child of this process that was not waited for; its status is not asked for.
        unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    }
}

/// Main loop of the probe. It runs in a fork of a multi-threaded process, whose locks may be held: system calls only.
fn watch(end: i32, all: *const libc::sigset_t, parent: i32, front: Option<(*mut u8, usize)>) -> ! {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: no arguments. memtrack may have ended before.
    if unsafe { libc::getppid() } != parent {
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: a text that stays.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    if let Some((start, len)) = front {
        // SAFETY: this process's copy of memtrack's own arguments, that nothing reads here but the system.
        unsafe { ptr::write_bytes(start, 0, len) };
        let name = NAME.to_bytes();
        // SAFETY: copies at most `len - 1` bytes into those `len` bytes, whose last zero stays.
        unsafe { ptr::copy_nonoverlapping(name.as_ptr(), start, name.len().min(len.saturating_sub(1))) };
    }
    let end = end.cast_unsigned();
    for (first, last) in [(0, end.wrapping_sub(1)), (end + 1, u32::MAX)] {
        // SAFETY: closes descriptors of this process, in which nobody uses them.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set was initialized, and the information is a live local.
        let signal = unsafe { libc::sigwaitinfo(all, info.as_mut_ptr()) };
        if signal <= 0 {
            continue;
        }
        // SAFETY: all zeroes is a valid value, and the call has filled it.
        let info = unsafe { info.assume_init() };
        // SAFETY: of every kind of signal this is a number.
        let sender = unsafe { info.si_pid() };
        let mut report = [0_u8; REPORT];
        report[..4].copy_from_slice(&signal.to_ne_bytes());
        report[4..].copy_from_slice(&sender.to_ne_bytes());
        // SAFETY: writes a live local; so few bytes are written whole, or not at all where nobody reads.
        unsafe { libc::write(end.cast_signed(), report.as_ptr().cast(), REPORT) };
    }
}
