//! The memory of the process that is read, in pieces that are kept: most objects that refer to one another lie close together.
//!
//! Those that a sorted list refers to lie anywhere: whoever reads says where what comes next is, and where that is scattered, a
//! piece is read whole only once two neighbouring pages of it are asked for, or kept for all threads. Invariant: what is kept is
//! bounded, and what cannot be read is `None`.

pub(crate) mod piece_tree;
pub(crate) mod shared_pieces;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use memtrack_inject::ProcessView;
use rustc_hash::FxHashMap;

use crate::memory::piece_tree::PIECE;
use crate::memory::shared_pieces::SharedPieces;
use crate::prefetch::prefetch;

/// The largest block whose end is not looked for.
pub(crate) const MOST_UNCHECKED: u64 = 1 << 20;
const PAGE: usize = 4 << 10;
/// Pieces that are kept, and of how many the bytes are allocated together: when they are no longer needed, the system has them.
const MOST_PIECES: usize = 4 << 10;
const SLAB: usize = 128;
const NEAR: usize = 1 << 10;
/// Of addresses that are read one after the other, so many tell whether they are scattered: if there is a piece for less than
/// four of them.
const SAMPLE: usize = 1 << 10;
/// The most bytes that are read at once.
const MOST: u64 = 1 << 32;
/// Words that are read at once: of most objects, and of arrays.
const FEW_WORDS: usize = 16;
const MANY_WORDS: usize = 512;

/// What is known of a piece.
struct Piece {
    key: u64,
    /// Which of its pages were asked for, and which of them could be read.
    asked: u16,
    pages: u16,
    /// Whether they could not be read at once.
    is_torn: bool,
}

/// The pieces that are kept: the ones that were read last.
struct KeptPieces {
    most: usize,
    /// Whether what is asked for next lies anywhere.
    is_scattered: bool,
    places: FxHashMap<u64, usize>,
    all: Vec<Piece>,
    /// Their bytes.
    slabs: Vec<Vec<u8>>,
    /// The one that is used next, once there are as many as may be.
    oldest: usize,
    /// The places of those that were asked for last, by the low bits of their keys: a dictionary and its keys, for example, are
    /// in two pieces that are asked for in turn. A place may have another piece by now.
    near: [u32; NEAR],
    /// Those that all threads keep.
    shared: Arc<SharedPieces>,
}

/// Memory that is read many times.
pub(crate) struct ObjectMemory<'a> {
    view: &'a ProcessView,
    pieces: RefCell<KeptPieces>,
    /// Whether it looks among those that all threads keep first.
    is_shared: Cell<bool>,
}

impl KeptPieces {
    fn new(most: usize, shared: Arc<SharedPieces>) -> Self {
        Self {
            most,
            is_scattered: false,
            places: FxHashMap::default(),
            all: Vec::new(),
            slabs: Vec::new(),
            oldest: 0,
            near: [0; NEAR],
            shared,
        }
    }

    /// So many bytes from an offset on in a piece, if they are on one page that can be read.
    fn bytes(&mut self, key: u64, offset: usize, len: usize, view: &ProcessView) -> Option<&[u8]> {
        let near = key as usize % NEAR;
        let mut place = self.near[near] as usize;
        if self.all.get(place).is_none_or(|piece| piece.key != key) {
            place = self.places.get(&key).copied().unwrap_or_else(|| self.add(key));
            self.near[near] = place as u32;
        }
        let piece = self.all.get_mut(place)?;
        let begin = place % SLAB * PIECE;
        let bytes = self.slabs.get_mut(place / SLAB)?.get_mut(begin..begin + PIECE)?;
        if piece.asked >> (offset / PAGE) & 1 == 0 {
            piece.load(bytes, offset / PAGE, self.is_scattered, view);
        }
        let is_there = offset % PAGE + len <= PAGE && piece.pages >> (offset / PAGE) & 1 == 1;
        if is_there { bytes.get(offset..offset + len) } else { None }
    }

