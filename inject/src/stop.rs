//! Stops a thread of the target at a safe point: one after the other is interrupted, judged, and let go on if it is not
//! safe. All others run on meanwhile, so that they release what they hold.
//!
//! Invariant: at most one thread is held, and only while it is judged or used.

use std::time::{Duration, Instant};

use crate::process_facts::{ProcessFacts, yama_scope};
use crate::refusal::{Busy, Refusal};
use crate::safe_point::{SafetyJudge, StoppedState};
use crate::target::TargetProcess;
use crate::tracee::{StopReason, Tracee, is_alive, release_ended};

/// How long a safe point is searched.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a thread may take to stop.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// The same where no other thread can be tried in its place; on a busy machine it may wait for a processor.
const LAST_STOP_LIMIT: Duration = Duration::from_secs(2);
/// Pauses between tries, in microseconds: they vary, so as not to meet a loop at the same place again and again.
const PAUSES: [u64; 7] = [50, 310, 130, 730, 90, 1730, 410];
/// Threads that are tried in a round.
const MOST_THREADS: usize = 16;

/// A thread at a safe point.
#[derive(Debug)]
pub(crate) struct StoppedThread {
    pub(crate) tracee: Tracee,
    pub(crate) registers: libc::user_regs_struct,
}

/// What a thread does, as far as can be seen without stopping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadRank {
    /// It waits in a system call that the kernel resumes by itself.
    Waits,
    Runs,
    /// It waits in a system call that an interruption may end.
    WaitsOnce,
    Unknown,
}

/// Stops a thread where it may call the loader.
pub(crate) fn stop_safely(target: &TargetProcess) -> Result<StoppedThread, Refusal> {
    let begun = Instant::now();
    let mut judge = SafetyJudge::default();
    let mut reason = Busy::DoesNotStop;
    let mut late: Vec<Tracee> = Vec::new();
    for pause in PAUSES.iter().cycle() {
        let mut threads: Vec<_> = target.threads().into_iter().map(|tid| (rank(target.pid, tid), tid)).collect();
        if threads.is_empty() {
            return Err(Refusal::Gone);
        }
        threads.sort_unstable();
        for (_, tid) in threads.into_iter().take(MOST_THREADS) {
            late.retain(|tracee| tracee.stop_reason().is_none());
            if late.iter().any(|tracee| tracee.tid() == tid) {
                continue;
            }
            match attempt(target, tid, &mut judge)? {
                Attempt::Safe(stopped) => return Ok(stopped),
                Attempt::Unsafe(why) => reason = why,
                Attempt::Late(tracee) => late.push(tracee),
                Attempt::Ended => {}
            }
        }
        if begun.elapsed() > LIMIT {
            break;
        }
        std::thread::sleep(Duration::from_micros(*pause));
    }
    Err(Refusal::Busy { seconds: LIMIT.as_secs(), reason })
}

enum Attempt {
    Safe(StoppedThread),
    Unsafe(Busy),
    Late(Tracee),
    Ended,
}

/// A thread that stopped anywhere, or did not.
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
enum Halt {
    Halted(StoppedThread),
    Late(Tracee),
    Ended,
}

/// Stops a thread wherever it is; `None`: it has ended, or waits in the kernel and does not stop.
pub(crate) fn stop_thread(target: &TargetProcess, tid: i32) -> Result<Option<StoppedThread>, Refusal> {
    Ok(match halt(target, tid, LAST_STOP_LIMIT)? {
        Halt::Halted(stopped) => Some(stopped),
        Halt::Late(_) => return Err(Refusal::Busy { seconds: LAST_STOP_LIMIT.as_secs(), reason: Busy::DoesNotStop }),
        Halt::Ended => None,
    })
}

fn attempt(target: &TargetProcess, tid: i32, judge: &mut SafetyJudge) -> Result<Attempt, Refusal> {
    let StoppedThread { tracee, registers } = match halt(target, tid, STOP_LIMIT)? {
        Halt::Halted(stopped) => stopped,
        Halt::Late(tracee) => return Ok(Attempt::Late(tracee)),
        Halt::Ended => return Ok(Attempt::Ended),
    };
    if let Err(why) = judge_thread(target, &tracee, &registers, judge) {
        // An interruption that is a restart for the kernel is none for the thread, too.
        let _ = tracee.set_registers(&resumable(&registers));
        let _ = tracee.detach(0);
        return Ok(Attempt::Unsafe(why));
    }
    Ok(Attempt::Safe(StoppedThread { tracee, registers }))
}

fn halt(target: &TargetProcess, tid: i32, limit: Duration) -> Result<Halt, Refusal> {
    let tracee = match Tracee::seize(tid) {
        Ok(tracee) => tracee,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(denied(target)),
        Err(_) => return Ok(Halt::Ended),
    };
    if tracee.interrupt().is_err() {
        return Ok(Halt::Ended);
    }
    loop {
        match tracee.wait_for_stop(limit) {
            Some(StopReason::Interrupted) => break,
            Some(StopReason::ProcessStopped) => return Err(Refusal::Stopped(target.pid)),
            Some(StopReason::Forked) => drop(tracee.resume(0)),
            Some(StopReason::Signal { number, .. }) => {
                if tracee.resume(number).is_err() {
                    return Ok(Halt::Ended);
                }
            }
            None if is_alive(target.pid, tid) => return Ok(Halt::Late(tracee)),
            None => {
                release_ended(tid);
                return Ok(Halt::Ended);
            }
        }
    }
    let Ok(registers) = tracee.registers() else { return Ok(Halt::Ended) };
    Ok(Halt::Halted(StoppedThread { tracee, registers }))
}

