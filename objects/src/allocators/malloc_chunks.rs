//! The blocks in use of the C library's allocator, in which objects are that are too large for Python's own: glibc's chunks.
//!
//! A chunk's header says how long it is, and the next one's whether it is in use. They are in the heap of the main arena (the
//! program break), in the heaps of other arenas, which lie at multiples of their size, or each for itself, from a boundary of
//! pages on. Chunks that a thread or an arena keeps for the next of their size look used, but what an object begins
//! with is overwritten in them. Invariant: where headers do not lead on there is no further block, and every loop ends.

use std::ops::Range;

use memtrack_format::resident::GLIBC_HEAP_BYTES;

use crate::memory::Words;

/// Bytes of a chunk before what was requested.
const HEADER: u64 = 16;
/// Offset in a chunk of its size, whose lowest bits are flags: the chunk before is in use, the chunk is mapped for itself,
/// the chunk is of another arena than the main one.
const SIZE: u64 = 8;
const FLAGS: u64 = 7;
const PREVIOUS_IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const OF_OTHER_ARENA: u64 = 4;
const LEAST: u64 = 32;
const ALIGNMENT: u64 = 16;
const PAGE: u64 = 4 << 10;
/// Offset in a heap of its size; its first word is the address of its arena's state.
const HEAP_SIZE: u64 = 16;
/// Bytes of an arena's state: before glibc 2.26, before 2.43, and since, without fast bins.
const STATE_BYTES: [u64; 3] = [2192, 2200, 2104];

/// The blocks of the heap of the main arena.
pub(crate) fn of_main_heap(words: &impl Words, heap: Range<u64>, each: &mut impl FnMut(u64, u64)) {
    chain(words, heap.start, heap.end, 0, each);
}

/// The blocks of the heap that begins here, if one does, which ends at `most` at the latest; returns its end.
pub(crate) fn of_heap(words: &impl Words, start: u64, most: u64, each: &mut impl FnMut(u64, u64)) -> Option<u64> {
    if !start.is_multiple_of(GLIBC_HEAP_BYTES) {
        return None;
    }
    let (state, size) = (words.word(start)?, words.word(start + HEAP_SIZE)?);
    let end = start.checked_add(size).filter(|end| size.is_multiple_of(PAGE) && (start + PAGE..=most).contains(end))?;
    let description = state % GLIBC_HEAP_BYTES;
    let is_first = state - description == start;
    let first = |state_bytes: u64| (start + description + state_bytes).next_multiple_of(ALIGNMENT);
    let firsts = if is_first { STATE_BYTES.map(first) } else { [first(0); 3] };
    // Elsewhere are links of lists and what the program wrote.
    let leads_on = |at: &u64| (0..3).try_fold(*at, |at, _| Some(next(words, at, end, OF_OTHER_ARENA)?.0)).is_some();
    // A description is no longer than a chunk.
    let from = firsts.into_iter().find(|at| description <= PAGE && leads_on(at))?;
    chain(words, from, end, OF_OTHER_ARENA, each);
    Some(end)
}

/// The blocks of chunks that follow one another, of which the last one is free.
fn chain(words: &impl Words, from: u64, end: u64, flags: u64, each: &mut impl FnMut(u64, u64)) {
    let mut at = from;
    while let Some((next, is_used)) = next(words, at, end, flags) {
        if is_used {
            // The first word of the next chunk is this one's while it is in use.
            each(at + HEADER, next - at - SIZE);
        }
        at = next;
    }
}

/// The chunk behind the one here, if that is one and not the last, and whether the one here is in use.
fn next(words: &impl Words, at: u64, end: u64, flags: u64) -> Option<(u64, bool)> {
    let header = words.word(at + SIZE)?;
    let size = header & !FLAGS;
    // Free chunks have no flag of their arena.
    let is_chunk = header & FLAGS & !PREVIOUS_IN_USE & !flags == 0 && size >= LEAST && size.is_multiple_of(ALIGNMENT);
    let next = at.checked_add(size).filter(|next| is_chunk && *next < end)?;
    Some((next, words.word(next + SIZE)? & PREVIOUS_IN_USE != 0))
}

