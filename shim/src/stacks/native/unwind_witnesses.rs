//! Unwind witnesses: the words of a stack that prove its older frames unchanged; all of them are compared at each
//! allocation.
//!
//! They are kept apart from the frames because comparing them is the hottest loop of native stacks: as many words as
//! fit stand together.
//!
//! Invariant: each word was readable when it was added, and those before `outside` lie in the thread's own stack, whose
//! known part stays readable while the thread lives.

use std::hint::cold_path;

use super::native_frame::{FoundFrame, NativeFrame};
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
    /// Most words of one frame.
    pub(super) const MOST_OF_FRAME: usize = 3;

    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), length: 0, whole: 0, outside: usize::MAX }
    }

    /// There are none; the memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.list.clear();
        (self.length, self.whole, self.outside) = (0, 0, usize::MAX);
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

    /// Puts these in the place of those after the first `kept`: words that lie in the thread's own stack, of which `own`
    /// are those of memtrack's own frames. `false`: there is no memory for them.
    #[inline(always)]
    pub(super) fn replace_newest(&mut self, kept: usize, words: &[Word], own: usize) -> bool {
        let end = kept.wrapping_add(words.len());
        if kept > self.length || !self.list.grow(end.wrapping_add(GROUP)) {
            return false;
        }
        if let Some(places) = self.list.as_mut_slice().get_mut(kept..end) {
            places.copy_from_slice(words);
        }
        self.truncate(kept);
        self.length = end.wrapping_sub(own);
        self.outside == usize::MAX && self.fill_group(end)
    }

    /// Adds the words that lead from a frame to the older one; there is room for them.
    #[inline(always)]
    pub(super) fn push_frame(&mut self, frame: &FoundFrame, older: &NativeFrame, stack: &mut StackMemory) {
        // As it is written there, which may be signed.
        let back = stack.word(frame.back_slot).unwrap_or(older.state.pc);
        self.push(frame.back_slot, back, stack);
        if older.frame_matters && frame.frame_slot != 0 {
            self.push(frame.frame_slot, older.state.bp, stack);
        }
        if frame.cfa_slot != 0 {
            cold_path();
            self.push(frame.cfa_slot, older.state.sp, stack);
        }
    }

    /// Makes room for so many more. `false`: there is no memory for them.
    #[inline(always)]
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        self.list.grow(self.length.wrapping_add(count))
    }

    /// Adds one, for which there is room.
    #[inline(always)]
    pub(super) fn push(&mut self, address: usize, value: usize, stack: &StackMemory) {
        self.list.set(self.length, Word { address, value });
        if !stack.holds(address) {
            self.outside = self.outside.min(self.length);
        }
        self.length = self.length.wrapping_add(1);
    }

    /// The words from the one at `from` on, with those of memtrack's own frames after [`UnwindWitnesses::close`].
    pub(super) fn from(&self, from: usize, own: usize) -> &[Word] {
        self.list.as_slice().get(from..self.length.wrapping_add(own)).unwrap_or_default()
    }

    /// Puts those of memtrack's own frames after the others, for [`UnwindWitnesses::are_same`]. All of them lie in the
    /// thread's own stack. `false`: there is no memory for them, or another word is not in the thread's own stack.
    pub(super) fn close(&mut self, own: &[Word]) -> bool {
        let count = self.length.wrapping_add(own.len());
        if self.outside != usize::MAX || !self.list.grow(count.wrapping_add(GROUP)) {
            return false;
        }
        if let Some(places) = self.list.as_mut_slice().get_mut(self.length..count) {
            places.iter_mut().zip(own).for_each(|(place, word)| *place = *word);
        }
        self.fill_group(count)
    }

    /// Fills the group of the last of `count` words.
    #[inline(always)]
    fn fill_group(&mut self, count: usize) -> bool {
        self.whole = count.next_multiple_of(GROUP);
        let filling = Word { address: &raw const NOTHING as usize, value: NOTHING };
        if let Some(rest) = self.list.as_mut_slice().get_mut(count..self.whole) {
            rest.iter_mut().for_each(|place| *place = filling);
        }
        true
    }

    /// Whether all are as they were, of which the first `proven` are known to be. Only after [`UnwindWitnesses::close`] has
    /// given `true`, and nothing was changed since.
    #[inline(always)]
    pub(super) fn are_same(&self, proven: usize) -> bool {
        let first = proven.min(self.length) & !(GROUP.wrapping_sub(1));
        let mut rest = self.list.as_slice().get(first..self.whole).unwrap_or_default();
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

    /// Whether the first `count` words are in the thread's own stack.
    pub(super) const fn are_own(&self, count: usize) -> bool {
        count <= self.length && count <= self.outside
    }

    /// Whether the first `count` words are as they were, of which the first `proven` are known to be.
    #[inline(always)]
    pub(super) fn are_first_same(&self, count: usize, proven: usize) -> bool {
        self.are_own(count) && are_same(self.list.as_slice().get(proven.min(count)..count).unwrap_or_default())
    }

    /// How many of the first `count` words, the oldest frames' first, are as they were: up to the first that is not. The
    /// first `proven` are known to be.
    #[inline(always)]
    pub(super) fn same(&self, count: usize, proven: usize, stack: &mut StackMemory) -> usize {
        let words = self.list.as_slice().get(..count.min(self.length)).unwrap_or_default();
        if count > self.outside {
            cold_path();
            let differing = words.iter().position(|word| stack.word(word.address) != Some(word.value));
            return differing.unwrap_or(words.len());
        }
        let mut rest = words.get(proven..).unwrap_or_default();
        while let Some((group, more)) = rest.split_first_chunk::<{ 2 * GROUP }>() {
            if differences(group) != 0 {
                break;
            }
            rest = more;
        }
        while let Some((word, more)) = rest.split_first() {
            if !word.is_same() {
                break;
            }
            rest = more;
        }
        words.len().wrapping_sub(rest.len())
    }
}

