//! Pieces of memory that all threads keep, so that each is read once, for objects that lie anywhere.
//!
//! What is kept takes memory that was not in use, which is dear to touch: only where threads read the same pieces again and again
//! is it worth it. Invariant: no more pieces are kept than may be, and what is kept stays as it was read.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use memtrack_inject::ProcessView;

use crate::memory::piece_tree::{END, PIECE, PieceTree};

/// Once threads have evicted so many pieces for each in which there are objects, they read them again and again.
const TIMES_EVICTED: usize = 2;

/// Pieces that are kept for all.
#[derive(Debug, Default)]
pub(crate) struct SharedPieces {
    /// As many as may be kept.
    most: usize,
    count: AtomicUsize,
    /// Pieces of their own that threads evicted for others.
    evicted: AtomicUsize,
    is_used: AtomicBool,
    /// `None`: it could not be read.
    pieces: PieceTree<Option<Box<[u8]>>>,
}

impl SharedPieces {
    /// Keeps at most so many bytes.
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { most: usize::try_from(most_bytes).unwrap_or(usize::MAX) / PIECE, ..Self::default() }
    }

    /// Takes note that a thread evicted one of its own pieces for another.
    pub(crate) fn note_eviction(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// Keeps pieces from now on if those that threads have are not enough, where objects are in so many.
    pub(crate) fn consider(&self, pieces: usize) {
        if self.most > 0 && self.evicted.load(Relaxed) > pieces * TIMES_EVICTED {
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

    /// The byte at an address if its piece is kept, for [`crate::prefetch`].
    pub(crate) fn to_prefetch(&self, address: u64) -> u64 {
        let piece = self.pieces.get(address % END).and_then(Option::as_ref);
        piece.and_then(|bytes| bytes.get((address % PIECE as u64) as usize)).copied().unwrap_or(0).into()
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use memtrack_inject::ProcessView;

    use super::{SharedPieces, TIMES_EVICTED};
    use crate::memory::ObjectMemory;
    use crate::memory::piece_tree::{END, PIECE};

    /// The first multiple of a piece in a mapping of the process that has four pieces behind it.
    fn four_pieces(pid: u32) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let readable = maps.lines().filter(|line| line.contains(" r-xp ")).filter_map(|line| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(from)?.next_multiple_of(PIECE as u64), number(to)?))
        });
        readable.filter(|(from, to)| from + 4 * PIECE as u64 <= *to).map(|(from, _)| from).next().unwrap()
    }

    #[test]
    fn as_many_pieces_as_may_be_are_kept_as_they_were_read() {
        // A process that has begun, since it answers.
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cat.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let view = ProcessView::of_running(cat.id() as i32).unwrap();
        let first = four_pieces(cat.id());
        let mut all = vec![0; 4 * PIECE];
        view.read(first, &mut all).unwrap();
        let shared = Arc::new(SharedPieces::new(2 * PIECE as u64));
        let memory = ObjectMemory::one_of(&view, 1, &shared);
        let is_used = |pieces| {
            memory.consider_sharing(pieces);
            memory.is_shared()
        };
        assert!(!is_used(1));
        (0..=TIMES_EVICTED).for_each(|_| shared.note_eviction());
        assert!(!is_used(2) && is_used(1));

        let (second, third) = (first + PIECE as u64, first + 2 * PIECE as u64);
        let mut into = [0; 16];
        assert_eq!(shared.copy(second - 8, &mut into, &view), Some(8));
        assert_eq!((&into[..8], shared.to_prefetch(second - 8)), (&all[PIECE - 8..PIECE], all[PIECE - 8].into()));
        memory.read(second - 8, &mut into).unwrap();
        assert_eq!(into, all[PIECE - 8..PIECE + 8]);
        // There is no room for the third piece, nor is there anything at the other addresses.
        for address in [third, 4096, END, u64::MAX] {
            assert_eq!((shared.copy(address, &mut into, &view), shared.to_prefetch(address)), (None, 0));
        }
        memory.read(third - 8, &mut into).unwrap();
        assert_eq!(into, all[2 * PIECE - 8..2 * PIECE + 8]);
        assert_eq!((memory.u64(4096), memory.u64(END), memory.u64(u64::MAX)), (None, None, None));

        drop(cat.stdin.take());
        assert!(cat.wait().unwrap().success());
        assert_eq!(shared.copy(second, &mut into, &view), Some(16));
        assert_eq!(into, all[PIECE..PIECE + 16]);
        memory.forget();
        assert_eq!((memory.is_shared(), memory.u64(second)), (false, None));
    }
}
