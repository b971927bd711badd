//! Calls in a stopped thread of another process.
//!
//! A few instructions are written over the begin of the executable's code, which has run once and does not run again. Calls
//! use a stack of their own. All other state (registers, vector state, blocked signals, the interrupted system call) is
//! saved by the tracer and restored when the thread is let go.
//!
//! Invariant: however a [`RemoteThread`] ends, it first restores the thread and the code.

use std::io;
use std::time::{Duration, Instant};

use crate::address_space::Needed;
use crate::late_threads::LateThreads;
use crate::refusal::Refusal;
use crate::saved_state::{STUB, SavedState};
use crate::stopped_thread::StoppedThread;
use crate::target::TargetProcess;
use crate::tracee::{StopReason, Tracee, is_alive, is_untraced, release_ended};
use crate::waiting::resumable;

/// Offset of the system call in it.
const SYSTEM_CALL: u64 = 3;
/// The addresses that follow the two traps.
const ENDS: [u64; 2] = [3, 6];

/// Bytes of the stack for calls.
const STACK: u64 = 512 << 10;
/// Bytes at its end for arguments.
const ARGUMENTS: u64 = 4096;

/// Interval of checks whether the thread still exists.
const CHECK: Duration = Duration::from_millis(50);
/// The same whether late threads have stopped, where there are some.
const CHECK_LATE: Duration = Duration::from_millis(1);

/// Signals that the kernel raises for what a thread does, which must not be blocked: SIGILL, SIGTRAP, SIGBUS, SIGFPE,
/// SIGSEGV, SIGSYS.
const RAISED: [i32; 6] = [4, 5, 7, 8, 11, 31];
/// The direction and trap flags.
const FLAGS: u64 = 1 << 10 | 1 << 8;
/// No system call is in progress.
const NO_CALL: u64 = u64::MAX;

/// A stopped thread in which calls are made.
#[derive(Debug)]
pub(crate) struct RemoteThread<'a> {
    target: &'a TargetProcess,
    tracee: Option<Tracee>,
    /// A call may wait for a lock that one of these holds.
    late: LateThreads,
    registers: libc::user_regs_struct,
    vector_state: Vec<u8>,
    mask: u64,
    code: [u8; STUB.len()],
    stack: Option<u64>,
    /// Signals that came meanwhile and could not be blocked.
    held: Vec<i32>,
    /// What a call has made: see [`Self::fork`].
    forked: Option<Tracee>,
    /// The process has ended or executes another program.
    gone: bool,
}

impl<'a> RemoteThread<'a> {
    /// Saves the thread's state and writes the instructions.
    pub(crate) fn begin(target: &'a TargetProcess, stopped: StoppedThread, late: LateThreads) -> Result<Self, Refusal> {
        let SavedState { vector_state, mask, code } = match SavedState::of(target, &stopped.tracee) {
            Ok(saved) => saved,
            Err(refusal) => {
                stopped.release();
                return Err(refusal);
            }
        };
        let StoppedThread { tracee, registers } = stopped;
        let mut made = Self {
            target,
            tracee: Some(tracee),
            late,
            registers,
            vector_state,
            mask,
            code,
            stack: None,
            held: Vec::new(),
            forked: None,
            gone: false,
        };
        let failed = |error| Refusal::Own { what: "the process's code cannot be written", error };
        target.memory.write(target.entry, &STUB).map_err(failed)?;
        let raised = RAISED.iter().fold(0, |bits, signal| bits | 1_u64 << (signal - 1));
        made.tracee()?.set_signal_mask(!raised).map_err(failed)?;
        made.stack = Some(made.map_stack()?);
        Ok(made)
    }

    fn map_stack(&mut self) -> Result<u64, Refusal> {
        let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let mapped = self.system_call("mmap", libc::SYS_mmap, [0, STACK, rights, kind, u64::MAX, 0]);
        mapped.map_err(|refusal| match refusal {
            Refusal::InTarget { error, .. } if error.raw_os_error() == Some(libc::ENOMEM) => {
                Needed::to_call().check(self.pid()).err().unwrap_or(Refusal::InTarget { what: "mmap", error })
            }
            refusal => refusal,
        })
    }

    fn tracee(&self) -> Result<&Tracee, Refusal> {
        self.tracee.as_ref().ok_or(Refusal::Gone)
    }

    /// The process that it is a thread of.
    pub(crate) fn pid(&self) -> i32 {
        self.target.pid
    }

    /// The place of up to 4096 bytes of arguments, with these bytes.
    pub(crate) fn argument(&self, bytes: &[u8]) -> Result<u64, Refusal> {
        let at = self.stack.ok_or(Refusal::Gone)? + STACK - ARGUMENTS;
        let failed = |error| Refusal::Own { what: "the process's memory cannot be written", error };
        self.target.memory.write(at, bytes).map_err(failed)?;
        Ok(at)
    }

    /// Makes a system call.
    pub(crate) fn system_call(&mut self, what: &'static str, number: i64, a: [u64; 6]) -> Result<u64, Refusal> {
        let rip = self.target.entry + SYSTEM_CALL;
        let [rdi, rsi, rdx, r10, r8, r9] = a;
        let rax = number.cast_unsigned();
        let result =
            self.run(what, libc::user_regs_struct { rip, rax, rdi, rsi, rdx, r10, r8, r9, ..self.registers })?;
        match result.cast_signed() {
            error @ -4095..0 => Err(Refusal::InTarget { what, error: io::Error::from_raw_os_error(-error as i32) }),
            _ => Ok(result),
        }
    }

