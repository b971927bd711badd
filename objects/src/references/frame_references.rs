//! What frames refer to: those that are objects, those that are none, and those of a greenlet that waits.
//!
//! Invariant: only slots are read that are in use, as far as the version says which.

use crate::interpreter::layout::GENERATOR_STATE;
use crate::object::greenlets::{GreenletState, MOST_FRAMES};
use crate::object::types::ObjectType;
use crate::references::{ReferencePlace, ReferenceReader};

/// Slots of a frame before its locals, in words.
const FRAME_WORDS: u64 = 8;
/// And where it has the position of its stack.
const STACK_POSITION: u64 = 64;
/// The owner of a frame that is within a generator; frames of owners from a number on execute nothing of the program, from 3.12 on.
const OWNED_BY_GENERATOR: u8 = 1;
const FRAMES_OF_INTERPRETER: u8 = 3;
/// Offsets in frame objects before 3.11: where the stack begins and ends (from 3.10 on, how many it has).
const VALUE_STACK: u64 = 64;
const STACK_TOP: u64 = 72;
const STACK_DEPTH: u64 = 80;
/// And its generator, behind the last of its references: the frame only borrows it. Numbers follow, and the stack of its `try`
/// blocks, behind whose end stands what was there before.
const GENERATOR: u64 = 96;
const GENERATOR_OF_3_10: u64 = 88;
/// Where generators before 3.10 say in one byte whether they are being executed.
const GENERATOR_IS_RUNNING: u64 = 24;
/// Slots of a frame that are read at most.
const MOST_SLOTS: u64 = 1 << 16;

