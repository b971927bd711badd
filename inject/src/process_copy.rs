//! A copy of a process that never runs: a child of it that no `wait` of the program sees, since it has no exit signal.
//!
//! Its parent has to wait for it once it has ended, or an entry of the system's table of processes is left to the program. Whoever
//! ends memtrack by a signal ends the copy first, see [`CopyInUse::end`]; one that was left by a memtrack that could not do so is
//! waited for with the next. Invariant: no child is waited for but copies that memtrack has made.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::freeze::stop_any;
use crate::library::on_own_thread;
use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;
use crate::remote_call::RemoteThread;
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
    /// Makes a copy of the process; returns its number.
    pub(crate) fn make(
        &self,
        target: &TargetProcess,
        fork: impl FnOnce() -> Result<ProcessCopy, Refusal>,
    ) -> Result<i32, Refusal> {
        let mut place = self.place();
        let copy = fork()?;
        let tid = copy.tracee.tid();
        // Where it is refused, a copy that is left cannot be told from children of the program.
        let _ = fs::write(format!("/proc/{tid}/oom_score_adj"), MARK);
        *place = Some((target.pid, copy));
        Ok(tid)
    }

    /// Ends the copy, and lets the process wait for it.
    pub(crate) fn end_in(&self, target: &TargetProcess) -> Result<(), Refusal> {
        let mut place = self.place();
        place.take().map_or(Ok(()), |(_, copy)| copy.end(target))
    }

    /// Ends the copy, whatever reads it, and lets the process wait for it: for who is about to end memtrack.
    pub fn end(&self) -> CopyEnded<'_> {
        let mut place = self.place();
        if let Some((pid, copy)) = place.take() {
            // There is nobody to whom a reason could be told.
            let _ = on_own_thread(|| copy.end(&TargetProcess::inspect(pid)?));
        }
        CopyEnded { _none: place }
    }

    fn place(&self) -> MutexGuard<'_, Option<(i32, ProcessCopy)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessCopy {
    fn end(self, target: &TargetProcess) -> Result<(), Refusal> {
        let Self { tracee, inner_pid } = self;
        tracee.kill();
        if ProcessFacts::read(target.pid).is_none() {
            return Ok(());
        }
        let (stopped, late) = match stop_any(target) {
            Ok(stopped) => stopped,
            // It has ended meanwhile, and its children are not its own any more.
            Err(Refusal::Gone) => return Ok(()),
            Err(refusal) => return Err(refusal),
        };
        let mut thread = RemoteThread::begin(target, stopped, late)?;
        let waited = wait_for(&mut thread, inner_pid, 0);
        for left in left_copies(target.pid) {
            let _ = wait_for(&mut thread, left, libc::WNOHANG as u64);
        }
        thread.finish()?;
        match waited {
            // Another memtrack took it for one that was left.
            Err(Refusal::InTarget { error, .. }) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
            waited => waited,
        }
    }
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
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let line = read("stat");
    let fields: Vec<&str> =
        line.rsplit_once(") ").map(|(_, rest)| rest.split_ascii_whitespace().collect()).unwrap_or_default();
    fields.get(STATE) == Some(&"Z") && fields.get(EXIT_SIGNAL) == Some(&"0") && read("oom_score_adj").trim() == MARK
}

/// The numbers of a process in all name spaces, from that of memtrack on.
fn inner_pids(pid: i32) -> Vec<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    line.split_ascii_whitespace().flat_map(str::parse).collect()
}
