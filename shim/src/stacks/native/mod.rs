//! Native call stacks, unwound in place: what [`Recorder`](crate::recording::thread::Recorder) writes under `--native`.
//!
//! They exist so that memory held by C, C++ and Rust code has a name. `modules` lists the loaded objects (`description`
//! reads them), `loading_objects` those whose dlopen has not returned, `code_pages` code outside of any object. `cfi`
//! turns an unwind table's row (`cfi_row`) into a `rule`, which `walk::address_lookup` caches for each return address.
//! `stack_memory` reads the stack. `walk` unwinds as far as the stack is new: `own_frames` leads it out of memtrack's
//! own frames, `stack_top_cache` holds stack tops met before, and `unwind_witnesses` the words that prove the older
//! `native_frame`s to be unchanged. `python_frames` holds the interpreter's frames, and `merge` puts them in place of
//! its evaluation loops; where only the frames above the `newest_loop` have changed, `top_rewrite` does that with less,
//! and `written_tops` puts back by one record what was written for a stack top before, which it knows by the frames
//! above that loop (`walk::loop_path`).
//!
//! Invariant: nothing here allocates from the heap, locks, or writes to the program's stack. What cannot be unwound is
//! left out, and the stack is recorded as truncated.

mod arch;
mod cfi;
mod cfi_row;
mod code_pages;
mod description;
mod loading_objects;
mod merge;
mod modules;
mod native_frame;
mod newest_loop;
mod own_frames;
mod python_frames;
mod rule;
mod stack_memory;
mod stack_top_cache;
mod top_rewrite;
mod unwind_witnesses;
#[cfg(feature = "verify-marks")]
mod verify;
mod walk;
mod written_tops;

use std::hint::cold_path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::events::ring::Ring;
use crate::events::sampled_timer::SampledTimer;
use crate::events::stack_model::StackWriter;
use crate::platform::loaded_object::LoadedObject;
use crate::platform::object_lookup;
use crate::stacks::python::{Chain, NameLookup, Version};

use merge::{Changes, EvaluationEntries, NewestFrames, StackMerge};
use python_frames::{Changed, Python, PythonFrameRecorder};
use rule::FrameState;
use walk::Walk;
use written_tops::WrittenTops;

/// Whether native stacks are recorded.
static ON: AtomicBool = AtomicBool::new(false);

/// They shall be; before anything is recorded.
pub(crate) fn start() {
    object_lookup::start();
    modules::start();
    stack_memory::note_first_thread();
    ON.store(true, Relaxed);
}

/// They shall not be any more; recording is off.
pub(crate) fn stop() {
    if ON.swap(false, Relaxed) {
        modules::stop();
    }
}

/// An object was loaded. To be called under the loader's lock, outside of hooks.
pub(crate) fn object_added(object: &LoadedObject<'_>) {
    if is_on() {
        modules::add(description::of(object));
    }
}

/// The object that began at this address was unloaded. As [`object_added`].
pub(crate) fn object_removed(start: usize) {
    if is_on() {
        modules::forget(start);
    }
}

/// A range is about to be unmapped, or mapped over.
#[inline]
pub(crate) fn unmaps(address: usize, length: usize) {
    if is_on() {
        code_pages::forget(address, length);
    }
}

/// A range was mapped. `is_code`: it can be executed. `is_file`: it is that of a file.
#[inline]
pub(crate) fn maps(address: usize, length: usize, is_code: bool, is_file: bool) {
    if !is_on() {
        return;
    }
    code_pages::forget(address, length);
    if is_code {
        modules::forget_unloaded(&(address..address.saturating_add(length)));
        if is_file {
            code_pages::code_was_mapped();
        }
    }
}

/// No code that belongs to no object is known: the shared memory is new.
pub(crate) fn forget_code_pages() {
    code_pages::begin_again();
}

