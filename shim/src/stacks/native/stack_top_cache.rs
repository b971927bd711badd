//! Cache of recent stack tops, for programs that alternate between call paths.
//!
//! A stack top ("tip") is the frames above one that older walks had in common. It is used again where a walk begins at
//! the same place, every word that led from there down to the common frame is unchanged, and that frame is where it
//! was. Most tops of a large program come only once: a top is kept when it is met the second time.
//!
//! Invariant: all words of a tip lie in the known part of the thread's own stack. Tips are dropped with the thread's
//! stack, and when modules come or go.

use super::native_frame::NativeFrame;
use super::rule::FrameState;
use super::unwind_witnesses::{Word, are_same};
use crate::platform::mapped_vec::{MappedVec, Zeroable};

/// Most frames and words of one tip; of longer ones unwinding costs little in comparison.
const FRAMES: usize = 12;
const WORDS: usize = 32;
/// Tips that begin at places of one kind, and kinds; powers of two.
const WAYS: usize = 4;
const SETS: usize = 32;

/// Groups of tops that were met once; a power of two. Of each there are [`Candidates::COUNT`].
const CANDIDATES: usize = 128;

/// A stack top that is in the cache, or was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownTop {
    place: usize,
    /// No other top of the thread ever has it; 0: none.
    pub(super) serial: u64,
}

/// The newest frames of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CachedTop {
    known: KnownTop,
    /// Where the walk began, and which bits of its frame pointer matter. All zero: no tip.
    start: FrameState,
    frame_mask: usize,
    /// The words of the frames, then those of memtrack's own frames.
    words: [Word; WORDS],
    word_count: usize,
    own_count: usize,
    /// The frame below the tip, and how many there are with it.
    under: FrameState,
    under_matters: bool,
    kept: usize,
    /// The oldest first; their words are counted from the tip's first.
    frames: [NativeFrame; FRAMES],
    length: usize,
}

// SAFETY: integers and booleans, of which zero is a value.
unsafe impl Zeroable for CachedTop {}

/// What a walk has found, of which a tip is made.
#[derive(Debug)]
pub(super) struct NewTop<'a> {
    /// Where it began, and which bits of its frame pointer matter.
    pub(super) start: FrameState,
    pub(super) frame_mask: usize,
    /// The frame below the tip, and how many there are with it.
    pub(super) under: &'a NativeFrame,
    pub(super) kept: usize,
    /// The frames of the tip, and their words, of which the last `own` are those of memtrack's own frames.
    pub(super) frames: &'a [NativeFrame],
    pub(super) words: &'a [Word],
    pub(super) own: usize,
}

/// Those that were met.
#[derive(Debug)]
pub(super) struct StackTopCache {
    list: MappedVec<CachedTop>,
    /// Tops that were put in.
    filled: u64,
    /// Of each set, the one that is given up next.
    next: [u8; SETS],
    /// Tops that were met last, each of which is kept when it is met again.
    candidates: [Candidates; CANDIDATES],
}

/// Numbers of tops that share a place, the newest first: so many that come in turn do not displace each other.
#[derive(Clone, Copy, Debug)]
struct Candidates([u16; Self::COUNT]);

impl CachedTop {
    /// Becomes another tip, in place: it is large, and the program's stack may be small.
    fn fill(&mut self, tip: &NewTop<'_>, known: KnownTop) {
        self.known = known;
        (self.start, self.frame_mask) = (tip.start, tip.frame_mask);
        (self.under, self.under_matters, self.kept) = (tip.under.state, tip.under.frame_matters, tip.kept);
        for (place, frame) in self.frames.iter_mut().zip(tip.frames) {
            *place = frame.with_words(frame.words.wrapping_sub(tip.under.words));
        }
        self.length = tip.frames.len();
        self.words.iter_mut().zip(tip.words).for_each(|(place, word)| *place = *word);
        (self.word_count, self.own_count) = (tip.words.len(), tip.own);
    }

    /// By what it is found again.
    pub(super) const fn known(&self) -> KnownTop {
        self.known
    }

    /// Where the walk began.
    pub(super) const fn start(&self) -> FrameState {
        self.start
    }

