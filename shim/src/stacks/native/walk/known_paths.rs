//! Cache of ways from a hook to the newest evaluation loop, for walks that begin where an earlier one did.
//!
//! Invariant: all words of a known path lie in the known part of the thread's own stack, and while they are as they were
//! a walk from its start finds its frames. Paths are dropped with the thread's stack, and when modules come or go.

use super::path_frames::LoopPath;
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use crate::stacks::native::native_frame::NativeFrame;
use crate::stacks::native::rule::FrameState;
use crate::stacks::native::stack_memory::StackMemory;
use crate::stacks::native::unwind_witnesses::{Word, are_same};

/// Most words of one path.
const WORDS: usize = 28;
/// Paths that begin at places of one kind, and kinds; powers of two.
const WAYS: usize = 4;
const SETS: usize = 64;
/// Places for paths that were met once; a power of two.
const CANDIDATES: usize = 1024;
/// Keeping a path costs as much as four hits save. So it is paid for by hits, and a little by misses: where paths are more
/// than there is room for, they are hardly ever kept.
const PRICE: u32 = 32;
const WORTH_OF_HIT: u32 = PRICE / 16;
const MOST_CREDIT: u32 = 256 * PRICE;

/// A path that was met before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownPath {
    /// Where the walk began, and which bits of its frame pointer matter. All zero: no path.
    start: FrameState,
    frame_mask: usize,
    /// No other path of the thread has this number, nor ever had.
    serial: u64,
    /// The stack pointer of the loop, and what called it.
    loop_sp: usize,
    under: FrameState,
    under_matters: bool,
    word_count: usize,
    words: [Word; WORDS],
    path: LoopPath,
}

// SAFETY: integers and booleans, of which zero is a value.
unsafe impl Zeroable for KnownPath {}

/// Those of one thread.
#[derive(Debug)]
pub(super) struct KnownPaths {
    list: MappedVec<KnownPath>,
    /// The path that was last met at each place, and is kept when it is met again.
    candidates: [u32; CANDIDATES],
    /// Of each set, the one that is given up next.
    next: [u8; SETS],
    /// What paths may be kept for.
    credit: u32,
    /// The serial number of the path that was kept last.
    kept: u64,
}

impl KnownPath {
    /// Becomes the way to a loop with this stack pointer, of which no word is known yet; it is not found before
    /// [`KnownPath::begin_at`].
    pub(super) const fn renew(&mut self, path: LoopPath, loop_sp: usize, under: &NativeFrame) {
        (self.start, self.word_count) = (FrameState::NONE, 0);
        (self.path, self.loop_sp) = (path, loop_sp);
        (self.under, self.under_matters) = (under.state, under.frame_matters);
    }

    /// One of its words is the one at this address. `None`: it has no room for it, or that is not in the thread's own stack.
    pub(super) fn add_word(&mut self, address: usize, stack: &StackMemory) -> Option<()> {
        *self.words.get_mut(self.word_count)? = Word { address, value: stack.own_word(address)? };
        self.word_count = self.word_count.wrapping_add(1);
        Some(())
    }

    /// All of its words are known: a walk that begins there may find it.
    pub(super) const fn begin_at(&mut self, start: FrameState, frame_mask: usize) {
        (self.start, self.frame_mask) = (start, frame_mask);
    }

    pub(super) const fn path(&self) -> &LoopPath {
        &self.path
    }

    pub(super) const fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether it leads to a loop with this stack pointer, which such a frame called.
    #[inline(always)]
    pub(super) const fn leads_to(&self, loop_sp: usize, under: &NativeFrame) -> bool {
        self.loop_sp == loop_sp && self.under_matters == under.frame_matters && under.is_at(self.under)
    }

    /// Whether a walk from `start` finds it.
    #[inline(always)]
    fn is_there(&self, start: FrameState) -> bool {
        let begins =
            start.pc == self.start.pc && start.sp == self.start.sp && (start.bp ^ self.start.bp) & self.frame_mask == 0;
        begins && are_same(self.words.get(..self.word_count).unwrap_or_default())
    }
}

impl KnownPaths {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), candidates: [0; CANDIDATES], next: [0; SETS], credit: MOST_CREDIT, kept: 0 }
    }

    pub(super) fn clear(&mut self) {
        // Pages that hold none stay untouched.
        let known = self.list.as_mut_slice().iter_mut().filter(|known| known.start != FrameState::NONE);
        known.for_each(|known| known.start = FrameState::NONE);
    }

    /// As [`KnownPaths::clear`], and gives the memory back.
    pub(super) fn begin_again(&mut self) {
        self.list.clear();
    }

    #[inline(always)]
    pub(super) fn get(&self, number: usize) -> Option<&KnownPath> {
        self.list.as_slice().get(number)
    }

    /// The one that a walk from `start` finds, with its number.
    #[inline(always)]
    pub(super) fn find(&self, start: FrameState) -> Option<(usize, &KnownPath)> {
        let first = Self::set(start).wrapping_mul(WAYS);
        let ways = self.list.as_slice().get(first..first.wrapping_add(WAYS))?;
        let mut number = first;
        for known in ways {
            if known.is_there(start) {
                return Some((number, known));
            }
            number = number.wrapping_add(1);
        }
        None
    }

    /// A path was found here.
    #[inline(always)]
    pub(super) fn note_hit(&mut self) {
        self.credit = self.credit.wrapping_add(WORTH_OF_HIT).min(MOST_CREDIT);
    }

    /// Whether the path with this key, which was not found here, is to be kept: it was the last one that was met at its
    /// place, and there is credit for it.
    #[inline(always)]
    pub(super) fn is_to_be_kept(&mut self, start: FrameState, key: u64) -> bool {
        let mixed = (key ^ start.sp as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let candidate = self.candidates.get_mut((mixed >> 40) as usize & (CANDIDATES - 1));
        let is_met_again =
            candidate.is_some_and(|candidate| std::mem::replace(candidate, mixed as u32) == mixed as u32);
        let is_kept = is_met_again && self.credit >= PRICE;
        self.credit = if is_kept { self.credit.wrapping_sub(PRICE) } else { self.credit.saturating_add(1) };
        is_kept
    }

    /// Where a path that begins at `start` is to be kept, with a serial number of its own.
    pub(super) fn place(&mut self, start: FrameState) -> Option<&mut KnownPath> {
        if !self.list.grow(SETS * WAYS) {
            return None;
        }
        let set = Self::set(start);
        let next = self.next.get_mut(set)?;
        let way = std::mem::replace(next, next.wrapping_add(1) % WAYS as u8) as usize;
        let place = self.list.as_mut_slice().get_mut(set.wrapping_mul(WAYS).wrapping_add(way))?;
        self.kept = self.kept.wrapping_add(1);
        place.serial = self.kept;
        Some(place)
    }

    const fn set(start: FrameState) -> usize {
        let mixed = ((start.sp ^ start.pc) as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & (SETS - 1)
    }
}