    /// Puts a piece of which nothing is read yet in the place of the oldest.
    #[cold]
    fn add(&mut self, key: u64) -> usize {
        let place = if self.all.len() < self.most {
            if self.all.len() == self.slabs.len() * SLAB {
                self.slabs.push(vec![0; SLAB.min(self.most - self.all.len()) * PIECE]);
            }
            self.all.push(Piece { key, asked: 0, pages: 0, is_torn: false });
            self.all.len() - 1
        } else {
            self.oldest = (self.oldest + 1) % self.most;
            self.shared.note_eviction();
            self.oldest
        };
        if let Some(piece) = self.all.get_mut(place) {
            if self.places.get(&piece.key) == Some(&place) {
                self.places.remove(&piece.key);
            }
            (piece.key, piece.asked, piece.pages, piece.is_torn) = (key, 0, 0, false);
        }
        self.places.insert(key, place);
        place
    }
}

impl Piece {
    /// Reads a page, and with it the whole piece, unless what is read is scattered and neither page beside it was asked for.
    /// Nothing is asked of the system where nothing is mapped: most words that may be addresses are none.
    #[cold]
    fn load(&mut self, bytes: &mut [u8], page: usize, is_scattered: bool, view: &ProcessView) {
        let start = self.key * PIECE as u64;
        let is_mapped = |at: u64, len: usize| view.has_mapping(at, at.saturating_add(len as u64));
        let beside = 5_u32 << page >> 1;
        let all = !self.is_torn && (!is_scattered || u32::from(self.asked) & beside != 0);
        if all && is_mapped(start, PIECE) && view.read(start, bytes).is_ok() {
            (self.asked, self.pages) = (u16::MAX, u16::MAX);
            return;
        }
        self.is_torn |= all;
        self.asked |= 1 << page;
        let at = start + (page * PAGE) as u64;
        let into = bytes.get_mut(page * PAGE..(page + 1) * PAGE);
        if is_mapped(at, PAGE) && into.is_some_and(|into| view.read(at, into).is_ok()) {
            self.pages |= 1 << page;
        }
    }
}

/// In how many pieces these addresses are.
pub(crate) fn pieces_of(addresses: impl Iterator<Item = u64>) -> usize {
    let mut pieces: Vec<u64> = addresses.map(|at| at / PIECE as u64).collect();
    pieces.sort_unstable();
    pieces.dedup();
    pieces.len()
}

/// Whether addresses that are read one after the other lie anywhere, by the first of them.
pub(crate) fn are_scattered(addresses: impl Iterator<Item = u64>) -> bool {
    let mut count = 0;
    let pieces = pieces_of(addresses.take(SAMPLE).inspect(|_| count += 1));
    pieces * 4 > count
}

/// Second word of a block, if the interpreter checks what is written to blocks: `o`, and seven bytes of a guard. What was
/// requested begins behind it. Blocks that are for no objects have another letter.
pub(crate) const GUARD: u64 = u64::from_le_bytes(*b"o\xfd\xfd\xfd\xfd\xfd\xfd\xfd");
pub(crate) const GUARDED: u64 = 16;

/// Words of a process: from its memory, or made up.
pub(crate) trait Words {
    fn word(&self, address: u64) -> Option<u64>;
}

/// Words that are made up; those that are not there are 0.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct MadeWords(pub(crate) std::collections::HashMap<u64, u64>);

#[cfg(test)]
impl Words for MadeWords {
    fn word(&self, address: u64) -> Option<u64> {
        Some(self.0.get(&address).copied().unwrap_or(0))
    }
}

impl Words for ProcessView {
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
    }
}

impl Words for ObjectMemory<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        self.u64(address)
    }
}

impl<'a> ObjectMemory<'a> {
    /// One of so many, which keep as much as one does, besides what all of them may.
    pub(crate) fn one_of(view: &'a ProcessView, all: usize, shared: &Arc<SharedPieces>) -> Self {
        let most = (MOST_PIECES / all.max(1)).max(1);
        Self { view, pieces: RefCell::new(KeptPieces::new(most, Arc::clone(shared))), is_shared: Cell::new(false) }
    }

    /// Has what is read kept for all threads if they read the same again and again; objects are in so many pieces.
    pub(crate) fn consider_sharing(&self, pieces: usize) {
        let kept = self.pieces.borrow();
        kept.shared.consider(pieces);
        self.is_shared.set(kept.shared.is_used());
    }

    /// Keeps nothing of what was read so far, and nothing for other threads.
    pub(crate) fn forget(&self) {
        let mut kept = self.pieces.borrow_mut();
        *kept = KeptPieces::new(kept.most, Arc::default());
        self.is_shared.set(false);
    }

