//! Marks in waiting frames: each stands for the comparison of all frames below it.
//!
//! They exist because comparing a chain of 400 frames at each allocation costs more than the allocation. No comparison of
//! fewer frames can be right if it only reads: a caller may go on to its next line and call the same functions again,
//! which leaves the newer frames bit for bit as they were. So something must be there that the return of a frame destroys.
//! A mark is such a thing: a value in a word of a frame that means nothing to the interpreter while that frame waits, and
//! that the interpreter writes before the frame, or another at its address, can wait there again.
//!
//! **Running marks** (3.8 to 3.10). A frame has a word that is set when its evaluation begins, set again when it ends,
//! and in between only tested (`f_executing`: whether it is 0; `f_stackdepth`: whether it is positive). Another value
//! with the same answer is a mark. As long as it is there, this evaluation has not ended, so whoever called it still
//! waits in the same call, and so on down to the root.
//!
//! **Result marks** (3.11 to 3.13). Frame P waits at instruction I for a frame that the same evaluation loop entered. The
//! word at its stack's top, which I's lowest operand has left and into which I's result will go, is dead: who visits a
//! stack (collector, clearing, copying) stops below its top. The mark is a number that was never used before. Claim: a
//! frame at P's address, at I, with the mark in that word, has not left I since the mark was made. A return writes the
//! result there. An exception may leave the mark, but P, or a later frame at its address, is at I again only after I's
//! lowest operand was pushed into that word. So P's callers are unchanged. I must have such an operand. Calls, subscripts
//! and attributes have, `SEND` has (the value that is sent); `FOR_ITER` has not, and neither has the frame that surrounds
//! an inlined `__init__`, which is never shown. Hence the conditions in [`PythonFrame::result_slot`]. A specialising compiler
//! to machine code is taken to keep operands in memory, as that of 3.13 does; that of 3.15 does not.
//!
//! **Creation marks** (3.14.5 on, 3.15). A frame has a byte that is 0 from its creation on (`visited`): whoever creates
//! frames sets it, machine code too, and nobody looks at it any more. Another value is a mark. As long as it is there,
//! this is the frame in which it was made. A generator's frame is resumed again and again, but one of the thread's is
//! evaluated once, from its creation on, so whoever called it still waits in the same call, and so on down to the root.
//! Up to 3.14.4 the collector went by this byte, so there are no marks: the four bytes behind it mean nothing, but nobody
//! sets them on creation, so that a mark would outlive its frame. 3.15 also tells who reads its frames from outside
//! down to where they are unchanged (`last_profiled_frame`); but that is one word for each thread, and the interpreter's
//! own sampling profiler, which may be watching, needs it.
//!
//! All proofs need that nobody moves a waiting frame to another line. Only a trace function can, so no mark counts
//! while one runs.
//!
//! What is proven is proven of the frames that are shown. The entry frames of C code are no part of it: while greenlets
//! switch they are taken out of the chain and put back, which changes no traceback.
//!
//! Because all this rests on what others may change in any release, some shortcuts are audited: the chain is compared in
//! full. If one was wrong, the process goes on without marks.
//!
//! Invariant: a mark is made only by the thread whose frame it is, in a frame for which the above holds, and counts only
//! as long as the cached chain below it is the one it was made for.

use super::frame::{LiveCode, PythonFrame};
use super::layout::{Marking, OWNER_GENERATOR, OWNER_THREAD, ResultSlot, Version};
use super::raw_memory::{byte, half, set_byte, set_half, set_word, word};
use crate::platform::mapped_vec::{MappedVec, Plain};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Frames between marks.
pub(super) const GAP: usize = if cfg!(feature = "verify-marks") { 1 } else { 4 };
/// Frames above the newest mark when it is made: the newest frames come and go too often.
pub(super) const CLEARANCE: usize = if cfg!(feature = "verify-marks") { 1 } else { 4 };
/// Frames that are compared without a mark, at which some are made.
pub(super) const LONGEST_UNMARKED: usize = if cfg!(feature = "verify-marks") { 0 } else { CLEARANCE + 2 * GAP };
/// How often no mark is tried after hardly any could be made.
const PATIENCE: u32 = if cfg!(feature = "verify-marks") { 0 } else { 64 };
/// Numbers that a chain takes at once for its marks.
const NUMBERS: usize = 1 << 32;

/// What marks a frame, in place of 1 or 0 and of -1.
const MARKED_BYTE: u8 = 2;
const MARKED_DEPTH: u32 = -2_i32 as u32;