impl ReferenceReader<'_> {
    /// What a greenlet has besides its fields, and the frames of one that waits.
    pub(crate) fn greenlet(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        // One that is just being made or taken down has no state.
        let Some(state) = GreenletState::read(self.memory, self.layout, address) else { return true };
        let (words, mut offset) = state.words();
        let is_whole = self.memory.words(words.start, (words.end - words.start) / 8, |word| {
            each(ReferencePlace::Field(offset), word);
            offset += 8;
        });
        if !self.layout.has_light_frames() || !state.is_active(self.memory) {
            return is_whole;
        }
        let frame = state.frame(self.memory).filter(|frame| *frame != 0);
        let mut at = frame.and_then(|frame| self.memory.u64(self.layout.fields(frame).wrapping_add(24)));
        for _ in 0..MOST_FRAMES {
            let Some(frame) = at.filter(|frame| *frame != 0 && !self.is_frame_of_interpreter(*frame)) else { break };
            self.frame(frame, &mut |place, word| match place {
                ReferencePlace::Local(number) => each(ReferencePlace::FrameLocal(frame, number), word),
                ReferencePlace::Stack => each(ReferencePlace::FrameStack(frame), word),
                _ => each(ReferencePlace::Field(offset), word),
            });
            at = self.memory.u64(frame.wrapping_add(self.layout.frame_previous));
        }
        is_whole
    }

    /// Whether a frame executes nothing of the program.
    fn is_frame_of_interpreter(&self, frame: u64) -> bool {
        let owner = || self.memory.u8(frame.wrapping_add(self.layout.frame_owner)).unwrap_or(FRAMES_OF_INTERPRETER);
        self.layout.minor >= 12 && owner() >= FRAMES_OF_INTERPRETER
    }

    /// The fields of a generator, coroutine or asynchronous generator. Numbers that fill a part of their word, and what plain
    /// generators never set, have in them what was in that memory before.
    pub(crate) fn generator_fields(
        &self,
        of: &ObjectType,
        address: u64,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        // Where what is executed in the generator has the exceptions that its caller handles, which is in no object of its own.
        // Behind it is the last reference: where a coroutine was made, or what finalizes an asynchronous generator.
        let outer_exceptions = match self.layout.minor {
            ..10 => 88,
            10 => 80,
            11.. => self.layout.generator_frame.saturating_sub(24),
        };
        let end = if of.name == "builtins.generator" { outer_exceptions } else { outer_exceptions + 16 };
        self.field_words(of, address, 16, end, &mut |place, word| {
            let is_running = self.layout.minor < 10 && place == ReferencePlace::Field(GENERATOR_IS_RUNNING);
            if !is_running && place != ReferencePlace::Field(outer_exceptions) {
                each(place, word);
            }
        })
    }

    /// The frame within a generator, coroutine or asynchronous generator. Of one that has ended only the code is left: what it
    /// held was let go of without clearing the words, which are addresses of other objects by now.
    pub(crate) fn frame_of_generator(&self, address: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let frame = self.layout.fields(address).wrapping_add(self.layout.generator_frame);
        match self.memory.u8(frame.wrapping_sub(GENERATOR_STATE)) {
            Some(state) if state == self.layout.cleared_generator => {
                let code = self.memory.u64(frame.wrapping_add(self.layout.frame_code));
                let code = code.map(|code| self.layout.untagged(code)).filter(|code| *code != 0);
                code.inspect(|code| each(ReferencePlace::Field(self.layout.frame_code), *code)).is_some()
            }
            Some(_) => self.frame(frame, each),
            None => false,
        }
    }

    /// A frame that is no object: what it executes, and its local variables.
    pub(crate) fn frame(&self, frame: u64, each: &mut dyn FnMut(ReferencePlace, u64)) -> bool {
        let word = |at: u64| self.memory.u64(frame.wrapping_add(at));
        let Some(code) = word(self.layout.frame_code).map(|code| self.layout.untagged(code)) else { return false };
        let owner = match self.layout.minor {
            ..12 => Some(0),
            12.. => self.memory.u8(frame.wrapping_add(self.layout.frame_owner)),
        };
        if code == 0 || owner.is_some_and(|owner| owner >= FRAMES_OF_INTERPRETER) {
            return true;
        }
        // Globals and builtins of the function, which the frame only borrows from it: through them, each variable of a module
        // would be called after a coroutine that was suspended in it.
        let borrowed = if self.layout.minor == 11 { 8..24 } else { 24..40 };
        let mut offset = 0;
        let head = self.memory.words(frame, FRAME_WORDS, |value| {
            if offset != self.layout.frame_previous && !borrowed.contains(&offset) {
                each(ReferencePlace::Field(offset), self.layout.untagged(value));
            }
            offset += 8;
        });
        let Some(slots) = self.slots_of_frame(frame, self.layout.fields(code), owner) else { return head };
        let mut index = 0;
        head & self.memory.words(frame.wrapping_add(self.layout.frame_locals), slots.in_use, |value| {
            each(slots.place(index), self.layout.untagged(value));
            index += 1;
        })
    }

    /// What may be on the stack of a frame that a thread executes, and whether it is certain. Up to 3.13 nobody else knows how
    /// far that goes, and behind it stand addresses of what was there before; from 3.14 on the frame knows it while other
    /// code is called.
    pub(crate) fn possible_stack(&self, frame: u64, each: &mut dyn FnMut(ReferencePlace, u64, bool)) {
        let (first, slots) = if self.layout.has_light_frames() {
            if self.is_frame_of_interpreter(frame) {
                return;
            }
            let word = |at: u64| self.memory.u64(frame.wrapping_add(at));
            let code = word(self.layout.frame_code).map(|code| self.layout.untagged(code)).filter(|code| *code != 0);
            let owner = if self.layout.minor >= 14 { OWNED_BY_GENERATOR } else { 0 };
            let slots = code.and_then(|code| self.slots_of_frame(frame, self.layout.fields(code), Some(owner)));
            (frame.wrapping_add(self.layout.frame_locals), slots)
        } else {
            (frame.wrapping_add(self.layout.frame_data), self.slots_of_frame_object(frame))
        };
        let Some(slots) = slots else { return };
        let (is_certain, end) = match self.layout.minor {
            14.. => (true, slots.in_use),
            // Where it is known how far the stack goes, what is on it was found with the variables.
            _ if slots.in_use > slots.variables => return,
            _ => (false, slots.all),
        };
        let mut index = slots.variables;
        self.memory.words(first.wrapping_add(index * 8), end - slots.variables, |value| {
            let place = if is_certain { slots.place(index) } else { ReferencePlace::PerhapsStack };
            each(place, self.layout.untagged(value), is_certain);
            index += 1;
        });
    }

    /// The slots of a frame that executes this code. What is on its stack is in use as far as that is known: not while the
    /// frame is just being executed.
    fn slots_of_frame(&self, frame: u64, code: u64, owner: Option<u8>) -> Option<FrameSlots> {
        let number = |at: u64| self.memory.u32(code.wrapping_add(at)).map(u64::from);
        let (variables, stack) = (number(self.layout.local_slots)?, number(self.layout.stack_slots)?);
        let position = self.memory.u64(frame.wrapping_add(STACK_POSITION)).unwrap_or(0);
        let in_use = match self.layout.minor {
            // An address; that of an earlier moment while the frame is being executed, so that of no frame of a thread is taken.
            14.. if owner == Some(OWNED_BY_GENERATOR) => {
                position.saturating_sub(frame.wrapping_add(self.layout.frame_locals)) / 8
            }
            14.. => 0,
            // A number of 32 bits, -1 while the frame is being executed.
            _ => u64::try_from((position as u32).cast_signed()).unwrap_or(0),
        };
        Some(FrameSlots::of(variables, in_use, variables + stack))
    }

    /// A frame object before 3.11.
    pub(crate) fn frame_object(
        &self,
        of: &ObjectType,
        address: u64,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let Some(slots) = self.slots_of_frame_object(address) else { return false };
        let end = if self.layout.minor >= 10 { GENERATOR_OF_3_10 } else { GENERATOR };
        let fields = self.field_words(of, address, 24, end, each);
        let mut index = 0;
        fields
            & self.memory.words(address.wrapping_add(self.layout.frame_data), slots.in_use, |word| {
                each(slots.place(index), word);
                index += 1;
            })
    }

    /// The slots of a frame object before 3.11. What is on its stack is in use if it is suspended.
    fn slots_of_frame_object(&self, address: u64) -> Option<FrameSlots> {
        let word = |at: u64| self.memory.u64(self.layout.fields(address).wrapping_add(at));
        let first = address.checked_add(self.layout.frame_data)?;
        let (all, stack) = (word(16)?, word(VALUE_STACK)?);
        let end = if self.layout.minor >= 10 {
            let depth = self.memory.u32(address.checked_add(STACK_DEPTH)?)?.cast_signed().max(0);
            stack.checked_add(u64::from(depth.cast_unsigned()) * 8)?
        } else {
            stack.max(word(STACK_TOP)?)
        };
        Some(FrameSlots::of(stack.checked_sub(first)? / 8, end.checked_sub(first)? / 8, all))
    }
}

/// The slots of a frame: those of its variables, and behind them its stack.
#[derive(Clone, Copy, Debug)]
struct FrameSlots {
    variables: u64,
    /// As far as is known; the variables are.
    in_use: u64,
    all: u64,
}

impl FrameSlots {
    /// Numbers that cannot be are cut.
    fn of(variables: u64, in_use: u64, all: u64) -> Self {
        let all = all.min(MOST_SLOTS);
        let variables = variables.min(all);
        let in_use = if in_use <= all { in_use.max(variables) } else { variables };
        Self { variables, in_use, all }
    }

    /// What is in this one.
    fn place(self, index: u64) -> ReferencePlace {
        if index < self.variables { ReferencePlace::Local(index) } else { ReferencePlace::Stack }
    }
}
