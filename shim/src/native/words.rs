//! The words of a stack that prove its older frames to be as they were: what has to be compared at each allocation.
//!
//! Apart from the levels, since this is the loop that native stacks cost most in: as many words as fit stand together.
//! Invariant: each word was readable when it was put in, and those before `outside` lie in the thread's own stack, whose
//! known part stays readable while the thread lives.

use super::memory::Stack;
use crate::python::{Plain, Region};

/// A word that was read.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    address: usize,
    value: usize,
}

// SAFETY: integers only.
unsafe impl Plain for Word {}

/// The words, of the oldest frames first.
#[derive(Debug)]
pub(super) struct Words {
    list: Region<Word>,
    length: usize,
    /// The first one that is not in the thread's own stack.
    outside: usize,
}

impl Words {
    pub(super) const fn new() -> Self {
        Self { list: Region::new(), length: 0, outside: usize::MAX }
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

    /// Adds one. `false`: there is no memory for it.
    pub(super) fn push(&mut self, address: usize, value: usize, stack: &Stack) -> bool {
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

    /// The last of the first `count` words that is not as it was.
    #[inline(always)]
    pub(super) fn differing(&self, count: usize, stack: &mut Stack) -> Option<usize> {
        let words = self.list.as_slice().get(..count.min(self.length)).unwrap_or_default();
        if count > self.outside {
            return words.iter().rposition(|word| stack.word(word.address) != Some(word.value));
        }
        // Without a branch for each word.
        let difference = words.iter().fold(0, |difference, word| difference | (word.now() ^ word.value));
        if difference == 0 { None } else { words.iter().rposition(|word| word.now() != word.value) }
    }
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
mod tests {
    use super::Words;
    use crate::native::memory::Stack;

    #[test]
    fn the_last_word_that_changed_is_told() {
        let mut block = [1_usize, 2, 3, 4];
        let addresses = block.each_ref().map(|word| &raw const *word as usize);
        for is_own in [true, false] {
            let mut stack = if is_own { Stack::between(addresses[0], addresses[3] + 8) } else { Stack::new() };
            let mut words = Words::new();
            for (address, value) in addresses.iter().zip(block) {
                assert!(words.push(*address, value, &stack));
            }
            assert_eq!(words.differing(4, &mut stack), None);
            let (first, last) = (block[0], block[2]);
            // SAFETY: a live local, to which nothing else refers.
            unsafe { (addresses[2] as *mut usize).write_volatile(last + 7) };
            // SAFETY: as above.
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
}
