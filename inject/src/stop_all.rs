//! Stops all threads of a process: they are asked at once, and have one limit of time together.
//!
//! Invariant: while one does not stop, for it waits in the kernel or for a processor, the others stand still for one such limit
//! at the most; then all go on, and it is tried again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::late_threads::LateThreads;
use crate::refusal::{Busy, Refusal};
use crate::stop::{LOOKS, STOP_LIMIT, StopProgress, ask_to_stop, progress};
use crate::stopped_thread::StoppedThread;
use crate::target::TargetProcess;
use crate::tracee::{Pauses, Tracee, is_alive, is_uninterruptible, release_ended};

/// How long is tried.
const LIMIT: Duration = Duration::from_secs(2);
/// Pause between tries, while all threads run.
const PAUSE: Duration = Duration::from_millis(1);

/// Stops all threads, those included that are started meanwhile; also since when some stand still.
pub(crate) fn stop_all(target: &TargetProcess) -> Result<(Vec<StoppedThread>, Instant), Refusal> {
    let searched = Instant::now();
    let mut late = LateThreads::of(target.pid);
    let mut limit = STOP_LIMIT;
    loop {
        late.release_stopped();
        if late.is_empty() {
            let begun = Instant::now();
            let mut stopping =
                StoppingThreads { target, stopped: Vec::new(), asked: Vec::new(), ended: HashSet::new() };
            let stopped = stopping.stop_within(limit);
            if matches!(stopped, Ok(true)) {
                return Ok((stopping.stopped, begun));
            }
            stopping.give_up(&mut late);
            stopped?;
            // Where many threads wait for few processors, all need their turn.
            limit *= 2;
        }
        if searched.elapsed() > LIMIT {
            return Err(Refusal::Busy { seconds: LIMIT.as_secs(), reason: Busy::DoesNotStop });
        }
        std::thread::sleep(PAUSE);
    }
}

/// The threads of a process in one try.
struct StoppingThreads<'a> {
    target: &'a TargetProcess,
    stopped: Vec<StoppedThread>,
    /// Those that have not stopped yet.
    asked: Vec<Tracee>,
    ended: HashSet<i32>,
}

impl StoppingThreads<'_> {
    /// Whether all have stopped in time.
    fn stop_within(&mut self, limit: Duration) -> Result<bool, Refusal> {
        let pid = self.target.pid;
        // Of these it is not known when they stop: the others run on until they have.
        let waits: Vec<i32> = self.new_threads().into_iter().filter(|tid| is_uninterruptible(pid, *tid)).collect();
        if !self.stop(waits, STOP_LIMIT)? {
            return Ok(false);
        }
        let begun = Instant::now();
        loop {
            let new = self.new_threads();
            if new.is_empty() {
                return if self.stopped.is_empty() { Err(Refusal::Gone) } else { Ok(true) };
            }
            if !self.stop(new, limit.saturating_sub(begun.elapsed()))? {
                return Ok(false);
            }
        }
    }

    /// Threads that were not asked yet.
    fn new_threads(&self) -> Vec<i32> {
        let known: HashSet<i32> = self.stopped.iter().map(|thread| thread.tracee.tid()).collect();
        let is_new = |tid: &i32| !known.contains(tid) && !self.ended.contains(tid);
        self.target.threads().into_iter().filter(is_new).collect()
    }

    /// Stops these threads; whether they have stopped in time.
    fn stop(&mut self, threads: Vec<i32>, limit: Duration) -> Result<bool, Refusal> {
        for tid in threads {
            match ask_to_stop(self.target, tid)? {
                Some(tracee) => self.asked.push(tracee),
                None => _ = self.ended.insert(tid),
            }
        }
        let (begun, mut pauses) = (Instant::now(), Pauses::default());
        for look in 1_u32.. {
            let (taken, counts) = (begun.elapsed(), look % LOOKS == 0);
            let is_over = taken > limit || counts && taken > STOP_LIMIT && self.waits_in_kernel();
            self.look(is_over || counts)?;
            if self.asked.is_empty() {
                return Ok(true);
            }
            if is_over {
                break;
            }
            pauses.pause();
        }
        Ok(false)
    }

    /// Whether one of those that have not stopped does not before something else happens.
    fn waits_in_kernel(&self) -> bool {
        self.asked.iter().any(|tracee| is_uninterruptible(self.target.pid, tracee.tid()))
    }

    /// Looks which have stopped; with `counts`, also which have ended without that.
    fn look(&mut self, counts: bool) -> Result<(), Refusal> {
        for place in (0..self.asked.len()).rev() {
            let Some(tracee) = self.asked.get(place) else { continue };
            let tid = tracee.tid();
            match progress(self.target, tracee)? {
                StopProgress::Stopped(registers) => {
                    let tracee = self.asked.swap_remove(place);
                    self.stopped.push(StoppedThread { tracee, registers: *registers });
                }
                StopProgress::Runs if !counts || is_alive(self.target.pid, tid) => {}
                StopProgress::Runs => {
                    release_ended(tid);
                    self.forget(place);
                }
                StopProgress::Ended => self.forget(place),
            }
        }
        Ok(())
    }

    fn forget(&mut self, place: usize) {
        let tracee = self.asked.swap_remove(place);
        self.ended.insert(tracee.tid());
    }

    /// Lets all go on: those that have not stopped yet do so when they have.
    fn give_up(self, late: &mut LateThreads) {
        self.stopped.into_iter().for_each(StoppedThread::release);
        self.asked.into_iter().for_each(|tracee| late.add(tracee));
        late.release_stopped();
    }
}
