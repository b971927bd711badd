//! Unwinds the whole stack after each shortcut, and counts whether the frames that were taken over are right
//! (`verify-marks` builds only).
//!
//! Invariant: nothing that an earlier walk has found is used, but the rules by address.

use super::{DEEPEST, Walk, caller};
use crate::events::ring::Ring;
use crate::stacks::native::merge::HEAD;
use crate::stacks::native::rule::{FrameState, RuleKind};
use crate::stacks::python::note_shortcut;

impl Walk {
    /// Compares the frames with those that unwinding from `start` finds, and what is on the wire of them.
    pub(in crate::stacks::native) fn verify(&mut self, start: FrameState, ring: &mut Ring) {
        let are_right = self.finds_the_same(start, ring) && self.are_written(ring);
        note_shortcut(are_right);
    }

    fn finds_the_same(&mut self, start: FrameState, ring: &mut Ring) -> bool {
        let (mut state, mut is_exact) = (start, true);
        let mut left = self.length;
        for _ in 0..DEEPEST {
            let address = state.pc.wrapping_sub(usize::from(!is_exact));
            let known = match self.rules.find(address) {
                Some(known) => *known,
                None => self.learn(address, ring),
            };
            let rule = &known.rule;
            if rule.kind != RuleKind::Own {
                left = left.wrapping_sub(1);
                let Some(frame) = self.frames.as_slice().get(..self.length).and_then(|frames| frames.get(left)) else {
                    return false;
                };
                if !frame.is_at(state) || (frame.code, frame.instruction) != (known.module, known.offset) {
                    return false;
                }
            }
            if matches!(rule.kind, RuleKind::Unknown | RuleKind::Outermost) {
                return left == 0;
            }
            let place = rule.cfa.address(state, 0);
            let cfa = if rule.cfa_is_read { self.stack.word(place) } else { Some(place) };
            match cfa.and_then(|cfa| caller(&mut self.stack, state, rule, cfa)) {
                Some((next, _, _)) if next.pc != 0 => state = next,
                _ => return left == 0,
            }
            is_exact = rule.kind == RuleKind::Signal;
        }
        // Deeper than a walk goes: how much older ones are kept depends on the walks before.
        true
    }

    /// Whether each frame in whose place no Python frame stands is on the wire, where it shall be. Of a stack that is too
    /// deep, the oldest are looked at: the places of the others are counted without what is left out.
    fn are_written(&self, ring: &Ring) -> bool {
        let mut wire = 0;
        self.frames.as_slice().iter().take(self.length).all(|frame| {
            let is_written = !frame.is_replaced && frame.wire != wire && (frame.wire as usize) <= HEAD;
            wire = frame.wire;
            let there = if is_written { ring.frame_at((wire as usize).wrapping_sub(1)) } else { None };
            there.is_none_or(|there| (there.code, there.instruction) == (frame.code, frame.instruction))
        })
    }
}