/// The block of the chunk that is mapped for itself here, if one is; returns its end.
pub(crate) fn mapped(words: &impl Words, at: u64, most: u64, each: &mut impl FnMut(u64, u64)) -> Option<u64> {
    // From glibc 2.43 on its size is that of what comes behind the header.
    let told = words.word(at + SIZE).filter(|size| size & FLAGS == MAPPED)? - MAPPED;
    let size = if told.is_multiple_of(PAGE) { told } else { told.checked_add(HEADER)? };
    let end = at.checked_add(size).filter(|end| size > 0 && size.is_multiple_of(PAGE) && *end <= most)?;
    if words.word(at)? != 0 {
        return None;
    }
    each(at + HEADER, size - HEADER);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::{HEAP_SIZE, PAGE, SIZE, mapped, of_heap, of_main_heap};
    use crate::memory::MadeWords;

    const AT: u64 = 0x5555_0000_0000;
    const HEAP: u64 = 0x7f00_0000_0000;

    /// Puts chunks of these headers one after the other.
    fn put(made: &mut MadeWords, from: u64, headers: &[u64]) {
        let mut at = from;
        for header in headers {
            made.0.insert(at + SIZE, *header);
            at += header & !7;
        }
    }

    fn found(search: impl FnOnce(&mut dyn FnMut(u64, u64))) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        search(&mut |at, size| found.push((at, size)));
        found
    }

    fn in_main_heap(made: &MadeWords) -> Vec<(u64, u64)> {
        found(|mut each| of_main_heap(made, AT..AT + 0x1000, &mut each))
    }

    fn in_heap(made: &MadeWords) -> Vec<(u64, u64)> {
        found(|mut each| _ = of_heap(made, HEAP, HEAP + 0x21_000, &mut each))
    }

    #[test]
    fn blocks_are_those_of_chunks_in_use() {
        let mut made = MadeWords::default();
        // In use, free, in use, and the rest of the heap.
        put(&mut made, AT, &[0x291, 0x401, 0x500, 0x471]);
        assert_eq!(in_main_heap(&made), [(AT + 0x10, 0x288), (AT + 0x6a0, 0x4f8)]);
        for header in [0x402, 0x405, 0x18, 0x409, 0xf00] {
            let mut other = MadeWords(made.0.clone());
            other.0.insert(AT + 0x290 + SIZE, header);
            assert!(in_main_heap(&other).iter().all(|(at, _)| *at == AT + 0x10), "{header:x}");
        }
    }

    #[test]
    fn heaps_of_other_arenas_are_at_multiples_of_their_size() {
        let own = [(0x30, 2208), (0x20, 2192), (0x30, 2112)].map(|(state, bytes)| (HEAP + state, state + bytes));
        for (state, first) in own.into_iter().chain([(HEAP - (64 << 20) + 0x30, 0x30)]) {
            let mut made = MadeWords::default();
            made.0.extend([(HEAP, state), (HEAP + HEAP_SIZE, 0x21_000)]);
            put(&mut made, HEAP + first, &[0x805, 0x1005, 0x301, 0x10_004, 0x1001]);
            let expected = [(0x10, 0x7f8), (0x810, 0xff8), (0x1b10, 0xfff8)];
            assert_eq!(in_heap(&made), expected.map(|(at, size)| (HEAP + first + at, size)));
            made.0.insert(HEAP + HEAP_SIZE, 0x22_000);
            assert_eq!(in_heap(&made), []);
        }
    }

    #[test]
    fn chunks_that_are_mapped_for_themselves_begin_with_a_page() {
        let mut made = MadeWords::default();
        put(&mut made, AT, &[0x3002]);
        let in_pages =
            |made: &MadeWords, pages: u64| found(|mut each| _ = mapped(made, AT, AT + pages * PAGE, &mut each));
        assert_eq!(in_pages(&made, 3), [(AT + 0x10, 0x2ff0)]);
        assert_eq!(in_pages(&made, 2), []);
        made.0.insert(AT + SIZE, 0x2ff2);
        assert_eq!(in_pages(&made, 3), [(AT + 0x10, 0x2ff0)]);
        made.0.insert(AT, 1);
        assert_eq!(in_pages(&made, 3), []);
        made.0.insert(AT, 0);
        made.0.insert(AT + SIZE, 0x2fe2);
        assert_eq!(in_pages(&made, 3), []);
        put(&mut made, AT + PAGE, &[0x3001]);
        assert_eq!(found(|mut each| _ = mapped(&made, AT + PAGE, AT + 8 * PAGE, &mut each)), []);
    }
}
