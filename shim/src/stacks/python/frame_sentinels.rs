//! Frame sentinels: values written to suspended frames. An intact sentinel proves that all older frames are unchanged.
//!
//! They exist because comparing a chain of 400 frames at each allocation costs more than the allocation. No comparison
//! of fewer frames can be right if it only reads: a caller may go on to its next line and call the same functions
//! again, which leaves the newer frames bit for bit as they were. So something must be there that the return of a frame
//! destroys. A sentinel is such a thing: a value in a word of a frame that means nothing to the interpreter while that
//! frame waits, and that the interpreter writes before the frame, or another at its address, can wait there again.
//!
//! **Running sentinels** (3.8 to 3.10). A frame has a word that is set when its evaluation begins, set again when it
//! ends, and in between only tested (`f_executing`: whether it is 0; `f_stackdepth`: whether it is positive). Another
//! value with the same answer is a sentinel. As long as it is there, this evaluation has not ended, so its caller still
//! waits in the same call, and so on down to the root.
//!
//! **Result sentinels** (3.11 to 3.13). Frame P waits at instruction I for a frame that the same evaluation loop
//! entered. The word at its stack's top, which I's lowest operand has left and into which I's result will go, is dead:
//! who visits a stack (collector, clearing, copying) stops below its top. The sentinel is a number that was never used
//! before. Claim: a frame at P's address, at I, with the sentinel in that word, has not left I since the sentinel was
//! made. A return writes the result there. An exception may leave the sentinel, but P, or a later frame at its address,
//! is at I again only after I's lowest operand was pushed into that word. So P's callers are unchanged. I must have
//! such an operand. Calls, subscripts and attributes have, `SEND` has (the value that is sent); `FOR_ITER` has not, and
//! neither has the frame that surrounds an inlined `__init__`, which is never shown. Hence the conditions in
//! [`PythonFrame::result_slot`]. A specialising compiler to machine code is taken to keep operands in memory, as that
//! of 3.13 does; that of 3.15 does not.
//!
//! **Creation sentinels** (3.14.5 on, 3.15). A frame has a byte that is 0 from its creation on (`visited`): every
//! creator of frames sets it, machine code included, and it is never read again. Another value is a sentinel. As long
//! as it is there, this is the frame in which it was made. A generator's frame is resumed again and again, but one of
//! the thread's is evaluated once, from its creation on, so its caller still waits in the same call, and so on down to
//! the root. Up to 3.14.4 the collector went by this byte, so there are no sentinels: the four bytes behind it mean
//! nothing, but nobody sets them on creation, so that a sentinel would outlive its frame. 3.15 also has
//! `last_profiled_frame`, which tells external readers from where on frames are unchanged; but it is one word per
//! thread, and the interpreter's own sampling profiler uses it.
//!
//! All proofs need that nobody moves a waiting frame to another line. Only a trace function can, so no sentinel counts
//! while one runs.
//!
//! What is proven is proven of the frames that are shown. The entry frames of C code are no part of it: while greenlets
//! switch they are taken out of the chain and put back, which changes no traceback.
//!
//! Because all this rests on what others may change in any release, some shortcuts are audited: the chain is compared in
//! full. If one was wrong, the process goes on without sentinels.
//!
//! Invariant: a sentinel is made only by the thread whose frame it is, in a frame for which the above holds, and counts
//! only as long as the cached chain below it is the one it was made for.

use super::frame::{LiveCode, PythonFrame};
use super::layout::{OWNER_GENERATOR, OWNER_THREAD, ResultSlot, SentinelKind, Version};
use super::raw_memory::{byte, half, set_byte, set_half, set_word, word};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use std::hint::cold_path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Frames between sentinels.
pub(super) const GAP: usize = if cfg!(feature = "verify-marks") { 1 } else { 4 };
/// Frames above the newest sentinel when it is made: the newest frames come and go too often.
pub(super) const CLEARANCE: usize = if cfg!(feature = "verify-marks") { 1 } else { 4 };
/// Frames that are compared without a sentinel, at which some are made.
pub(super) const LONGEST_WITHOUT_SENTINEL: usize = if cfg!(feature = "verify-marks") { 0 } else { CLEARANCE + 2 * GAP };
/// Number of updates to skip after few sentinels could be placed.
const PATIENCE: u32 = if cfg!(feature = "verify-marks") { 0 } else { 64 };
/// Numbers that a chain takes at once for its sentinels.
const NUMBERS: usize = 1 << 32;

