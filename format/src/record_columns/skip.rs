//! Passes over records without reading them: a consumer of stacks needs nothing of the blocks between two changes of one.
//!
//! Invariant: the position that [`skip_blocks`] gives is the start of a record, or where the bytes end within one.

use super::fields::{EVENT_ALLOC, STACK_CHANGE, row};
use super::{FieldMover, RecordWalk};
use crate::record::tag;
use crate::varint;

/// The position of the first record at `at` or after it that is neither an Alloc nor a Free. `timed`: the segment has times.
#[inline]
#[must_use]
pub fn skip_blocks(records: &[u8], at: usize, timed: bool) -> usize {
    let (mut skipping, mut walk) = (Skipping { records, at }, RecordWalk::new(timed));
    loop {
        let start = skipping.at;
        let is_block = records.get(start).is_some_and(|&first| row(first).class >= EVENT_ALLOC);
        if !is_block || walk.record(&mut skipping).is_none() {
            return start;
        }
    }
}

/// Whether these bytes are whole records of allocations, frees and changes of the stack, without times, whose frees name none
/// but the youngest blocks: then how many of them.
#[must_use]
pub fn repeatable_blocks(records: &[u8]) -> Option<usize> {
    let (mut skipping, mut walk) = (Skipping { records, at: 0 }, RecordWalk::new(false));
    let mut blocks = 0;
    while let Some(&first) = records.get(skipping.at) {
        if row(first).class < STACK_CHANGE || matches!(first, tag::FREE_OLDER | tag::DEFINE_TOP) {
            return None;
        }
        if first >= tag::FREE_YOUNG {
            blocks = blocks.max(usize::from(first - tag::FREE_YOUNG) + 1);
        }
        walk.record(&mut skipping)?;
    }
    (skipping.at == records.len()).then_some(blocks)
}

struct Skipping<'a> {
    records: &'a [u8],
    at: usize,
}

impl FieldMover for Skipping<'_> {
    fn is_at_end(&self) -> bool {
        self.at >= self.records.len()
    }

    #[inline(always)]
    fn byte(&mut self, _column: u8) -> Option<u8> {
        let byte = *self.records.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline(always)]
    fn number(&mut self, _column: u8) -> Option<()> {
        self.at += varint::length(*self.records.get(self.at)?);
        (self.at <= self.records.len()).then_some(())
    }

    fn text(&mut self) -> Option<()> {
        let (length, at) = varint::read(self.records, self.at)?;
        self.at = at.checked_add(usize::try_from(length).ok()?).filter(|end| *end <= self.records.len())?;
        Some(())
    }
}
