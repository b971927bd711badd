//! One stack out of two: Python frames in the place of the interpreter's evaluation loops.
//!
//! Each C frame of an evaluation loop runs the Python frames from one *entry* on, up to the next. Which entry belongs to
//! which C frame is known by an address in that C frame (see [`Chain::entries`]).
//!
//! Where the loop is built of tail calls it is two C frames: the function that is called, and the instruction at which
//! it is, which stands in its place and is left out.
//!
//! Invariant: frames of each of the two stacks keep their order, none is lost, and only C frames of evaluation loops are
//! replaced. What was written is compared with what is to be written, so the wire changes no more than the stack did.

use std::hint::cold_path;

use memtrack_format::record::RawFrame;

use super::native_frame::{NativeFrame, Replaced};
use super::python_frames::Python;
use crate::events::ring::{Ring, add};
use crate::events::stack_model::{MAX_DEPTH, StackWriter};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use crate::stacks::python::{Chain, EvaluationEntry, evaluates_by_tail_calls, evaluation_loop};

// SAFETY: integers only.
unsafe impl Zeroable for EvaluationEntry {}

/// The entries of a chain, root first: their addresses fall.
#[derive(Debug)]
pub(super) struct EvaluationEntries {
    list: MappedVec<EvaluationEntry>,
    length: usize,
    fresh: MappedVec<EvaluationEntry>,
}

impl EvaluationEntries {
    pub(super) const fn new() -> Self {
        Self { list: MappedVec::new(), length: 0, fresh: MappedVec::new() }
    }

    pub(super) const fn reset(&mut self) {
        self.length = 0;
    }

    /// There are none; the memory is given back.
    pub(super) fn begin_again(&mut self) {
        self.reset();
        self.list.clear();
        self.fresh.clear();
    }

    /// Reads those again that have at least `from` older frames.
    pub(super) fn update(&mut self, chain: &Chain, from: usize, native_frames: &[NativeFrame]) {
        self.length = self.as_slice().partition_point(|entry| (entry.shown as usize) < from);
        let function = evaluation_loop();
        let Self { list, length, fresh } = self;
        let mut count = 0_usize;
        chain.entries(from as u32, |entry| {
            if fresh.grow(count.wrapping_add(1)) {
                fresh.set(count, entry);
                count = count.wrapping_add(1);
            }
        });
        if fresh.get(0).address == 0 && count != 0 {
            let older = length.checked_sub(1).map_or(usize::MAX, |last| list.get(last).address);
            // A frame's stack pointer is another in each of its calls; where it ends is not.
            let runs_loop = native_frames.array_windows().rev().filter(|[_, frame]| function.contains(&frame.state.pc));
            let loops = runs_loop.map(|[caller, _]| caller.state.sp.wrapping_sub(size_of::<usize>()));
            let loops = loops.take_while(|address| *address < older);
            // One more than there are frames: the newest has not begun with its frame yet. Of many more, the interpreter has
            // lost the older frames: 3.9 does not link one that stands without a loop to its caller.
            let begins = usize::from(loops.clone().count() == count.wrapping_add(1));
            let entries = fresh.as_mut_slice().get_mut(..count).unwrap_or_default();
            count = 0;
            for (entry, address) in entries.iter_mut().zip(loops.skip(begins)) {
                entry.address = address;
                count = count.wrapping_add(1);
            }
        }
        if list.grow(length.wrapping_add(count)) {
            for index in (0..count).rev() {
                list.set(*length, fresh.get(index));
                *length = length.wrapping_add(1);
            }
        }
    }

    /// How many Python frames are older than the newest entry.
    #[inline(always)]
    pub(super) fn newest(&self) -> Option<usize> {
        self.as_slice().last().map(|entry| entry.shown as usize)
    }

    /// The one of the loop that runs the newest of the oldest `shown` frames.
    pub(super) fn runs(&self, shown: u32) -> Option<&EvaluationEntry> {
        let after = self.as_slice().partition_point(|entry| entry.shown < shown);
        self.as_slice().get(after.checked_sub(1)?)
    }

    /// Whether there is one with so many older frames.
    pub(super) fn has(&self, shown: usize) -> bool {
        self.as_slice().iter().any(|entry| entry.shown as usize == shown)
    }

