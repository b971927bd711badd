//! Who holds a view's memory: the line of own code that asked for it, and the place that it went through.
//!
//! A row is of one line of own code, however many allocators and places of libraries it reached; those with the most bytes
//! are named. Without own code on the stack it is of the place; of an import it is of the line that imports. Invariant: the rows add
//! up to the view's total.

use std::cmp::Reverse;

use memtrack_format::Allocator;
use memtrack_reader::analysis::{GroupRow, Tally};
use memtrack_reader::{FrameId, StackId, ThreadId, View};
use rustc_hash::FxHashMap;

use super::NO_STACK;
use super::facts::Capture;

/// What tells rows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HolderKey {
    /// The line of own code, or the place; `None` without any frame.
    pub(crate) frame: Option<FrameId>,
    /// Where threads are kept apart.
    pub(crate) thread: Option<ThreadId>,
    /// Where processes are: the frame that names it.
    pub(crate) process: Option<FrameId>,
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) key: HolderKey,
    pub(crate) tally: Tally,
    /// Bytes by allocator.
    allocators: FxHashMap<Allocator, u64>,
    /// Bytes by the place that was gone through, where there is any.
    through: FxHashMap<FrameId, u64>,
}

/// The rows of a view of a capture that is shown folded, largest first.
pub(crate) fn holders(capture: &Capture, view: View, threads: bool, processes: bool) -> Vec<Holder> {
    let mut places: FxHashMap<HolderKey, usize> = FxHashMap::default();
    let mut paths: FxHashMap<StackId, Path> = FxHashMap::default();
    let mut rows: Vec<Holder> = Vec::new();
    for group in capture.analysis.view(view) {
        let path = *paths.entry(group.stack).or_insert_with(|| Path::of(capture, group.stack, processes));
        let thread = threads.then_some(group.thread);
        let key = HolderKey { frame: path.frame, thread, process: path.process };
        let place = *places.entry(key).or_insert(rows.len());
        if place == rows.len() {
            rows.push(Holder::new(key));
        }
        rows[place].add(&group, path.through);
    }
    rows.sort_by_key(|row| Reverse((row.tally.bytes, row.tally.count)));
    rows
}

/// A stack as one reads it in one line: own code first, then the place that it went through.
pub(crate) fn named(capture: &Capture, stack: StackId) -> String {
    let Path { frame, through, .. } = Path::of(capture, stack, false);
    let Some(frame) = frame else { return NO_STACK.into() };
    let through = through.map(|through| format!(", via {}", capture.named(through)));
    capture.named(frame) + &through.unwrap_or_default()
}

impl Holder {
    fn new(key: HolderKey) -> Self {
        Self { key, tally: Tally::default(), allocators: FxHashMap::default(), through: FxHashMap::default() }
    }

    fn add(&mut self, group: &GroupRow, through: Option<FrameId>) {
        self.tally.add(group.bytes, group.count);
        let more = |bytes: &mut u64| *bytes = bytes.saturating_add(group.bytes);
        more(self.allocators.entry(group.allocator).or_default());
        if let Some(through) = through {
            more(self.through.entry(through).or_default());
        }
    }

    /// The allocator, of several the one with the most bytes and how many there are besides.
    pub(crate) fn allocators(&self) -> String {
        let most = self.allocators.iter().max_by_key(|(allocator, bytes)| (**bytes, Reverse(allocator.name())));
        match (most, self.allocators.len()) {
            (None, _) => String::new(),
            (Some((allocator, _)), 1) => allocator.name().into(),
            (Some((allocator, _)), all) => format!("{} +{}", allocator.name(), all - 1),
        }
    }

    /// The row as one reads it: own code first, then what it went through.
    pub(crate) fn named(&self, capture: &Capture) -> String {
        let Some(frame) = self.key.frame else { return NO_STACK.into() };
        let most = self.through.iter().max_by_key(|(frame, bytes)| (**bytes, Reverse(**frame)));
        match (most, self.through.len()) {
            (None, _) => capture.named(frame),
            (Some((through, _)), 1) => format!("{}, via {}", capture.named(frame), capture.named(*through)),
            (Some((through, _)), all) => {
                format!("{}, via {} and {} more", capture.named(frame), capture.named(*through), all - 1)
            }
        }
    }
}

/// What a row says of a stack.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    frame: Option<FrameId>,
    through: Option<FrameId>,
    process: Option<FrameId>,
}