    /// Takes notice that what is read next is at these addresses, in this order.
    pub(crate) fn expect(&self, addresses: impl Iterator<Item = u64>) {
        // The addresses first: an iterator may read memory.
        let is_scattered = are_scattered(addresses);
        let mut kept = self.pieces.borrow_mut();
        kept.is_scattered = is_scattered;
        self.is_shared.set(kept.shared.is_used());
    }

    /// Whether that is scattered.
    pub(crate) fn is_scattered(&self) -> bool {
        self.pieces.borrow().is_scattered
    }

    /// Whether what is read is kept for all threads: it lies anywhere.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.get()
    }

    /// Loads what is read soon at these addresses, where that helps.
    pub(crate) fn prefetch(&self, addresses: impl Iterator<Item = u64>) {
        if self.is_shared.get() {
            let kept = self.pieces.borrow();
            prefetch(addresses.map(|address| kept.shared.to_prefetch(address)));
        }
    }

    /// Fills the buffer; `None`: not all of it can be read.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let mut pieces = self.pieces.borrow_mut();
        let mut done = 0;
        while done < into.len() {
            let at = address.checked_add(done as u64)?;
            if self.is_shared.get()
                && let Some(len) = pieces.shared.copy(at, into.get_mut(done..)?, self.view)
            {
                done += len;
                continue;
            }
            let (key, offset) = (at / PIECE as u64, (at % PIECE as u64) as usize);
            let len = (PAGE - offset % PAGE).min(into.len() - done);
            let bytes = pieces.bytes(key, offset, len, self.view)?;
            into.get_mut(done..done + len)?.copy_from_slice(bytes);
            done += len;
        }
        Some(())
    }

    pub(crate) fn u64(&self, address: u64) -> Option<u64> {
        let offset = (address % PIECE as u64) as usize;
        if offset % PAGE <= PAGE - 8 && !self.is_shared.get() {
            let mut pieces = self.pieces.borrow_mut();
            let bytes = pieces.bytes(address / PIECE as u64, offset, 8, self.view)?;
            return bytes.try_into().ok().map(u64::from_le_bytes);
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// A word and the one behind it.
    pub(crate) fn two_words(&self, address: u64) -> Option<(u64, u64)> {
        let mut bytes = [0; 16];
        self.read(address, &mut bytes)?;
        let both = u128::from_le_bytes(bytes);
        Some((both as u64, (both >> 64) as u64))
    }

    pub(crate) fn u32(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// Whether a block's last byte is there, of one so large that its length, which may have been overwritten, matters.
    pub(crate) fn has_end_of(&self, start: u64, bytes: u64) -> bool {
        let last = || start.checked_add(bytes)?.checked_sub(1);
        bytes <= MOST_UNCHECKED || last().is_some_and(|last| self.u8(last).is_some())
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
        if count <= FEW_WORDS as u64 {
            return self.words_by::<{ FEW_WORDS * 8 }>(address, count, &mut each);
        }
        self.words_by::<{ MANY_WORDS * 8 }>(address, count, &mut each)
    }

    /// The same, with a buffer of so many bytes.
    fn words_by<const BYTES: usize>(&self, address: u64, count: u64, each: &mut impl FnMut(u64)) -> bool {
        let mut buffer = [0; BYTES];
        let mut done = 0;
        while done < count {
            let some = (count - done).min(BYTES as u64 / 8);
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

    /// Whether so many bytes from an address on are mapped and can be read.
    pub(crate) fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut mapped = address;
        while mapped < end {
            match self.view.mapped_to(mapped) {
                Some(to) => mapped = to,
                None => return false,
            }
        }
        true
    }

    /// The text up to a zero byte, cut where it is longer than `most` bytes.
    pub(crate) fn text(&self, address: u64, most: u64) -> Option<String> {
        let mut text = Vec::new();
        for at in 0..most {
            match self.u8(address.checked_add(at)?)? {
                0 => return String::from_utf8(text).ok(),
                byte => text.push(byte),
            }
        }
        let whole = match str::from_utf8(&text) {
            Ok(text) => text,
            // It may be cut within a character.
            Err(error) if error.error_len().is_none() => str::from_utf8(text.get(..error.valid_up_to())?).ok()?,
            Err(_) => return None,
        };
        Some(format!("{whole}…"))
    }
}