    /// Those with more older frames are gone.
    #[inline(always)]
    pub(super) fn keep(&mut self, newest: usize) {
        while let Some(last) = self.as_slice().last()
            && last.shown as usize > newest
        {
            cold_path();
            self.length = self.length.wrapping_sub(1);
        }
    }

    /// Whether those that have at least `from` older frames are in the list as they are, and no others of that kind. They
    /// are not read from the stack's C frames. Those newer than the one with `newest` older frames are taken to be gone.
    pub(super) fn are_as_before(&self, chain: &Chain, (from, newest): (usize, usize)) -> bool {
        let mut older = self.as_slice();
        while let Some((last, rest)) = older.split_last()
            && last.shown as usize > newest
        {
            cold_path();
            older = rest;
        }
        let mut are_same = true;
        // Where only the C frames would tell them, their addresses are 0, and no others are.
        chain.entries(from as u32, |entry| {
            let last = older.split_off_last();
            are_same &= last == Some(&entry);
        });
        are_same && older.last().is_none_or(|entry| (entry.shown as usize) < from)
    }

    pub(super) fn as_slice(&self) -> &[EvaluationEntry] {
        self.list.as_slice().get(..self.length).unwrap_or_default()
    }

    /// The frames that the entry at `index` runs begin there, and end where those of the next do.
    fn end(&self, index: usize, length: usize) -> usize {
        self.as_slice().get(index.wrapping_add(1)).map_or(length, |next| (next.shown as usize).min(length))
    }
}

/// The newest frames of a stack that is too deep, which are written last: what asks for memory, and who calls that.
const TAIL: usize = 32;
/// The oldest ones of it, which are written as they come.
pub(super) const HEAD: usize = MAX_DEPTH as usize - TAIL;

/// Buffer for the newest frames, reused between merges.
#[derive(Debug)]
pub(super) struct NewestFrames([RawFrame; TAIL]);

impl NewestFrames {
    pub(super) const fn new() -> Self {
        Self([RawFrame::NONE; TAIL])
    }
}

/// Writes frames over those that are on the wire.
struct FrameWriter<'a> {
    ring: &'a mut Ring,
    /// Frames that are as they shall be.
    at: usize,
    /// What was beyond them is gone.
    diverged: bool,
    /// How many frames there are beyond [`HEAD`], and the newest of them, each at its number's place.
    beyond: usize,
    tail: &'a mut NewestFrames,
}

impl FrameWriter<'_> {
    #[inline(always)]
    fn put(&mut self, frame: RawFrame) {
        if self.at >= HEAD {
            cold_path();
            return self.hold(frame);
        }
        self.write(frame);
    }

    #[cold]
    fn hold(&mut self, frame: RawFrame) {
        if let Some(place) = self.tail.0.get_mut(self.beyond % TAIL) {
            *place = frame;
        }
        self.beyond = self.beyond.wrapping_add(1);
    }

    /// Writes what was held, and takes from the wire what is no more. `true`: frames between are not written.
    fn finish(&mut self) -> bool {
        for number in self.beyond.saturating_sub(TAIL)..self.beyond {
            let Some(&frame) = self.tail.0.get(number % TAIL) else { break };
            self.write(frame);
        }
        if !self.diverged {
            self.pop_to(self.at);
        }
        self.beyond > TAIL
    }

    #[inline(always)]
    fn write(&mut self, frame: RawFrame) {
        if self.diverged {
            self.ring.push(frame.code, frame.instruction);
            self.at = self.at.wrapping_add(1);
        } else {
            self.compare(frame);
            self.at = self.at.wrapping_add(1);
        }
    }

    #[inline(never)]
    fn compare(&mut self, frame: RawFrame) {
        let there = self.ring.frame_at(self.at);
        if there == Some(frame) {
            return;
        }
        self.diverged = true;
        let stays = there.is_some_and(|there| there.code == frame.code);
        self.pop_to(self.at.wrapping_add(usize::from(stays)));
        if stays { self.ring.move_top(frame.instruction) } else { self.ring.push(frame.code, frame.instruction) }
    }

    fn pop_to(&mut self, depth: usize) {
        let count = self.ring.depth().saturating_sub(depth);
        if count > 0 {
            self.ring.pop(count as u32);
        }
    }
}

/// Python frames that the wire still has one after the other, from place `at` on: up to the one at `until`.
#[derive(Clone, Copy, Debug, Default)]
struct UnchangedFrames {
    at: usize,
    until: usize,
}

