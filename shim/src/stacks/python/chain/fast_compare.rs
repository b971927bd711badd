//! Fast path of the stack comparison: unchanged since the last record, or only the newest frame has moved.
//!
//! Nearly every allocation needs just this. The general comparison, which can also make and drop sentinels, costs twice
//! as much for the same answer. Invariant: it gives only answers that [`Chain::compare`] would give too; where more
//! than the frames of the span and the sentinel below them would have to be read, it answers that it does not know.

use super::super::frame::{OwnThreadState, PythonFrame};
use super::super::frame_sentinels::{FrameSentinel, LONGEST_WITHOUT_SENTINEL};
use super::super::interpreter::{self, Interpreter};
use super::super::layout::Version;
#[cfg(feature = "verify-marks")]
use super::super::verify_sentinels;
use super::Chain;
use super::compare::{is_same, is_shown_at, same_code};
use super::follow_near::ComparedFloor;
use super::links::{ChainLink, MOST, Newest};
use std::hint::cold_path;

const _: () = assert!(
    LONGEST_WITHOUT_SENTINEL < MOST + 1,
    "nothing that is compared without a sentinel is too long for the fast comparison"
);

/// The frames that the fast comparison reads.
#[derive(Debug)]
pub(super) struct ComparedSpan {
    /// Frames to compare below the newest; past [`MOST`] where the chain must be looked at in full, or is empty.
    older: usize,
    /// What is known of them. Code that changes the length of the chain resets the span first.
    links: Newest,
    /// The place of the oldest of them.
    floor: usize,
    /// Sentinels up to there.
    sentinels: usize,
    /// The sentinel in the oldest of them; where that is the root and has none, what stands for one.
    sentinel: FrameSentinel,
}

impl ComparedSpan {
    /// The place of the oldest of the frames and the sentinels up to there, if the span is known and that is below `place`.
    #[inline(always)]
    pub(super) const fn floor_below(&self, place: usize) -> Option<(usize, usize)> {
        if self.floor < place { Some((self.floor, self.sentinels)) } else { None }
    }

    /// What is known of the frames, the newest last.
    ///
    /// # Safety
    /// The span must be known, as it is after a comparison that found something in it.
    #[inline(always)]
    pub(super) const unsafe fn links<'a>(&self) -> &'a [ChainLink; MOST + 1] {
        // SAFETY: of the chain's links; who gives them another length forgets the span.
        unsafe { self.links.links() }
    }

    /// Whether the sentinel is as it was left.
    #[inline(always)]
    pub(super) fn is_proven<V: Version>(&self) -> bool {
        self.sentinel.stands::<V>()
    }

    /// The sentinel in the oldest of the frames.
    #[inline(always)]
    pub(super) const fn sentinel(&self) -> &FrameSentinel {
        &self.sentinel
    }

    /// The span ends at this frame, whose link is the last of those; too far above the oldest it is not compared.
    #[inline(always)]
    pub(super) fn stretch(&mut self, newest: usize, links: Newest) {
        let older = newest.wrapping_sub(self.floor);
        let is_short = older <= MOST && (self.sentinels != 0 || !cfg!(feature = "verify-marks"));
        (self.older, self.links) = (if is_short { older } else { usize::MAX }, links);
    }

    /// Nothing is known: the full comparison is needed.
    pub(super) const UNKNOWN: Self =
        Self { older: usize::MAX, links: Newest::NONE, floor: usize::MAX, sentinels: 0, sentinel: FrameSentinel::NONE };
}

/// Result of the fast comparison.
pub(crate) enum FastComparison {
    Same,
    /// The same but for the newest frame's position.
    Moved(usize),
    /// Unknown: more has to be compared. The newest frame's address, or 0 where no sentinel counts, a code object has died
    /// since, or there is no frame.
    Unknown(usize),
    /// The thread's state is not known without asking.
    Unasked,
}

impl Chain {
    /// Compares the calling thread's chain with what was written last, the interpreter not being about to end. It
    /// changes nothing and makes no call.
    #[inline(always)]
    pub(crate) fn compare_fast<V: Version>(&self) -> FastComparison {
        let Some(state) = interpreter::interpreter().and_then(Interpreter::own_thread_state_at_once) else {
            cold_path();
            return FastComparison::Unasked;
        };
        if state == 0 {
            cold_path();
            return if self.newest == 0 { FastComparison::Same } else { FastComparison::Unknown(0) };
        }
        // SAFETY: the interpreter says that this is the calling thread's own state, and nobody else is freeing it.
        let newest = unsafe { OwnThreadState::<V>::new(state) }.newest();
        self.compare_fast_from::<V>(state, newest)
    }

