//! Updates the recorded Python stack: the fast comparison, and the full one where that does not answer.
//!
//! Invariant: the writer is given the same changes, whichever comparison found them.

use std::hint::cold_path;

use super::super::interpreter::{self, Interpreter};
use super::super::layout::{ForVersion, Version};
use super::compare::ChainComparison;
use super::fast_compare::FastComparison;
use super::{Chain, NameLookup};
use crate::events::stack_model::StackWriter;

/// Ticks between two readings of a thread's name: a few hundredths of a second; a reading takes some ten microseconds.
const ASK_AGAIN: u64 = 1 << 26;

/// [`Chain::update_as`] for the interpreter's build.
struct Update<'a, W> {
    chain: &'a mut Chain,
    writer: &'a mut W,
}

impl<W: StackWriter> ForVersion for Update<'_, W> {
    type Output = NameLookup;

    #[inline(always)]
    fn run<V: Version>(self) -> NameLookup {
        self.chain.update_as::<V>(self.writer)
    }
}

impl Chain {
    /// Writes what changed in the calling thread's Python stack. Call it with the hook guard held. The result says
    /// whether the thread should be asked for its name.
    pub(crate) fn update(&mut self, writer: &mut impl StackWriter) -> NameLookup {
        let Some(python) = interpreter::interpreter() else { return NameLookup::Done };
        python.build.dispatch(Update { chain: self, writer })
    }

    /// As [`Chain::update`], for an interpreter that is known to be of version `V`.
    #[inline(always)]
    pub(crate) fn update_as<V: Version>(&mut self, writer: &mut impl StackWriter) -> NameLookup {
        let Some(python) = interpreter::interpreter() else {
            cold_path();
            return NameLookup::Done;
        };
        let newest = self.newest_frame::<V>(python);
        if newest == 0 {
            // The thread may have no state.
            return if self.newest == 0 { NameLookup::Done } else { self.compare_full::<V>(python, newest, writer) };
        }
        match self.compare_fast_from::<V>(self.state, newest) {
            FastComparison::Same => NameLookup::Done,
            FastComparison::Moved(position) => self.move_newest::<V>(python, position, writer),
            FastComparison::Unknown(known) => {
                if !self.timer.is_due() && known != 0 && self.recall_top::<V>(known, writer) {
                    return self.naming;
                }
                self.compare_full::<V>(python, newest, writer)
            }
            FastComparison::Unasked => self.compare_full::<V>(python, newest, writer),
        }
    }

    /// As [`Chain::update_as`], after a fast comparison that was inconclusive.
    pub(crate) fn update_full<V: Version>(&mut self, writer: &mut impl StackWriter) -> NameLookup {
        let Some(python) = interpreter::interpreter() else {
            cold_path();
            return NameLookup::Done;
        };
        let newest = self.newest_frame::<V>(python);
        self.compare_full::<V>(python, newest, writer)
    }

    /// After a fast comparison that has found the newest frame at this position: the instruction there. `None` where a
    /// thread has copies of bytecode, and it takes more to tell.
    #[inline(always)]
    pub(crate) fn instruction_at<V: Version>(&self, position: usize) -> Option<u32> {
        if V::L.thread_local_bytecode.is_some() {
            return None;
        }
        // SAFETY: the comparison has just read them.
        let [.., newest] = unsafe { self.span.links() };
        Some(V::L.inline_instruction(newest.detail.executable, position))
    }

    /// The newest frame stands at this position, which is written.
    #[inline(always)]
    pub(crate) fn take_position(&mut self, position: usize) {
        // SAFETY: the comparison has just read that frame, so there is one, and all have room.
        unsafe { self.links.newest_unchecked_mut(self.length) }.position = position;
    }

    /// As [`Chain::update_as`], after a fast comparison that has found the newest frame at another position.
    pub(crate) fn update_moved<V: Version>(&mut self, position: usize, writer: &mut impl StackWriter) {
        let Some(python) = interpreter::interpreter() else {
            cold_path();
            return;
        };
        let _done = self.move_newest::<V>(python, position, writer);
    }

    /// The full comparison, out of line so that the fast one stays short.
    #[cold]
    #[inline(never)]
    fn compare_full<V: Version>(
        &mut self,
        python: &Interpreter,
        newest: usize,
        writer: &mut impl StackWriter,
    ) -> NameLookup {
        if self.timer.was_due() {
            return self.compare_full_timed::<V>(python, newest, writer);
        }
        self.compare_and_write::<V>(python, newest, writer)
    }

    #[cold]
    #[inline(never)]
    fn compare_full_timed<V: Version>(
        &mut self,
        python: &Interpreter,
        newest: usize,
        writer: &mut impl StackWriter,
    ) -> NameLookup {
        self.timer.begin();
        let begun = writer.now();
        if begun.wrapping_sub(self.asked) > ASK_AGAIN {
            self.asked = begun;
            self.naming = NameLookup::Due;
        }
        let may_recall = newest != 0 && !self.is_tracing::<V>() && self.codes.is_current();
        let is_recalled = may_recall && self.recall_top::<V>(newest, writer);
        let naming = if is_recalled { self.naming } else { self.compare_and_write::<V>(python, newest, writer) };
        writer.compared_full_since(begun);
        naming
    }

    /// Full comparison, after the fast one was inconclusive.
    #[inline(never)]
    fn compare_and_write<V: Version>(
        &mut self,
        python: &Interpreter,
        newest: usize,
        writer: &mut impl StackWriter,
    ) -> NameLookup {
        if self.recall_top_left::<V>(newest, writer) || self.follow_near::<V>(newest, writer) {
            return self.naming;
        }
        let comparison = if newest == self.newest && self.codes.is_current() {
            self.compare::<V>(python)
        } else {
            ChainComparison::Different
        };
        writer.compared_full(matches!(comparison, ChainComparison::Different));
        match comparison {
            ChainComparison::Same => {}
            ChainComparison::Moved(position) => {
                let _done = self.move_newest::<V>(python, position, writer);
            }
            ChainComparison::Different => self.follow::<V>(python, newest, writer),
        }
        self.update_compared_span::<V>();
        self.naming
    }
}
