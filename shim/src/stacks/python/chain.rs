//! A thread's Python stack as it was at its last record, and the changes since.
//!
//! It exists so that an allocation writes only what changed. Invariant: after [`Chain::update`] the frames that the
//! writer was given are exactly those a traceback would show now. The whole chain is compared each time, or down to a
//! sentinel that proves the rest (see `frame_sentinels`), since equal newest frames prove nothing about the older ones:
//! a caller may have moved to its next line and called the same functions again.

use super::code::CodeIds;
use super::frame::{OwnThreadState, PythonFrame};
use super::frame_sentinels::FrameSentinels;
use super::interpreter::{self, Interpreter};
use super::layout::Version;
use super::thread_name::{self, ThreadObject};
use super::thread_state_proof::ThreadStateProof;
use crate::events::sampled_timer::SampledTimer;
use crate::events::stack_model::{MAX_DEPTH, StackWriter};
use crate::platform::mapped_vec::{MappedVec, Zeroable};
use crate::platform::seccomp;
use std::hint::cold_path;

mod compare;
mod entries;
mod fast_compare;
mod follow_near;
mod links;
mod standing;
mod tops;
mod update;

pub(crate) use entries::EvaluationEntry;
pub(crate) use fast_compare::FastComparison;
pub(crate) use standing::StandingSentinel;

use compare::same_code;
use fast_compare::ComparedSpan;
use follow_near::EnteredFrame;
use links::{ChainLink, Links, MOST};
use tops::ChainTops;

/// Most links followed; a longer chain is taken for a broken one, and its thread's stack for empty and truncated.
const LONGEST_WALK: usize = 200_000;

/// Entries of the index from frame address to position, for each frame that there is room for.
const INDEX_SHARE: usize = 2;

/// What else is known of a frame.
#[derive(Clone, Copy, Debug, Default)]
struct FrameDetail {
    executable: usize,
    /// The code id, 0 for a frame that is not shown.
    id: u32,
    /// Shown frames up to and with this one.
    shown: u32,
    /// The frame is shown at positions from here on, as long as it has this setting.
    shown_from: usize,
    setting: u32,
}

impl FrameDetail {
    const NONE: Self = Self { executable: 0, id: 0, shown: 0, shown_from: 0, setting: 0 };
}

// SAFETY: integers only.
unsafe impl Zeroable for FrameDetail {}

/// Whether a thread is to be asked for the name that Python knows it by.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameLookup {
    /// It has been, or has no name that could be asked for.
    Done,
    /// It may have got one.
    Due,
}

/// The cached chain of one thread slot, root first.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The newest frame's address, 0 when the chain is empty.
    newest: usize,
    length: usize,
    truncated: bool,
    /// Due when the oldest frame is new, or the name was not looked at for a while: the thread may have got another.
    naming: NameLookup,
    /// When the name was to be looked at last, in ticks.
    asked: u64,
    codes: CodeIds,
    sentinels: FrameSentinels,
    /// The thread's state at this update.
    state: usize,
    proof: ThreadStateProof,
    /// One more than `length`: the last holds the newest frame's address.
    links: Links,
    /// Where a frame address was last put; only a hint, always checked against `links`.
    index: MappedVec<u32>,
    /// So many frames have room in both, and are not too many to be written; 0 while the stack is cut.
    room: usize,
    /// The frames that [`Chain::follow_near`] has found to be new.
    entered: [EnteredFrame; MOST],
    tops: ChainTops,
    /// What is to be compared first.
    span: ComparedSpan,
    timer: SampledTimer,
}

/// How much of the cached chain remains.
struct Join {
    /// Frames that remain, from the root.
    kept: usize,
    /// Whether the newest of them stands at another instruction.
    moved: bool,
    /// New frames above them.
    fresh: usize,
}

impl Chain {
    /// An empty chain; it takes memory when it first needs some.
    pub(crate) const fn new() -> Self {
        Self {
            newest: 0,
            length: 0,
            truncated: false,
            naming: NameLookup::Done,
            asked: 0,
            codes: CodeIds::new(),
            sentinels: FrameSentinels::new(),
            state: 0,
            proof: ThreadStateProof::new(),
            links: Links::new(),
            index: MappedVec::new(),
            room: 0,
            entered: [EnteredFrame::NONE; MOST],
            tops: ChainTops::new(),
            span: ComparedSpan::UNKNOWN,
            timer: SampledTimer::new(),
        }
    }

