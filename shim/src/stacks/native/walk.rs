//! Incremental unwinding of the calling thread's stack: only frames that changed since the last walk.
//!
//! A frame's state (address, stack pointer, frame pointer where it matters) determines where the words are that lead to
//! its caller's state. So the words are compared first, the oldest frames' first, up to one that differs. Of the frames
//! before it, all older ones are proven as soon as unwinding comes to the state of one of them.
//!
//! Invariant: after [`Walk::run`], `frames[..length]` is what unwinding from the top would have found, root first.

use memtrack_transport::layout::SlotHeader;

use super::arch;
use super::modules;
use super::native_frame::{FoundFrame, NativeFrame, Replaced};
use super::own_frames::{OwnFramePaths, PathBuilder};
use super::rule::{FrameState, KnownAddress, PlainForm, RuleCache, RuleKind, UnwindRule};
use super::stack_memory::StackMemory;
use super::stack_top_cache::{KnownTop, StackTopCache};
use super::unwind_witnesses::UnwindWitnesses;
use crate::events::ring::{Ring, add};
use crate::platform::mapped_vec::MappedVec;

mod address_lookup;
mod known_paths;
mod loop_path;
mod path_frames;
mod proven_words;
mod recall;
#[cfg(feature = "verify-marks")]
mod verify;

use loop_path::LoopPaths;
pub(super) use path_frames::{LoopPath, mix};
use proven_words::ProvenWords;

/// Most frames; of a deeper stack the oldest are left out.
pub(super) const DEEPEST: usize = 8000;

/// What the last walk found.
#[derive(Debug)]
pub(super) struct Walk {
    frames: MappedVec<NativeFrame>,
    length: usize,
    words: UnwindWitnesses,
    proven_words: ProvenWords,
    /// New frames, newest first, during a walk.
    fresh: MappedVec<FoundFrame>,
    fresh_length: usize,
    pub(super) rules: RuleCache,
    own_paths: OwnFramePaths,
    generation: u32,
    additions: u32,
    pub(super) stack: StackMemory,
    truncated: bool,
    /// Of the frame whose place the first new one took in the last walk.
    displaced: Replaced,
    /// Where the walk began whose frames and words these are; all zero where the words do not prove all of them.
    start: FrameState,
    /// All ones where the frame pointer at the start is one of the proofs.
    frame_mask: usize,
    tips: StackTopCache,
    paths: LoopPaths,
    /// The top that the stack ends in, if it is in the cache.
    current: Option<KnownTop>,
    /// Of the words of the last walk, how many were as they had been when this one began.
    proven: usize,
    /// The modules, by number, that were described in this slot's stream, and the unknown one at 0.
    pub(super) described: MappedVec<u8>,
}

/// How a frame was left.
enum WalkStep {
    To(FrameState),
    /// There is no caller.
    End,
    /// It cannot be told whether there is one.
    Cut,
}