impl UnchangedFrames {
    /// What the last merge wrote for this native frame, of which the Python frames from `changed` on are others now.
    /// Before it, there are `at` frames on the wire and `done` Python frames among them.
    #[inline(always)]
    fn of(replaced: Replaced, (at, done): (usize, usize), changed: Option<usize>) -> Self {
        let Replaced { wire, python, .. } = replaced;
        let same = changed.unwrap_or(usize::MAX).min(python as usize).saturating_sub(done);
        Self { at, until: done.wrapping_add(same.min((wire as usize).saturating_sub(at))) }
    }
}

/// A merge on its way from the root to the newest frame.
pub(super) struct StackMerge<'a> {
    python: &'a Python,
    entries: &'a EvaluationEntries,
    writer: FrameWriter<'a>,
    /// Python frames that are written, and the next entry with its address, 0 where there is none.
    done: usize,
    entry: usize,
    next: usize,
    known: UnchangedFrames,
    /// The callee of the loop's entry function belongs to the loop, too (tail-call interpreter).
    by_tail_calls: bool,
}

/// What changed since the last merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changes {
    /// The first native frame that is new.
    pub(super) first_new: usize,
    /// What the native frame in its place had on the wire.
    pub(super) displaced: Replaced,
    /// The first Python frame that is new.
    pub(super) python: Option<usize>,
    /// The caller of the oldest native frame is unknown (truncated stack).
    pub(super) cut: bool,
}

impl<'a> StackMerge<'a> {
    /// Writes the stack. `true`: it was too deep.
    #[inline(never)]
    pub(super) fn run(
        python: &'a Python,
        entries: &'a EvaluationEntries,
        native_frames: &mut [NativeFrame],
        tail: &'a mut NewestFrames,
        ring: &'a mut Ring,
        changes: Changes,
    ) -> bool {
        let start = restart(native_frames, changes);
        let before = start.checked_sub(1).and_then(|last| native_frames.get(last));
        let (at, done) = before.map_or((0, 0), |before| (before.wire as usize, before.python as usize));
        let (mut caller, mut in_loop) = before.map_or((0, false), |before| (before.state.sp, before.is_replaced));
        let entry = entries.as_slice().partition_point(|entry| (entry.shown as usize) < done);
        let stays = start < changes.first_new;
        let there = if stays {
            native_frames.get(start).map_or(Replaced::NONE, NativeFrame::replaced)
        } else {
            changes.displaced
        };
        let known = UnchangedFrames::of(there, (at, done), changes.python);
        let writer = FrameWriter { ring, at, diverged: false, beyond: 0, tail };
        let by_tail_calls = evaluates_by_tail_calls();
        let mut merge = Self { python, entries, writer, done, entry: 0, next: 0, known, by_tail_calls };
        merge.go_to(entry);
        if start == 0 {
            merge.before_all(native_frames.first().map_or(0, |frame| frame.state.sp), changes.cut);
        }
        let mut from = start;
        if stays && native_frames.get(start).is_some_and(|frame| frame.wire as usize >= HEAD) {
            (from, caller, in_loop) =
                merge.first_too_deep(native_frames, (start, changes.first_new), (caller, in_loop));
        }
        add(&merge.writer.ring.slot().native_levels, native_frames.len().saturating_sub(from) as u64);
        for frame in native_frames.get_mut(from..).unwrap_or_default() {
            merge.native_frame(frame, caller, in_loop);
            (caller, in_loop) = (frame.state.sp, frame.is_replaced);
        }
        merge.python_until(python.length());
        merge.writer.finish()
    }

    /// Python frames that were entered before the oldest native frame that is known.
    fn before_all(&mut self, oldest: usize, cut: bool) {
        let entries = self.entries.as_slice();
        let older = entries.iter().take_while(|entry| entry.address >= oldest).count();
        if older > 0 || (cut && entries.is_empty()) {
            let end = entries.get(older).map_or(self.python.length(), |entry| entry.shown as usize);
            self.python_until(end);
            self.go_to(older);
        }
    }

    /// This is the next entry.
    fn go_to(&mut self, entry: usize) {
        self.entry = entry;
        self.next = self.entries.as_slice().get(entry).map_or(0, |entry| entry.address);
    }