    /// Clears the cached stack without writing pops; the reader's stack is empty as well.
    pub(crate) fn reset(&mut self) {
        self.newest = 0;
        self.length = 0;
        self.proof.forget();
        self.span = ComparedSpan::UNKNOWN;
        self.sentinels.truncate(0);
        self.truncated = false;
        self.naming = NameLookup::Done;
    }

    /// Forgets the stack and every code object: nothing was told yet. The memory is given back.
    pub(crate) fn begin_again(&mut self) {
        self.reset();
        self.codes.clear();
        self.tops.begin_again();
        self.sentinels.begin_again();
        self.links.begin_again();
        self.index.clear();
    }

    /// Whether names of threads can be read now: this thread holds the GIL. If so, it need not ask again soon.
    #[cold]
    pub(crate) fn may_read_names(&mut self) -> bool {
        let is_attached = interpreter::interpreter().is_some_and(|python| python.is_attached(self.state));
        if is_attached {
            self.naming = NameLookup::Done;
        }
        // What a filter of system calls allows is not known.
        is_attached && !seccomp::has_seccomp_filter()
    }

    /// The name that Python knows this thread by, and the thread's object; after [`Chain::may_read_names`].
    #[cold]
    pub(crate) fn thread_name<'a>(
        &self,
        tid: i32,
        (object, buffer): (&ThreadObject, &'a mut [u8; thread_name::LONGEST]),
    ) -> Option<&'a [u8]> {
        let python = interpreter::interpreter().filter(|python| python.is_attached(self.state))?;
        let oldest = (0..self.length).find(|place| self.links.get(*place).detail.id != 0)?;
        let frame = self.links.get(oldest.wrapping_add(1)).previous;
        // SAFETY: a frame that was just reached from this thread's newest, while the thread holds the GIL.
        unsafe { thread_name::of_thread(python.layout, python, frame, tid, (object, buffer)) }
    }

    /// The calling thread's newest frame; 0 when it runs no Python code, or when the interpreter is being torn down by
    /// another thread, which may free this one's state at any moment.
    #[inline(always)]
    fn newest_frame<V: Version>(&mut self, python: &Interpreter) -> usize {
        let state = python.own_thread_state(&mut self.proof);
        if state == 0 || interpreter::finalized_by_other(state) {
            cold_path();
            return 0;
        }
        self.state = state;
        // SAFETY: the interpreter says that this is the calling thread's own state, and nobody else is freeing it.
        unsafe { OwnThreadState::<V>::new(state) }.newest()
    }

    /// The newest frame stands at another position. The thread has its name.
    #[cold]
    #[inline(never)]
    fn move_newest<V: Version>(
        &mut self,
        python: &Interpreter,
        position: usize,
        writer: &mut impl StackWriter,
    ) -> NameLookup {
        let last = self.length.wrapping_sub(1);
        let executable = self.links.get(last).detail.executable;
        if let Some(link) = self.links.get_mut(last) {
            link.position = position;
        }
        // SAFETY: the newest frame of this thread.
        let frame = unsafe { PythonFrame::<V>::new(self.newest) };
        self.settle(python, &frame, last);
        writer.move_top(frame.instruction(python, executable, position));
        NameLookup::Done
    }

    /// The general case: finds what remains of the cached chain and writes the difference.
    #[inline(never)]
    fn follow<V: Version>(&mut self, python: &Interpreter, newest: usize, writer: &mut impl StackWriter) {
        self.invalidate_dead_code();
        let join = if newest == 0 {
            Some(Join { kept: 0, moved: false, fresh: 0 })
        } else {
            self.find_join::<V>(python, newest)
        };
        match join {
            Some(join) if self.reserve(join.kept.wrapping_add(join.fresh)) => {
                self.apply::<V>(python, newest, &join, writer)
            }
            _ => self.give_up(writer),
        }
    }

    /// Walks from the newest frame until a cached frame with nothing changed below it. `None` if the chain
    /// is invalid (too long or cyclic).
    fn find_join<V: Version>(&mut self, python: &Interpreter, newest: usize) -> Option<Join> {
        let (mut address, mut fresh) = (newest, 0);
        // Cached frames from here on are known to have changed, or to stand above one that has.
        let mut limit = self.length;
        while address != 0 {
            // SAFETY: reached from this thread's newest frame by links that were just read.
            let frame = unsafe { PythonFrame::<V>::new(address) };
            if let Some(position) = self.cached_at(address, limit) {
                limit = self.links_equal_below::<V>(python, &frame, position);
                if limit == 0 {
                    return Some(self.join_at::<V>(python, &frame, position, fresh));
                }
            }
            fresh = fresh.wrapping_add(1);
            if fresh > LONGEST_WALK {
                return None;
            }
            address = frame.previous();
        }
        Some(Join { kept: 0, moved: false, fresh })
    }

    /// 0 when the frame cached at `position` still has the same callers; else below which position that may be found.
    fn links_equal_below<V: Version>(
        &mut self,
        python: &Interpreter,
        frame: &PythonFrame<V>,
        position: usize,
    ) -> usize {
        let previous = self.links.get(position).previous;
        if frame.previous() != previous {
            // Never 0: position 0 has no caller, and a caller where there was none is new.
            return position.max(1);
        }
        self.matching_from::<V>(python, position, previous)
    }

    /// The join at a frame whose callers are unchanged: kept as it is, kept and moved, or replaced.
    fn join_at<V: Version>(&self, python: &Interpreter, frame: &PythonFrame<V>, position: usize, fresh: usize) -> Join {
        let kept = position.wrapping_add(1);
        let link = self.links.get(position);
        if frame.position() == link.position && same_code(frame, &link.detail) {
            Join { kept, moved: false, fresh }
        } else if self.remains(python, frame, position) {
            Join { kept, moved: true, fresh }
        } else {
            Join { kept: position, moved: false, fresh: fresh.wrapping_add(1) }
        }
    }

    /// The position at which a frame address is cached, if below `limit`.
    fn cached_at(&self, address: usize, limit: usize) -> Option<usize> {
        let position = self.index.get(self.index_of(address)) as usize;
        (position < limit && self.links.get(position.wrapping_add(1)).previous == address).then_some(position)
    }

    fn reserve(&mut self, length: usize) -> bool {
        self.span = ComparedSpan::UNKNOWN;
        let entries = length.wrapping_mul(INDEX_SHARE);
        let enough = self.links.grow(length.wrapping_add(1)) && self.grow_index(entries);
        let room = self.links.room().min(self.index.capacity());
        self.room = room.min(MAX_DEPTH.wrapping_sub(1) as usize);
        enough
    }

    #[inline]
    fn grow_index(&mut self, entries: usize) -> bool {
        entries <= self.index.capacity() || self.enlarge_index(entries)
    }

    /// A longer index has each address at another place.
    #[cold]
    fn enlarge_index(&mut self, entries: usize) -> bool {
        let enough = self.index.grow(entries);
        for position in 0..self.length {
            let address = self.links.get(position.wrapping_add(1)).previous;
            self.index.set(self.index_of(address), position as u32);
        }
        enough
    }

    /// Where the index keeps a frame address. Frames are at least 8 bytes apart, and the length is a power of two.
    #[inline(always)]
    const fn index_of(&self, address: usize) -> usize {
        let mixed = (address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & self.index.capacity().wrapping_sub(1)
    }

    /// Takes over the present chain and writes the difference.
    fn apply<V: Version>(&mut self, python: &Interpreter, newest: usize, join: &Join, writer: &mut impl StackWriter) {
        let (before, common) = (self.shown(self.length), self.shown(join.kept));
        writer.keeps(common);
        self.length = join.kept.wrapping_add(join.fresh);
        if join.kept == 0 && self.length > 0 {
            self.naming = NameLookup::Due;
        }
        self.sentinels.truncate(join.kept);
        self.read_fresh::<V>(newest, join.kept);
        if join.moved {
            self.read_position::<V>(python, join.kept.wrapping_sub(1));
        }
        // Of a stack that is cut, the newest frame stands last on the wire whatever its depth: it goes first.
        let kept = common.min(MAX_DEPTH - 1);
        let written = before.min(MAX_DEPTH);
        if written > kept {
            writer.pop(written.wrapping_sub(kept));
        }
        if join.moved && kept == common {
            self.write_move::<V>(python, join.kept.wrapping_sub(1), writer);
        }
        self.push_fresh::<V>(python, join.kept, kept, writer);
    }

    /// Frames of the stack, with those that it is too deep for.
    pub(crate) fn depth(&self) -> u32 {
        self.shown(self.length)
    }

    /// Shown frames among the first `length`.
    fn shown(&self, length: usize) -> u32 {
        if length == 0 { 0 } else { self.links.get(length.wrapping_sub(1)).detail.shown }
    }

    /// Reads the frames from the newest down to position `from`.
    fn read_fresh<V: Version>(&mut self, newest: usize, from: usize) {
        let (mut address, mut position) = (newest, self.length);
        self.newest = newest;
        self.links.end_at(position, newest);
        while position > from {
            position = position.wrapping_sub(1);
            // SAFETY: the walk of `find_join` over the same frames, which stand still.
            let frame = unsafe { PythonFrame::<V>::new(address) };
            let detail = FrameDetail { executable: frame.executable(), ..FrameDetail::NONE };
            self.links.set(position, ChainLink { previous: frame.previous(), position: frame.position(), detail });
            self.index.set(self.index_of(address), position as u32);
            address = frame.previous();
        }
    }

    /// Reads again where the frame at `position` stands.
    fn read_position<V: Version>(&mut self, python: &Interpreter, position: usize) {
        // SAFETY: a frame that was just reached from this thread's newest.
        let frame = unsafe { PythonFrame::<V>::new(self.links.get(position.wrapping_add(1)).previous) };
        if let Some(link) = self.links.get_mut(position) {
            link.position = frame.position();
        }
        self.settle(python, &frame, position);
    }

    fn instruction<V: Version>(&self, python: &Interpreter, position: usize) -> u32 {
        // SAFETY: a frame that was just reached from this thread's newest.
        let frame = unsafe { PythonFrame::<V>::new(self.links.get(position.wrapping_add(1)).previous) };
        let link = self.links.get(position);
        frame.instruction(python, link.detail.executable, link.position)
    }

    fn write_move<V: Version>(&self, python: &Interpreter, position: usize, writer: &mut impl StackWriter) {
        writer.move_top(self.instruction::<V>(python, position));
    }

    /// Gives ids to the frames from position `from` on and writes those that are shown, `written` being on the wire.
    fn push_fresh<V: Version>(
        &mut self,
        python: &Interpreter,
        from: usize,
        mut written: u32,
        writer: &mut impl StackWriter,
    ) {
        let mut shown = self.shown(from);
        for position in from..self.length {
            let mut link = self.links.get(position);
            let detail = &mut link.detail;
            // SAFETY: a frame that was just reached from this thread's newest.
            let frame = unsafe { PythonFrame::<V>::new(self.links.get(position.wrapping_add(1)).previous) };
            (detail.setting, detail.shown_from) = (frame.setting(), frame.shown_from(python));
            if link.position >= detail.shown_from {
                detail.id = self.codes.id(&V::L, python, detail.executable, writer);
                shown = shown.wrapping_add(1);
                if shown < MAX_DEPTH {
                    writer.push(detail.id, self.instruction::<V>(python, position));
                    written = shown;
                }
            }
            detail.shown = shown;
            self.links.set(position, link);
        }
        if shown > written {
            self.push_newest::<V>(python, writer);
        }
        self.truncate(shown > MAX_DEPTH, writer);
    }

    /// Writes the newest shown frame.
    fn push_newest<V: Version>(&self, python: &Interpreter, writer: &mut impl StackWriter) {
        if let Some(position) = (0..self.length).rev().find(|position| self.links.get(*position).detail.id != 0) {
            writer.push(self.links.get(position).detail.id, self.instruction::<V>(python, position));
        }
    }

    fn truncate(&mut self, truncated: bool, writer: &mut impl StackWriter) {
        if truncated {
            self.room = 0;
        }
        if self.truncated != truncated {
            // No top ends a stack that is cut.
            self.tops.forget();
            self.truncated = truncated;
            writer.set_truncated(truncated);
        }
    }

    /// The chain is invalid, or there is no memory for it: an empty stack that is marked as cut.
    #[cold]
    fn give_up(&mut self, writer: &mut impl StackWriter) {
        let written = self.shown(self.length).min(MAX_DEPTH);
        writer.keeps(0);
        if written > 0 {
            writer.pop(written);
        }
        // No frame's address, so the next update looks at everything again.
        self.newest = usize::MAX;
        self.length = 0;
        self.sentinels.truncate(0);
        self.truncate(true, writer);
    }
}
