//! Pieces of memory that all threads keep, so that each is read once, for objects that lie anywhere.
//!
//! What is kept takes memory that was not in use, which is dear to touch: only where threads read the same pieces again and again
//! is it worth it. Invariant: no more pieces are kept than may be, and what is kept stays as it was read.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use memtrack_inject::ProcessView;

use crate::memory::PIECE;
use crate::piece_tree::{END, PieceTree};

/// Once threads have given up so many pieces for each in which there are objects, they read them again and again.
const TIMES_GIVEN_UP: usize = 2;

/// Pieces that are kept for all.
#[derive(Debug, Default)]
pub(crate) struct SharedPieces {
    /// As many as may be kept.
    most: usize,
    count: AtomicUsize,
    /// Pieces of their own that threads had to give up for others.
    given_up: AtomicUsize,
    is_used: AtomicBool,
    /// `None`: it could not be read.
    pieces: PieceTree<Option<Box<[u8]>>>,
}

impl SharedPieces {
    /// Keeps at most so many bytes.
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { most: usize::try_from(most_bytes).unwrap_or(usize::MAX) / PIECE, ..Self::default() }
    }

    /// Takes notice that a thread gave up one of its own pieces for another.
    pub(crate) fn give_up(&self) {
        self.given_up.fetch_add(1, Relaxed);
    }

    /// Keeps pieces from now on if those that threads have are not enough, where objects are in so many.
    pub(crate) fn consider(&self, pieces: usize) {
        if self.most > 0 && self.given_up.load(Relaxed) > pieces * TIMES_GIVEN_UP {
            self.is_used.store(true, Relaxed);
        }
    }

    /// Whether pieces are kept.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Copies what is at an address, up to the end of its piece; `None`: that is not kept, and cannot be.
    pub(crate) fn copy(&self, address: u64, into: &mut [u8], view: &ProcessView) -> Option<usize> {
        if address >= END {
            return None;
        }
        let offset = (address % PIECE as u64) as usize;
        let piece = self.pieces.get(address).or_else(|| self.read(address - offset as u64, view))?;
        let bytes = piece.as_ref()?.get(offset..)?;
        let len = bytes.len().min(into.len());
        into.get_mut(..len)?.copy_from_slice(bytes.get(..len)?);
        Some(len)
    }

    /// Reads the piece that begins here, if it is in one mapping.
    #[cold]
    fn read(&self, start: u64, view: &ProcessView) -> Option<&Option<Box<[u8]>>> {
        if self.count.load(Relaxed) >= self.most || view.mapped_to(start)? < start + PIECE as u64 {
            return None;
        }
        let read = || {
            if self.count.fetch_add(1, Relaxed) >= self.most {
                return None;
            }
            let mut bytes = vec![0; PIECE].into_boxed_slice();
            view.read(start, &mut bytes).ok().map(|()| bytes)
        };
        Some(self.pieces.get_or_init(start, read))
    }
}
