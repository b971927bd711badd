//! The comparison of the usual case: nothing has changed since the last record, or only where the newest frame stands.
//!
//! It exists because this is what nearly every allocation needs, and the general comparison, which can also make and
//! drop marks, costs twice as much for the same answer. Invariant: it answers only what [`Chain::compare`] would answer
//! too; where that takes more than the frames of the span and the mark below them, it says that it does not know.

use super::super::frame::{Frame, ThreadState};
use super::super::layout::Version;
use super::super::marks::{LONGEST_UNMARKED, Mark};
#[cfg(feature = "verify-marks")]
use super::super::verify;
use super::compare::same_code;
use super::{Chain, Detail, Link};
use std::hint::cold_path;

/// The most frames below the newest that a glance looks at.
const MOST: usize = 12;
const _: () = assert!(LONGEST_UNMARKED < MOST + 1, "nothing that is compared without a mark is too long for a glance");

/// What a glance has to look at.
#[derive(Debug)]
pub(super) struct Span {
    /// The oldest place to compare; past every chain's end where the chain must be looked at in full.
    floor: usize,
    /// The mark in the frame at `floor`; without one, `floor` is the root.
    mark: Option<Mark>,
}

impl Span {
    /// Everything must be looked at.
    pub(super) const UNKNOWN: Self = Self { floor: usize::MAX, mark: None };
}

/// What a glance at the chain says.
pub(super) enum Glance {
    Same,
    /// The same but for the newest frame's position.
    Moved(usize),
    /// It takes a closer look.
    Unknown,
}

impl Chain {
    /// Compares the frames of the span with memory. The newest frame's address must be the cached one.
    #[inline(always)]
    pub(super) fn glance<V: Version>(&self) -> Glance {
        let Some(links) = self.links.as_slice().get(self.span.floor..self.length) else {
            cold_path();
            return Glance::Unknown;
        };
        let Some((newest, older)) = links.split_last() else {
            cold_path();
            return Glance::Same;
        };
        // SAFETY: the newest frame of this thread.
        let frame = unsafe { Frame::<V>::new(self.newest) };
        if frame.previous() != newest.previous || !self.are_unchanged::<V>(newest, older) {
            cold_path();
            return Glance::Unknown;
        }
        let position = frame.position();
        let detail = self.newest_detail;
        if position == newest.position && same_code(&frame, &detail) {
            return Glance::Same;
        }
        cold_path();
        if is_shown_at(&frame, &detail, position) { Glance::Moved(position) } else { Glance::Unknown }
    }

    /// Whether the frames below the newest, and what the mark stands for, are what they were.
    #[inline(always)]
    fn are_unchanged<V: Version>(&self, newest: &Link, older: &[Link]) -> bool {
        let (mut address, mut rest) = (newest.previous_from_cache(), older);
        // Unrolled, so that only the branch that ends it is taken.
        for _ in 0..MOST {
            let Some((link, older)) = rest.split_last() else { break };
            if !self.is_unchanged::<V>(&mut address, link, older.len()) {
                cold_path();
                return false;
            }
            rest = older;
        }
        let Some(mark) = &self.span.mark else { return true };
        // SAFETY: the state from which this update reached its frames.
        let state = unsafe { ThreadState::<V>::new(self.state) };
        let is_there = older.first().is_some_and(|link| mark.is_there::<V>(link.position)) && !state.is_tracing();
        #[cfg(feature = "verify-marks")]
        if let Some((python, link)) = super::find::interpreter().zip(older.first()).filter(|_| is_there) {
            verify::note(self.shows_below::<V>(python, mark.place, link.previous));
        }
        is_there
    }

    /// Whether the frame at `address` is the one cached so many places above the floor, and unchanged; `address` is its
    /// caller's then.
    #[inline(always)]
    fn is_unchanged<V: Version>(&self, address: &mut usize, link: &Link, depth: usize) -> bool {
        // SAFETY: reached from this thread's newest frame by links that were just read or confirmed.
        let frame = unsafe { Frame::<V>::new(*address) };
        if frame.previous() != link.previous || frame.position() != link.position {
            return false;
        }
        *address = link.previous_from_cache();
        !V::L.position_needs_code() || same_code(&frame, &self.details.get(self.span.floor.wrapping_add(depth)))
    }

    /// Decides what the next glance looks at, after the chain or its marks have changed.
    pub(super) fn refocus(&mut self) {
        let newest = self.length.saturating_sub(1);
        let mark = self.marks.newest_below(newest).copied();
        let floor = mark.map_or(0, |mark| mark.place);
        // Where that is too much to compare, the general comparison may want to make marks.
        let is_short = newest.wrapping_sub(floor) <= MOST && (mark.is_some() || !cfg!(feature = "verify-marks"));
        self.span = if is_short { Span { floor, mark } } else { Span::UNKNOWN };
        self.newest_detail = self.details.get(newest);
    }
}

/// Whether the cached frame is still the same shown frame, at another instruction.
#[inline(always)]
fn is_shown_at<V: Version>(frame: &Frame<V>, detail: &Detail, position: usize) -> bool {
    detail.id != 0
        && position >= detail.shown_from
        && frame.executable() == detail.executable
        && frame.setting() == detail.setting
}
