//! Updates the recorded Python stack: the fast comparison, and the full one where that does not answer.
//!
//! Invariant: the writer is given the same changes, whichever comparison found them.

use std::hint::cold_path;

use super::super::interpreter::{self, Interpreter};
use super::super::layout::{ForVersion, Version};
use super::compare::ChainComparison;
use super::fast_compare::FastComparison;
use super::{Chain, Naming};
use crate::events::stack_model::StackWriter;

/// Ticks between two looks at a thread's name: a few hundredths of a second, of which a look takes some ten microseconds.
const ASK_AGAIN: u64 = 1 << 26;

/// [`Chain::update_as`] for the interpreter's build.
struct Update<'a, W> {
    chain: &'a mut Chain,
    writer: &'a mut W,
}

impl<W: StackWriter> ForVersion for Update<'_, W> {
    type Output = Naming;

    #[inline(always)]
    fn run<V: Version>(self) -> Naming {
        self.chain.update_as::<V>(self.writer)
    }
}

impl Chain {
    /// Writes what changed in the calling thread's Python stack. Call it with the hook guard held. The result says whether
    /// the thread should be asked for its name.
    pub(crate) fn update(&mut self, writer: &mut impl StackWriter) -> Naming {
        let Some(python) = interpreter::interpreter() else { return Naming::Done };
        python.build.dispatch(Update { chain: self, writer })
    }

    /// As [`Chain::update`], for an interpreter that is known to be of version `V`.
    #[inline(always)]
    pub(crate) fn update_as<V: Version>(&mut self, writer: &mut impl StackWriter) -> Naming {
        let Some(python) = interpreter::interpreter() else {
            cold_path();
            return Naming::Done;
        };
        let newest = self.newest_frame::<V>(python);
        match self.glance_at::<V>(self.state, newest) {
            FastComparison::Same => Naming::Done,
            FastComparison::Moved(position) => self.move_newest::<V>(python, position, writer),
            FastComparison::Unknown | FastComparison::Unasked => self.look_closer::<V>(python, newest, writer),
        }
    }

    /// As [`Chain::update_as`], after a glance that was not enough.
    pub(crate) fn update_looking<V: Version>(&mut self, writer: &mut impl StackWriter) -> Naming {
        let Some(python) = interpreter::interpreter() else {
            cold_path();
            return Naming::Done;
        };
        let newest = self.newest_frame::<V>(python);
        self.look_closer::<V>(python, newest, writer)
    }

    /// As [`Chain::update_as`], after a glance that has found the newest frame at another position.
    pub(crate) fn update_moved<V: Version>(&mut self, position: usize, writer: &mut impl StackWriter) {
        let Some(python) = interpreter::interpreter() else {
            cold_path();
            return;
        };
        let _done = self.move_newest::<V>(python, position, writer);
    }

    /// The way to the closer look, which is out of the way of the glance.
    #[cold]
    #[inline(never)]
    fn look_closer<V: Version>(
        &mut self,
        python: &Interpreter,
        newest: usize,
        writer: &mut impl StackWriter,
    ) -> Naming {
        if self.timer.is_due() {
            return self.look_timed::<V>(python, newest, writer);
        }
        self.look::<V>(python, newest, writer)
    }

    #[cold]
    #[inline(never)]
    fn look_timed<V: Version>(&mut self, python: &Interpreter, newest: usize, writer: &mut impl StackWriter) -> Naming {
        self.timer.begin();
        let begun = writer.now();
        if begun.wrapping_sub(self.asked) > ASK_AGAIN {
            self.asked = begun;
            self.naming = Naming::Due;
        }
        let naming = self.look::<V>(python, newest, writer);
        writer.looked_since(begun);
        naming
    }

    /// The closer look, where a glance was not enough.
    #[inline(never)]
    fn look<V: Version>(&mut self, python: &Interpreter, newest: usize, writer: &mut impl StackWriter) -> Naming {
        let comparison = if newest == self.newest && self.codes.is_current() {
            self.compare::<V>(python)
        } else {
            ChainComparison::Different
        };
        writer.looked(matches!(comparison, ChainComparison::Different));
        match comparison {
            ChainComparison::Same => {}
            ChainComparison::Moved(position) => {
                let _done = self.move_newest::<V>(python, position, writer);
            }
            ChainComparison::Different => self.follow::<V>(python, newest, writer),
        }
        self.refocus::<V>();
        self.naming
    }
}
