//! Compares the cached chain with the thread's present one.
//!
//! This dominates the cost of an allocation in Python, so as little as possible is compared. Invariant: frames reported
//! as equal are equal, frame by frame, or by the proof in [`frame_sentinels`](super::super::frame_sentinels).

use super::super::frame::{OwnThreadState, PythonFrame};
use super::super::frame_sentinels::{CLEARANCE, GAP};
use super::super::interpreter::Interpreter;
use super::super::layout::{SentinelKind, Version};
#[cfg(feature = "verify-marks")]
use super::super::verify_sentinels;
use super::links::{ChainLink, MOST};
use super::{Chain, FrameDetail};

/// How the cached chain compares with the present one.
pub(super) enum ChainComparison {
    Same,
    /// The same but for the newest frame's position.
    Moved(usize),
    Different,
}

impl Chain {
    /// Compares the cached frames with memory.
    #[inline(always)]
    pub(super) fn compare<V: Version>(&mut self, python: &Interpreter) -> ChainComparison {
        let Some(newest) = self.length.checked_sub(1) else { return ChainComparison::Same };
        let last = self.links.get(newest);
        // SAFETY: the newest frame of this thread.
        let frame = unsafe { PythonFrame::<V>::new(self.newest) };
        if frame.previous() != last.previous || self.matching_from::<V>(python, newest, last.previous) != 0 {
            return ChainComparison::Different;
        }
        let position = frame.position();
        if position == last.position && same_code(&frame, &last.detail) {
            return ChainComparison::Same;
        }
        if self.remains::<V>(python, &frame, newest) {
            ChainComparison::Moved(position)
        } else {
            ChainComparison::Different
        }
    }

    /// Compares the frames below `length`, newest first, whose newest is at `address`; gives the length of the part
    /// that is still in question: 0 when all are equal, else the first that differs is the newest of that part.
    /// A frame in which a sentinel is found is the last that needs a look.
    #[inline(always)]
    pub(super) fn matching_from<V: Version>(
        &mut self,
        python: &Interpreter,
        length: usize,
        mut address: usize,
    ) -> usize {
        let mut top = length;
        while let Some(sentinel) = self.sentinels.newest_below(top).copied() {
            let differing = self.matching_between::<V>(sentinel.place, top, address);
            if differing > sentinel.place {
                return differing;
            }
            let link = self.links.get(sentinel.place);
            if !sentinel.is_there::<V>(link.position) {
                self.sentinels.truncate(sentinel.place);
            } else if !self.is_tracing::<V>() && self.passes_audit::<V>(python, sentinel.place, link.previous) {
                #[cfg(feature = "verify-marks")]
                verify_sentinels::note(self.shows_below::<V>(python, sentinel.place, link.previous));
                self.add_sentinels_between::<V>(python, sentinel.place, length);
                return 0;
            }
            (top, address) = (sentinel.place, link.previous);
        }
        let differing = self.matching_between::<V>(0, top, address);
        if differing == 0 {
            self.add_sentinels_between::<V>(python, 0, length);
        }
        differing
    }

    /// Compares the frames from `floor` on and below `length`, whose newest is at `address`: `floor` when all are
    /// equal, else one more than the place of the first that differs.
    #[inline(always)]
    pub(super) fn matching_between<V: Version>(&self, floor: usize, length: usize, mut address: usize) -> usize {
        let links = self.links.between(floor, length);
        floor.wrapping_add(matching::<V>(links, &mut address))
    }

    /// Whether the sentinel at `length` stands for what it should, as far as that is looked at; if not, there are no
    /// more sentinels.
    #[inline(always)]
    fn passes_audit<V: Version>(&mut self, python: &Interpreter, length: usize, address: usize) -> bool {
        if !self.sentinels.is_audit_due() || self.shows_below::<V>(python, length, address) {
            return true;
        }
        #[cfg(feature = "verify-marks")]
        verify_sentinels::note(false);
        self.sentinels.give_up();
        false
    }

    /// Whether the present chain from `address` on shows the frames that the cached one shows below `length`.
    #[cold]
    #[inline(never)]
    pub(super) fn shows_below<V: Version>(&self, python: &Interpreter, mut length: usize, mut address: usize) -> bool {
        while address != 0 {
            // SAFETY: reached from this thread's newest frame by links that were just read or confirmed.
            let frame = unsafe { PythonFrame::<V>::new(address) };
            if frame.is_shown(python) {
                let Some(place) = (0..length).rev().find(|place| self.links.get(*place).detail.id != 0) else {
                    return false;
                };
                let link = self.links.get(place);
                let same = self.links.get(place.wrapping_add(1)).previous == address
                    && link.position == frame.position()
                    && same_code(&frame, &link.detail);
                if !same {
                    return false;
                }
                length = place;
            }
            address = frame.previous();
        }
        (0..length).all(|place| self.links.get(place).detail.id == 0)
    }

    #[inline(always)]
    pub(super) fn is_tracing<V: Version>(&self) -> bool {
        // SAFETY: the state from which this update reached its frames.
        unsafe { OwnThreadState::<V>::new(self.state) }.is_tracing()
    }