/// Most shortcuts from one audit of a chain to the next. The first come sooner: each is twice as far from the one before.
const AUDIT_INTERVAL: u32 = 4096;

/// Whether marks may be made.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// The next numbers. Odd, so that no pointer is like them.
static NUMBER: AtomicUsize = AtomicUsize::new(1);

/// Allows marks to be made.
pub(crate) fn allow() {
    ALLOWED.store(true, Ordering::Relaxed);
}

/// Whether the interpreter's frames may be written to.
pub(super) fn are_allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed)
}

/// From now on no mark is made.
#[cold]
pub(super) fn forbid() {
    ALLOWED.store(false, Ordering::Relaxed);
}

/// One mark.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameSentinel {
    /// Its frame's place in the chain, counted from the root.
    pub(super) place: usize,
    /// Where its frame waits.
    pub(super) position: usize,
    /// The address of the marked word.
    word: usize,
    /// What stands there.
    value: usize,
}

// SAFETY: integers only.
unsafe impl Plain for FrameSentinel {}

impl FrameSentinel {
    /// None; it must not be read.
    pub(super) const NONE: Self = Self { place: 0, position: 0, word: 0, value: 0 };

    /// What stands for a mark where none is needed.
    pub(super) fn of_nothing<V: Version>() -> Self {
        static BYTE: u8 = MARKED_BYTE;
        static DEPTH: u32 = MARKED_DEPTH;
        static NUMBER: usize = 0;
        let word = match V::L.marking {
            Marking::RunningByte(_) | Marking::CreationByte { .. } => &raw const BYTE as usize,
            Marking::RunningDepth(_) => &raw const DEPTH as usize,
            Marking::Unknown | Marking::ResultSlot(_) => &raw const NUMBER as usize,
        };
        Self { word, ..Self::NONE }
    }

    /// Whether the mark is where it was made, in a frame that was just compared with the cached one, standing at
    /// `position`.
    #[inline(always)]
    pub(super) fn is_there<V: Version>(&self, position: usize) -> bool {
        self.is_of::<V>(position) && self.stands::<V>()
    }

    /// Whether the mark says something of its frame while that stands at `position`.
    #[inline(always)]
    pub(super) fn is_of<V: Version>(&self, position: usize) -> bool {
        // The same position is the same code object, and so a frame in which this word is an operand's.
        !matches!(V::L.marking, Marking::ResultSlot(_)) || self.position == position
    }

    /// Whether the marked word is as it was left.
    #[inline(always)]
    pub(super) fn stands<V: Version>(&self) -> bool {
        match V::L.marking {
            // None is made.
            Marking::Unknown => true,
            // SAFETY: a field of a frame of this thread's chain.
            Marking::RunningByte(_) | Marking::CreationByte { .. } => unsafe { byte(self.word) == MARKED_BYTE },
            // SAFETY: a field of a frame of this thread's chain.
            Marking::RunningDepth(_) => unsafe { half(self.word) == MARKED_DEPTH },
            // SAFETY: a word of a frame of this thread's chain.
            Marking::ResultSlot(_) => unsafe { word(self.word) == self.value },
        }
    }
}