/// Whether they are.
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// The native side of one thread slot. All zero bytes are its beginning.
#[derive(Debug)]
pub(crate) struct NativeStack {
    walk: Walk,
    python: Python,
    entries: EvaluationEntries,
    tail: NewestFrames,
    tops: WrittenTops,
    truncated: bool,
    timer: SampledTimer,
    #[cfg(feature = "verify-marks")]
    verified_entries: Option<EvaluationEntries>,
    #[cfg(feature = "verify-marks")]
    verified: u64,
}

impl NativeStack {
    /// Nothing is known yet.
    pub(crate) const fn new() -> Self {
        Self {
            walk: Walk::new(),
            python: Python::new(),
            entries: EvaluationEntries::new(),
            tail: NewestFrames::new(),
            tops: WrittenTops::new(),
            truncated: false,
            timer: SampledTimer::new(),
            #[cfg(feature = "verify-marks")]
            verified_entries: None,
            #[cfg(feature = "verify-marks")]
            verified: 0,
        }
    }

    /// Another thread owns the slot from now on; the reader's stack is empty.
    pub(crate) fn reset(&mut self) {
        self.walk.reset();
        self.python.reset();
        self.entries.reset();
        self.tops.reset();
        self.truncated = false;
    }

    /// Nothing was told yet, and no stack is known; the memory is given back.
    pub(crate) fn begin_again(&mut self) {
        self.walk.begin_again();
        self.python.begin_again();
        self.entries.begin_again();
        self.tops.begin_again();
        self.truncated = false;
    }

    /// Writes what changed in the calling thread's stack. As of [`Chain::update`].
    #[inline(never)]
    pub(crate) fn update(&mut self, chain: &mut Chain, ring: &mut Ring) -> NameLookup {
        let naming = chain.update(&mut PythonFrameRecorder { python: &mut self.python, ring });
        self.update_natives(chain, ring);
        naming
    }

    /// As [`NativeStack::update`], for an interpreter that is known to be of version `V`.
    #[inline(always)]
    pub(crate) fn update_as<V: Version>(&mut self, chain: &mut Chain, ring: &mut Ring) -> NameLookup {
        let naming = chain.update_as::<V>(&mut PythonFrameRecorder { python: &mut self.python, ring });
        self.update_natives(chain, ring);
        naming
    }

    /// As [`NativeStack::update`], where there is no Python.
    #[inline(always)]
    pub(crate) fn update_without_python(&mut self, chain: &Chain, ring: &mut Ring) {
        let start = walk::here();
        if !self.walk.is_same(start, 0, ring.slot()) {
            cold_path();
            self.change_without_python(chain, ring, start);
        }
        #[cfg(feature = "verify-marks")]
        self.verify(chain, start, ring);
    }

    /// Native frames have changed, and there is no Python.
    #[inline(never)]
    fn change_without_python(&mut self, chain: &Chain, ring: &mut Ring, start: FrameState) {
        self.walk.begin_unproven();
        if self.timer.is_due() {
            return self.change_timed(chain, ring, start, false);
        }
        let Self { walk, python, tops, .. } = self;
        if tops.put_back_without_python(start, walk, python, ring).is_none() {
            self.change_closely(chain, ring, start, false);
        }
    }

    /// As [`NativeStack::update`], where what changed in Python's stack is known.
    #[inline(always)]
    pub(crate) fn update_natives(&mut self, chain: &Chain, ring: &mut Ring) {
        let start = walk::here();
        let has_many = self.walk.has_many_words();
        let is_same = if has_many {
            // A call anyway; without it there is to be no jump.
            cold_path();
            self.walk.is_same_by_proof(chain, self.truncated, (start, ring.slot()))
        } else {
            self.walk.is_same(start, 0, ring.slot())
        };
        if !is_same || self.python.has_changed() {
            cold_path();
            if !has_many {
                self.walk.begin_unproven();
            }
            self.change(chain, ring, start, is_same);
        }
        #[cfg(feature = "verify-marks")]
        self.verify(chain, start, ring);
    }

