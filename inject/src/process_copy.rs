//! A copy of a process that never runs: a child of it that no `wait` of the program sees, since it has no exit signal.
//!
//! Its parent has to wait for it once it has ended, or an entry of the system's table of processes is left to the program. Whoever
//! ends memtrack by a signal ends the copy first, see [`CopyInUse::end`]; one that was left by a memtrack that could not do so is
//! waited for with the next. Invariant: no child is waited for but copies that memtrack has made.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::library::{inspect_untraced, on_own_thread};
use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;
use crate::remote_call::RemoteThread;
use crate::stop_any::stop_any;
use crate::target::TargetProcess;
use crate::tracee::Tracee;

/// Children without an exit signal.
const WAIT_FOR_CLONES: u64 = 0x8000_0000;
/// By which copies are known once they have ended; where memory gets short, they are ended before the program.
const MARK: &str = "989";
/// Behind the name in the line of a process's state: the letter of what it does, and its exit signal.
const STATE: usize = 0;
const EXIT_SIGNAL: usize = 35;

/// A copy of a process.
#[derive(Debug)]
pub(crate) struct ProcessCopy {
    pub(crate) tracee: Tracee,
    /// Its number in the process's own name space.
    pub(crate) inner_pid: u64,
}

/// The copy that is being read, if there is one.
#[derive(Debug, Default)]
pub struct CopyInUse(Mutex<Option<(i32, ProcessCopy)>>);

/// No copy is there, and none is made as long as this lives.
#[derive(Debug)]
#[must_use]
pub struct CopyEnded<'a> {
    _none: MutexGuard<'a, Option<(i32, ProcessCopy)>>,
}

impl CopyInUse {
    /// There is none.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Makes a copy of the process; returns its number.
    pub(crate) fn make(
        &self,
        target: &TargetProcess,
        fork: impl FnOnce() -> Result<ProcessCopy, Refusal>,
    ) -> Result<i32, Refusal> {
        let mut place = self.place();
        let copy = fork()?;
        let tid = copy.tracee.tid();
        *place = Some((target.pid, copy));
        Ok(tid)
    }

    /// Ends the copy, and lets the process wait for it.
    ///
    /// # Errors
    /// Somebody else had ended it, so that what was read of it is not whole; or the process cannot wait for it.
    pub(crate) fn end_in(&self, target: &TargetProcess) -> Result<(), Refusal> {
        let mut place = self.place();
        let Some((_, copy)) = place.take() else { return Ok(()) };
        let had_ended = has_ended(copy.tracee.tid());
        let waited = copy.kill().wait_in(target);
        if had_ended { Err(Refusal::CopyEnded) } else { waited }
    }

    /// Ends the copy, whatever reads it, and lets the process wait for it: for who is about to end memtrack.
    pub fn end(&self) -> CopyEnded<'_> {
        let mut place = self.place();
        if let Some((pid, copy)) = place.take() {
            let copy = copy.kill();
            // There is nobody to whom a reason could be told.
            let _ = on_own_thread(|| copy.wait_in(&inspect_untraced(pid)?));
        }
        CopyEnded { _none: place }
    }

    fn place(&self) -> MutexGuard<'_, Option<(i32, ProcessCopy)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessCopy {
    /// A copy that has just been made. It is marked before the process goes on: a memtrack that is killed later leaves one that is known.
    pub(crate) fn of(tracee: Tracee, inner_pid: u64) -> Self {
        // Where it is refused, a copy that is left cannot be told from children of the program.
        let _ = fs::write(format!("/proc/{}/oom_score_adj", tracee.tid()), MARK);
        Self { tracee, inner_pid }
    }

    fn kill(self) -> KilledCopy {
        self.tracee.kill();
        KilledCopy { inner_pid: self.inner_pid }
    }
}

/// A copy that has ended, and for which its process has not waited.
#[derive(Debug)]
struct KilledCopy {
    inner_pid: u64,
}

impl KilledCopy {
    fn wait_in(self, target: &TargetProcess) -> Result<(), Refusal> {
        match wait_in(target, &[self.inner_pid], 0) {
            // It has ended meanwhile, and its children are not its own any more.
            Err(Refusal::Gone) => Ok(()),
            // Another memtrack took it for one that was left.
            Err(Refusal::InTarget { error, .. }) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
            waited => waited,
        }
    }
}

/// Lets the process wait for copies that were left to it, before another one is made: it may have as many children as it can.
pub(crate) fn wait_for_left(target: &TargetProcess) {
    let left = left_copies(target.pid);
    if !left.is_empty() {
        // They do not matter to what is to be done.
        let _ = wait_in(target, &left, libc::WNOHANG as u64);
    }
}

/// Lets a process wait for children of it, in a thread that is stopped for that.
fn wait_in(target: &TargetProcess, children: &[u64], options: u64) -> Result<(), Refusal> {
    if ProcessFacts::read(target.pid).is_none() {
        return Err(Refusal::Gone);
    }
    let (stopped, late) = stop_any(target)?;
    let mut thread = RemoteThread::begin(target, stopped, late)?;
    let waited: Vec<_> = children.iter().map(|child| wait_for(&mut thread, *child, options)).collect();
    thread.finish()?;
    waited.into_iter().collect()
}

fn wait_for(thread: &mut RemoteThread<'_>, child: u64, options: u64) -> Result<(), Refusal> {
    thread.system_call("wait4", libc::SYS_wait4, [child, 0, options | WAIT_FOR_CLONES, 0, 0, 0]).map(|_| ())
}

/// The copies of a process that have ended and for which it has not waited, by their numbers in its own name space.
fn left_copies(pid: i32) -> Vec<u64> {
    let depth = inner_pids(pid).len();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<i32> =
        lists.flat_map(|list| list.split_ascii_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    let left = children.into_iter().filter(|child| is_left(*child));
    left.filter_map(|child| inner_pids(child).get(depth.checked_sub(1)?).copied()).collect()
}

/// Whether the process is a copy that has ended.
fn is_left(pid: i32) -> bool {
    let fields = state_fields(pid);
    let mark = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap_or_default();
    let is = |at: usize, text: &str| fields.get(at).is_some_and(|field| field == text);
    is(STATE, "Z") && is(EXIT_SIGNAL, "0") && mark.trim() == MARK
}

/// Whether a child that is traced has ended.
fn has_ended(pid: i32) -> bool {
    state_fields(pid).get(STATE).is_none_or(|state| matches!(&**state, "Z" | "X"))
}

/// The line of a process's state behind its name; empty where there is no such process.
fn state_fields(pid: i32) -> Vec<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = line.rsplit_once(") ").map(|(_, rest)| rest.split_ascii_whitespace().map(str::to_owned).collect());
    fields.unwrap_or_default()
}

/// The numbers of a process in all name spaces, from that of memtrack on.
fn inner_pids(pid: i32) -> Vec<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().flat_map(str::parse).collect()
}