/// The sentinel values, in place of 1 or 0 and of -1.
const SENTINEL_BYTE: u8 = 2;
const SENTINEL_DEPTH: u32 = -2_i32 as u32;

/// Most shortcuts from one audit of a chain to the next. The first come sooner: each is twice as far from the one
/// before.
const AUDIT_INTERVAL: u32 = 4096;

/// Whether sentinels may be made.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// The next numbers. Odd, so that no pointer is like them.
static NUMBER: AtomicUsize = AtomicUsize::new(1);

/// Whether one was wrong, or the interpreter's version has none.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Allows sentinels to be made, or does not. Those that were left in frames by an earlier recording mean nothing.
pub(crate) fn allow(wanted: bool) {
    ALLOWED.store(wanted && !FORBIDDEN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Whether the interpreter's frames may be written to.
pub(super) fn are_allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed)
}

/// From now on no sentinel is made.
#[cold]
pub(super) fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
    ALLOWED.store(false, Ordering::Relaxed);
}

/// One sentinel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameSentinel {
    /// Its frame's place in the chain, counted from the root.
    pub(super) place: usize,
    /// Where its frame waits.
    pub(super) position: usize,
    /// The address of the word that holds it.
    word: usize,
    /// What stands there.
    value: usize,
}

// SAFETY: integers only.
unsafe impl Zeroable for FrameSentinel {}

impl FrameSentinel {
    /// None; it must not be read.
    pub(super) const NONE: Self = Self { place: 0, position: 0, word: 0, value: 0 };

    /// What is used where a stack needs no sentinel.
    pub(super) fn of_nothing<V: Version>() -> Self {
        static BYTE: u8 = SENTINEL_BYTE;
        static DEPTH: u32 = SENTINEL_DEPTH;
        static NUMBER: usize = 0;
        let word = match V::L.sentinel_kind {
            SentinelKind::RunningByte(_) | SentinelKind::CreationByte { .. } => &raw const BYTE as usize,
            SentinelKind::RunningDepth(_) => &raw const DEPTH as usize,
            SentinelKind::Unknown | SentinelKind::ResultSlot(_) => &raw const NUMBER as usize,
        };
        Self { word, ..Self::NONE }
    }

    /// No other sentinel of the process has this number.
    pub(super) const fn number(&self) -> usize {
        self.value
    }

    /// Whether the sentinel is where it was made, in a frame that was just compared with the cached one, standing at
    /// `position`.
    #[inline(always)]
    pub(super) fn is_there<V: Version>(&self, position: usize) -> bool {
        self.is_of::<V>(position) && self.stands::<V>()
    }

    /// Whether the sentinel says something of its frame while that stands at `position`.
    #[inline(always)]
    pub(super) fn is_of<V: Version>(&self, position: usize) -> bool {
        // The same position is the same code object, and so a frame in which this word is an operand's.
        !matches!(V::L.sentinel_kind, SentinelKind::ResultSlot(_)) || self.position == position
    }

    /// Whether the word is as it was left.
    #[inline(always)]
    pub(super) fn stands<V: Version>(&self) -> bool {
        self.stands_as(&V::L.sentinel_kind)
    }

    /// As [`FrameSentinel::stands`], for sentinels of this kind.
    #[inline(always)]
    pub(super) fn stands_as(&self, kind: &SentinelKind) -> bool {
        match kind {
            // None is made.
            SentinelKind::Unknown => true,
            // SAFETY: a field of a frame of this thread's chain.
            SentinelKind::RunningByte(_) | SentinelKind::CreationByte { .. } => unsafe {
                byte(self.word) == SENTINEL_BYTE
            },
            // SAFETY: a field of a frame of this thread's chain.
            SentinelKind::RunningDepth(_) => unsafe { half(self.word) == SENTINEL_DEPTH },
            // SAFETY: a word of a frame of this thread's chain.
            SentinelKind::ResultSlot(_) => unsafe { word(self.word) == self.value },
        }
    }
}

