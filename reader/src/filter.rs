//! Which groups of a capture a report is about: by thread, function, file, module and allocator.
//!
//! It exists so that every report is filtered in the same way. Several values of one kind are alternatives, kinds
//! narrow each other down. Invariant: a filter of nothing leaves everything as it is.

use memtrack_format::Allocator;

use crate::analysis::{Analysis, Group, Tally};
use crate::event::{StackId, Thread, ThreadId};
use crate::frames::{Frames, NameId};
use crate::modules::Modules;

/// What to keep. An empty list stands for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Names of threads, or numbers that the operating system gave them.
    pub threads: Vec<String>,
    /// Stacks with a function whose name contains one of these.
    pub functions: Vec<String>,
    /// Stacks with a file whose path contains one of these.
    pub files: Vec<String>,
    /// Stacks that are put down to one of these modules, as [`crate::modules`] does it.
    pub modules: Vec<String>,
    /// Allocating functions.
    pub allocators: Vec<Allocator>,
}

impl Filter {
    /// Whether it keeps everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Drops the groups that are not kept. Gives everything ever allocated by those that are.
    pub fn apply(&self, analysis: &mut Analysis, frames: &Frames, threads: &[Thread]) -> Tally {
        if !self.is_everything() {
            let mut matcher = Matcher::new(self, frames, threads);
            analysis.retain(|_, group| matcher.keeps(group));
        }
        analysis.totals.allocations
    }

    fn has_thread(&self, threads: &[Thread], id: ThreadId) -> bool {
        let Some(thread) = threads.get(id.0 as usize) else { return false };
        self.threads.iter().any(|wanted| *wanted == thread.name || wanted.parse() == Ok(thread.tid))
    }
}

/// A filter with what is known of the tables of one capture.
struct Matcher<'a> {
    filter: &'a Filter,
    frames: &'a Frames,
    threads: &'a [Thread],
    /// For each stack, whether one of its functions is wanted; the same for files.
    functions: Option<Vec<bool>>,
    files: Option<Vec<bool>>,
    modules: Modules,
}

impl<'a> Matcher<'a> {
    fn new(filter: &'a Filter, frames: &'a Frames, threads: &'a [Thread]) -> Self {
        let functions = stacks_with(frames, &filter.functions, |frame| frame.function);
        let files = stacks_with(frames, &filter.files, |frame| frame.file);
        Self { filter, frames, threads, functions, files, modules: Modules::default() }
    }

    fn keeps(&mut self, group: &Group) -> bool {
        let filter = self.filter;
        let has = |stacks: &Option<Vec<bool>>| stacks.as_ref().is_none_or(|stacks| at(stacks, group.stack));
        (filter.allocators.is_empty() || filter.allocators.contains(&group.allocator))
            && (filter.threads.is_empty() || filter.has_thread(self.threads, group.thread))
            && has(&self.functions)
            && has(&self.files)
            && (filter.modules.is_empty() || self.has_module(group.stack))
    }

    fn has_module(&mut self, stack: StackId) -> bool {
        let module = self.modules.of_stack(self.frames, stack);
        let name = self.modules.name(module);
        self.filter.modules.iter().any(|wanted| wanted == name)
    }
}

fn at(stacks: &[bool], stack: StackId) -> bool {
    stacks.get(stack.0 as usize).copied().unwrap_or(false)
}

/// For each stack whether one of its frames has a name that contains one of `texts`; `None` where there are none.
fn stacks_with(frames: &Frames, texts: &[String], name: impl Fn(&crate::frames::Frame) -> NameId) -> Option<Vec<bool>> {
    if texts.is_empty() {
        return None;
    }
    let names: Vec<bool> = frames.names().map(|name| texts.iter().any(|text| name.contains(&**text))).collect();
    let wanted = |id: NameId| names.get(id.0 as usize).copied().unwrap_or(false);
    let mut stacks = vec![false];
    // A stack comes after that of its caller.
    for node in frames.stacks() {
        stacks.push(at(&stacks, node.parent) || wanted(name(&frames.frame(node.frame))));
    }
    Some(stacks)
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::Filter;
    use crate::analysis::{Analysis, Group, Sum};
    use crate::event::{Thread, ThreadId};
    use crate::frames::Frames;

    fn capture() -> (Analysis, Frames, Vec<Thread>) {
        let mut frames = Frames::new();
        let mut frame = |function: &str, file: &str| {
            let (function, file) = (frames.name_id(function).unwrap(), frames.name_id(file).unwrap());
            frames.frame_id(function, file, 1).unwrap()
        };
        let (main, parse) = (frame("main", "/home/me/app.py"), frame("parse", "/venv/site-packages/toml/read.py"));
        let stacks = [vec![], vec![main], vec![main, parse]].map(|stack| frames.stack_of(&stack).unwrap());
        let group = |at: usize, allocator, thread| {
            let sum = Sum { bytes: 1 << at, count: 1, ..Sum::default() };
            Group { allocated: sum, peak: sum, ..Group::new(stacks[at], allocator, ThreadId(thread)) }
        };
        let groups =
            vec![group(0, Allocator::Malloc, 0), group(1, Allocator::Calloc, 1), group(2, Allocator::Malloc, 1)];
        let threads = [(70, "main"), (71, "pool")].map(|(tid, name)| Thread { tid, name: name.into() });
        (Analysis { groups, ..Analysis::default() }, frames, threads.into())
    }

    /// The bytes that are kept, whose bits tell which groups they are from.
    fn kept(change: impl FnOnce(&mut Filter)) -> u64 {
        let (mut analysis, frames, threads) = capture();
        let mut filter = Filter::default();
        change(&mut filter);
        let bytes = filter.apply(&mut analysis, &frames, &threads).bytes;
        if !filter.is_everything() {
            assert_eq!(analysis.totals.peak.bytes, bytes);
        }
        analysis.groups.iter().map(|group| group.allocated.bytes).sum()
    }

    #[test]
    fn each_kind_keeps_what_it_says() {
        assert_eq!(kept(|_| ()), 7);
        assert_eq!(kept(|filter| filter.threads.push("pool".into())), 6);
        assert_eq!(kept(|filter| filter.threads.push("70".into())), 1);
        assert_eq!(kept(|filter| filter.functions.push("ars".into())), 4);
        assert_eq!(kept(|filter| filter.files.push("app.py".into())), 6);
        assert_eq!(kept(|filter| filter.modules.push("toml".into())), 4);
        assert_eq!(kept(|filter| filter.allocators.push(Allocator::Malloc)), 5);
        assert_eq!(kept(|filter| filter.functions.push("no such".into())), 0);
    }

    #[test]
    fn values_are_alternatives_and_kinds_narrow_down() {
        assert_eq!(kept(|filter| filter.modules = vec!["toml".into(), "app".into()]), 6);
        let both = |filter: &mut Filter| {
            filter.threads.push("pool".into());
            filter.allocators.push(Allocator::Malloc);
        };
        assert_eq!(kept(both), 4);
    }
}