    /// Writes the frame at `start`, the first that needs the places of the newest, and passes over what need not be written
    /// after it. Gives where to go on, and the stack pointer of the frame before that and whether it is replaced.
    #[cold]
    #[inline(never)]
    fn first_too_deep(
        &mut self,
        native_frames: &mut [NativeFrame],
        (start, first_new): (usize, usize),
        (caller, in_loop): (usize, bool),
    ) -> (usize, usize, bool) {
        let Some((_, rest)) = native_frames.split_at_mut_checked(start) else { return (start, caller, in_loop) };
        let Some((first, rest)) = rest.split_first_mut() else { return (start, caller, in_loop) };
        self.native_frame(first, caller, in_loop);
        add(&self.writer.ring.slot().native_levels, 1);
        let after = start.wrapping_add(1);
        let kept = first_new.saturating_sub(after).min(rest.len());
        let (beyond, new) = rest.split_at(kept);
        let left_out = if first.is_replaced { 0 } else { self.leave_out(beyond, new.len()) };
        let last = left_out.checked_sub(1).and_then(|last| beyond.get(last)).unwrap_or(first);
        (after.wrapping_add(left_out), last.state.sp, last.is_replaced)
    }

    /// Passes over the oldest of these frames, which are beyond [`HEAD`] and as the last merge left them, if no Python frames
    /// come among or after them: they are neither on the wire nor, with so many newer ones, among those that are written
    /// last. So a stack that is too deep takes no longer the deeper it is. Gives how many.
    fn leave_out(&mut self, frames: &[NativeFrame], newer: usize) -> usize {
        let count = frames.len().saturating_sub(TAIL.saturating_sub(newer));
        let (wire, python) = (self.writer.at, self.done);
        // The numbers rise from frame to frame: between two that have the same, all have it.
        let is_as_left = |frame: &NativeFrame| {
            (frame.wire as usize, frame.python as usize, frame.is_replaced) == (wire, python, false)
        };
        let ends = [frames.first(), count.checked_sub(1).and_then(|last| frames.get(last))];
        let are_as_left = ends.into_iter().all(|end| end.is_some_and(is_as_left));
        if wire < HEAD || self.next != 0 || python != self.python.length() || !are_as_left {
            return 0;
        }
        self.writer.beyond = self.writer.beyond.wrapping_add(count);
        count
    }

    /// Writes a native frame, or the Python frames that it runs. It was called by one whose stack pointer is `caller`,
    /// and which is itself replaced or not.
    fn native_frame(&mut self, frame: &mut NativeFrame, caller: usize, in_loop: bool) {
        while caller != 0 && self.next >= caller {
            self.go_to(self.entry.wrapping_add(1));
        }
        let is_here = self.next != 0 && self.next >= frame.state.sp && self.next < caller;
        let end = if is_here { self.entries.end(self.entry, self.python.length()) } else { 0 };
        frame.is_replaced = is_here && end > self.done;
        if frame.is_replaced {
            self.python_until(end);
        } else if !(in_loop && self.by_tail_calls) {
            self.writer.put(RawFrame { code: frame.code, instruction: frame.instruction });
        }
        if is_here {
            self.go_to(self.entry.wrapping_add(1));
        }
        (frame.wire, frame.python) = (self.writer.at as u32, self.done as u32);
    }

    /// Frames that are on the wire and have not changed: a deep stack is not compared frame by frame.
    #[inline(always)]
    fn step_over(&mut self, end: usize) {
        let same = self.known.until.min(end);
        // Nothing was written since the place that is known: what diverges moves on.
        if same > self.done && self.writer.at == self.known.at {
            self.writer.at = self.writer.at.wrapping_add(same.wrapping_sub(self.done));
            (self.done, self.known.at) = (same, self.writer.at);
        }
    }

    fn python_until(&mut self, end: usize) {
        self.step_over(end);
        while self.done < end {
            self.writer.put(self.python.frame(self.done));
            self.done = self.done.wrapping_add(1);
        }
    }
}

/// The first native frame that has to be written again: none before it is new, or has Python frames that changed in it,
/// or frames of which those at the end depend on what comes after them.
fn restart(native_frames: &[NativeFrame], changes: Changes) -> usize {
    let kept = native_frames.get(..changes.first_new).unwrap_or(native_frames);
    let changed = changes.python.unwrap_or(usize::MAX);
    kept.partition_point(|frame| (frame.python as usize) < changed && (frame.wire as usize) < HEAD)
}