/// The registers here: where a walk begins.
#[inline(always)]
pub(super) fn here() -> FrameState {
    let (pc, sp, bp): (usize, usize, usize);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads registers.
    unsafe {
        core::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) bp, options(nomem, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads registers.
    unsafe {
        core::arch::asm!("adr {}, .", "mov {}, sp", "mov {}, x29", out(reg) pc, out(reg) sp, out(reg) bp, options(nomem, preserves_flags));
    }
    FrameState { pc, sp, bp }
}

impl Walk {
    pub(super) const fn new() -> Self {
        Self {
            frames: MappedVec::new(),
            length: 0,
            words: UnwindWitnesses::new(),
            proven_words: ProvenWords::new(),
            fresh: MappedVec::new(),
            fresh_length: 0,
            rules: RuleCache::new(),
            own_paths: OwnFramePaths::new(),
            generation: 0,
            additions: 0,
            stack: StackMemory::new(),
            truncated: false,
            displaced: Replaced::NONE,
            start: FrameState::NONE,
            frame_mask: 0,
            tips: StackTopCache::new(),
            paths: LoopPaths::new(),
            current: None,
            proven: 0,
            described: MappedVec::new(),
        }
    }

    /// Another thread's stack from now on.
    pub(super) fn reset(&mut self) {
        self.forget();
        self.truncated = false;
        self.stack = StackMemory::UNKNOWN;
    }

    /// No stack is known.
    pub(super) fn forget(&mut self) {
        self.length = 0;
        self.start = FrameState::NONE;
        self.tips.clear();
        self.paths.clear();
        self.proven_words.forget();
        self.current = None;
    }

    /// Nothing is described any more, and no stack is known; the memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.forget();
        self.described.clear();
        self.rules.clear();
        self.tips.begin_again();
        self.paths.begin_again();
        self.words.begin_again();
        self.frames.clear();
        self.fresh.clear();
    }

    pub(super) fn frames(&self) -> &[NativeFrame] {
        self.frames.as_slice().get(..self.length).unwrap_or_default()
    }

    pub(super) fn frames_mut(&mut self) -> &mut [NativeFrame] {
        let length = self.length;
        self.frames.as_mut_slice().get_mut(..length).unwrap_or_default()
    }

    pub(super) const fn truncated(&self) -> bool {
        self.truncated
    }

    /// What the frame had on the wire whose place the first new one took.
    pub(super) const fn displaced(&self) -> Replaced {
        self.displaced
    }

    /// Whether the stack is what the last walk found, of which the first `proven` words need no comparison. What every
    /// allocation asks: one straight line.
    #[inline(always)]
    pub(super) fn is_same(&self, start: FrameState, proven: usize, slot: &SlotHeader) -> bool {
        let seen = &self.start;
        let elsewhere = (start.pc ^ seen.pc) | (start.sp ^ seen.sp) | ((start.bp ^ seen.bp) & self.frame_mask);
        let since = (modules::generation() ^ self.generation) | (modules::additions() ^ self.additions);
        if elsewhere != 0 || since != 0 || !self.words.are_same(proven) {
            return false;
        }
        count(slot, self.length, 0);
        true
    }

    /// Unwinds from the start, which is in a frame that stays till this returns, after [`Walk::recall`]. Gives the first
    /// frame that is new, or was followed by one that is gone; `None`: all is as it was.
    pub(super) fn run(&mut self, start: FrameState, recalled: Option<KnownTop>, ring: &mut Ring) -> Option<usize> {
        let before = self.length;
        if let Some(kept) = recalled.and_then(|top| self.take_tip(top, start)) {
            count(ring.slot(), self.length, 0);
            return Some(kept);
        }
        let proven = self.proven;
        self.current = None;
        self.start = FrameState::NONE;
        self.fresh_length = 0;
        let (caller, is_exact) = match self.own_paths.take(start, &mut self.stack) {
            Some(caller) => (caller, false),
            None => self.note_way(start, ring),
        };
        let kept = self.unwind(caller, is_exact, proven, ring);
        count(ring.slot(), kept, self.fresh_length);
        let changed = kept != before || self.fresh_length != 0;
        if changed {
            self.displaced = replaced_at(&self.frames, self.length, kept);
            self.take_fresh(kept);
        }
        self.settle(start, caller, kept);
        changed.then_some(kept)
    }

    /// What is known of modules that have come or gone is not known any more.
    #[inline(always)]
    fn catch_up(&mut self) {
        let generation = modules::generation();
        if generation != self.generation {
            self.rules.clear();
            self.forget();
            self.generation = generation;
        }
        let additions = modules::additions();
        if additions != self.additions {
            // What is known of other modules still holds.
            self.rules.clear_unknown();
            self.forget();
            self.additions = additions;
        }
    }

    /// From this state on, newest first, into `fresh`; gives how many of the old frames remain, whose words are among
    /// the first `proven` ones.
    #[inline(always)]
    fn unwind(&mut self, mut state: FrameState, mut is_exact: bool, proven: usize, ring: &mut Ring) -> usize {
        let mut candidates = self.length;
        let mut steps = 0_usize;
        loop {
            if let Some(joined) = self.join(state, proven, &mut candidates) {
                return joined.wrapping_add(1);
            }
            // The address of a call is before the address it returns to; a frame that was interrupted is where it is.
            let address = state.pc.wrapping_sub(usize::from(!is_exact));
            let known = self.rules.find(address);
            let step = if let Some((found, next)) = known.and_then(|known| plain_step(&self.stack, state, known)) {
                self.add(found);
                is_exact = false;
                if next.pc == 0 { WalkStep::End } else { WalkStep::To(next) }
            } else {
                let known = known.copied().unwrap_or_else(|| self.learn(address, ring));
                is_exact = known.rule.kind == RuleKind::Signal;
                self.step(state, &known)
            };
            steps = steps.wrapping_add(1);
            match step {
                WalkStep::To(next) if steps <= DEEPEST => state = next,
                WalkStep::End => {
                    self.truncated = false;
                    return 0;
                }
                WalkStep::To(_) | WalkStep::Cut => {
                    self.truncated = true;
                    return 0;
                }
            }
        }
    }

    /// Leaves memtrack's own frames, and remembers how. Gives the state of what called them, and whether that is the
    /// start.
    #[cold]
    #[inline(never)]
    fn note_way(&mut self, start: FrameState, ring: &mut Ring) -> (FrameState, bool) {
        let mut builder = PathBuilder::from(start);
        let (mut state, mut is_exact) = (start, true);
        loop {
            let address = state.pc.wrapping_sub(usize::from(!is_exact));
            let known = match self.rules.find(address) {
                Some(known) => *known,
                None => self.learn(address, ring),
            };
            let rule = &known.rule;
            let next = match rule.kind {
                RuleKind::Own => caller(&mut self.stack, state, rule, rule.cfa.address(state, 0)),
                _ => None,
            };
            let Some((next, back_slot, frame_slot)) = next else { break };
            builder.step(rule, next, back_slot, frame_slot);
            (state, is_exact) = (next, false);
        }
        self.own_paths.put(&builder);
        (state, is_exact)
    }

    /// The old frame with this state, and with words among the first `proven` ones. `candidates` are those that may
    /// still come.
    #[inline(always)]
    fn join(&self, state: FrameState, proven: usize, candidates: &mut usize) -> Option<usize> {
        let frames = self.frames.as_slice();
        while let Some(index) = candidates.checked_sub(1) {
            let frame = frames.get(index)?;
            if frame.words as usize <= proven {
                if frame.state.sp > state.sp {
                    return None;
                }
                if frame.is_at(state) {
                    return Some(index);
                }
            }
            *candidates = index;
        }
        None
    }

    #[inline(always)]
    fn add(&mut self, frame: FoundFrame) {
        if self.fresh.grow(self.fresh_length.wrapping_add(1)) {
            self.fresh.set(self.fresh_length, frame);
            self.fresh_length = self.fresh_length.wrapping_add(1);
        }
    }

    /// Leaves one frame by its rule, whatever that is, and notes it.
    #[cold]
    #[inline(never)]
    fn step(&mut self, state: FrameState, known: &KnownAddress) -> WalkStep {
        let rule = &known.rule;
        let frame = FoundFrame {
            state,
            code: known.module,
            instruction: known.offset,
            uses_frame: rule.uses_frame_pointer(),
            keeps_frame: rule.frame.is_none(),
            ..FoundFrame::default()
        };
        if matches!(rule.kind, RuleKind::Unknown | RuleKind::Outermost) {
            self.add(frame);
            return if rule.kind == RuleKind::Outermost { WalkStep::End } else { WalkStep::Cut };
        }
        let place = rule.cfa.address(state, 0);
        let cfa = if rule.cfa_is_read { self.stack.word(place) } else { Some(place) };
        let next = cfa.and_then(|cfa| caller(&mut self.stack, state, rule, cfa));
        let Some((next, back_slot, frame_slot)) = next else {
            self.add(frame);
            return WalkStep::Cut;
        };
        if rule.kind != RuleKind::Own {
            self.add(FoundFrame { back_slot, frame_slot, cfa_slot: if rule.cfa_is_read { place } else { 0 }, ..frame });
        }
        if next.pc == 0 { WalkStep::End } else { WalkStep::To(next) }
    }

    /// Puts the fresh frames on the first `kept` old ones.
    #[inline(always)]
    fn take_fresh(&mut self, kept: usize) {
        let length = kept.wrapping_add(self.fresh_length);
        let Self { frames, fresh, fresh_length, words, stack, .. } = self;
        let mut older = kept.checked_sub(1).and_then(|last| frames.as_slice().get(last)).copied();
        words.truncate(older.map_or(0, |older| older.words as usize));
        let has_room = frames.grow(length) && words.reserve(fresh_length.wrapping_mul(UnwindWitnesses::MOST_OF_FRAME));
        let places = frames.as_mut_slice().get_mut(kept..length).filter(|_| has_room);
        let (Some(places), Some(fresh)) = (places, fresh.as_slice().get(..*fresh_length)) else {
            self.length = 0;
            self.truncated = true;
            return;
        };
        for (place, found) in places.iter_mut().zip(fresh.iter().rev()) {
            let keeps = found.keeps_frame && older.is_some_and(|older| older.frame_matters);
            if let Some(older) = older {
                words.push_frame(found, &older, stack);
            }
            let frame = NativeFrame {
                state: found.state,
                code: found.code,
                instruction: found.instruction,
                words: words.length() as u32,
                frame_matters: found.uses_frame || keeps,
                ..NativeFrame::default()
            };
            *place = frame;
            older = Some(frame);
        }
        self.length = length;
    }
}

