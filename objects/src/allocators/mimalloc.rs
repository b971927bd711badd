//! The blocks in which free-threaded builds have objects: those of mimalloc's pages with the tags for them.
//!
//! The pages are found from the segments that they are in, which lie at multiples of their size and are told by a cookie, and
//! not from the heaps of threads: a thread may have been stopped while it moved a page from one of a heap's lists to another,
//! and pages of threads that have ended are in no heap. Invariant: a page that does not make sense is counted with what it
//! says to have, and none of its blocks is passed on.

use memtrack_inject::ProcessView;

use crate::memory::{GUARD, GUARDED, Words};

/// Segments lie at multiples of this, and consist of slices.
const SEGMENT: u64 = 32 << 20;
const SLICE: u64 = 64 << 10;
/// Slices that a segment has entries for, and the bytes of one that may be in use.
const MOST_SLICES: u64 = SEGMENT / SLICE;
const MOST_SEGMENT_SLICES: u64 = 1 << 28;
/// Offsets in a segment.
const COOKIE: u64 = 216;
const SEGMENT_SLICES: u64 = 224;
const HEAD_SLICES: u64 = 232;
const KIND: u64 = 240;
const ENTRIES: u64 = 248;
const SLICES: u64 = 264;
/// Bytes of a slice's entry, which is a page's head if it is a page's first.
const ENTRY: usize = 96;
/// Block sizes from this one on are not said: there is one block.
const HUGE: u64 = 2 << 30;
/// Heaps of objects that the collector does not know, and of those that it does, without and with pointers before each.
const UNCOLLECTED: u8 = 1;
const COLLECTED: u8 = 2;
const COLLECTED_WITH_PREFIX: u8 = 3;
const PREFIX: u64 = 16;

/// What was found besides the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundBlocks {
    /// Objects that cannot be known because their page or segment makes no sense, at least.
    pub(crate) unreadable: u64,
}

/// Where segments may be: multiples of their size in memory that can be written, if it says something of slices. Of a program
/// with terabytes of it, only a word is read in most places.
pub(crate) fn places(view: &ProcessView) -> impl Iterator<Item = u64> {
    let first = |range: std::ops::Range<u64>| range.start.checked_next_multiple_of(SEGMENT).map(|at| at..range.end);
    let all = view.writable().filter_map(first).flat_map(|range| range.step_by(SEGMENT as usize));
    all.filter(|at| view.word(at + SEGMENT_SLICES).is_some_and(|slices| slices != 0))
}

/// A block in use in which an object may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectBlock {
    /// Where the object is, if there is one.
    pub(crate) object: u64,
    /// Bytes from there on.
    pub(crate) room: u64,
    /// Whether the collector knows such objects; of others, blocks of the same size may be anything.
    pub(crate) is_collected: bool,
}

/// Calls `each` with every block in use at these places in which an object may be. `known` is the address of an object that
/// the collector knows: memory of another allocator of this kind has another cookie.
pub(crate) fn object_blocks(
    words: &impl Words,
    places: impl Iterator<Item = u64>,
    known: u64,
    mut each: impl FnMut(ObjectBlock),
) -> FoundBlocks {
    let mut found = FoundBlocks::default();
    let Some(own) = Segment::read(words, known & !(SEGMENT - 1)) else { return FoundBlocks { unreadable: 1 } };
    for segment in places.filter_map(|at| Segment::read(words, at)).filter(|segment| segment.key == own.key) {
        segment.pages(words, &mut found, &mut each);
    }
    found
}

/// Whether an object that the collector knows is where it would be by what is known here of segments and pages.
pub(crate) fn holds(words: &impl Words, known: u64) -> bool {
    let found = || {
        let segment = Segment::read(words, known & !(SEGMENT - 1))?;
        let slice = (known - segment.address) / SLICE;
        let before = Page::read(words, segment.address, slice)?.offset_of_first / ENTRY as u32;
        let page = Page::read(words, segment.address, slice.checked_sub(before.into())?)?;
        let offset = known.checked_sub(page.first())?.checked_sub(page.prefix()?)?;
        let number = offset.checked_div(page.block)?;
        let is_its_begin = matches!(offset % page.block, 0 | GUARDED);
        Some(is_its_begin && number < page.capacity && page.used > 0 && page.used <= page.most)
    };
    found().unwrap_or(false)
}

