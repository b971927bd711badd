//! A process as it is at one moment: all its threads are stopped, and it is forked; the copy never runs and is read while
//! the process goes on.
//!
//! The copy is a child that no `wait` of the program sees, and that ends with memtrack; see [`crate::process_copy`]. Invariant:
//! when [`freeze`] returns, the copy has ended and was waited for, and every thread goes on as it was.

use std::time::{Duration, Instant};

use crate::copy_limits;
use crate::holding_memory::ThreadStack;
use crate::late_threads::LateThreads;
use crate::library::{inspect_untraced, on_own_thread};
use crate::process_copy::{CopyInUse, ProcessCopy, wait_for_left};
use crate::refusal::{Busy, Refusal};
use crate::remote_call::RemoteThread;
use crate::stop::is_in_sequence;
use crate::stop_all::stop_all;
use crate::stopped_thread::StoppedThread;
use crate::target::TargetProcess;
use crate::view::ProcessView;

/// How long a moment is searched in which the process may be frozen.
const LIMIT: Duration = Duration::from_secs(2);
/// Pauses between tries, in microseconds.
const PAUSES: [u64; 5] = [300, 1100, 500, 2300, 700];

/// How a process was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreezeCost {
    /// How long its threads stood still, as far as is known when it is read: for ever, while they are held.
    pub pause: Duration,
    /// Whether a copy is read, and the process runs on.
    pub is_copied: bool,
    /// Whether the moment was one that `ready` accepts; otherwise none came in time.
    pub was_ready: bool,
}

/// Freezes the process at a moment that `ready` accepts, and lets `work` read it. With `hold` the process itself stands
/// still while it is read, and nothing is executed in it. Until it has ended, the copy is in `in_use`.
///
/// # Errors
/// Why it was not done.
pub fn freeze<T: Send>(
    pid: i32,
    hold: bool,
    in_use: &CopyInUse,
    ready: &(dyn Fn(&ProcessView) -> bool + Sync),
    work: impl FnOnce(&ProcessView, FreezeCost) -> T + Send,
) -> Result<T, Refusal> {
    on_own_thread(|| {
        let target = inspect_untraced(pid)?;
        if target.facts.seccomp != 0 && !hold {
            return Err(Refusal::Seccomp("a filter", "clone and wait4, or pass --hold".into()));
        }
        if !hold {
            copy_limits::check(pid)?;
            wait_for_left(&target);
        }
        let view = ProcessView::of_stopped(pid).map_err(|_| Refusal::Gone)?;
        let (threads, begun, was_ready) = stop_when(&target, &|| ready(&view))?;
        let stacks = threads.iter().map(ThreadStack::from).collect();
        if hold {
            let view = view.with_threads(pid, stacks);
            // What it costs is known only when it is over.
            let done = work(&view, FreezeCost { pause: begun.elapsed(), is_copied: false, was_ready });
            release(threads);
            return Ok(done);
        }
        let copy = in_use.make(&target, || fork_stopped(&target, threads))?;
        let cost = FreezeCost { pause: begun.elapsed(), is_copied: true, was_ready };
        let view = ProcessView::of_stopped(copy)
            .map(|view| view.with_threads(pid, stacks))
            .map_err(|error| Refusal::Own { what: "the copy of the process cannot be read", error });
        let done = view.map(|view| work(&view, cost));
        let reaped = in_use.end_in(&target);
        done.and_then(|done| reaped.map(|()| done))
    })
}

/// Stops all threads at an accepted moment, or at any when none comes.
fn stop_when(target: &TargetProcess, ready: &dyn Fn() -> bool) -> Result<(Vec<StoppedThread>, Instant, bool), Refusal> {
    let searched = Instant::now();
    for pause in PAUSES.iter().cycle() {
        let (threads, begun) = stop_all(target)?;
        let is_ready = ready();
        if is_ready || searched.elapsed() > LIMIT {
            return Ok((threads, begun, is_ready));
        }
        release(threads);
        std::thread::sleep(Duration::from_micros(*pause));
    }
    Err(Refusal::Gone)
}

fn release(threads: Vec<StoppedThread>) {
    threads.into_iter().for_each(StoppedThread::release);
}

fn fork_stopped(target: &TargetProcess, mut threads: Vec<StoppedThread>) -> Result<ProcessCopy, Refusal> {
    let place = threads.iter().position(|thread| !is_in_sequence(target, &thread.tracee));
    let Some(place) = place else {
        release(threads);
        return Err(Refusal::Busy { seconds: 0, reason: Busy::RestartableSequence });
    };
    let used = threads.swap_remove(place);
    let copy = (|| {
        let mut thread = RemoteThread::begin(target, used, LateThreads::of(target.pid))?;
        let copied = thread.fork().map(|(tracee, inner_pid)| ProcessCopy::of(tracee, inner_pid));
        let copied = copied.map_err(|refusal| match refusal {
            Refusal::InTarget { error, .. } if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM)) => {
                Refusal::NoCopy(error)
            }
            refusal => refusal,
        });
        let restored = thread.finish();
        let copy = copied?;
        restored.map(|()| copy)
    })();
    release(threads);
    copy
}
