//! A block whose record waits for the next event: it was allocated while Python's allocators were without our wrappers.
//!
//! The next event after the interpreter replaces its allocators shows that it did: often the malloc beneath a
//! raw-domain function that was not wrapped. If that is a debug hook, Python's block begins behind the hook's header,
//! and by that address it will be freed through our wrappers. So the record of this one block waits for the next event,
//! by which time the hook has written its header.
//!
//! Invariant: a block is deferred for one event only, and recorded as its header says, else as it was allocated.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memtrack_format::Allocator;
use memtrack_format::record::AllocHead;

/// Words before a block of the debug hooks: its size, big-endian, and its domain's letter with padding.
const BEFORE: usize = 16;
/// What pads them.
const PADDING: [u8; 7] = [0xfd; 7];
/// What the hooks ask for beyond the size: a word behind the block, too, and another where they number the blocks.
const EXTRA: [usize; 2] = [BEFORE + 8, BEFORE + 16];

/// Blocks that are held, of all threads.
static HELD: AtomicU32 = AtomicU32::new(0);

/// Whether any thread holds a block.
pub(crate) fn are_held() -> bool {
    HELD.load(Acquire) != 0
}

/// A block of one thread's whose record waits. Dropping it ends the wait: of a thread that has ended, nothing comes any
/// more.
pub(crate) struct DeferredBlock {
    head: AllocHead,
    address: usize,
    size: usize,
}

impl DeferredBlock {
    /// Holds a block.
    pub(crate) fn hold(head: AllocHead, address: usize, size: usize) -> Self {
        HELD.fetch_add(1, Relaxed);
        Self { head, address, size }
    }

    /// The block as it is to be recorded: how it was asked for, its address and its size.
    pub(crate) fn settle(self) -> (AllocHead, usize, usize) {
        let words = (self.size >= BEFORE).then_some(self.address as *const [u8; BEFORE]);
        // SAFETY: the first bytes of a block of at least as many, which its thread has not freed: that would be an
        // event.
        let inner = words.and_then(|words| behind(&unsafe { words.read_unaligned() }, self.size));
        inner.map_or((self.head, self.address, self.size), |(allocator, size)| {
            (AllocHead::of(allocator), self.address.wrapping_add(BEFORE), size)
        })
    }
}

impl Drop for DeferredBlock {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Release);
    }
}

/// What begins behind a debug hook's words, in a block of `size` bytes: how Python asked for it, and its size.
fn behind(words: &[u8; BEFORE], size: usize) -> Option<(Allocator, usize)> {
    let [length @ .., _, _, _, _, _, _, _, _] = *words;
    let [_, _, _, _, _, _, _, _, letter, padding @ ..] = *words;
    let length = usize::from_be_bytes(length);
    let is_one = padding == PADDING && EXTRA.iter().any(|extra| length.checked_add(*extra) == Some(size));
    let allocator = match letter {
        b'r' => Allocator::PymallocMallocRaw,
        b'm' => Allocator::PymallocMallocMem,
        b'o' => Allocator::PymallocMalloc,
        _ => return None,
    };
    is_one.then_some((allocator, length))
}

#[cfg(test)]
mod tests {
    use super::{PADDING, behind};
    use memtrack_format::Allocator;

    fn words(length: u64, letter: u8) -> [u8; 16] {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&length.to_be_bytes());
        words[8] = letter;
        words[9..].copy_from_slice(&PADDING);
        words
    }

    #[test]
    fn only_what_a_debug_hook_has_written_is_one() {
        assert_eq!(behind(&words(2, b'r'), 26), Some((Allocator::PymallocMallocRaw, 2)));
        assert_eq!(behind(&words(700, b'm'), 732), Some((Allocator::PymallocMallocMem, 700)));
        assert_eq!(behind(&words(2, b'r'), 27), None);
        assert_eq!(behind(&words(2, b'x'), 26), None);
        assert_eq!(behind(&words(u64::MAX, b'r'), 23), None);
        assert_eq!(behind(&[0; 16], 24), None);
    }
}