/// The sentinels of one chain, by place.
#[derive(Debug)]
pub(super) struct FrameSentinels {
    list: MappedVec<FrameSentinel>,
    length: usize,
    /// The next number, and how many are left.
    number: usize,
    numbers: usize,
    /// How often none is tried.
    patience: u32,
    /// Shortcuts up to the next audit, and from there to the one after it.
    until_audit: u32,
    audit_interval: u32,
}

impl FrameSentinels {
    pub(super) const fn new() -> Self {
        Self {
            list: MappedVec::new(),
            length: 0,
            number: 0,
            numbers: 0,
            patience: 0,
            until_audit: 1,
            audit_interval: 1,
        }
    }

    /// There are none; the memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.length = 0;
        self.list.clear();
    }

    /// The newest sentinel below `place`.
    #[inline(always)]
    pub(super) fn newest_below(&self, place: usize) -> Option<&FrameSentinel> {
        let sentinels = self.list.as_slice().get(..self.length).unwrap_or_default();
        sentinels.iter().rev().find(|sentinel| sentinel.place < place)
    }

    /// How many there are below `place`.
    #[inline(always)]
    pub(super) fn count_below(&self, place: usize) -> usize {
        let mut count = self.length;
        while let Some(sentinel) = self.last_of(count)
            && sentinel.place >= place
        {
            cold_path();
            count = count.wrapping_sub(1);
        }
        count
    }

    /// The newest of the oldest `count`.
    #[inline(always)]
    pub(super) fn last_of(&self, count: usize) -> Option<&FrameSentinel> {
        self.list.as_slice().get(count.checked_sub(1)?)
    }

    /// Forgets all but the oldest `count`.
    #[inline(always)]
    pub(super) const fn keep(&mut self, count: usize) {
        self.length = count;
    }

    /// Forgets the sentinels from `place` on.
    #[inline]
    pub(super) fn truncate(&mut self, place: usize) {
        let sentinels = self.list.as_slice().get(..self.length).unwrap_or_default();
        let above = sentinels.iter().rev().take_while(|sentinel| sentinel.place >= place).count();
        self.length = self.length.wrapping_sub(above);
    }

    /// Whether it is time for new sentinels, when `compared` frames had to be compared before one was found.
    #[inline(always)]
    pub(super) fn are_wanted(&mut self, compared: usize) -> bool {
        compared > LONGEST_WITHOUT_SENTINEL && self.are_wanted_now()
    }

    #[cold]
    fn are_wanted_now(&mut self) -> bool {
        let patient = self.patience > 0;
        self.patience = self.patience.saturating_sub(1);
        !patient && are_allowed()
    }

    /// Whether the shortcut that is about to be taken should be audited.
    #[inline(always)]
    pub(super) fn is_audit_due(&mut self) -> bool {
        self.until_audit = self.until_audit.wrapping_sub(1);
        self.until_audit == 0 && self.next_audit()
    }

    /// Counts a shortcut, unless it is one that should be audited.
    #[inline(always)]
    pub(super) const fn count_unaudited(&mut self) -> bool {
        let is_due = self.until_audit <= 1;
        self.until_audit = self.until_audit.wrapping_sub(!is_due as u32);
        !is_due
    }

    #[cold]
    fn next_audit(&mut self) -> bool {
        self.audit_interval = self.audit_interval.wrapping_mul(2).min(AUDIT_INTERVAL);
        self.until_audit = self.audit_interval;
        true
    }

    /// An audit has shown that sentinels prove nothing here.
    #[cold]
    pub(super) fn give_up(&mut self) {
        forbid();
        self.truncate(0);
    }

    /// Few sentinels could be placed: none is tried for a while.
    pub(super) const fn back_off(&mut self) {
        self.patience = PATIENCE;
    }

    /// Writes a sentinel to the shown frame at `place`, which waits for `callee`, if that is
    /// possible. It must be newer than all frames that have one.
    pub(super) fn make<V: Version>(
        &mut self,
        code_type: usize,
        place: usize,
        frame: &PythonFrame<V>,
        callee: &PythonFrame<V>,
    ) -> bool {
        if !self.list.grow(self.length.wrapping_add(1)) {
            return false;
        }
        let value = self.next_number();
        let Some(word) = frame.write_sentinel(code_type, callee, value) else { return false };
        self.list.set(self.length, FrameSentinel { place, position: frame.position(), word, value });
        self.length = self.length.wrapping_add(1);
        true
    }

    fn next_number(&mut self) -> usize {
        if self.numbers == 0 {
            self.number = NUMBER.fetch_add(NUMBERS, Ordering::Relaxed);
            self.numbers = NUMBERS;
        }
        self.number = self.number.wrapping_add(2);
        self.numbers = self.numbers.wrapping_sub(2);
        self.number
    }
}

