//! The memory of the process that is read, in pieces that are kept: objects lie close together.
//!
//! Invariant: what is kept is bounded, and what cannot be read is `None`.

use std::cell::RefCell;

use memtrack_inject::ProcessView;
use rustc_hash::FxHashMap;

const PIECE: usize = 64 << 10;
const PAGE: usize = 4 << 10;
/// Pieces that are kept.
const MOST_PIECES: usize = 8 << 10;
/// The most bytes that are read at once.
const MOST: u64 = 1 << 32;

/// Bytes of a piece, and which of its pages could be read.
struct Piece {
    bytes: Box<[u8]>,
    pages: u16,
}

/// Memory that is read many times.
pub(crate) struct ObjectMemory<'a> {
    view: &'a ProcessView,
    pieces: RefCell<FxHashMap<u64, Piece>>,
}

impl<'a> ObjectMemory<'a> {
    pub(crate) fn new(view: &'a ProcessView) -> Self {
        Self { view, pieces: RefCell::default() }
    }

    /// Fills the buffer; `None`: not all of it can be read.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let mut pieces = self.pieces.borrow_mut();
        let mut done = 0;
        while done < into.len() {
            let at = address.checked_add(done as u64)?;
            let (key, offset) = (at / PIECE as u64, (at % PIECE as u64) as usize);
            if pieces.len() >= MOST_PIECES && !pieces.contains_key(&key) {
                pieces.clear();
            }
            let piece = pieces.entry(key).or_insert_with(|| self.load(key * PIECE as u64));
            if piece.pages >> (offset / PAGE) & 1 == 0 {
                return None;
            }
            let len = (PAGE - offset % PAGE).min(into.len() - done);
            into.get_mut(done..done + len)?.copy_from_slice(piece.bytes.get(offset..offset + len)?);
            done += len;
        }
        Some(())
    }

    fn load(&self, start: u64) -> Piece {
        let mut bytes = vec![0; PIECE].into_boxed_slice();
        let mut pages = u16::MAX;
        if self.view.read(start, &mut bytes).is_err() {
            pages = 0;
            for (index, page) in bytes.chunks_mut(PAGE).enumerate() {
                let at = start + (index * PAGE) as u64;
                if self.view.read(at, page).is_ok() {
                    pages |= 1 << index;
                }
            }
        }
        Piece { bytes, pages }
    }

    pub(crate) fn u64(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    pub(crate) fn u32(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    pub(crate) fn u8(&self, address: u64) -> Option<u8> {
        let mut bytes = [0];
        self.read(address, &mut bytes)?;
        Some(bytes[0])
    }

    /// Calls `each` with the words of an array until one cannot be read; returns whether all could be.
    pub(crate) fn words(&self, address: u64, count: u64, mut each: impl FnMut(u64)) -> bool {
        if count.checked_mul(8).is_none_or(|bytes| bytes > MOST) {
            return false;
        }
        let mut buffer = [0; 4096];
        let mut done = 0;
        while done < count {
            let some = (count - done).min(512);
            let part = &mut buffer[..some as usize * 8];
            if address.checked_add(done * 8).and_then(|at| self.read(at, part)).is_none() {
                return false;
            }
            for word in part.chunks_exact(8) {
                each(u64::from_le_bytes(word.try_into().unwrap_or_default()));
            }
            done += some;
        }
        true
    }

    /// The text up to a zero byte, if it ends within `most` bytes.
    pub(crate) fn text(&self, address: u64, most: u64) -> Option<String> {
        let mut text = Vec::new();
        for at in 0..most {
            match self.u8(address.checked_add(at)?)? {
                0 => return String::from_utf8(text).ok(),
                byte => text.push(byte),
            }
        }
        None
    }
}