impl Path {
    fn of(capture: &Capture, stack: StackId, processes: bool) -> Self {
        let mut frames: Vec<_> = capture.frames.leaf_to_root(stack).collect();
        let process = if processes { frames.pop() } else { None };
        let is_import = |frame: &FrameId| {
            let name = capture.frames.function(*frame);
            name == "import" || name.starts_with("import ")
        };
        let Some(own) = frames.iter().position(|frame| capture.is_own(*frame)) else {
            // What is imported by nobody's code goes by the import that the interpreter made.
            let import = frames.iter().rev().copied().find(is_import).filter(|_| frames.first().is_some_and(is_import));
            return Self { frame: import.or_else(|| frames.first().copied()), through: None, process };
        };
        let called = own.checked_sub(1).and_then(|at| frames.get(at)).copied();
        let through = called.filter(is_import).or_else(|| frames.first().copied().filter(|_| own > 0));
        Self { frame: frames.get(own).copied(), through, process }
    }
}

#[cfg(test)]
mod tests {
    use super::holders;
    use crate::reports::facts::Capture;
    use crate::reports::fixture;
    use crate::reports::shown::Wish;
    use memtrack_format::Allocator;
    use memtrack_reader::analysis::{Group, Sum};
    use memtrack_reader::{ThreadId, View};

    const FIND: (&str, &str) = ("_find_and_load", "<frozen importlib._bootstrap>");
    const PANDAS: (&str, &str) = ("<module>", "/v/site-packages/pandas/__init__.py");
    const COPY: (&str, &str) = ("DataFrame.copy", "/v/site-packages/pandas/core/frame.py");
    const READ: (&str, &str) = ("read_csv", "/v/site-packages/pandas/io/readers.py");
    const LOAD: (&str, &str) = ("load", "/srv/report.py");

    /// Stacks of functions in files, outermost first, with the bytes that they leaked.
    fn capture(stacks: &[(&[(&str, &str)], u64)]) -> Capture {
        let mut capture = fixture::empty();
        let frames = &mut capture.frames;
        for (order, (stack, bytes)) in (0..).zip(stacks) {
            let mut id = |(function, file): &(&str, &str)| {
                let (function, file) = (frames.name_id(function).unwrap(), frames.name_id(file).unwrap());
                frames.frame_id(function, file, 7).unwrap()
            };
            let ids: Vec<_> = stack.iter().map(&mut id).collect();
            let stack = frames.stack_of(&ids).unwrap();
            let leaked = Sum { bytes: *bytes, count: 1, first_order: order, first_time_ns: 0 };
            let group = Group::new(stack, Allocator::Malloc, ThreadId(0));
            capture.analysis.groups.push(&Group { leaked, allocated: leaked, ..group });
        }
        capture
    }

    fn rows(capture: &mut Capture, wish: &Wish) -> Vec<String> {
        capture.show(wish).unwrap();
        let rows = holders(capture, View::Leaks, false, false);
        rows.iter().map(|row| format!("{} {}", row.tally.bytes, row.named(capture))).collect()
    }

    #[test]
    fn a_line_is_one_row_whatever_its_allocators() {
        let main = ("<module>", "/srv/main.py");
        let mut capture = capture(&[(&[main, LOAD], 50), (&[main, LOAD], 20), (&[main], 60)]);
        capture.analysis.groups.change(1, |group| group.allocator = Allocator::Calloc);
        capture.show(&Wish::default()).unwrap();
        let rows = holders(&capture, View::Leaks, false, false);
        let rows: Vec<_> = rows.iter().map(|row| (row.tally.bytes, row.allocators(), row.named(&capture))).collect();
        let load = (70, "malloc +1".to_owned(), "load at /srv/report.py:7".to_owned());
        assert_eq!(rows, [load, (60, "malloc".to_owned(), "<module> at /srv/main.py:7".to_owned())]);
    }

    #[test]
    fn own_lines_come_first_and_imports_are_left_out_of_leaks() {
        let main = ("<module>", "/srv/main.py");
        let report = ("<module>", "/srv/report.py");
        let stacks: &[(&[(&str, &str)], u64)] = &[
            (&[main, LOAD, READ, COPY], 50),
            (&[main, LOAD, READ], 20),
            (&[main, FIND, PANDAS, COPY], 100),
            (&[main, FIND, report, READ], 30),
            (&[READ, COPY], 5),
            (&[], 1),
        ];
        let with_imports = Wish { with_imports: true, ..Wish::default() };
        assert_eq!(
            rows(&mut capture(stacks), &with_imports)[0],
            "100 <module> at /srv/main.py:7, via import pandas at pandas/__init__.py:7"
        );
        let mut shown = capture(stacks);
        let expected = [
            "70 load at /srv/report.py:7, via DataFrame.copy at pandas/core/frame.py:7 and 1 more",
            "30 <module> at /srv/report.py:7, via read_csv at pandas/io/readers.py:7",
            "5 DataFrame.copy at pandas/core/frame.py:7",
            "1 <no stack>",
        ];
        assert_eq!(rows(&mut shown, &Wish::default()), expected);
        let mut text = Vec::new();
        shown.say_left_out(View::Leaks, &mut text).unwrap();
        shown.say_left_out(View::Allocated, &mut text).unwrap();
        assert_eq!(text, b"100 B held by imports are left out; --with-imports\n");
    }
}
