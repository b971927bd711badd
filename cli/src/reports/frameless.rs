//! Memory without any frame, in recordings of Python without native stacks: of which threads it is.
//!
//! In the main thread that is the interpreter and what it loads, before and after it executes code. Any other thread may be a
//! library's own, as of thread pools of C++ and Rust; whose code it runs only native stacks show.
//!
//! Invariant: nothing is said of the owner of such memory but the names of its threads.

use std::cmp::Reverse;

use memtrack_reader::analysis::{GroupRow, Tally};
use memtrack_reader::native::is_interpreter_object;
use memtrack_reader::{StackId, ThreadId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::capture_info::{Capture, visible};
use crate::units::count;

/// Names of threads that a text has at most.
const NAMED: usize = 2;

/// The threads whose memory without frames is not the interpreter's.
#[derive(Clone, Debug, Default)]
pub(crate) struct FramelessThreads {
    /// The threads that are none of them; `None` if such memory is not told apart.
    others: Option<FxHashSet<ThreadId>>,
}

impl FramelessThreads {
    pub(crate) fn of(capture: &Capture) -> Self {
        let process = &capture.info.process;
        if process.python_version.is_none() || process.native_traces || capture.info.has_no_stacks {
            return Self::default();
        }
        let main = main_threads(capture);
        if main.is_empty() {
            return Self::default();
        }
        // A program that embeds Python has code of its own in its main thread.
        let embeds = capture.info.executable().is_some_and(|path| !is_interpreter_object(&path));
        Self { others: Some(if embeds { FxHashSet::default() } else { main }) }
    }

    /// Whether what this thread allocated with this stack is such memory.
    pub(crate) fn has(&self, stack: StackId, thread: ThreadId) -> bool {
        stack == StackId::EMPTY && self.others.as_ref().is_some_and(|others| !others.contains(&thread))
    }
}

/// The sums of threads without frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct FramelessMemory {
    /// Largest first.
    threads: Vec<(ThreadId, Tally)>,
    /// Whether any of them has Python frames elsewhere.
    runs_python: bool,
}

impl FramelessMemory {
    /// What these rows of groups have of it.
    pub(crate) fn of(capture: &Capture, rows: impl Iterator<Item = GroupRow>) -> Self {
        let frameless = FramelessThreads::of(capture);
        let mut sums: FxHashMap<ThreadId, Tally> = FxHashMap::default();
        for row in rows.filter(|row| frameless.has(row.stack, row.thread)) {
            *sums.entry(row.thread).or_default() += row.tally();
        }
        let groups = capture.analysis.groups.iter();
        let runs_python =
            groups.filter(|group| group.stack != StackId::EMPTY).any(|group| sums.contains_key(&group.thread));
        let mut threads: Vec<_> = sums.into_iter().filter(|(_, sum)| sum.bytes > 0).collect();
        threads.sort_by_key(|(thread, sum)| (Reverse(sum.bytes), *thread));
        Self { threads, runs_python }
    }

    /// Everything.
    pub(crate) fn sum(&self) -> Tally {
        self.threads.iter().map(|(_, sum)| *sum).sum()
    }

    /// The threads, largest first, with their names.
    pub(crate) fn threads<'a>(&'a self, capture: &'a Capture) -> impl Iterator<Item = (String, Tally)> + 'a {
        self.threads.iter().map(|(thread, sum)| {
            let (tid, name) = capture.thread(*thread);
            let tid = tid.map(|tid| tid.to_string()).unwrap_or_default();
            let name = if name.is_empty() { tid } else { format!("{} ({tid})", visible(name)) };
            (name, *sum)
        })
    }

    /// What it is, as far as it is known.
    pub(crate) fn what(&self) -> &'static str {
        if self.runs_python { "native code, without Python frames" } else { "threads without Python code" }
    }

    /// The names of its threads, with a space before them: ` (polars-0, polars-1 and 6 more)`; empty where they have none.
    pub(crate) fn names(&self, capture: &Capture) -> String {
        // A thread that nobody named has the program's name.
        let main = main_threads(capture);
        let programs: FxHashSet<&str> = main.iter().map(|thread| capture.thread(*thread).1).collect();
        let mut names: Vec<&str> = Vec::new();
        for (thread, _) in &self.threads {
            let name = capture.thread(*thread).1;
            if !name.is_empty() && !programs.contains(name) && !names.contains(&name) {
                names.push(name);
            }
        }
        let shown: Vec<_> = names.iter().take(NAMED).map(|name| visible(name)).collect();
        let more = names.len().saturating_sub(NAMED);
        match (shown.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(" ({})", shown.join(", ")),
            (false, more) => format!(" ({} and {} more)", shown.join(", "), count(more as u64)),
        }
    }
}

/// The threads that processes began with.
fn main_threads(capture: &Capture) -> FxHashSet<ThreadId> {
    let info = &capture.info;
    let pids: FxHashSet<_> =
        info.process.pid.into_iter().chain(info.processes.iter().filter_map(|process| process.pid)).collect();
    let is_main = |tid: i32| u32::try_from(tid).is_ok_and(|tid| pids.contains(&tid));
    let threads = (0..).map(ThreadId).zip(&capture.threads);
    threads.filter(|(_, thread)| is_main(thread.tid)).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::FramelessMemory;
    use crate::reports::capture_info::Capture;
    use crate::reports::fixture;
    use memtrack_format::meta::PythonVersion;
    use memtrack_reader::{StackId, Thread, ThreadId, View};

    /// A stack of the main thread, and memory without frames in threads with these names, the main one first.
    fn capture(threads: &[(&str, u64)]) -> Capture {
        let mut capture = fixture::of_stacks(&[(&[("<module>", "/srv/main.py")], 100)]);
        capture.info.process.pid = Some(10);
        capture.info.process.python_version = Some(PythonVersion { hex: 0x030c_01f0 });
        for (number, (name, bytes)) in (0..).zip(threads) {
            let thread = Thread { tid: 10 + number, name: (*name).into(), ..Thread::default() };
            capture.threads.push(thread);
            let mut group = capture.analysis.groups.iter().next().unwrap();
            (group.stack, group.thread, group.leaked.bytes) = (StackId::EMPTY, ThreadId(number as u32), *bytes);
            capture.analysis.groups.push(&group);
        }
        capture
    }

    fn of(capture: &Capture) -> (String, u64) {
        let found = FramelessMemory::of(capture, capture.analysis.rows(View::Leaks));
        (format!("{}{}", found.what(), found.names(capture)), found.sum().bytes)
    }

    #[test]
    fn threads_are_named_by_what_they_hold() {
        let named = capture(&[("python", 7), ("polars-0", 20), ("polars-1", 30), ("python", 1), ("jemalloc", 2)]);
        assert_eq!(of(&named), ("threads without Python code (polars-1, polars-0 and 1 more)".into(), 53));
        assert_eq!(of(&capture(&[("python", 7), ("python", 5)])), ("threads without Python code".into(), 5));
        assert_eq!(of(&capture(&[("python", 7)])).1, 0);
    }

    #[test]
    fn a_thread_that_runs_python_is_not_said_not_to() {
        let mut capture = capture(&[("python", 7), ("worker", 20)]);
        capture.analysis.groups.change(0, |group| group.thread = ThreadId(1));
        assert_eq!(of(&capture), ("native code, without Python frames (worker)".into(), 20));
    }

    #[test]
    fn native_stacks_would_have_shown_it() {
        let mut capture = capture(&[("python", 7), ("worker", 20)]);
        capture.info.process.native_traces = true;
        assert_eq!(of(&capture).1, 0);
    }
}