    /// Compares the frames of the span with memory, `newest` being the newest frame of the thread's state.
    #[inline(always)]
    pub(super) fn compare_fast_from<V: Version>(&self, state: usize, newest: usize) -> FastComparison {
        // SAFETY: the state from which the newest frame was reached.
        if unsafe { OwnThreadState::<V>::new(state) }.is_tracing() || !self.codes.is_current() {
            // No sentinel counts then. Without a trace function the full comparison does not take that much longer.
            cold_path();
            return FastComparison::Unknown(0);
        }
        if newest != self.newest {
            cold_path();
            return FastComparison::Unknown(newest);
        }
        if self.span.older > MOST {
            cold_path();
            return if newest == 0 { FastComparison::Same } else { FastComparison::Unknown(newest) };
        }
        // SAFETY: the span is known.
        let [older @ .., link] = unsafe { self.span.links() };
        // SAFETY: the newest frame of this thread.
        let frame = unsafe { PythonFrame::<V>::new(newest) };
        if frame.previous() != link.previous || !self.are_unchanged::<V>(link, older) {
            cold_path();
            return FastComparison::Unknown(newest);
        }
        let position = frame.position();
        if position == link.position && same_code(&frame, &link.detail) {
            return FastComparison::Same;
        }
        cold_path();
        if is_shown_at(&frame, &link.detail, position) {
            FastComparison::Moved(position)
        } else {
            FastComparison::Unknown(newest)
        }
    }

    /// Whether the frames below the newest, and what the sentinel stands for, are what they were.
    #[inline(always)]
    fn are_unchanged<V: Version>(&self, newest: &ChainLink, older: &[ChainLink; MOST]) -> bool {
        let mut address = newest.previous_from_cache();
        // Written out, so that only the branch that ends it is taken.
        macro_rules! compare {
            ($($count:literal)*) => {
                const _: () = assert!([$($count),*].len() == MOST);
                'all: {
                    $(
                        if self.span.older < $count {
                            break 'all;
                        }
                        let Some(link) = older.get(MOST - $count) else { break 'all };
                        // SAFETY: reached from this thread's newest frame by links that were just read or confirmed.
                        if !is_same(&unsafe { PythonFrame::<V>::new(address) }, link) {
                            cold_path();
                            return false;
                        }
                        address = link.previous_from_cache();
                    )*
                    let _ = address;
                }
            };
        }
        compare!(1 2 3 4 5 6 7 8 9 10 11 12);
        let is_proven = self.span.sentinel.stands::<V>();
        #[cfg(feature = "verify-marks")]
        if let Some((python, link)) = interpreter::interpreter().zip(older.get(MOST.wrapping_sub(self.span.older)))
            && is_proven
        {
            let floor = self.length.wrapping_sub(1).wrapping_sub(self.span.older);
            verify_sentinels::note(self.shows_below::<V>(python, floor, link.previous));
        }
        is_proven
    }

    /// Decides what the next fast comparison reads, after the chain or its sentinels have changed.
    pub(super) fn update_compared_span<V: Version>(&mut self) {
        let newest = self.length.saturating_sub(1);
        let sentinel = self.sentinels.newest_below(newest).copied();
        let floor = sentinel.map_or(0, |sentinel| sentinel.place);
        let older = newest.wrapping_sub(floor);
        // Where that is too much to compare, the general comparison may want to make sentinels.
        let is_short = older <= MOST && (sentinel.is_some() || !cfg!(feature = "verify-marks"));
        let is_of_frame = sentinel.is_none_or(|sentinel| sentinel.is_of::<V>(self.links.get(floor).position));
        let sentinels = sentinel.map_or(0, |_| self.sentinels.count_below(newest));
        let sentinel = sentinel.unwrap_or_else(FrameSentinel::of_nothing::<V>);
        self.span = match self.links.newest(self.length) {
            Some(links) if is_short && is_of_frame => ComparedSpan { older, links, floor, sentinels, sentinel },
            _ => ComparedSpan::UNKNOWN,
        };
    }
}

/// The span, as what is compared after a change that it reaches.
impl Chain {
    /// As [`Chain::update_compared_span`], where the newest sentinel was just found to be there.
    #[inline(always)]
    pub(super) fn set_compared_span<V: Version>(&mut self, floor: &ComparedFloor) {
        (self.span.floor, self.span.sentinels) = (floor.place, floor.sentinels);
        self.span.sentinel = floor.sentinel.unwrap_or_else(FrameSentinel::of_nothing::<V>);
        let newest = self.length.wrapping_sub(1);
        // Nothing is compared where this stays.
        self.span.older = usize::MAX;
        if let Some(links) = self.links.newest(self.length) {
            self.span.stretch(newest, links);
        }
    }
}
