//! Writes the usual change of a stack: its native frames above the Python frames are others, and the newest Python
//! frame may have moved on.
//!
//! The merge of both stacks takes three times as long, for it also finds out which Python frames stand where. Here that
//! is known: all of them stand below the first native frame that is new, or in its place, where the evaluation loop that
//! runs the newest ones has only gone on to another instruction.
//!
//! Invariant: where [`rewrite`] gives `Some`, the wire is what [`StackMerge::run`](super::merge::StackMerge::run) would
//! have made it, and where it gives `None`, nothing has been done.

use memtrack_format::record::RawFrame;

use super::merge::HEAD;
use super::native_frame::{NativeFrame, Replaced};
use super::python_frames::Python;
use crate::events::ring::{Ring, add};
use crate::events::stack_model::StackWriter;
use crate::stacks::python::{evaluates_by_tail_calls, evaluation_loop};

/// Writes the native frames that are new. `moved`: the newest Python frame may stand elsewhere; no other one has changed.
#[inline(always)]
pub(super) fn rewrite(
    native_frames: &mut [NativeFrame],
    (first_new, displaced): (usize, Replaced),
    python: &Python,
    moved: bool,
    ring: &mut Ring,
) -> Option<()> {
    let (known, mut new) = native_frames.split_at_mut(first_new.min(native_frames.len()));
    let below = known.last()?;
    let stands_below = below.python as usize == python.length();
    let wire = if stands_below { below.wire } else { displaced.wire };
    let most = ring.depth().max((wire as usize).wrapping_add(new.len()));
    // Where the loop is built of tail calls, the frame after it is a part of it.
    if most > HEAD || (below.is_replaced || !stands_below) && evaluates_by_tail_calls() {
        return None;
    }
    if !stands_below {
        new = evaluate_again(new, displaced, python, moved, ring)?;
    } else if moved {
        rewrite_moved(known, python, ring)?;
    }
    add(&ring.slot().native_levels, new.len() as u64);
    write_new(new, (wire, python.length() as u32), ring);
    Some(())
}

/// The first new frame is that of the evaluation loop that was there, at another instruction: then all that it keeps in
/// its frame is where it was. Writes where the newest Python frame stands; gives the frames above.
#[inline(always)]
fn evaluate_again<'a>(
    new: &'a mut [NativeFrame],
    displaced: Replaced,
    python: &Python,
    moved: bool,
    ring: &mut Ring,
) -> Option<&'a mut [NativeFrame]> {
    let (again, above) = new.split_first_mut()?;
    let is_it = displaced.python as usize == python.length()
        && displaced.sp == again.state.sp
        && evaluation_loop().contains(&again.state.pc);
    if !is_it {
        return None;
    }
    if moved && !stands_as_written(displaced.wire, python, ring)? {
        move_newest(displaced.wire, python, ring);
    }
    (again.wire, again.python, again.is_replaced) = (displaced.wire, displaced.python, true);
    Some(above)
}

/// Whether the newest Python frame, the last of `wire` frames, is on the wire as it is. `None`: another frame is there.
#[inline(always)]
fn stands_as_written(wire: u32, python: &Python, ring: &Ring) -> Option<bool> {
    let frame = python.frame(python.length().checked_sub(1)?);
    let there = ring.frame_at((wire as usize).checked_sub(1)?)?;
    (there.code == frame.code).then_some(there.instruction == frame.instruction)
}

/// Writes where the newest Python frame stands, the last of `wire` frames; those above are gone.
#[inline(always)]
fn move_newest(wire: u32, python: &Python, ring: &mut Ring) {
    pop_to(ring, wire as usize);
    ring.move_top(python.frame(python.length().wrapping_sub(1)).instruction);
}

/// Writes where the newest Python frame stands, if that is elsewhere, and again what stands above it.
#[inline(always)]
fn rewrite_moved(known: &[NativeFrame], python: &Python, ring: &mut Ring) -> Option<()> {
    let above = known.iter().rev().take_while(|frame| frame.python as usize == python.length()).count();
    let (runs_it, again) = known.get(known.len().wrapping_sub(above)..)?.split_first()?;
    if !runs_it.is_replaced {
        return None;
    }
    if !stands_as_written(runs_it.wire, python, ring)? {
        move_newest(runs_it.wire, python, ring);
        let mut wire = runs_it.wire;
        for frame in again {
            // Of those in a loop's place none is written.
            if frame.wire != wire {
                ring.push(frame.code, frame.instruction);
            }
            wire = frame.wire;
        }
    }
    Some(())
}

/// Writes these, below which there are so many frames, and Python frames among them.
#[inline(always)]
fn write_new(new: &mut [NativeFrame], (wire, python): (u32, u32), ring: &mut Ring) {
    let mut at = wire as usize;
    let mut is_there = true;
    for frame in new {
        let written = RawFrame { code: frame.code, instruction: frame.instruction };
        let there = if is_there { ring.frame_at(at) } else { None };
        if there != Some(written) {
            let stays = there.is_some_and(|there| there.code == written.code);
            if is_there {
                is_there = false;
                pop_to(ring, at.wrapping_add(usize::from(stays)));
            }
            if stays { ring.move_top(written.instruction) } else { ring.push(written.code, written.instruction) }
        }
        at = at.wrapping_add(1);
        (frame.wire, frame.python, frame.is_replaced) = (at as u32, python, false);
    }
    pop_to(ring, at);
}

#[inline(always)]
fn pop_to(ring: &mut Ring, depth: usize) {
    let count = ring.depth().saturating_sub(depth);
    if count > 0 {
        ring.pop(count as u32);
    }
}