/// Whether an address is in a page of blocks in which no objects are.
pub(crate) fn has_no_objects(words: &impl Words, address: u64) -> bool {
    let found = || {
        let segment = Segment::read(words, address & !(SEGMENT - 1))?;
        let slice = (address - segment.address) / SLICE;
        let before = Page::read(words, segment.address, slice)?.offset_of_first / ENTRY as u32;
        let page = Page::read(words, segment.address, slice.checked_sub(before.into())?)?;
        Some(page.used > 0 && page.tag == 0)
    };
    found().unwrap_or(false)
}

struct Segment {
    address: u64,
    /// What the cookies of all segments of an allocator have in common.
    key: u64,
    head: u64,
    entries: u64,
}

impl Segment {
    fn read(words: &impl Words, address: u64) -> Option<Self> {
        let word = |at: u64| words.word(address.checked_add(at)?);
        let (slices, head, entries) = (word(SEGMENT_SLICES)?, word(HEAD_SLICES)?, word(ENTRIES)?);
        let is_one = slices <= MOST_SEGMENT_SLICES
            && (1..=MOST_SLICES).contains(&entries)
            && entries <= slices
            && (1..=entries).contains(&head)
            && word(KIND)? as u32 <= 1;
        is_one.then_some(Self { address, key: word(COOKIE)? ^ address, head, entries })
    }

    fn pages(&self, words: &impl Words, found: &mut FoundBlocks, each: &mut impl FnMut(ObjectBlock)) {
        let mut slice = self.head;
        while slice < self.entries {
            let Some(page) = Page::read(words, self.address, slice) else {
                found.unreadable += 1;
                return;
            };
            // Free slices are in pieces as pages are, too.
            let is_piece = page.offset_of_first == 0 && page.slices > 0;
            let is_whole = is_piece && page.visit(words, each);
            found.unreadable += if is_whole { 0 } else { page.used.clamp(1, page.most.max(1)) };
            slice += if is_piece { page.slices } else { 1 };
        }
    }
}

/// The head of a page.
#[derive(Clone, Copy)]
struct Page {
    /// Where its first slice begins.
    address: u64,
    slices: u64,
    offset_of_first: u32,
    tag: u8,
    /// Blocks that were in use once.
    capacity: u64,
    /// Blocks for which there is room.
    most: u64,
    used: u64,
    block: u64,
    /// Lists of free blocks.
    free: [u64; 3],
}

impl Page {
    fn read(words: &impl Words, segment: u64, slice: u64) -> Option<Self> {
        let at = segment.checked_add(SLICES + slice * ENTRY as u64)?;
        let word = |number: u64| words.word(at.checked_add(number * 8)?);
        let (first, flags, free, sizes) = (word(0)?, word(1)?.to_le_bytes(), word(2)?, word(3)?);
        Some(Self {
            address: segment.checked_add(slice * SLICE)?,
            slices: u64::from(first as u32),
            offset_of_first: (first >> 32) as u32,
            tag: flags[0] >> 3 & 15,
            capacity: u16::from_le_bytes([flags[2], flags[3]]).into(),
            most: u16::from_le_bytes([flags[4], flags[5]]).into(),
            used: u64::from(sizes as u32),
            block: sizes >> 32,
            free: [free, word(4)?, word(5)? & !3],
        })
    }

    /// Bytes before an object that the collector knows in a block; `None`: these are blocks of something else.
    fn prefix(&self) -> Option<u64> {
        match self.tag {
            COLLECTED => Some(0),
            COLLECTED_WITH_PREFIX => Some(PREFIX),
            _ => None,
        }
    }

