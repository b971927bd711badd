//! Which words of the stack need no comparison, because a frame sentinel stands.
//!
//! While a sentinel stands, its Python frame waits in the same call as when it was made: for a frame that the same
//! evaluation loop runs, or, where each frame has a loop of its own, within that loop. So that loop has not returned since,
//! and neither has any native frame that is older. Not one of them can have been left and entered again: a native frame
//! ends only after all newer ones, and the first to end would be the loop, with which the sentinel goes. What such a frame
//! keeps in the words that lead to its caller (return address, saved registers, all of which stay as they are until it
//! returns) is therefore what it was when the sentinel was made. Words that were known to be right at any moment since
//! then are right as long as it stands.
//!
//! A sentinel also proves the older sentinels of its chain, since it proves their frames to be waiting.
//!
//! What moves stacks in memory (greenlets) may change what lies below its own beginning. So some of the shortcuts are
//! audited, and a thread in which one was wrong goes on without them.
//!
//! Invariant: the words that a number of words is given for were right when the sentinel stood, which it does now, and none
//! of them has been forgotten since.

use std::hint::cold_path;

use memtrack_transport::layout::SlotHeader;

use super::Walk;
use crate::stacks::native::merge::EvaluationEntries;
use crate::stacks::native::rule::FrameState;
#[cfg(feature = "verify-marks")]
use crate::stacks::python::note_shortcut;
use crate::stacks::python::{Chain, StandingSentinel};

/// Sentinels of one chain that something is known of, by their number; of more, the older ones are forgotten.
const SENTINELS: usize = 64;
/// So many words are compared as fast as a sentinel is looked at.
const FEW: usize = if cfg!(feature = "verify-marks") { 0 } else { 24 };
/// One of so many shortcuts is audited.
const AUDITED_ONE_IN: u32 = if cfg!(feature = "verify-marks") { 1 } else { 128 };

/// How many words a sentinel proves.
#[derive(Clone, Copy, Debug)]
struct SentinelProof {
    /// The sentinel's; 0: none.
    number: usize,
    words: usize,
}

/// What the sentinels of a thread's chain prove.
#[derive(Debug)]
pub(super) struct ProvenWords {
    proofs: [SentinelProof; SENTINELS],
    /// The sentinel that stands in this hook, and how many words need no comparison.
    standing: Option<StandingSentinel>,
    words: usize,
    shortcuts: u32,
    /// An audit has shown that sentinels prove nothing of this thread's words.
    is_wrong: bool,
}

impl ProvenWords {
    pub(super) const fn new() -> Self {
        let none = SentinelProof { number: 0, words: 0 };
        Self { proofs: [none; SENTINELS], standing: None, words: 0, shortcuts: 0, is_wrong: false }
    }

    /// How many words need no comparison in this hook.
    #[inline(always)]
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    /// The words are forgotten.
    pub(super) const fn forget(&mut self) {
        let none = SentinelProof { number: 0, words: 0 };
        (self.proofs, self.standing, self.words) = ([none; SENTINELS], None, 0);
    }

    /// How many words are proven by the sentinel that has so many older ones.
    #[inline(always)]
    fn of(&self, standing: StandingSentinel) -> Option<usize> {
        let proof = self.proofs.get(standing.older % SENTINELS)?;
        (proof.number == standing.number).then_some(proof.words)
    }
}

impl Walk {
    /// Whether the words are so many that it is worth while to find out which need no comparison.
    #[inline(always)]
    pub(in crate::stacks::native) const fn has_many_words(&self) -> bool {
        self.words.length() > FEW
    }

    /// All words need a comparison in this hook.
    pub(in crate::stacks::native) const fn begin_unproven(&mut self) {
        (self.proven_words.standing, self.proven_words.words) = (None, 0);
    }

    /// As [`Walk::is_same`]; finds out which words need no comparison until the hook ends, in which the chain was updated.
    #[inline(never)]
    pub(in crate::stacks::native) fn is_same_by_proof(
        &mut self,
        chain: &Chain,
        truncated: bool,
        (start, slot): (FrameState, &SlotHeader),
    ) -> bool {
        self.begin_unproven();
        if !truncated && !self.proven_words.is_wrong {
            self.find_proof(chain);
        }
        self.is_same(start, self.proven_words.words, slot)
    }

    #[inline(always)]
    fn find_proof(&mut self, chain: &Chain) {
        self.proven_words.standing = chain.standing_sentinel();
        let Some(words) = self.proven_words.standing.and_then(|standing| self.proven_words.of(standing)) else {
            return;
        };
        self.proven_words.shortcuts = self.proven_words.shortcuts.wrapping_add(1);
        if self.proven_words.shortcuts.is_multiple_of(AUDITED_ONE_IN) && !self.passes_audit(words) {
            return;
        }
        self.proven_words.words = words;
    }

    #[cold]
    #[inline(never)]
    fn passes_audit(&mut self, words: usize) -> bool {
        let is_right = self.words.are_first_same(words, 0);
        #[cfg(feature = "verify-marks")]
        note_shortcut(is_right);
        if !is_right {
            self.proven_words.forget();
            self.proven_words.is_wrong = true;
        }
        is_right
    }

    /// All frames are right now, and were merged with the Python frames: notes how many of their words the sentinel proves
    /// that stands in this hook.
    #[inline(always)]
    pub(in crate::stacks::native) fn note_proof(&mut self, entries: &EvaluationEntries) {
        if let Some(standing) = self.proven_words.standing
            && self.proven_words.of(standing).is_none()
        {
            self.note_new_proof(standing, entries);
        }
    }

    /// The same where the frames below the newest evaluation loop are right, which has its place among them, and so many
    /// older Python frames.
    #[inline(always)]
    pub(in crate::stacks::native) fn note_proof_below(&mut self, (place, entered): (usize, usize)) {
        if let Some(standing) = self.proven_words.standing
            && standing.shown as usize > entered
            && self.proven_words.of(standing).is_none()
        {
            cold_path();
            self.note_words(standing, self.words_of(place));
        }
    }

    #[cold]
    #[inline(never)]
    fn note_new_proof(&mut self, standing: StandingSentinel, entries: &EvaluationEntries) {
        let frames = self.frames();
        let runs = frames.partition_point(|frame| frame.python < standing.shown);
        let below = runs.checked_sub(1).and_then(|below| frames.get(below));
        let found = frames.get(runs).zip(below).zip(entries.runs(standing.shown));
        // Where it is not certain which loop runs the sentinel's frame, nothing is proven.
        let words = found.map_or(0, |((runs, below), entry)| {
            let is_there = entry.address >= runs.state.sp && entry.address < below.state.sp;
            if runs.is_replaced && is_there { below.words as usize } else { 0 }
        });
        self.note_words(standing, words);
    }

    fn note_words(&mut self, standing: StandingSentinel, words: usize) {
        let words = if self.words.are_own(words) { words } else { 0 };
        if let Some(proof) = self.proven_words.proofs.get_mut(standing.older % SENTINELS) {
            *proof = SentinelProof { number: standing.number, words };
        }
    }
}