/// The marks of one chain, by place.
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

    /// The newest mark below `place`.
    #[inline(always)]
    pub(super) fn newest_below(&self, place: usize) -> Option<&FrameSentinel> {
        let marks = self.list.as_slice().get(..self.length).unwrap_or_default();
        marks.iter().rev().find(|mark| mark.place < place)
    }

    /// Forgets the marks from `place` on.
    #[inline]
    pub(super) fn truncate(&mut self, place: usize) {
        let marks = self.list.as_slice().get(..self.length).unwrap_or_default();
        let above = marks.iter().rev().take_while(|mark| mark.place >= place).count();
        self.length = self.length.wrapping_sub(above);
    }

    /// Whether it is time for new marks, when `compared` frames had to be compared before one was found.
    #[inline(always)]
    pub(super) fn are_wanted(&mut self, compared: usize) -> bool {
        compared > LONGEST_UNMARKED && self.are_wanted_now()
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

    #[cold]
    fn next_audit(&mut self) -> bool {
        self.audit_interval = self.audit_interval.wrapping_mul(2).min(AUDIT_INTERVAL);
        self.until_audit = self.audit_interval;
        true
    }

    /// An audit has shown that marks prove nothing here.
    #[cold]
    pub(super) fn give_up(&mut self) {
        forbid();
        self.truncate(0);
    }

    /// Hardly any mark could be made: so for a while none is wanted.
    pub(super) const fn discourage(&mut self) {
        self.patience = PATIENCE;
    }

    /// Marks the shown frame at `place`, which waits for `callee`, if it can be marked. It must be newer than all marked ones.
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
        let Some(word) = frame.mark(code_type, callee, value) else { return false };
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
    /// Writes a mark, if the frame, which waits for `callee`, can be marked; gives the word's address.
    fn mark(&self, code_type: usize, callee: &Self, value: usize) -> Option<usize> {
        match V::L.marking {
            Marking::Unknown => None,
            Marking::RunningByte(offset) => self.mark_byte(offset, 1),
            Marking::CreationByte { offset, .. } if self.owner() == OWNER_THREAD => self.mark_byte(offset, 0),
            Marking::CreationByte { .. } => None,
            Marking::RunningDepth(offset) => self.mark_depth(offset),
            Marking::ResultSlot(slot) => {
                let word = self.result_slot(&slot, code_type, callee)?;
                // SAFETY: a dead word of a frame of this thread, which waits; see the module's proof.
                unsafe { set_word(word, value) };
                Some(word)
            }
        }
    }

    /// Marks a byte that is `unmarked` in a frame without a mark.
    fn mark_byte(&self, offset: usize, unmarked: u8) -> Option<usize> {
        let word = self.address().wrapping_add(offset);
        // SAFETY: a field of the frame.
        let value = unsafe { byte(word) };
        if value == unmarked {
            // SAFETY: a field of the frame; to the interpreter the new value means the same.
            unsafe { set_byte(word, MARKED_BYTE) };
        }
        // Whoever marked it, it is marked for this evaluation.
        (value == unmarked || value == MARKED_BYTE).then_some(word)
    }

    fn mark_depth(&self, offset: usize) -> Option<usize> {
        let word = self.address().wrapping_add(offset);
        // SAFETY: a field of the frame.
        let value = unsafe { half(word) };
        if value == u32::MAX {
            // SAFETY: a field of the frame; to the interpreter the new value means the same.
            unsafe { set_half(word, MARKED_DEPTH) };
        }
        (value == u32::MAX || value == MARKED_DEPTH).then_some(word)
    }

    /// The place of the result that the frame waits for, if the module's proof holds for it. The frame must be a shown one.
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
mod tests {
    use super::super::layout::{V39, V310, V312, V314, Version};
    use super::{FrameSentinels, GAP, PythonFrame};

    const CODE_TYPE: usize = 0x1000;

    /// Frames in plain words, all zero; the caller keeps them alive.
    fn frames<V: Version, const N: usize>(memory: &mut [[usize; 32]; N]) -> [PythonFrame<V>; N] {
        // SAFETY: memory that is larger than any field's offset, and is read and written through this address alone.
        memory.each_mut().map(|words| unsafe { PythonFrame::new(words.as_mut_ptr() as usize) })
    }

    fn make<V: Version>(
        marks: &mut FrameSentinels,
        place: usize,
        frame: &PythonFrame<V>,
        callee: &PythonFrame<V>,
    ) -> bool {
        marks.make(CODE_TYPE, place, frame, callee)
    }

    fn is_there<V: Version>(marks: &FrameSentinels, position: usize) -> bool {
        marks.newest_below(usize::MAX).is_some_and(|mark| mark.is_there::<V>(position))
    }

    #[test]
    fn a_running_mark_lasts_until_the_evaluation_ends() {
        let mut memory = [[0; 32]; 2];
        let [caller, callee] = &frames::<V39, 2>(&mut memory);
        let mut marks = FrameSentinels::new();
        assert!(!make(&mut marks, 3, caller, callee), "a frame that does not execute");
        let executing = (caller.address() + 116) as *mut u8;
        // SAFETY: a byte of the memory above.
        unsafe { executing.write_volatile(1) };
        assert!(make(&mut marks, 3, caller, callee));
        assert!(is_there::<V39>(&marks, 0) && marks.newest_below(3).is_none());
        for value in [0, 1] {
            // SAFETY: a byte of the memory above, as the interpreter writes it at the end and at the next beginning.
            unsafe { executing.write_volatile(value) };
            assert!(!is_there::<V39>(&marks, 0));
        }
    }

    #[test]
    fn a_depth_is_marked_only_while_it_is_that_of_a_running_frame() {
        let mut memory = [[0; 32]; 2];
        let [caller, callee] = &frames::<V310, 2>(&mut memory);
        let mut marks = FrameSentinels::new();
        assert!(!make(&mut marks, 0, caller, callee), "a frame with a stack that may be looked at");
        let depth = (caller.address() + 80) as *mut i32;
        // SAFETY: an int of the memory above.
        unsafe { depth.write_volatile(-1) };
        assert!(make(&mut marks, 0, caller, callee));
        // SAFETY: an int of the memory above.
        assert!(unsafe { depth.read_volatile() } < 0, "it still means nothing is on the stack");
    }

    #[test]
    fn a_creation_mark_lasts_as_long_as_the_frame_and_is_no_generators() {
        let mut memory = [[0; 32]; 2];
        let [caller, callee] = &frames::<V314, 2>(&mut memory);
        let put = |offset: usize, value: u8| {
            // SAFETY: a byte of the memory above.
            unsafe { ((caller.address() + offset) as *mut u8).write_volatile(value) };
        };
        let mut marks = FrameSentinels::new();
        put(74, 1);
        assert!(!make(&mut marks, 3, caller, callee), "a generator's frame, which is resumed");
        put(74, 0);
        put(75, 1);
        assert!(!make(&mut marks, 3, caller, callee), "what stands there is nothing that is known");
        put(75, 0);
        assert!(make(&mut marks, 3, caller, callee) && is_there::<V314>(&marks, 0));
        assert!(is_there::<V314>(&marks, 2), "at whichever instruction");
        put(75, 0);
        assert!(!is_there::<V314>(&marks, 0), "a new frame at the same address");
    }

    #[test]
    fn audits_become_rarer_and_never_cease() {
        let mut marks = FrameSentinels::new();
        let due: Vec<u32> = (1..=20_000).filter(|_| marks.is_audit_due()).collect();
        assert_eq!(due.get(..5), Some(&[1, 3, 7, 15, 31][..]));
        assert_eq!(due.last_chunk::<2>().map(|[one, next]| next - one), Some(super::AUDIT_INTERVAL));
    }

    #[test]
    fn a_result_is_marked_only_where_the_same_loop_waits_with_an_operand_gone() {
        let mut memory = [[0; 32]; 3];
        let [caller, callee, code] = &frames::<V312, 3>(&mut memory);
        let put = |frame: &PythonFrame<V312>, offset: usize, value: i32| {
            // SAFETY: an int of the memory above.
            unsafe { ((frame.address() + offset) as *mut i32).write_volatile(value) };
        };
        // SAFETY: words of the memory above: the code object's type, and the frame's code object.
        unsafe { ((code.address() + 8) as *mut usize).write_volatile(CODE_TYPE) };
        // SAFETY: words of the memory above: the code object's type, and the frame's code object.
        unsafe { (caller.address() as *mut usize).write_volatile(code.address()) };
        put(code, 72, 2); // two locals
        put(code, 64, 3); // three operands
        let mut marks = FrameSentinels::new();
        for (depth, expected) in
            [(-1, false), (0, false), (1, false), (2, true), (4, true), (5, false), (1 << 30, false)]
        {
            put(caller, 64, depth);
            assert_eq!(make(&mut marks, 7, caller, callee), expected, "depth {depth}");
        }
        put(caller, 64, 2);
        put(callee, 68, 3 << 16); // the callee is the entry frame of C code
        put(caller, 72 + 4 * 8, 0);
        assert!(!make(&mut marks, 7, caller, callee));
        assert!(!is_there::<V312>(&marks, 0), "made at depth 4, and there are the operands of another call");
        put(callee, 68, 0);
        assert!(make(&mut marks, 7, caller, callee) && is_there::<V312>(&marks, 0));
        assert!(!is_there::<V312>(&marks, 2), "a mark is for one instruction");
    }

    #[test]
    fn marks_go_with_their_frames() {
        let mut memory = [[usize::MAX; 32]; 2];
        let [caller, callee] = &frames::<V310, 2>(&mut memory);
        let mut marks = FrameSentinels::new();
        (1..=5).for_each(|place| assert!(make(&mut marks, place * GAP, caller, callee)));
        let newest = |marks: &FrameSentinels| marks.newest_below(usize::MAX).map(|mark| mark.place);
        assert_eq!(newest(&marks), Some(5 * GAP));
        marks.truncate(3 * GAP + 1);
        assert_eq!(newest(&marks), Some(3 * GAP));
        assert_eq!(marks.newest_below(3 * GAP).map(|mark| mark.place), Some(2 * GAP));
        marks.truncate(0);
        assert_eq!(newest(&marks), None);
    }
}