    /// Makes sentinels, if there are too few, between the sentinel at `floor` (or the root) and the frame at `length`,
    /// all of which were just compared.
    #[inline(always)]
    fn add_sentinels_between<V: Version>(&mut self, python: &Interpreter, floor: usize, length: usize) {
        let is_possible = !matches!(V::L.sentinel_kind, SentinelKind::Unknown);
        if is_possible && self.sentinels.are_wanted(length.wrapping_sub(floor)) && !self.is_tracing::<V>() {
            self.make_sentinels::<V>(python, floor, length);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_sentinels<V: Version>(&mut self, python: &Interpreter, floor: usize, length: usize) {
        self.sentinels.truncate(floor.wrapping_add(1));
        let (mut made, mut next) = (0_usize, floor.wrapping_add(GAP));
        for place in floor.wrapping_add(GAP)..=length.saturating_sub(CLEARANCE) {
            if place >= next && self.make_sentinel::<V>(python, place) {
                (made, next) = (made.wrapping_add(1), place.wrapping_add(GAP));
            }
        }
        // Where few frames can have a sentinel, looking for them costs more than they save.
        if made.wrapping_mul(4 * GAP) < length.wrapping_sub(floor) {
            self.sentinels.back_off();
        }
    }

    /// Writes a sentinel to the frame at `place`, if that is possible.
    fn make_sentinel<V: Version>(&mut self, python: &Interpreter, place: usize) -> bool {
        let address = |place: usize| self.links.get(place.wrapping_add(1)).previous;
        // SAFETY: reached from this thread's newest frame by links that were just confirmed.
        let frame = unsafe { PythonFrame::<V>::new(address(place)) };
        // SAFETY: reached from this thread's newest frame by links that were just confirmed.
        let callee = unsafe { PythonFrame::<V>::new(address(place.wrapping_add(1))) };
        self.links.get(place).detail.id != 0 && self.sentinels.make(python.code_type, place, &frame, &callee)
    }

    /// Whether the frame at `position` is the shown frame it was, at another instruction.
    #[inline(always)]
    pub(super) fn remains<V: Version>(&self, python: &Interpreter, frame: &PythonFrame<V>, position: usize) -> bool {
        let detail = self.links.get(position).detail;
        detail.id != 0 && frame.executable() == detail.executable && frame.is_shown(python)
    }

    /// The frame at `position`, which remains, may have gone on to another copy of its bytecode.
    #[inline(always)]
    pub(super) fn settle<V: Version>(&mut self, python: &Interpreter, frame: &PythonFrame<V>, position: usize) {
        if V::L.thread_local_bytecode.is_none() {
            return;
        }
        if let Some(ChainLink { detail, .. }) = self.links.get_mut(position) {
            let setting = frame.setting();
            if detail.setting != setting {
                (detail.setting, detail.shown_from) = (setting, frame.shown_from(python));
            }
        }
    }

    /// Invalidates cached frames whose code objects were freed: another object may be at their address now.
    pub(super) fn invalidate_dead_code(&mut self) {
        if self.codes.is_current() {
            return;
        }
        let links = self.links.below_mut(self.length);
        let mut is_known = false;
        let whole = self.codes.catch_up(|id| {
            is_known = true;
            for link in links.iter_mut().filter(|link| link.detail.id == id) {
                link.detail.executable = usize::MAX;
            }
        });
        if is_known || !whole || self.codes.has_unlisted() {
            self.tops.forget();
        }
        for ChainLink { position, detail, .. } in links {
            if (!whole && detail.id != 0) || detail.executable == usize::MAX {
                (*position, detail.executable) = (usize::MAX, usize::MAX);
            }
        }
    }
}

/// Compares cached frames, oldest first, with memory, from the newest on, which is at `address`: 0 when all are equal, else
/// one more than the place of the first that differs. `address` is then that of the frame below those that are equal. Each
/// address comes from the cache, where the comparison of the newer frame has just confirmed it, so the reads need not wait
/// for each other.
#[inline(always)]
pub(super) fn matching<V: Version>(links: &[ChainLink], address: &mut usize) -> usize {
    for (place, link) in links.iter().enumerate().rev() {
        // SAFETY: reached from this thread's newest frame by links that were just read or confirmed.
        let frame = unsafe { PythonFrame::<V>::new(*address) };
        if !is_same(&frame, link) {
            return place.wrapping_add(1);
        }
        *address = link.previous_from_cache();
    }
    0
}

/// As [`matching`], of a few frames, written out so that only the branch that ends it is taken: the address of the frame
/// below them. `None`: they are not equal, or too many.
#[inline(always)]
pub(super) fn few_matching<V: Version>(links: &[ChainLink], mut address: usize) -> Option<usize> {
    let count = links.len();
    macro_rules! compare {
        ($($nth:literal)*) => {
            const _: () = assert!([$($nth),*].len() == MOST + 1);
            $(
                if count < $nth {
                    return Some(address);
                }
                let link = links.get(count.wrapping_sub($nth))?;
                // SAFETY: reached from this thread's newest frame by links that were just read or confirmed.
                if !is_same(&unsafe { PythonFrame::<V>::new(address) }, link) {
                    return None;
                }
                address = link.previous_from_cache();
            )*
        };
    }
    compare!(1 2 3 4 5 6 7 8 9 10 11 12 13);
    (count == MOST.wrapping_add(1)).then_some(address)
}

/// Whether the frame has the caller and the position of the cached one.
#[inline(always)]
pub(super) fn is_same<V: Version>(frame: &PythonFrame<V>, link: &ChainLink) -> bool {
    frame.previous() == link.previous && frame.position() == link.position && same_code(frame, &link.detail)
}

/// Where a position does not tell the code object: whether that is the same, too.
#[inline(always)]
pub(super) fn same_code<V: Version>(frame: &PythonFrame<V>, detail: &FrameDetail) -> bool {
    !V::L.position_needs_code() || frame.executable() == detail.executable
}

/// Whether the cached frame is still the same shown frame, at another instruction.
#[inline(always)]
pub(super) fn is_shown_at<V: Version>(frame: &PythonFrame<V>, detail: &FrameDetail, position: usize) -> bool {
    detail.id != 0
        && position >= detail.shown_from
        && frame.executable() == detail.executable
        && frame.setting() == detail.setting
}