/// 0 where all are as they were; only for words in the thread's own stack.
#[inline(always)]
fn differences(words: &[Word]) -> usize {
    words.iter().fold(0, |difference, word| difference | (word.now() ^ word.value))
}

/// Whether all are as they were; only for words in the thread's own stack. Those that were changed last are mostly the
/// newest.
#[inline(always)]
pub(super) fn are_same(words: &[Word]) -> bool {
    let mut rest = words;
    while let Some((older, group)) = rest.split_last_chunk::<GROUP>() {
        if differences(group) != 0 {
            return false;
        }
        rest = older;
    }
    differences(rest) == 0
}

impl Word {
    /// Whether it is as it was; only for one in the thread's own stack.
    #[inline(always)]
    pub(super) fn is_same(&self) -> bool {
        self.now() == self.value
    }

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
    fn words_are_the_same_up_to_the_first_that_changed() {
        let mut block = [1_usize, 2, 3, 4];
        let addresses = block.each_ref().map(|word| &raw const *word as usize);
        for is_own in [true, false] {
            let mut stack =
                if is_own { StackMemory::between(addresses[0], addresses[3] + 8) } else { StackMemory::new() };
            let mut words = UnwindWitnesses::new();
            assert!(words.reserve(4));
            for (address, value) in addresses.iter().zip(block) {
                words.push(*address, value, &stack);
            }
            assert_eq!(words.same(4, 0, &mut stack), 4);
            let (second, last) = (block[1], block[2]);
            // SAFETY: a live local, to which nothing else refers.
            unsafe { (addresses[2] as *mut usize).write_volatile(last + 7) };
            assert_eq!(words.same(4, 0, &mut stack), 2);
            // SAFETY: a live local, to which nothing else refers.
            unsafe { (addresses[1] as *mut usize).write_volatile(second + 7) };
            assert_eq!((words.same(4, 0, &mut stack), words.same(1, 0, &mut stack)), (1, 1));
            words.truncate(2);
            assert_eq!((words.same(4, 0, &mut stack), words.length()), (1, 2));
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
            assert!(words.reserve(count));
            (0..count).for_each(|number| words.push(address(number), number, &stack));
            let mut last: Vec<Word> =
                (count..count + own).map(|number| Word { address: address(number), value: number }).collect();
            assert!(words.close(&last) && words.are_same(0), "{count}");
            last[own - 1].value += 1;
            assert!(words.close(&last) && !words.are_same(0), "{count}");
            // The same from a stack top that is known.
            let kept = count / 2;
            let mut newest: Vec<Word> =
                (kept..count + own).map(|number| Word { address: address(number), value: number }).collect();
            assert!(words.replace_newest(kept, &newest, own) && words.are_same(0));
            assert_eq!((words.length(), words.from(kept, own).len()), (count, newest.len()));
            newest[0].value += 1;
            assert!(words.replace_newest(kept, &newest, own) && !words.are_same(0));
            // One that is not in the thread's own stack has to be asked about.
            words.push(8, 0, &stack);
            assert!(!words.close(&[]));
            assert!(words.replace_newest(kept, &newest, own), "it was cut off");
            words.truncate(kept);
            assert!(words.close(&[]) && words.are_same(0));
        }
    }
}
