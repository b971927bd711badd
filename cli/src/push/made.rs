//! Which windows of each process were made: whoever makes them, and however often, each is sent once, and what is missing is known.
//!
//! Invariant: the windows of a process that are sent follow one another without gaps.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memtrack_reader::source::CaptureReader;

use crate::control::snapshot::CapturePaths;

/// Numbers in the tree that are looked for beyond the highest known one: a child's capture may not be opened yet, or never.
pub(super) const AHEAD: u32 = 17;

/// Whose window it is, by the number of the process in the tree, and from when to when it is, since recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowSpan {
    pub(super) process: u32,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) is_last: bool,
}

/// The last window that was made of a process.
#[derive(Clone, Copy, Debug, Default)]
struct MadeUntil {
    to_ns: u64,
    is_last: bool,
}

/// What was made.
#[derive(Debug, Default)]
pub(super) struct MadeWindows(Mutex<MadeState>);

#[derive(Debug, Default)]
struct MadeState {
    processes: HashMap<u32, MadeUntil>,
    is_over: bool,
}

/// What was not made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnmadeWindows {
    /// One for each length of a window.
    pub(super) windows: u64,
    /// Of the process of which most time is missing.
    pub(super) longest_ns: u64,
}

impl MadeWindows {
    fn lock(&self) -> MutexGuard<'_, MadeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this window is the next one of its process.
    pub(super) fn is_next(&self, span: WindowSpan) -> bool {
        let state = self.lock();
        let until = state.processes.get(&span.process).copied().unwrap_or_default();
        !state.is_over && !until.is_last && until.to_ns == span.from_ns
    }

    /// The same, and the window is made now: only one of those who have made it is told so.
    pub(super) fn claim(&self, span: WindowSpan) -> bool {
        let mut state = self.lock();
        let is_over = state.is_over;
        let until = state.processes.entry(span.process).or_default();
        let is_next = !is_over && !until.is_last && until.to_ns == span.from_ns;
        if is_next {
            *until = MadeUntil { to_ns: span.to_ns, is_last: span.is_last };
        }
        is_next
    }

    /// What is missing of recordings that have ended, with windows of this length. From now on no window is the next one. Where there
    /// is no time left, a process counts as one window.
    pub(super) fn end(&self, captures: &CapturePaths, every: Duration, is_over: impl Fn() -> bool) -> UnmadeWindows {
        let mut state = self.lock();
        state.is_over = true;
        let made = std::mem::take(&mut state.processes);
        drop(state);
        let mut unmade = UnmadeWindows::default();
        for (number, path) in all_captures(captures) {
            let until = made.get(&number).copied().unwrap_or_default();
            if until.is_last {
                continue;
            }
            let end_ns = match (!is_over()).then(|| CaptureReader::open(path)) {
                None => until.to_ns,
                Some(Ok(capture)) => capture.duration_ns().unwrap_or(until.to_ns),
                // Nothing was ever recorded.
                Some(Err(_)) => continue,
            };
            unmade.windows += windows(until.to_ns, end_ns, every);
            unmade.longest_ns = unmade.longest_ns.max(end_ns.saturating_sub(until.to_ns));
        }
        unmade
    }
}

/// How many windows there are between these times, the last one of which is open.
fn windows(from_ns: u64, end_ns: u64, every: Duration) -> u64 {
    let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    (end_ns.saturating_sub(1) / every_ns).saturating_sub(from_ns / every_ns) + 1
}

/// The captures of all processes, by their numbers in the tree.
pub(super) fn all_captures(captures: &CapturePaths) -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    let mut next = 0;
    while next < found.last().map_or(0, |(highest, _)| highest + 1) + AHEAD {
        found.extend(captures(next).map(|path| (next, path)));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{MadeWindows, WindowSpan, all_captures, windows};
    use crate::control::snapshot::CapturePaths;

    const fn span(from_ns: u64, to_ns: u64) -> WindowSpan {
        WindowSpan { process: 0, from_ns, to_ns, is_last: false }
    }

    #[test]
    fn a_window_is_claimed_once_and_after_the_one_before_it() {
        let made = MadeWindows::default();
        assert!(!made.claim(span(10, 20)) && made.claim(span(0, 10)) && !made.claim(span(0, 10)));
        assert!(made.is_next(span(10, 15)) && made.claim(span(10, 20)) && !made.claim(span(10, 15)));
        assert!(made.claim(WindowSpan { process: 1, ..span(0, 10) }));
        assert!(made.claim(WindowSpan { is_last: true, ..span(20, 30) }) && !made.claim(span(30, 40)));
        let none: CapturePaths = Arc::new(|_| None);
        assert_eq!(made.end(&none, Duration::from_secs(1), || false).windows, 0);
        assert!(!made.claim(WindowSpan { process: 1, ..span(10, 20) }), "nobody counts it any more");
    }

    #[test]
    fn what_is_missing_is_counted_as_windows_of_the_grid() {
        let second = 1_000_000_000;
        let every = Duration::from_secs(1);
        assert_eq!(windows(6 * second, 13 * second + second / 2, every), 8);
        assert_eq!(windows(0, 2 * second, every), 2);
        assert_eq!([windows(0, 0, every), windows(0, 1, every), windows(0, second + 1, every)], [1, 1, 2]);
    }

    #[test]
    fn captures_are_found_behind_numbers_without_any() {
        let captures: CapturePaths = Arc::new(|number| [0, 3, 20].contains(&number).then(|| number.to_string().into()));
        let numbers: Vec<_> = all_captures(&captures).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [0, 3, 20]);
    }
}
