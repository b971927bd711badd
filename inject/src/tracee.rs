//! ptrace: one thread of another process, seized, stopped and resumed.
//!
//! A stop is noticed by asking for its signal, not by waiting for the process: where memtrack is the parent, its other
//! threads wait for the same process. Invariant: only this module calls ptrace, and a thread that is dropped while it is
//! stopped goes on.

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use crate::process_facts::ProcessFacts;

const NT_PRSTATUS: usize = 1;
const NT_X86_XSTATE: usize = 0x202;
const PTRACE_EVENT_STOP: i32 = 128;
const PTRACE_GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const PTRACE_SET_SIGNAL_MASK: libc::c_uint = 0x420b;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_GET_RSEQ: libc::c_uint = 0x420f;
const PTRACE_EVENT_CLONE: i32 = 3;
/// The most bytes of a vector state.
const MOST_VECTOR_STATE: usize = 64 << 10;
/// Instructions of a filter.
const MOST_FILTER: usize = 4096;

/// A seized thread.
#[derive(Debug)]
pub(crate) struct Tracee {
    tid: i32,
    is_attached: bool,
}

/// Why a thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// It was interrupted by the tracer.
    Interrupted,
    /// Its process is stopped by a signal.
    ProcessStopped,
    /// It has made a process, which is stopped and traced.
    Forked,
    /// It is about to get this signal.
    Signal {
        /// The signal.
        number: i32,
        /// Whether the kernel raised it for what the thread did.
        by_kernel: bool,
    },
}

impl Tracee {
    /// Begins to trace the thread, which runs on.
    pub(crate) fn seize(tid: i32) -> io::Result<Self> {
        // SAFETY: takes numbers only.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0_usize, 0_usize) })?;
        Ok(Self { tid, is_attached: true })
    }

    pub(crate) fn tid(&self) -> i32 {
        self.tid
    }