/// What the last merge made of the frame at this place, of so many.
#[inline(always)]
fn replaced_at(frames: &MappedVec<NativeFrame>, length: usize, place: usize) -> Replaced {
    let frame = if place < length { frames.as_slice().get(place) } else { None };
    frame.map_or(Replaced::NONE, NativeFrame::replaced)
}

/// Leaves a frame in the thread's own stack by a rule of one of the usual forms, and notes it.
#[inline(always)]
fn plain_step(stack: &StackMemory, state: FrameState, known: &KnownAddress) -> Option<(FoundFrame, FrameState)> {
    let (caller, back_slot, frame_slot) = plain_caller(stack, state, &known.rule)?;
    let found = FoundFrame {
        state,
        back_slot,
        frame_slot,
        cfa_slot: 0,
        code: known.module,
        instruction: known.offset,
        uses_frame: known.rule.form == PlainForm::FromFrame,
        keeps_frame: frame_slot == 0,
    };
    Some((found, caller))
}

/// As [`caller`], in the thread's own stack by a rule of one of the usual forms.
#[inline(always)]
fn plain_caller(stack: &StackMemory, state: FrameState, rule: &UnwindRule) -> Option<(FrameState, usize, usize)> {
    let base = match rule.form {
        PlainForm::FromStack => state.sp,
        PlainForm::FromFrame => state.bp,
        PlainForm::Other => return None,
    };
    let cfa = base.wrapping_add(rule.cfa.offset());
    let back_slot = cfa.wrapping_add(rule.back.offset());
    if cfa <= state.sp {
        return None;
    }
    let pc = arch::return_address(stack.own_word(back_slot)?);
    let (bp, frame_slot) = if rule.frame.is_none() {
        (state.bp, 0)
    } else {
        let slot = cfa.wrapping_add(rule.frame.offset());
        (stack.own_word(slot)?, slot)
    };
    Some((FrameState { pc, sp: cfa, bp }, back_slot, frame_slot))
}

/// The caller's state, and the places of the words that tell it.
#[inline(always)]
fn caller(
    stack: &mut StackMemory,
    state: FrameState,
    rule: &UnwindRule,
    cfa: usize,
) -> Option<(FrameState, usize, usize)> {
    // Stacks grow down; only a signal may have come from another one.
    if cfa <= state.sp && rule.kind != RuleKind::Signal {
        return None;
    }
    let back_slot = rule.back.address(state, cfa);
    let frame_slot = if rule.frame.is_none() { 0 } else { rule.frame.address(state, cfa) };
    let pc = arch::return_address(stack.word(back_slot)?);
    let bp = if frame_slot == 0 { state.bp } else { stack.word(frame_slot)? };
    Some((FrameState { pc, sp: cfa, bp }, back_slot, frame_slot))
}

/// Counts frames for the statistics; the slot is this thread's.
#[inline(always)]
fn count(slot: &SlotHeader, kept: usize, unwound: usize) {
    add(&slot.native_kept, kept as u64);
    add(&slot.native_unwound, unwound as u64);
}
