//! Stops one thread of a process, whichever can be stopped soonest, to execute a system call in it.
//!
//! Invariant: threads that are not returned go on as they were.

use std::time::{Duration, Instant};

use crate::late_threads::LateThreads;
use crate::refusal::{Busy, Refusal};
use crate::stop::{Halt, STOP_LIMIT, halt, is_in_sequence};
use crate::stopped_thread::StoppedThread;
use crate::target::TargetProcess;

/// How long a thread is searched.
const LIMIT: Duration = Duration::from_secs(10);
/// Pauses between tries, in microseconds.
const PAUSES: [u64; 5] = [300, 1100, 500, 2300, 700];

/// Stops one thread, wherever it is: a system call is executed in it, and no code of the process. The others run meanwhile, so
/// that it may take its time where many wait for few processors.
pub(crate) fn stop_any(target: &TargetProcess) -> Result<(StoppedThread, LateThreads), Refusal> {
    let (searched, mut reason, mut limit) = (Instant::now(), Busy::DoesNotStop, STOP_LIMIT);
    let mut late = LateThreads::of(target.pid);
    for pause in PAUSES.iter().cycle() {
        let threads = target.threads();
        if threads.is_empty() {
            return Err(Refusal::Gone);
        }
        for tid in threads {
            late.release_stopped();
            if searched.elapsed() > LIMIT {
                return Err(Refusal::Busy { seconds: LIMIT.as_secs(), reason });
            }
            if late.contains(tid) {
                continue;
            }
            match halt(target, tid, limit, &mut late)? {
                Halt::Halted(thread) if !is_in_sequence(target, &thread.tracee) => return Ok((thread, late)),
                Halt::Halted(thread) => {
                    thread.release();
                    reason = Busy::RestartableSequence;
                }
                Halt::Late(tracee) => late.add(tracee),
                Halt::Ended => {}
            }
        }
        limit = (limit * 2).min(LIMIT);
        std::thread::sleep(Duration::from_micros(*pause));
    }
    Err(Refusal::Gone)
}