impl<V: Version> PythonFrame<V> {
    /// Writes a sentinel, if the frame, which waits for `callee`, can have one; gives the word's address.
    fn write_sentinel(&self, code_type: usize, callee: &Self, value: usize) -> Option<usize> {
        match V::L.sentinel_kind {
            SentinelKind::Unknown => None,
            SentinelKind::RunningByte(offset) => self.write_byte_sentinel(offset, 1),
            SentinelKind::CreationByte { offset, .. } if self.owner() == OWNER_THREAD => {
                self.write_byte_sentinel(offset, 0)
            }
            SentinelKind::CreationByte { .. } => None,
            SentinelKind::RunningDepth(offset) => self.write_depth_sentinel(offset),
            SentinelKind::ResultSlot(slot) => {
                let word = self.result_slot(&slot, code_type, callee)?;
                // SAFETY: a dead word of a frame of this thread, which waits; see the module's proof.
                unsafe { set_word(word, value) };
                Some(word)
            }
        }
    }

    /// Writes a sentinel to a byte that is `usual` in a frame without one.
    fn write_byte_sentinel(&self, offset: usize, usual: u8) -> Option<usize> {
        let word = self.address().wrapping_add(offset);
        // SAFETY: a field of the frame.
        let value = unsafe { byte(word) };
        if value == usual {
            // SAFETY: a field of the frame; to the interpreter the new value means the same.
            unsafe { set_byte(word, SENTINEL_BYTE) };
        }
        // Whichever chain wrote it, it holds for this evaluation.
        (value == usual || value == SENTINEL_BYTE).then_some(word)
    }

    fn write_depth_sentinel(&self, offset: usize) -> Option<usize> {
        let word = self.address().wrapping_add(offset);
        // SAFETY: a field of the frame.
        let value = unsafe { half(word) };
        if value == u32::MAX {
            // SAFETY: a field of the frame; to the interpreter the new value means the same.
            unsafe { set_half(word, SENTINEL_DEPTH) };
        }
        (value == u32::MAX || value == SENTINEL_DEPTH).then_some(word)
    }

    /// The place of the result that the frame waits for, if the module's proof holds for it. The frame must be a shown
    /// one.
    fn result_slot(&self, slot: &ResultSlot, code_type: usize, callee: &Self) -> Option<usize> {
        if self.owner() > OWNER_GENERATOR || !self.entered(slot, callee) {
            return None;
        }
        let code = LiveCode::checked(&V::L, self.executable(), code_type)?;
        let (locals, operands) = (code.int(slot.locals_count), code.int(slot.stack_size));
        // SAFETY: a field of the frame.
        let top = unsafe { half(self.address().wrapping_add(slot.stack_top)) }.cast_signed();
        let is_operand = top >= locals && top < locals.saturating_add(operands);
        let word = (top as usize).wrapping_mul(8).wrapping_add(slot.locals);
        is_operand.then(|| self.address().wrapping_add(word))
    }

    /// Whether this frame's own evaluation loop entered `callee`, by an instruction with an operand.
    fn entered(&self, slot: &ResultSlot, callee: &Self) -> bool {
        if let Some(is_entry) = slot.is_entry {
            // SAFETY: a field of the frame.
            return unsafe { byte(callee.address().wrapping_add(is_entry)) == 0 } && callee.owner() == OWNER_THREAD;
        }
        match callee.owner() {
            OWNER_THREAD => true,
            OWNER_GENERATOR => slot.delegation.is_some_and(|delegation| {
                // SAFETY: a frame's position is in its bytecode, and behind one instruction at the least.
                let opcode = unsafe { byte(self.position().wrapping_sub(delegation.behind)) };
                delegation.opcodes.contains(&opcode)
            }),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
