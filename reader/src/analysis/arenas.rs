//! Separates arenas of Python's allocators from what a program leaks.
//!
//! An arena stays mapped as long as one object in it lives, so its size does not tell how much the program holds.
//! Invariant: the bytes taken out of the leaks are those of the returned tally.

use super::{Analysis, Tally, View};

impl Analysis {
    /// The arenas' share of `view`, whether or not objects lie in them.
    #[must_use]
    pub fn python_arenas(&self, view: View) -> Tally {
        self.rows(view).filter(|row| row.allocator.is_python_arena()).map(|row| row.tally()).sum()
    }

    /// Removes the arenas from a view of leaks that has other rows too; returns their share.
    pub fn take_arenas_out_of_leaks(&mut self, view: View) -> Tally {
        let is_of_leaks = matches!(view, View::Leaks | View::LeaksAtExit);
        if !is_of_leaks || self.rows(view).all(|row| row.allocator.is_python_arena()) {
            return Tally::default();
        }
        let arenas = self.python_arenas(view);
        if arenas.count > 0 {
            self.groups.change_all(|group| {
                if group.allocator.is_python_arena() {
                    (group.leaked, group.leaked_at_exit) = Default::default();
                }
            });
        }
        arenas
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;

    use crate::analysis::{Analysis, Group, Sum, Tally, View};
    use crate::event::{StackId, ThreadId};

    fn of(allocators: &[Allocator]) -> Analysis {
        let mut analysis = Analysis::default();
        for &allocator in allocators {
            let sum = Sum { bytes: 100, count: 1, ..Sum::default() };
            let group = Group::new(StackId::EMPTY, allocator, ThreadId(0));
            analysis.groups.push(&Group { allocated: sum, peak: sum, leaked: sum, leaked_at_exit: sum, ..group });
        }
        analysis
    }

    #[test]
    fn arenas_are_taken_out_of_leaks_only() {
        let mut mixed = of(&[Allocator::Malloc, Allocator::PymallocArena, Allocator::MimallocArena, Allocator::Mmap]);
        let held = Tally { bytes: 200, count: 2, ..Tally::default() };
        assert_eq!(mixed.take_arenas_out_of_leaks(View::HighWaterMark), Tally::default());
        assert_eq!((mixed.python_arenas(View::Leaks), mixed.view(View::Leaks).len()), (held, 4));
        assert_eq!(mixed.take_arenas_out_of_leaks(View::Leaks), held);
        let left: Vec<_> = mixed.view(View::Leaks).iter().map(|row| row.allocator).collect();
        assert_eq!(left, [Allocator::Malloc, Allocator::Mmap]);
        assert_eq!((mixed.python_arenas(View::HighWaterMark), mixed.view(View::HighWaterMark).len()), (held, 4));
        // A view with nothing but arenas keeps them.
        let mut alone = of(&[Allocator::PymallocArena]);
        assert_eq!(alone.take_arenas_out_of_leaks(View::LeaksAtExit), Tally::default());
        assert_eq!(alone.view(View::LeaksAtExit).len(), 1);
    }
}