    /// Something has changed: Python frames, or, unless `is_same`, native ones.
    #[inline(never)]
    fn change(&mut self, chain: &Chain, ring: &mut Ring, start: FrameState, is_same: bool) {
        if self.timer.is_due() {
            return self.change_timed(chain, ring, start, is_same);
        }
        self.change_now(chain, ring, start, is_same);
    }

    #[cold]
    #[inline(never)]
    fn change_timed(&mut self, chain: &Chain, ring: &mut Ring, start: FrameState, is_same: bool) {
        self.timer.begin();
        let begun = ring.now();
        self.change_now(chain, ring, start, is_same);
        ring.note_sampled(begun, |slot| &slot.native_ticks);
    }

    #[inline(never)]
    fn change_now(&mut self, chain: &Chain, ring: &mut Ring, start: FrameState, is_same: bool) {
        let Self { walk, python, entries, tops, truncated, .. } = self;
        if tops.put_back((start, is_same, *truncated), walk, python, (entries, chain), ring).is_none() {
            self.change_closely(chain, ring, start, is_same);
        }
    }

    #[inline(never)]
    fn change_closely(&mut self, chain: &Chain, ring: &mut Ring, start: FrameState, is_same: bool) {
        let Self { walk, python, entries, tops, truncated, .. } = self;
        tops.take(walk);
        let changed = python.changed();
        python.forget_changed();
        let top = if is_same { walk.current_kept().map(|(top, _)| top) } else { walk.recall(start, ring) };
        let first_new = if is_same { None } else { walk.run(start, top, ring) };
        if first_new.is_none() && changed.from.is_none() {
            return;
        }
        let first_new = first_new.unwrap_or(usize::MAX);
        let new = (first_new, walk.displaced());
        let is_whole = !(*truncated || python.is_cut(chain));
        let is_usual = walk.truncated() <= *truncated && (is_whole || !changed.reshaped);
        let frames = walk.frames_mut();
        let is_written =
            is_usual && top_rewrite::rewrite(frames, new, (python, changed), (entries, chain), ring).is_some();
        if !is_written {
            cold_path();
            self.write(chain, ring, first_new, changed);
        }
        if !self.truncated && !self.walk.truncated() {
            self.walk.note_proof(&self.entries);
        }
        self.tops.note(top.is_some(), &mut self.walk, (&self.python, changed), &self.entries, ring);
    }

    #[inline(never)]
    fn write(&mut self, chain: &Chain, ring: &mut Ring, first_new: usize, changed: Changed) {
        let changes =
            Changes { first_new, displaced: self.walk.displaced(), python: changed.from, cut: self.walk.truncated() };
        let native_frames = self.walk.frames_mut();
        // Where the newest Python frame has only moved on, and all of them were entered from native frames that are
        // still there, so are the entries. A frame that has not changed at all may have been entered anew, by another loop.
        let last = first_new.min(native_frames.len()).checked_sub(1).and_then(|last| native_frames.get(last));
        let entered = last.map_or(0, |last| last.python as usize);
        // Nor has one to change that stood there without a loop, and is run by one now.
        let runs = newest_loop::are_in_loop(native_frames.get(first_new..).unwrap_or_default());
        if changed.reshaped || entered < self.python.length() || runs {
            let after = self.entries.newest().map_or(0, |newest| newest.wrapping_add(1));
            let from = changed.lowest(&self.python).min(entered).min(after);
            self.entries.update(chain, self.python.take_entries_from(from, chain.depth()), native_frames);
        }
        let too_deep = StackMerge::run(&self.python, &self.entries, native_frames, &mut self.tail, ring, changes);
        let truncated = changes.cut || too_deep || self.python.truncated();
        if truncated != self.truncated {
            self.truncated = truncated;
            ring.set_truncated(truncated);
        }
    }
}