fn judge_thread(
    target: &TargetProcess,
    tracee: &Tracee,
    registers: &libc::user_regs_struct,
    judge: &mut SafetyJudge,
) -> Result<(), Busy> {
    let call = registers.orig_rax.cast_signed();
    if call < 0 && is_in_sequence(target, tracee) {
        return Err(Busy::RestartableSequence);
    }
    let mappings = target.mappings().map_err(|_| Busy::DoesNotStop)?;
    judge.judge(StoppedState {
        memory: &target.memory,
        mappings: &mappings,
        loader: target.loader,
        registers,
        is_waiting: WAITING.contains(&call) || WAITING_ONCE.contains(&call),
    })
}

/// Whether the thread may be within a restartable sequence, which the kernel would abort.
pub(crate) fn is_in_sequence(target: &TargetProcess, tracee: &Tracee) -> bool {
    /// Where the area has the address of the sequence.
    const SEQUENCE: u64 = 8;
    let area = tracee.restartable_area();
    area.is_some_and(|area| target.memory.u64(area.wrapping_add(SEQUENCE)).is_ok_and(|sequence| sequence != 0))
}

fn denied(target: &TargetProcess) -> Refusal {
    match ProcessFacts::read(target.pid) {
        None => Refusal::Gone,
        Some(facts) => match facts.check(&target.own) {
            Err(refusal) => refusal,
            Ok(()) => facts.why_denied(&target.own, yama_scope()),
        },
    }
}

/// System calls that wait and that the kernel restarts by itself: read, poll, select, pause, nanosleep, accept, recvfrom,
/// recvmsg, wait4, rt_sigsuspend, restart_syscall, clock_nanosleep, waitid, pselect6, ppoll, accept4.
const WAITING: [i64; 16] = [0, 7, 23, 34, 35, 43, 45, 47, 61, 130, 219, 230, 247, 270, 271, 288];
/// Those that end with EINTR when the thread is stopped: semop, rt_sigtimedwait, io_getevents, semtimedop, epoll_wait,
/// epoll_pwait, epoll_pwait2.
const WAITING_ONCE: [i64; 7] = [65, 128, 208, 220, 232, 281, 441];
const FUTEX: i64 = 202;

fn rank(pid: i32, tid: i32) -> ThreadRank {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    rank_of(&text)
}

fn rank_of(text: &str) -> ThreadRank {
    match text.split_ascii_whitespace().next() {
        Some("running") => ThreadRank::Runs,
        Some(number) => match number.parse() {
            Ok(FUTEX) => ThreadRank::Waits,
            Ok(number) if WAITING.contains(&number) => ThreadRank::Waits,
            Ok(number) if WAITING_ONCE.contains(&number) => ThreadRank::WaitsOnce,
            _ => ThreadRank::Unknown,
        },
        None => ThreadRank::Unknown,
    }
}

/// The registers with which the stopped thread goes on as if it had not been stopped. The kernel ends a few system calls
/// with EINTR at a stop; those without a time limit are begun again, unless a signal is handled first.
pub(crate) fn resumable(registers: &libc::user_regs_struct) -> libc::user_regs_struct {
    const RESTART_IF_NO_HANDLER: i64 = -514;
    let interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    let unlimited = match registers.orig_rax {
        // epoll_wait, epoll_pwait: the fourth argument is a time in milliseconds.
        232 | 281 => (registers.r10 as u32).cast_signed() < 0,
        // rt_sigtimedwait: the third is a pointer to one.
        128 => registers.rdx == 0,
        // epoll_pwait2, semtimedop: the fourth.
        441 | 220 => registers.r10 == 0,
        // io_getevents: the fifth.
        208 => registers.r8 == 0,
        // semop
        65 => true,
        _ => false,
    };
    let rax = if interrupted && unlimited { RESTART_IF_NO_HANDLER.cast_unsigned() } else { registers.rax };
    libc::user_regs_struct { rax, ..*registers }
}

#[cfg(test)]
mod tests {
    use super::{ThreadRank, rank_of, resumable};

    #[test]
    fn waiting_threads_come_first() {
        let ranks =
            ["0 0x3 0x7f 0x1 0x0", "202 0x1", "running\n", "232 0x4", "1 0x1", "", "-1 0x7ff 0x55"].map(rank_of);
        use ThreadRank::{Runs, Unknown, Waits, WaitsOnce};
        assert_eq!(ranks, [Waits, Waits, Runs, WaitsOnce, Unknown, Unknown, Unknown]);
        assert!(Waits < Runs && Runs < WaitsOnce);
    }

    #[test]
    fn waits_without_a_limit_are_begun_again() {
        // SAFETY: plain numbers, for which zeroes are valid.
        let empty: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let after = |orig_rax: u64, rax: i64, r10: u64| {
            resumable(&libc::user_regs_struct { orig_rax, rax: rax.cast_unsigned(), r10, ..empty }).rax.cast_signed()
        };
        assert_eq!(after(232, -4, u64::from(u32::MAX)), -514);
        assert_eq!(after(232, -4, 1000), -4);
        assert_eq!(after(232, 3, u64::from(u32::MAX)), 3);
        assert_eq!(after(35, -516, 0), -516);
        assert_eq!(after(u64::MAX, -4, 0), -4);
    }
}