    /// How many frames are older.
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }

    /// How many frames there are with those of the tip.
    pub(super) const fn end(&self) -> usize {
        self.kept.wrapping_add(self.length)
    }

    /// All ones where the frame pointer at the start is one of the proofs.
    pub(super) const fn frame_mask(&self) -> usize {
        self.frame_mask
    }

    pub(super) fn frames(&self) -> &[NativeFrame] {
        self.frames.get(..self.length).unwrap_or_default()
    }

    /// The words that lead from the start to the frame below.
    pub(super) fn words(&self) -> &[Word] {
        self.words.get(..self.word_count).unwrap_or_default()
    }

    /// How many of them, the last ones, lead from the start to the newest frame.
    pub(super) const fn own_count(&self) -> usize {
        self.own_count
    }

    /// Whether it stood on such a frame.
    pub(super) fn fits(&self, under: &NativeFrame) -> bool {
        under.frame_matters == self.under_matters && under.is_at(self.under)
    }

    /// Whether the stack of a walk from `start` ends in it, wherever it stands.
    #[inline(always)]
    fn is_there(&self, start: FrameState) -> bool {
        self.begins_at(start) && are_same(self.words())
    }

    /// Whether a walk from `start` may find it.
    const fn begins_at(&self, start: FrameState) -> bool {
        start.pc == self.start.pc && start.sp == self.start.sp && (start.bp ^ self.start.bp) & self.frame_mask == 0
    }
}

