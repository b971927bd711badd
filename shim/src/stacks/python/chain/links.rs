//! What each cached frame is compared with, and what else is known of it, oldest first.
//!
//! The fast comparison reads the newest few as an array with places known at compile time, so there is padding below
//! the oldest. Invariant: who asks for links by place never sees that padding.

use std::ptr::NonNull;

use super::FrameDetail;
use crate::events::stack_model::TOP_FRAMES;
use crate::platform::mapped_vec::{MappedVec, Zeroable};

/// The most frames below the newest that the fast comparison reads.
pub(super) const MOST: usize = 12;

/// A frame as it was: its caller and where it stands are compared each time. The address of the frame at position `i` is
/// `previous` of the link at `i + 1`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChainLink {
    pub(super) previous: usize,
    pub(super) position: usize,
    pub(super) detail: FrameDetail,
}

// SAFETY: integers only.
unsafe impl Zeroable for ChainLink {}

impl ChainLink {
    /// `previous`, in a read of its own. A compiler that knows it to be equal to what the frame holds would go on with
    /// that, and each frame's read would wait for the one before: twice the time on deep stacks.
    #[inline(always)]
    pub(super) fn previous_from_cache(&self) -> usize {
        // SAFETY: a reference is valid to read.
        unsafe { (&raw const self.previous).read_volatile() }
    }
}

/// The links of one chain.
#[derive(Debug)]
pub(super) struct Links {
    list: MappedVec<ChainLink>,
}

impl Links {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new() }
    }

    /// All links are zeroes; the memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.list.clear();
    }

    /// The link at `place`, or zeros beyond the room.
    #[inline]
    pub(super) fn get(&self, place: usize) -> ChainLink {
        self.list.get(place.wrapping_add(MOST))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut ChainLink> {
        self.list.as_mut_slice().get_mut(place.wrapping_add(MOST))
    }

    #[inline]
    pub(super) fn set(&mut self, place: usize, link: ChainLink) {
        self.list.set(place.wrapping_add(MOST), link);
    }

    /// A chain of so many frames ends with the one at this address.
    #[inline]
    pub(super) fn end_at(&mut self, length: usize, newest: usize) {
        if let Some(end) = self.get_mut(length) {
            end.previous = newest;
        }
    }

    /// The oldest so many.
    pub(super) fn below_mut(&mut self, length: usize) -> &mut [ChainLink] {
        self.list.as_mut_slice().get_mut(MOST..length.wrapping_add(MOST)).unwrap_or_default()
    }

    /// Those from `floor` on and below `length`.
    #[inline]
    pub(super) fn between(&self, floor: usize, length: usize) -> &[ChainLink] {
        self.list.as_slice().get(floor.wrapping_add(MOST)..length.wrapping_add(MOST)).unwrap_or_default()
    }

    /// As [`Links::between`].
    ///
    /// # Safety
    /// `floor` must not be above `length`, and there must be room for so many frames.
    #[inline(always)]
    pub(super) unsafe fn between_unchecked(&self, floor: usize, length: usize) -> &[ChainLink] {
        // SAFETY: the caller's promise, and the padding.
        unsafe { self.list.between_unchecked(floor.wrapping_add(MOST), length.wrapping_add(MOST)) }
    }

    /// As many as a stack top has, from `place` on.
    ///
    /// # Safety
    /// There must be room for these and those below.
    #[inline(always)]
    pub(super) unsafe fn top_unchecked_mut(&mut self, place: usize) -> &mut [ChainLink; TOP_FRAMES] {
        // SAFETY: the caller's promise, and the padding.
        unsafe { self.list.chunk_unchecked_mut(place.wrapping_add(MOST)) }
    }

    /// The newest of so many.
    ///
    /// # Safety
    /// `length` must be at least 1, and there must be room for so many frames.
    #[inline(always)]
    pub(super) unsafe fn newest_unchecked_mut(&mut self, length: usize) -> &mut ChainLink {
        // SAFETY: the caller's promise, and the padding.
        let [newest] = unsafe { self.list.chunk_unchecked_mut(length.wrapping_sub(1).wrapping_add(MOST)) };
        newest
    }

    /// As [`Links::newest`], and the newest is the frame at this address.
    ///
    /// # Safety
    /// `length` must be at least 1, and there must be room for so many frames and one more.
    #[inline(always)]
    pub(super) unsafe fn newest_before(&mut self, length: usize, newest: usize) -> Newest {
        // SAFETY: the caller's promise, and the padding.
        let all: &mut [_; MOST + 2] = unsafe { self.list.chunk_unchecked_mut(length.wrapping_sub(1)) };
        let [links @ .., end] = all;
        end.previous = newest;
        Newest(NonNull::from(links))
    }

    /// The newest of so many, last, and those below it, where there are any. `None`: there is none.
    #[inline(always)]
    pub(super) fn newest(&self, length: usize) -> Option<Newest> {
        self.list.as_slice().get(..length.wrapping_add(MOST))?.last_chunk().map(|newest| Newest(NonNull::from(newest)))
    }

    /// Frames that there is room for, with one link more.
    #[inline]
    pub(super) const fn room(&self) -> usize {
        self.list.capacity().saturating_sub(MOST + 1)
    }

    /// Makes room for so many. False when there is no memory: nothing has changed.
    #[inline]
    pub(super) fn grow(&mut self, count: usize) -> bool {
        self.list.grow(count.wrapping_add(MOST))
    }
}

/// Where the newest links are, so that the fast comparison need not search them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest(NonNull<[ChainLink; MOST + 1]>);

impl Newest {
    /// Placeholder; not read.
    pub(super) const NONE: Self = Self(NonNull::dangling());

    /// The links.
    ///
    /// # Safety
    /// The [`Links`] that gave this must be as they were then but for what stands in them: neither longer nor shorter.
    #[inline(always)]
    pub(super) const unsafe fn links<'a>(self) -> &'a [ChainLink; MOST + 1] {
        // SAFETY: the caller's promise.
        unsafe { self.0.as_ref() }
    }
}
