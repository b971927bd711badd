//! Unwind witnesses: the words of a stack that prove its older frames unchanged; all of them are compared at each
//! allocation.
//!
//! They are kept apart from the frames because comparing them is the hottest loop of native stacks: as many words as
//! fit stand together.
//!
//! Invariant: each word was readable when it was added, and those before `outside` lie in the thread's own stack, whose
//! known part stays readable while the thread lives.

use std::hint::cold_path;

use super::stack_memory::StackMemory;
use crate::platform::mapped_vec::{MappedVec, Zeroable};

/// A word that was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    pub(super) address: usize,
    pub(super) value: usize,
}

// SAFETY: integers only.
unsafe impl Zeroable for Word {}

/// How many words are compared between two branches.
const GROUP: usize = 4;
/// As many groups are compared without a branch that is taken.
const UNROLLED: usize = 12;

/// Stands where a group has no word.
static NOTHING: usize = 0;

/// The words, of the oldest frames first, and after them those of memtrack's own frames.
#[derive(Debug)]
pub(super) struct UnwindWitnesses {
    list: MappedVec<Word>,
    length: usize,
    /// With those of memtrack's own frames and with what fills the last group.
    whole: usize,
    /// The first one that is not in the thread's own stack.
    outside: usize,
}

impl UnwindWitnesses {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), length: 0, whole: 0, outside: usize::MAX }
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Keeps the first `length` ones.
    pub(super) const fn truncate(&mut self, length: usize) {
        if length < self.length {
            self.length = length;
        }
        if self.length <= self.outside {
            self.outside = usize::MAX;
        }
    }

    /// Adds some that lie in the thread's own stack. `false`: there is no memory for them.
    pub(super) fn extend(&mut self, words: &[Word]) -> bool {
        let end = self.length.wrapping_add(words.len());
        if !self.list.grow(end) {
            return false;
        }
        if let Some(places) = self.list.as_mut_slice().get_mut(self.length..end) {
            places.copy_from_slice(words);
        }
        self.length = end;
        true
    }

    /// Adds one. `false`: there is no memory for it.
    pub(super) fn push(&mut self, address: usize, value: usize, stack: &StackMemory) -> bool {
        if !self.list.grow(self.length.wrapping_add(1)) {
            return false;
        }
        self.list.set(self.length, Word { address, value });
        if !stack.holds(address) {
            self.outside = self.outside.min(self.length);
        }
        self.length = self.length.wrapping_add(1);
        true
    }

    /// The words from the one at `from` on.
    pub(super) fn from(&self, from: usize) -> &[Word] {
        self.list.as_slice().get(from..self.length).unwrap_or_default()
    }

    /// Puts those of memtrack's own frames after the others, for [`UnwindWitnesses::are_same`]. `false`: there is no
    /// memory for them, or a word is not in the thread's own stack.
    pub(super) fn close(&mut self, own: &[Word]) -> bool {
        let count = self.length.wrapping_add(own.len());
        self.whole = count.next_multiple_of(GROUP);
        if self.outside != usize::MAX || !self.list.grow(self.whole) {
            return false;
        }
        let filling = Word { address: &raw const NOTHING as usize, value: NOTHING };
        for index in self.length..self.whole {
            let word = own.get(index.wrapping_sub(self.length)).copied();
            self.list.set(index, word.unwrap_or(filling));
        }
        true
    }

    /// Whether all are as they were. Only after [`UnwindWitnesses::close`] has given `true`, and nothing was changed
    /// since.
    #[inline(always)]
    pub(super) fn are_same(&self) -> bool {
        let mut rest = self.list.as_slice().get(..self.whole).unwrap_or_default();
        let mut difference = 0;
        // Unrolled, so that only the branch that ends it is taken.
        for _ in 0..UNROLLED {
            let Some((group, more)) = rest.split_first_chunk::<GROUP>() else { return difference == 0 };
            difference |= differences(group);
            rest = more;
        }
        cold_path();
        difference | differences(rest) == 0
    }

    /// The last of the first `count` words that is not as it was.
    #[inline(always)]
    pub(super) fn differing(&self, count: usize, stack: &mut StackMemory) -> Option<usize> {
        let words = self.list.as_slice().get(..count.min(self.length)).unwrap_or_default();
        if count > self.outside {
            return words.iter().rposition(|word| stack.word(word.address) != Some(word.value));
        }
        // Without a branch for each word.
        if differences(words) == 0 { None } else { words.iter().rposition(|word| word.now() != word.value) }
    }
}

/// 0 where all are as they were; only for words in the thread's own stack.
#[inline(always)]
pub(super) fn differences(words: &[Word]) -> usize {
    words.iter().fold(0, |difference, word| difference | (word.now() ^ word.value))
}

impl Word {
    /// The word that is there now; only for one in the thread's own stack.
    #[inline(always)]
    fn now(&self) -> usize {
        // SAFETY: in the part of the thread's own stack that stays readable, by the module's invariant.
        unsafe { (self.address as *const usize).read_unaligned() }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use super::{UnwindWitnesses, Word};
    use crate::stacks::native::stack_memory::StackMemory;

    #[test]
    fn the_last_word_that_changed_is_told() {
        let mut block = [1_usize, 2, 3, 4];
        let addresses = block.each_ref().map(|word| &raw const *word as usize);
        for is_own in [true, false] {
            let mut stack =
                if is_own { StackMemory::between(addresses[0], addresses[3] + 8) } else { StackMemory::new() };
            let mut words = UnwindWitnesses::new();
            for (address, value) in addresses.iter().zip(block) {
                assert!(words.push(*address, value, &stack));
            }
            assert_eq!(words.differing(4, &mut stack), None);
            let (first, last) = (block[0], block[2]);
            // SAFETY: a live local, to which nothing else refers.
            unsafe { (addresses[2] as *mut usize).write_volatile(last + 7) };
            // SAFETY: a live local, to which nothing else refers.
            unsafe { (addresses[0] as *mut usize).write_volatile(first + 7) };
            assert_eq!(words.differing(4, &mut stack), Some(2));
            assert_eq!(words.differing(2, &mut stack), Some(0));
            assert_eq!(words.differing(0, &mut stack), None);
            words.truncate(2);
            assert_eq!((words.differing(4, &mut stack), words.length()), (Some(0), 2));
            block = [1, 2, 3, 4];
            std::hint::black_box(&mut block);
        }
    }

    #[test]
    fn all_are_compared_with_those_of_the_own_frames() {
        let block: [usize; 70] = std::array::from_fn(|number| number);
        let address = |number: usize| &raw const block[number] as usize;
        let stack = StackMemory::between(address(0), address(69) + 8);
        for (count, own) in [(0, 1), (3, 1), (5, 2), (40, 4), (60, 8)] {
            let mut words = UnwindWitnesses::new();
            assert!((0..count).all(|number| words.push(address(number), number, &stack)));
            let mut last: Vec<Word> =
                (count..count + own).map(|number| Word { address: address(number), value: number }).collect();
            assert!(words.close(&last) && words.are_same(), "{count}");
            last[own - 1].value += 1;
            assert!(words.close(&last) && !words.are_same(), "{count}");
            // One that is not in the thread's own stack has to be asked about.
            assert!(words.push(8, 0, &stack) && !words.close(&[]));
            words.truncate(count);
            assert!(words.close(&[]) && words.are_same());
        }
    }
}