impl StackTopCache {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), filled: 0, next: [0; SETS], candidates: [Candidates::NONE; CANDIDATES] }
    }

    pub(super) fn clear(&mut self) {
        // Pages that hold none stay untouched.
        let tips = self.list.as_mut_slice().iter_mut().filter(|tip| tip.start != FrameState::NONE);
        tips.for_each(|tip| tip.start = FrameState::NONE);
    }

    /// As [`StackTopCache::clear`], and gives the memory back.
    pub(super) fn begin_again(&mut self) {
        self.list.clear();
    }

    /// The tip that the stack of a walk from `start` ends in.
    #[inline(always)]
    pub(super) fn find(&self, start: FrameState) -> Option<&CachedTop> {
        let first = Self::set(start).wrapping_mul(WAYS);
        let ways = self.list.as_slice().get(first..first.wrapping_add(WAYS))?;
        ways.iter().find(|tip| tip.is_there(start))
    }

    /// Remembers one that was met before, in the place of one that was there too if there is such a one; not if it is too
    /// long.
    pub(super) fn put(&mut self, tip: &NewTop<'_>) -> Option<KnownTop> {
        let is_short = tip.frames.len() <= FRAMES && tip.words.len() <= WORDS;
        if !is_short || !self.is_met_again(tip) || !self.list.grow(SETS * WAYS) {
            return None;
        }
        let set = Self::set(tip.start);
        let first = set.wrapping_mul(WAYS);
        let ways = self.list.as_mut_slice().get_mut(first..first.wrapping_add(WAYS)).unwrap_or_default();
        let same = ways.iter().position(|way| way.is_there(tip.start));
        let next = self.next.get_mut(set)?;
        let place = same.unwrap_or_else(|| std::mem::replace(next, next.wrapping_add(1) % WAYS as u8) as usize);
        let known = KnownTop { place: first.wrapping_add(place), serial: self.filled.wrapping_add(1) };
        if let Some(way) = ways.get_mut(place) {
            way.fill(tip, known);
            self.filled = known.serial;
        }
        Some(known)
    }

    /// Whether the tip, or one that hardly differs from it, is among the last ones that were met at its place.
    #[inline(always)]
    fn is_met_again(&mut self, tip: &NewTop<'_>) -> bool {
        let (place, number) = Self::candidate(tip);
        self.candidates.get_mut(place).is_some_and(|candidates| candidates.meet(number))
    }

    /// Among which candidates the tip is, and its number there.
    #[inline(always)]
    fn candidate(tip: &NewTop<'_>) -> (usize, u16) {
        let parts = [
            tip.frames.last().map_or(0, |newest| newest.state.pc),
            tip.under.state.sp,
            tip.under.state.pc,
            tip.frames.len(),
        ];
        let mix = |key: u64, part: usize| (key ^ part as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        let mixed = parts.into_iter().fold((tip.start.sp ^ tip.start.pc) as u64, mix);
        ((mixed >> 40) as usize & (CANDIDATES - 1), mixed as u16)
    }

    /// One that was found since the last [`StackTopCache::put`].
    #[inline(always)]
    pub(super) fn get(&self, known: KnownTop) -> Option<&CachedTop> {
        self.list.as_slice().get(known.place)
    }

    const fn set(start: FrameState) -> usize {
        let mixed = ((start.sp ^ start.pc) as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & (SETS - 1)
    }
}

impl Candidates {
    const COUNT: usize = 4;
    const NONE: Self = Self([0; Self::COUNT]);

    /// Whether this one is there; otherwise it is from now on, in the place of the oldest.
    #[inline(always)]
    fn meet(&mut self, number: u16) -> bool {
        let is_there = self.0.contains(&number);
        if !is_there {
            let [newest, next, older, _] = self.0;
            self.0 = [number, newest, next, older];
        }
        is_there
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use super::{Candidates, FRAMES, FrameState, NewTop, StackTopCache, WAYS, Word};
    use crate::stacks::native::native_frame::NativeFrame;

    const START: FrameState = FrameState { pc: 0x10, sp: 0x20, bp: 0x30 };

    fn frame(sp: usize, words: u32) -> NativeFrame {
        let mut frame = NativeFrame::default().with_words(words);
        frame.state = FrameState { pc: 7, sp, bp: 0 };
        frame
    }

    fn tip_from<'a>(sp: usize, under: &'a NativeFrame, frames: &'a [NativeFrame]) -> NewTop<'a> {
        let start = FrameState { sp, ..START };
        NewTop { start, frame_mask: 0, under, kept: 5, frames, words: &[], own: 0 }
    }

    #[test]
    fn a_tip_is_kept_when_it_is_met_again() {
        let (under, frames) = (frame(0x100, 9), [frame(0x80, 10)]);
        let tip = |sp: usize| tip_from(sp, &under, &frames);
        let mut tips = StackTopCache::new();
        assert!(tips.put(&tip(0x20)).is_none() && tips.find(START).is_none());
        assert!(tips.put(&tip(0x28)).is_none(), "another one");
        assert!(tips.put(&tip(0x20)).is_some() && tips.find(START).is_some());
    }

    #[test]
    fn tips_that_come_in_turn_do_not_displace_each_other() {
        let (under, frames) = (frame(0x100, 9), [frame(0x80, 10)]);
        let tip = |sp: usize| tip_from(sp, &under, &frames);
        let (place, _) = StackTopCache::candidate(&tip(0));
        let shares_place = |sp: &usize| StackTopCache::candidate(&tip(*sp)).0 == place;
        let sharing: Vec<_> = (0..).step_by(8).filter(shares_place).take(Candidates::COUNT).collect();
        let mut tips = StackTopCache::new();
        assert!(sharing.iter().all(|sp| tips.put(&tip(*sp)).is_none()));
        assert!(sharing.iter().all(|sp| tips.put(&tip(*sp)).is_some()));
    }

    #[test]
    fn a_tip_is_found_where_its_words_are_as_they_were() {
        let (under, frames) = (frame(0x100, 9), [frame(0x80, 10), frame(0x40, 11)]);
        let mut memory = [1_usize, 2];
        let places = memory.each_ref().map(|word| &raw const *word as usize);
        let mut set = |values: [usize; 2]| {
            // SAFETY: a live local.
            unsafe { (&raw mut memory).write_volatile(values) };
        };
        let put = |tips: &mut StackTopCache, values: [usize; 2], frame_mask: usize, frames: &[NativeFrame]| {
            let words = [0, 1].map(|number| Word { address: places[number], value: values[number] });
            // What was met once is not kept yet.
            for _ in 0..2 {
                let _known = tips.put(&NewTop {
                    start: START,
                    frame_mask,
                    under: &under,
                    kept: 5,
                    frames,
                    words: &words,
                    own: 1,
                });
            }
        };
        let mut tips = StackTopCache::new();
        assert!(tips.find(START).is_none());
        for values in [[1, 2], [1, 3], [4, 2]] {
            set(values);
            put(&mut tips, values, 0, &frames);
        }
        for values in [[1, 3], [4, 2], [1, 2]] {
            set(values);
            let tip = tips.find(START).unwrap();
            assert_eq!(
                (tip.kept(), tip.end(), tip.words()[0].value, tip.words()[1].value, tip.own_count()),
                (5, 7, values[0], values[1], 1)
            );
            // Counted from the tip's first.
            assert_eq!(tip.frames().iter().map(|frame| frame.words).collect::<Vec<_>>(), [1, 2]);
            assert!(tip.fits(&under) && !tip.fits(&frame(0x108, 9)));
        }
        set([9, 9]);
        assert!(tips.find(START).is_none());
        set([1, 2]);
        assert!(
            tips.find(FrameState { sp: 0x28, ..START }).is_none() && tips.find(FrameState { bp: 1, ..START }).is_some()
        );
        // What is there takes its own place, and others take turns.
        put(&mut tips, [1, 2], usize::MAX, &frames[..1]);
        assert!(tips.find(FrameState { bp: 1, ..START }).is_none());
        assert_eq!(tips.find(START).map(|tip| (tip.end(), tip.frame_mask())), Some((6, usize::MAX)));
        (0..WAYS).for_each(|more| put(&mut tips, [100, more], 0, &frames));
        assert!(tips.find(START).is_none());
        put(&mut tips, [1, 2], 0, &[frame(0x80, 10); FRAMES + 1]);
        assert!(tips.find(START).is_none(), "too long");
        put(&mut tips, [1, 2], 0, &frames);
        assert!(tips.find(START).is_some());
        tips.clear();
        assert!(tips.find(START).is_none());
    }
}