    /// Copies the process: the copy is stopped before its first instruction, has no exit signal, and ends with memtrack.
    /// Returns it, and its number in the process's own name space.
    pub(crate) fn fork(&mut self) -> Result<(Tracee, u64), Refusal> {
        let failed = |error| Refusal::Own { what: "copies of the process cannot be traced", error };
        self.tracee()?.trace_forks(true).map_err(failed)?;
        let number = self.system_call("clone", libc::SYS_clone, [0; 6]);
        self.tracee()?.trace_forks(false).map_err(failed)?;
        let copy = self.forked.take();
        match (number, copy) {
            (Ok(number), Some(copy)) => Ok((copy, number)),
            (Ok(_), None) => Err(Refusal::Gone),
            (Err(refusal), copy) => {
                if let Some(copy) = copy {
                    copy.kill();
                }
                Err(refusal)
            }
        }
    }

    /// Calls a function with two arguments.
    pub(crate) fn call(&mut self, what: &'static str, function: u64, a: [u64; 2]) -> Result<u64, Refusal> {
        // 16 bytes below the arguments, as a function expects it before a call.
        let rsp = self.stack.ok_or(Refusal::Gone)? + STACK - ARGUMENTS - 64;
        let [rdi, rsi] = a;
        let registers =
            libc::user_regs_struct { rip: self.target.entry, rax: function, rdi, rsi, rsp, ..self.registers };
        self.run(what, libc::user_regs_struct { rbp: 0, ..registers })
    }

    /// Runs the thread with these registers up to the next trap of the instructions; returns the result.
    fn run(&mut self, what: &'static str, registers: libc::user_regs_struct) -> Result<u64, Refusal> {
        let eflags = registers.eflags & !FLAGS;
        self.tracee()?
            .set_registers(&libc::user_regs_struct { orig_rax: NO_CALL, eflags, ..registers })
            .map_err(|_| Refusal::Gone)?;
        loop {
            if self.tracee()?.resume(0).is_err() || !self.wait() {
                self.gone = true;
                return Err(Refusal::Gone);
            }
            match self.tracee()?.stop_reason() {
                Some(StopReason::Signal { number, by_kernel }) => {
                    let registers = self.tracee()?.registers().map_err(|_| Refusal::Gone)?;
                    let ends = ENDS.map(|end| self.target.entry + end);
                    match number {
                        libc::SIGTRAP if ends.contains(&registers.rip) => return Ok(registers.rax),
                        number if by_kernel && RAISED.contains(&number) => {
                            return Err(Refusal::Signal { what, signal: number });
                        }
                        number => self.held.push(number),
                    }
                }
                Some(StopReason::Forked) => {
                    let forked = self.tracee()?.forked();
                    self.forked =
                        Some(forked.map_err(|error| Refusal::Own { what: "the copy cannot be traced", error })?);
                }
                Some(StopReason::Interrupted | StopReason::ProcessStopped) | None => {}
            }
        }
    }

    /// Waits until the thread stops; `false`: it has ended. There is no limit: a call that waits for a lock of the loader
    /// cannot be taken back. Who holds it may be a thread that stops only now.
    fn wait(&mut self) -> bool {
        let Some(tracee) = &self.tracee else { return false };
        let mut checked = Instant::now();
        loop {
            let limit = if self.late.is_empty() { CHECK } else { CHECK_LATE };
            if tracee.wait_for_stop(limit).is_some() {
                return true;
            }
            self.late.release_stopped();
            if checked.elapsed() >= CHECK {
                if !is_alive(self.target.pid, tracee.tid()) || is_untraced(tracee.tid()) {
                    return false;
                }
                checked = Instant::now();
            }
        }
    }

    /// Restores everything and lets the thread go on.
    pub(crate) fn finish(mut self) -> Result<(), Refusal> {
        self.restore()
    }

    fn restore(&mut self) -> Result<(), Refusal> {
        if let Some(stack) = self.stack.take().filter(|_| !self.gone) {
            let _ = self.system_call("munmap", libc::SYS_munmap, [stack, STACK, 0, 0, 0, 0]);
        }
        let Some(tracee) = self.tracee.take() else { return Ok(()) };
        if self.gone {
            release_ended(tracee.tid());
            return Err(Refusal::Gone);
        }
        let failed = |error| Refusal::Own { what: "the process cannot be put back as it was", error };
        // Each is tried, whether the others succeeded or not.
        let restored = [
            self.target.memory.write(self.target.entry, &self.code),
            tracee.set_vector_state(&self.vector_state),
            tracee.set_registers(&resumable(&self.registers)),
            tracee.set_signal_mask(self.mask),
        ];
        let (tid, last) = (tracee.tid(), self.held.pop().unwrap_or(0));
        for signal in self.held.drain(..) {
            // SAFETY: takes numbers only.
            unsafe { libc::syscall(libc::SYS_tgkill, self.target.pid, tid, signal) };
        }
        let detached = tracee.detach(last);
        restored.into_iter().chain([detached]).collect::<io::Result<()>>().map_err(failed)
    }
}

impl Drop for RemoteThread<'_> {
    fn drop(&mut self) {
        // The reason that it is not finished is reported already.
        let _ = self.restore();
    }
}
