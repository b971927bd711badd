//! Filters of groups: by thread, function, file, module, allocator, and whose memory they are.
//!
//! Values of one kind are alternatives; kinds narrow each other down. A filter is evaluated as an [expression](Expr),
//! like those of `query`. Invariant: an empty filter keeps everything.

use memtrack_format::Allocator;

use crate::analysis::{Analysis, Tally};
use crate::event::Thread;
use crate::frames::Frames;
use crate::origin::Whose;
use crate::query::{Expr, MatchContext, Matcher, Test, TextField};

/// A filter. An empty list accepts everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Names of threads, or numbers that the operating system gave them.
    pub threads: Vec<String>,
    /// Stacks with a function whose name contains one of these, or, of `=NAME`, is NAME.
    pub functions: Vec<String>,
    /// Stacks with a file whose path contains one of these.
    pub files: Vec<String>,
    /// Stacks that are attributed to one of these modules, as in [`crate::modules`].
    pub modules: Vec<String>,
    /// Allocating functions.
    pub allocators: Vec<Allocator>,
    /// Stacks whose memory belongs to one of these, as in [`crate::origin`].
    pub whose: Vec<Whose>,
}

impl Filter {
    /// Whether it keeps everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// The same as an expression.
    #[must_use]
    pub fn expr(&self) -> Expr {
        let allocators = self.allocators.iter().copied().map(Expr::Allocator).collect();
        let whose = self.whose.iter().copied().map(Expr::Whose).collect();
        let one_of = |all: Vec<Expr>| if all.is_empty() { Expr::And(all) } else { Expr::Or(all) };
        Expr::And(vec![
            Expr::any_of(TextField::Thread, &self.threads, Test::Is),
            Expr::any_of(TextField::Function, &self.functions, Test::is_or_contains),
            Expr::any_of(TextField::File, &self.files, Test::Contains),
            Expr::any_of(TextField::Module, &self.modules, Test::Is),
            one_of(allocators),
            one_of(whose),
        ])
    }

    /// Drops the groups that are rejected. Returns the sum of everything that the kept ones allocated.
    pub fn apply(&self, analysis: &mut Analysis, frames: &Frames, threads: &[Thread]) -> Tally {
        if !self.is_everything() {
            let judge = Matcher::new(&self.expr(), &MatchContext { frames, threads, start_ns: 0, duration_ns: 0 });
            analysis.retain(|_, group| judge.takes_group(group.stack, group.allocator, group.thread));
            analysis.failed.retain(|failed| judge.takes_group(failed.stack, failed.allocator, failed.thread));
            analysis.mapped.retain(|mapped| judge.takes_group(mapped.stack, mapped.allocator, mapped.thread));
        }
        analysis.totals.allocations
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use super::Filter;
    use crate::analysis::{Analysis, Group, Sum};
    use crate::event::{Thread, ThreadId};
    use crate::frames::Frames;
    use crate::origin::Whose;

    fn capture() -> (Analysis, Frames, Vec<Thread>) {
        let mut frames = Frames::new();
        let [main, parse] = [("main", "/home/me/app.py"), ("parse", "/venv/site-packages/toml/read.py")]
            .map(|(function, file)| frames.frame_named(function, file, 1).unwrap());
        let stacks = [vec![], vec![main], vec![main, parse]].map(|stack| frames.stack_of(&stack).unwrap());
        let group = |at: usize, allocator, thread| {
            let sum = Sum { bytes: 1 << at, count: 1, ..Sum::default() };
            Group { allocated: sum, peak: sum, ..Group::new(stacks[at], allocator, ThreadId(thread)) }
        };
        let groups = [group(0, Allocator::Malloc, 0), group(1, Allocator::Calloc, 1), group(2, Allocator::Malloc, 1)];
        let threads =
            [(70, "main"), (71, "pool")].map(|(tid, name)| Thread { tid, name: name.into(), ..Thread::default() });
        (Analysis { groups: groups.into_iter().collect(), ..Analysis::default() }, frames, threads.into())
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
        assert_eq!(kept(|filter| filter.functions.push("=parse".into())), 4);
        assert_eq!(kept(|filter| filter.functions.push("=ars".into())), 0);
        assert_eq!(kept(|filter| filter.modules.push("toml".into())), 4);
        assert_eq!(kept(|filter| filter.allocators.push(Allocator::Malloc)), 5);
        assert_eq!(kept(|filter| filter.functions.push("no such".into())), 0);
        assert_eq!(kept(|filter| filter.whose.push(Whose::Own)), 6);
        assert_eq!(kept(|filter| filter.whose.push(Whose::Standard)), 1);
        assert_eq!(kept(|filter| filter.whose = Whose::ALL.into()), 7);
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
