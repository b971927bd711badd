//! Stops a thread of the target at a safe point: one after the other is interrupted, judged, and let go on if it is not
//! safe. All others run on meanwhile, so that they release what they hold.
//!
//! Invariant: at most one thread is held, and only while it is judged or used. One that stops later than it was waited for
//! is let go then, see [`LateThreads`].

use std::time::{Duration, Instant};

use crate::candidates::Candidates;
use crate::denial::why_denied;
use crate::late_threads::LateThreads;
use crate::process_facts::ProcessFacts;
use crate::refusal::{Busy, Refusal};
use crate::safe_point::{SafetyJudge, StoppedState};
use crate::stopped_thread::StoppedThread;
use crate::target::TargetProcess;
use crate::tracee::{Pauses, StopReason, Tracee, is_alive, release_ended};
use crate::waiting::{self, ThreadRank};

/// How long a safe point is searched.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a thread may take to stop.
pub(crate) const STOP_LIMIT: Duration = Duration::from_millis(100);
/// Looks at threads that run, until files of them are read, too: whether they still exist.
pub(crate) const LOOKS: u32 = 64;
/// Pauses between tries, in microseconds: they vary, so as not to meet a loop at the same place again and again.
const PAUSES: [u64; 7] = [50, 310, 130, 730, 90, 1730, 410];
/// How long threads are spared whose system call a stop may end, where there are others.
const SPARED: Duration = Duration::from_millis(300);

/// Stops a thread where it may call the loader. Those that were asked to stop and have not are to be let go as they do.
pub(crate) fn stop_safely(target: &TargetProcess) -> Result<(StoppedThread, LateThreads), Refusal> {
    let begun = Instant::now();
    let mut judge = SafetyJudge::default();
    let mut reason = Busy::DoesNotStop;
    let mut late = LateThreads::of(target.pid);
    let mut candidates = Candidates::default();
    for pause in PAUSES.iter().cycle() {
        let threads: Vec<_> = target.threads().into_iter().map(|tid| (ThreadRank::of(target.pid, tid), tid)).collect();
        if threads.is_empty() {
            return Err(Refusal::Gone);
        }
        let spares = begun.elapsed() < SPARED && !threads.iter().all(|(rank, _)| rank.may_lose_its_call());
        for tid in candidates.next_round(threads, spares) {
            late.release_stopped();
            if late.contains(tid) {
                continue;
            }
            // Asked again: it may have begun to wait since.
            if spares && ThreadRank::of(target.pid, tid).may_lose_its_call() {
                continue;
            }
            match attempt(target, tid, &mut judge, &mut late)? {
                Attempt::Safe(stopped) => return Ok((stopped, late)),
                Attempt::Unsafe(why) => reason = why,
                Attempt::Late(tracee) => late.add(tracee),
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
pub(crate) enum Halt {
    Halted(StoppedThread),
    Late(Tracee),
    Ended,
}

fn attempt(
    target: &TargetProcess,
    tid: i32,
    judge: &mut SafetyJudge,
    late: &mut LateThreads,
) -> Result<Attempt, Refusal> {
    let stopped = match halt(target, tid, STOP_LIMIT, late)? {
        Halt::Halted(stopped) => stopped,
        Halt::Late(tracee) => return Ok(Attempt::Late(tracee)),
        Halt::Ended => return Ok(Attempt::Ended),
    };
    if let Err(why) = judge_thread(target, &stopped.tracee, &stopped.registers, judge) {
        stopped.release();
        return Ok(Attempt::Unsafe(why));
    }
    Ok(Attempt::Safe(stopped))
}

/// Stops a thread wherever it is, if it does so within `limit`. Late ones that stop meanwhile go on some milliseconds later.
pub(crate) fn halt(target: &TargetProcess, tid: i32, limit: Duration, late: &mut LateThreads) -> Result<Halt, Refusal> {
    let Some(tracee) = ask_to_stop(target, tid)? else { return Ok(Halt::Ended) };
    let (asked, mut pauses) = (Instant::now(), Pauses::default());
    for look in 1_u32.. {
        match progress(target, &tracee)? {
            StopProgress::Stopped(registers) => {
                return Ok(Halt::Halted(StoppedThread { tracee, registers: *registers }));
            }
            StopProgress::Ended => return Ok(Halt::Ended),
            StopProgress::Runs if asked.elapsed() <= limit => {}
            StopProgress::Runs if is_alive(target.pid, tid) => return Ok(Halt::Late(tracee)),
            StopProgress::Runs => {
                release_ended(tid);
                return Ok(Halt::Ended);
            }
        }
        if look % LOOKS == 0 {
            late.release_stopped();
        }
        pauses.pause();
    }
    Ok(Halt::Late(tracee))
}

/// Requests that a thread stops; `None`: it has ended.
pub(crate) fn ask_to_stop(target: &TargetProcess, tid: i32) -> Result<Option<Tracee>, Refusal> {
    match Tracee::seize(tid) {
        Ok(tracee) => Ok(tracee.interrupt().is_ok().then_some(tracee)),
        // The kernel says the same of one that has just ended.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && is_alive(target.pid, tid) => Err(denied(target)),
        Err(_) => Ok(None),
    }
}

/// How far a thread is that was asked to stop.
pub(crate) enum StopProgress {
    Stopped(Box<libc::user_regs_struct>),
    /// It has not stopped yet, or does not exist any more.
    Runs,
    Ended,
}

/// Looks at a thread that was asked to stop, and lets it go on where it has stopped for something else.
pub(crate) fn progress(target: &TargetProcess, tracee: &Tracee) -> Result<StopProgress, Refusal> {
    let resumed = match tracee.stop_reason() {
        Some(StopReason::Interrupted) => {
            let stopped = tracee.registers().ok().map(|registers| StopProgress::Stopped(Box::new(registers)));
            return Ok(stopped.unwrap_or(StopProgress::Ended));
        }
        Some(StopReason::ProcessStopped) => return Err(Refusal::Stopped(target.pid)),
        Some(StopReason::Forked) => tracee.resume(0).is_ok(),
        Some(StopReason::Signal { number, .. }) => tracee.resume(number).is_ok(),
        None => true,
    };
    Ok(if resumed { StopProgress::Runs } else { StopProgress::Ended })
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
        is_waiting: waiting::is_waiting(call),
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
            Ok(()) => why_denied(&facts, &target.own),
        },
    }
}