    /// Requests a stop.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        // SAFETY: takes numbers only.
        check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.tid, 0_usize, 0_usize) })
    }

    /// Lets it go on, with this signal if it is not 0.
    pub(crate) fn resume(&self, signal: i32) -> io::Result<()> {
        // SAFETY: takes numbers only.
        check(unsafe { libc::ptrace(libc::PTRACE_CONT, self.tid, 0_usize, signal as usize) })
    }

    /// Why it is stopped; `None`: it runs, or does not exist.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: writes to a live local of the type that the request takes.
        check(unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.tid, 0_usize, info.as_mut_ptr()) }).ok()?;
        // SAFETY: it was zeroed, which is a valid value.
        let info = unsafe { info.assume_init() };
        Some(match (info.si_code >> 8, info.si_signo) {
            (PTRACE_EVENT_STOP, libc::SIGTRAP) => StopReason::Interrupted,
            (PTRACE_EVENT_STOP, _) => StopReason::ProcessStopped,
            (PTRACE_EVENT_CLONE, libc::SIGTRAP) => StopReason::Forked,
            (_, number) => StopReason::Signal { number, by_kernel: info.si_code > 0 },
        })
    }

    /// Whether processes that the stopped thread makes are stopped and traced from their begin.
    pub(crate) fn trace_forks(&self, enabled: bool) -> io::Result<()> {
        let options = if enabled { libc::PTRACE_O_TRACECLONE as usize } else { 0 };
        // SAFETY: takes numbers only.
        check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, self.tid, 0_usize, options) })
    }

    /// The process that it made, stopped with [`StopReason::Forked`]; it ends when memtrack ends.
    pub(crate) fn forked(&self) -> io::Result<Self> {
        let mut made = 0_u64;
        // SAFETY: writes a word to a live local.
        check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, self.tid, 0_usize, &raw mut made) })?;
        let made = Self { tid: i32::try_from(made).map_err(io::Error::other)?, is_attached: true };
        let stopped = made.wait_for_stop(Duration::from_secs(1));
        // SAFETY: takes numbers only.
        let bound = check(unsafe {
            libc::ptrace(libc::PTRACE_SETOPTIONS, made.tid, 0_usize, libc::PTRACE_O_EXITKILL as usize)
        });
        match (stopped, bound) {
            (Some(_), Ok(())) => Ok(made),
            (_, bound) => {
                made.kill();
                Err(bound.err().unwrap_or_else(|| io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Ends the process whose only thread it is, and waits for it as its tracer.
    pub(crate) fn kill(mut self) {
        self.is_attached = false;
        // SAFETY: takes numbers only; it is a traced child, so its number is not in use again.
        unsafe { libc::kill(self.tid, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: writes to a live local.
        unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
    }

    /// Waits for a stop; `None`: it did not stop within the limit, or does not exist.
    pub(crate) fn wait_for_stop(&self, limit: Duration) -> Option<StopReason> {
        let mut pauses = Pauses::default();
        let begun = Instant::now();
        loop {
            if let Some(reason) = self.stop_reason() {
                return Some(reason);
            }
            if begun.elapsed() > limit {
                return None;
            }
            pauses.pause();
        }
    }

    /// The general registers of the stopped thread.
    pub(crate) fn registers(&self) -> io::Result<libc::user_regs_struct> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
        let len = size_of::<libc::user_regs_struct>();
        let mut part = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: len };
        // SAFETY: writes at most the length of the live local that the vector names.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, self.tid, NT_PRSTATUS, &raw mut part) })?;
        if part.iov_len != len {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: plain numbers, which the kernel has filled in.
        Ok(unsafe { registers.assume_init() })
    }

    pub(crate) fn set_registers(&self, registers: &libc::user_regs_struct) -> io::Result<()> {
        let base = std::ptr::from_ref(registers).cast_mut().cast();
        let mut part = libc::iovec { iov_base: base, iov_len: size_of::<libc::user_regs_struct>() };
        // SAFETY: reads the registers that the vector names; nothing is written to them.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, self.tid, NT_PRSTATUS, &raw mut part) })
    }

    /// The floating-point and vector registers, as the kernel has them.
    pub(crate) fn vector_state(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0_u8; MOST_VECTOR_STATE];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: writes at most the length of the buffer that the vector names.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, &raw mut part) })?;
        bytes.truncate(part.iov_len);
        Ok(bytes)
    }

    pub(crate) fn set_vector_state(&self, bytes: &[u8]) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: reads the bytes that the vector names; nothing is written to them.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, self.tid, NT_X86_XSTATE, &raw mut part) })
    }

    /// The blocked signals.
    pub(crate) fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: writes 8 bytes to a live local.
        check(unsafe { libc::ptrace(PTRACE_GET_SIGNAL_MASK, self.tid, 8_usize, &raw mut mask) })?;
        Ok(mask)
    }

    pub(crate) fn set_signal_mask(&self, mut mask: u64) -> io::Result<()> {
        // SAFETY: reads 8 bytes of a live local.
        check(unsafe { libc::ptrace(PTRACE_SET_SIGNAL_MASK, self.tid, 8_usize, &raw mut mask) })
    }

    /// The address of its area for restartable sequences; `None` if it has none.
    pub(crate) fn restartable_area(&self) -> Option<u64> {
        let mut configuration = [0_u64; 3];
        let size = size_of_val(&configuration);
        // SAFETY: writes at most the size that is given to a live local.
        let got = unsafe { libc::ptrace(PTRACE_GET_RSEQ, self.tid, size, configuration.as_mut_ptr()) };
        (got > 0 && configuration[0] != 0).then_some(configuration[0])
    }

    /// The instructions of a filter for system calls, the newest filter first; `None` beyond the last.
    pub(crate) fn filter(&self, index: usize) -> io::Result<Option<Vec<libc::sock_filter>>> {
        let mut instructions = vec![libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; MOST_FILTER];
        // SAFETY: the kernel permits no longer filters than the buffer.
        let got = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, self.tid, index, instructions.as_mut_ptr()) };
        match (usize::try_from(got), io::Error::last_os_error()) {
            (Ok(count), _) => {
                instructions.truncate(count);
                Ok(Some(instructions))
            }
            (_, error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            (_, error) => Err(error),
        }
    }

    /// Ends the tracing of the stopped thread, with this signal if it is not 0.
    pub(crate) fn detach(mut self, signal: i32) -> io::Result<()> {
        self.end(signal)
    }

    fn end(&mut self, signal: i32) -> io::Result<()> {
        self.is_attached = false;
        // SAFETY: takes numbers only.
        check(unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0_usize, signal as usize) })
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.is_attached {
            // If it is not stopped, the kernel detaches it when the tracing thread ends.
            let _ = self.end(0);
        }
    }
}

/// The pauses between looks whether a thread has stopped: short at first, since most stop at once.
#[derive(Debug, Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    pub(crate) fn pause(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 < 16 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50.min(u64::from(self.0))));
        }
    }
}

/// Whether the thread exists and has not ended; in doubt, as where no descriptor is left, it does.
pub(crate) fn is_alive(pid: i32, tid: i32) -> bool {
    match thread_state(pid, tid) {
        Ok(state) => !matches!(state, b'Z' | b'X' | b'x'),
        Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    }
}

/// Whether the thread waits in the kernel for something that no signal interrupts: it does not stop before that comes.
pub(crate) fn is_uninterruptible(pid: i32, tid: i32) -> bool {
    matches!(thread_state(pid, tid), Ok(b'D'))
}

/// The letter by which the kernel names what a thread does; that of an ended one where it cannot be read.
fn thread_state(pid: i32, tid: i32) -> io::Result<u8> {
    let text = std::fs::read(format!("/proc/{pid}/task/{tid}/stat"))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.rsplit_once(") ").and_then(|(_, rest)| rest.bytes().next()).unwrap_or(b'X'))
}

/// Whether nobody traces the thread: another thread has taken its number, which executes another program.
pub(crate) fn is_untraced(tid: i32) -> bool {
    ProcessFacts::read(tid).is_some_and(|facts| facts.tracer().is_none())
}

/// Hands a thread that ended while it was traced to its parent, which waits for it.
pub(crate) fn release_ended(tid: i32) {
    let mut status = 0;
    // SAFETY: writes to a live local; waits for nothing.
    unsafe { libc::waitpid(tid, &raw mut status, libc::WNOHANG | libc::__WALL) };
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
