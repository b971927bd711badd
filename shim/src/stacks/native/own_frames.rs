//! Caches the sequences of the shim's own frames between the start of unwinding and the hook's caller.
//!
//! Invariant: a noted sequence of own frames is used only if each return address is the one it was noted with, at the
//! same distance from the stack pointer, and it leads out of memtrack. The frames are memtrack's own: they stay loaded,
//! and their rules count from the stack pointer.

use super::modules;
use super::rule::{FrameState, UnwindRule};
use super::stack_memory::StackMemory;
use super::unwind_witnesses::Word;

/// Most of memtrack's own frames.
pub(super) const OWN_FRAMES: usize = 6;
/// Ways that are remembered.
const PATHS: usize = 4;

/// The own frames from `start` to the hook's caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnFramePath {
    /// The address at which the walk began.
    start: usize,
    /// Return addresses into memtrack, by their distance from the stack pointer at the start; 0 for none.
    returns: [(usize, usize); OWN_FRAMES],
    count: usize,
    /// Distances of the last return address and the caller's stack pointer.
    back: usize,
    stack: usize,
    /// Distance of the caller's frame pointer; 0 where it is still in its register.
    frame: usize,
}

/// The paths that were taken.
#[derive(Debug)]
pub(super) struct OwnFramePaths {
    paths: [OwnFramePath; PATHS],
    next: usize,
    /// The one that was taken or put last.
    last: Option<usize>,
}

/// A path that is being recorded.
#[derive(Debug)]
pub(super) struct PathBuilder {
    start: FrameState,
    path: OwnFramePath,
    /// The address that the last step led to.
    last: usize,
    is_good: bool,
}

impl OwnFramePath {
    const NONE: Self = Self { start: 0, returns: [(0, 0); OWN_FRAMES], count: 0, back: 0, stack: 0, frame: 0 };

    /// Whether the caller's frame pointer is still in its register.
    pub(super) const fn keeps_frame(&self) -> bool {
        self.frame == 0
    }

    /// The words that prove a walk from `start` to lead to `caller`, and to its frame pointer where that matters; how
    /// many.
    pub(super) fn words(
        &self,
        start: FrameState,
        caller: FrameState,
        frame_matters: bool,
        words: &mut [Word; OWN_FRAMES + 2],
    ) -> usize {
        let returns = self.returns.get(..self.count).unwrap_or_default().iter().copied();
        let frame = (frame_matters && self.frame != 0).then_some((self.frame, caller.bp));
        let all = returns.chain([(self.back, caller.pc)]).chain(frame);
        let mut count = 0_usize;
        for (place, (distance, value)) in words.iter_mut().zip(all) {
            *place = Word { address: start.sp.wrapping_add(distance), value };
            count = count.wrapping_add(1);
        }
        count
    }

    /// The caller of memtrack, if this is the path to it; it begins where the walk does.
    #[inline(always)]
    fn take(&self, start: FrameState, stack: &mut StackMemory) -> Option<FrameState> {
        let returns = self.returns.get(..self.count)?;
        let read = |stack: &mut StackMemory, distance: usize| stack.word(start.sp.wrapping_add(distance));
        for &(distance, address) in returns {
            if read(stack, distance) != Some(address) {
                return None;
            }
        }
        let bp = if self.frame == 0 { start.bp } else { read(stack, self.frame)? };
        Some(FrameState { pc: read(stack, self.back)?, sp: start.sp.wrapping_add(self.stack), bp })
    }
}

impl OwnFramePaths {
    pub(super) const fn new() -> Self {
        Self { paths: [OwnFramePath::NONE; PATHS], next: 0, last: None }
    }

    /// The caller of memtrack, if the path to it is known.
    #[inline(always)]
    pub(super) fn take(&mut self, start: FrameState, stack: &mut StackMemory) -> Option<FrameState> {
        self.last = None;
        for (place, path) in self.paths.iter().enumerate() {
            // Where one hook has jumped to the start, and another has called it, the first one's path leads to the other hook.
            if path.start == start.pc
                && let Some(caller) = path.take(start, stack)
                && !modules::is_own(caller.pc)
            {
                self.last = Some(place);
                return Some(caller);
            }
        }
        None
    }

    /// The path that was taken last, or put.
    pub(super) fn last(&self) -> Option<&OwnFramePath> {
        self.paths.get(self.last?)
    }

    /// Remembers a path that led to a frame that is not memtrack's.
    pub(super) fn put(&mut self, builder: &PathBuilder) {
        if builder.is_good && builder.path.stack != 0 {
            if let Some(place) = self.paths.get_mut(self.next) {
                *place = builder.path;
            }
            self.last = Some(self.next);
            self.next = self.next.wrapping_add(1) % PATHS;
        }
    }
}

impl PathBuilder {
    pub(super) const fn from(start: FrameState) -> Self {
        Self { start, path: OwnFramePath { start: start.pc, ..OwnFramePath::NONE }, last: 0, is_good: true }
    }

    /// One of memtrack's own frames was left by this rule: to `next`, whose address stood in `back_slot`, and whose
    /// frame pointer, unless it was left alone, in `frame_slot`.
    pub(super) fn step(&mut self, rule: &UnwindRule, next: FrameState, back_slot: usize, frame_slot: usize) {
        let distance = |address: usize| address.wrapping_sub(self.start.sp);
        let path = &mut self.path;
        // What the step before led to is one of memtrack's, too.
        if path.stack != 0 {
            let place = path.returns.get_mut(path.count);
            self.is_good &= place.is_some();
            if let Some(place) = place {
                *place = (path.back, self.last);
                path.count = path.count.wrapping_add(1);
            }
        }
        path.back = distance(back_slot);
        path.stack = distance(next.sp);
        if frame_slot != 0 {
            path.frame = distance(frame_slot);
        }
        self.last = next.pc;
        self.is_good &= !rule.cfa_is_read && !rule.uses_frame_pointer();
    }
}