    /// Calls `each` with the objects in its blocks in use, if it is a page of such; returns whether it makes sense.
    fn visit(&self, words: &impl Words, each: &mut impl FnMut(ObjectBlock)) -> bool {
        let is_collected = self.tag != UNCOLLECTED;
        let Some(prefix) = self.prefix().or((!is_collected).then_some(0)) else { return true };
        if self.block == 0 || self.capacity == 0 || self.used == 0 {
            return true;
        }
        let Some(is_free) = self.free_blocks(words) else { return false };
        for number in (0..self.capacity).filter(|number| is_free.get(*number as usize) == Some(&false)) {
            let block = self.first() + number * self.block;
            let is_guarded = words.word(block.wrapping_add(8)) == Some(GUARD);
            let before = prefix + if is_guarded { GUARDED } else { 0 };
            each(ObjectBlock { object: block + before, room: self.block.saturating_sub(before), is_collected });
        }
        true
    }

    /// The first block: blocks of small sizes do not begin where the slice does.
    fn first(&self) -> u64 {
        self.address
            + match self.block {
                8..=64 => 3 * self.block,
                65..=512 => self.block,
                _ => 0,
            }
    }

    /// Which blocks are free; `None`: one of its lists leaves the page or has no end.
    fn free_blocks(&self, words: &impl Words) -> Option<Vec<bool>> {
        let room = (self.address + self.slices * SLICE).checked_sub(self.first())?;
        // A block of an unknown size is the only one.
        let is_too_much = match self.block {
            HUGE.. => self.capacity > 1,
            block => !block.is_multiple_of(8) || self.capacity.checked_mul(block)? > room,
        };
        if is_too_much || self.capacity > self.most {
            return None;
        }
        let mut is_free = vec![false; self.capacity as usize];
        for mut block in self.free {
            let mut count = 0;
            while block != 0 {
                let offset = block.checked_sub(self.first())?;
                *is_free.get_mut((offset / self.block) as usize).filter(|_| offset.is_multiple_of(self.block))? = true;
                count += 1;
                (count <= self.capacity).then_some(())?;
                block = words.word(block)?;
            }
        }
        Some(is_free)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{
        COLLECTED, COLLECTED_WITH_PREFIX, COOKIE, ENTRIES, ENTRY, FoundBlocks, GUARD, HEAD_SLICES, SEGMENT,
        SEGMENT_SLICES, SLICE, SLICES, UNCOLLECTED, Words, holds, object_blocks,
    };

    const KEY: u64 = 0x1234_5678_9abc;
    const AT: u64 = 8 * SEGMENT;

    /// Words that are not there are 0 in segments, and cannot be read outside.
    #[derive(Default)]
    struct Made(HashMap<u64, u64>);

    impl Words for Made {
        fn word(&self, address: u64) -> Option<u64> {
            self.0.get(&address).copied().or((AT..AT + 4 * SEGMENT).contains(&address).then_some(0))
        }
    }

    impl Made {
        /// A segment of free slices.
        fn segment(&mut self, at: u64, key: u64) {
            let words = [(COOKIE, key ^ at), (SEGMENT_SLICES, 512), (HEAD_SLICES, 1), (ENTRIES, 512)];
            self.0.extend(words.map(|(offset, word)| (at + offset, word)));
            self.0.insert(at + SLICES + ENTRY as u64, 511);
        }

        /// A page in its second slice, of blocks of 1 KiB.
        fn page(&mut self, at: u64, tag: u8, capacity: u64, used: u64, free: [u64; 3]) {
            let head = at + SLICES + ENTRY as u64;
            let flags = u64::from(tag) << 3 | capacity << 16 | 64 << 32;
            let words = [1, flags, free[0], used | 1024 << 32, free[1], free[2]];
            self.0.extend(words.into_iter().zip(0..).map(|(word, number)| (head + number * 8, word)));
            self.0.insert(head + ENTRY as u64, 510);
        }

        fn found(&self, places: &[u64]) -> (Vec<u64>, FoundBlocks) {
            let mut objects = Vec::new();
            let found = object_blocks(self, places.iter().copied(), AT + 4096, |block| objects.push(block.object));
            (objects, found)
        }
    }

    fn block(number: u64) -> u64 {
        AT + SLICE + number * 1024
    }

    #[test]
    fn objects_are_in_blocks_that_are_in_no_list() {
        let mut made = Made::default();
        made.segment(AT, KEY);
        made.page(AT, COLLECTED, 6, 4, [block(1), block(4), block(0) | 2]);
        made.0.insert(block(1), block(3));
        made.0.insert(block(5) + 8, GUARD);
        assert_eq!(made.found(&[AT, AT + SEGMENT]), (vec![block(2), block(5) + 16], FoundBlocks { unreadable: 0 }));
        made.page(AT, COLLECTED_WITH_PREFIX, 2, 2, [0; 3]);
        assert_eq!(made.found(&[AT]).0, [block(0) + 16, block(1) + 16]);
        made.page(AT, UNCOLLECTED, 2, 1, [block(0), 0, 0]);
        assert_eq!(made.found(&[AT]), (vec![block(1)], FoundBlocks { unreadable: 0 }));
        made.page(AT, 0, 2, 2, [0; 3]);
        assert_eq!(made.found(&[AT]), (vec![], FoundBlocks { unreadable: 0 }));
    }

    #[test]
    fn an_object_is_where_its_page_has_blocks() {
        let mut made = Made::default();
        made.segment(AT, KEY);
        made.page(AT, COLLECTED, 2, 2, [0; 3]);
        let all = [block(0), block(1), block(1) + 16, block(1) + 8, block(2), AT + 8, AT + SEGMENT, 16];
        assert_eq!(all.map(|at| holds(&made, at)), [true, true, true, false, false, false, false, false]);
        made.page(AT, COLLECTED_WITH_PREFIX, 2, 2, [0; 3]);
        assert!(holds(&made, block(0) + 16) && !holds(&made, block(0)));
        made.page(AT, UNCOLLECTED, 2, 2, [0; 3]);
        assert!(!holds(&made, block(0)));
    }

    #[test]
    fn segments_of_another_allocator_are_left_out() {
        let mut made = Made::default();
        made.segment(AT, KEY);
        made.segment(AT + SEGMENT, KEY + 1);
        made.page(AT + SEGMENT, COLLECTED, 6, 6, [0; 3]);
        assert_eq!(made.found(&[AT, AT + SEGMENT]), (vec![], FoundBlocks { unreadable: 0 }));
    }

    #[test]
    fn a_torn_page_has_unreadable_objects_and_no_others() {
        let torn = [
            // A list that leaves the page, lies between blocks, or has no end.
            (6, [AT, 0, 0]),
            (6, [block(1) + 8, 0, 0]),
            (6, [0, 0, block(2)]),
            // More blocks than there is room for.
            (65, [0; 3]),
        ];
        for (capacity, free) in torn {
            let mut made = Made::default();
            made.segment(AT, KEY);
            made.page(AT, COLLECTED, capacity, 5, free);
            made.0.insert(block(2), block(2));
            assert_eq!(made.found(&[AT]), (vec![], FoundBlocks { unreadable: 5 }));
        }
    }

    #[test]
    fn a_torn_segment_ends() {
        let mut made = Made::default();
        made.segment(AT, KEY);
        // Slices of nothing.
        made.0.insert(AT + SLICES + ENTRY as u64, 0);
        assert_eq!(made.found(&[AT]), (vec![], FoundBlocks { unreadable: 511 }));
        // A piece that claims more than there is.
        made.0.insert(AT + SLICES + ENTRY as u64, u32::MAX.into());
        assert_eq!(made.found(&[AT]).1, FoundBlocks { unreadable: 0 });
        // What is known is in no segment.
        made.0.insert(AT + ENTRIES, 513);
        assert_eq!(made.found(&[AT]), (vec![], FoundBlocks { unreadable: 1 }));
    }
}
