//! The first words of places at which pools of Python's allocator may begin, many of which are read by one system call.
//!
//! Most pools are known by these alone. Invariant: a word is that of the process at this address, or `None`.

use std::cell::RefCell;

use memtrack_inject::ProcessView;

use crate::memory::Words;

/// Bytes that are read of each place.
const HEADER: usize = 48;
/// Places that are read at once.
const PLACES: usize = 256;

/// Reads words of a process, and with the first word of one place those of the places behind it.
pub(crate) struct PoolHeaders<'a> {
    view: &'a ProcessView,
    /// Bytes from one place to the next.
    step: u64,
    read: RefCell<ReadHeaders>,
}

/// What was read last.
struct ReadHeaders {
    first: u64,
    /// Places that could be read.
    places: usize,
    bytes: Vec<u8>,
}

impl<'a> PoolHeaders<'a> {
    /// Those of places at multiples of so many bytes.
    pub(crate) fn new(view: &'a ProcessView, step: u64) -> Self {
        let read = ReadHeaders { first: 0, places: 0, bytes: vec![0; HEADER * PLACES] };
        Self { view, step, read: RefCell::new(read) }
    }
}

impl Words for PoolHeaders<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        if address % self.step > HEADER as u64 - 8 {
            return self.view.word(address);
        }
        let mut read = self.read.borrow_mut();
        if let Some(word) = read.word(address, self.step) {
            return Some(word);
        }
        read.first = address - address % self.step;
        let end = self.view.mapped_to(read.first).unwrap_or(read.first);
        let places = ((end - read.first.min(end)).div_ceil(self.step) as usize).min(PLACES);
        let done = self.view.read_spread(read.first, self.step, HEADER, &mut read.bytes[..places * HEADER]);
        read.places = done / HEADER;
        read.word(address, self.step).or_else(|| self.view.word(address))
    }
}

impl ReadHeaders {
    fn word(&self, address: u64, step: u64) -> Option<u64> {
        let behind = address.checked_sub(self.first)?;
        let place = usize::try_from(behind / step).ok().filter(|place| *place < self.places)?;
        let begin = place * HEADER + (behind % step) as usize;
        let bytes = self.bytes.get(begin..begin + 8)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}
