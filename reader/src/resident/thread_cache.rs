//! What glibc's malloc caches for each thread (tcache): freed blocks that their arena counts as in use.
//!
//! Blocks that malloc itself moves from an arena's free lists into the cache are not seen; there are a few at most.
//! Invariant: at most [`ENTRIES`] blocks of each size for each thread.

use memtrack_format::resident::ResidentAccount;
use rustc_hash::FxHashSet;

use crate::event::{Thread, ThreadId};

/// Blocks of one size (`tcache_count`).
const ENTRIES: usize = 7;
/// Sizes (`TCACHE_MAX_BINS`).
const SIZES: usize = 64;
/// The smallest chunk, and the step between sizes.
const LEAST_CHUNK: u64 = 32;
const STEP: u64 = 16;

/// Bytes of the chunk that glibc makes for so many requested bytes.
pub(super) const fn chunk_bytes(requested: u64) -> u64 {
    let bytes = requested.saturating_add(8 + STEP - 1) & !(STEP - 1);
    if bytes < LEAST_CHUNK { LEAST_CHUNK } else { bytes }
}

/// The cached blocks of all threads.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadCaches {
    threads: Vec<ThreadCache>,
}

#[derive(Clone, Debug, Default)]
struct ThreadCache {
    /// By size, up to the largest that the thread has freed.
    sizes: Vec<CachedBlocks>,
    /// What it freed last, and its size.
    last: Option<(u64, u8)>,
}

/// A thread's cached blocks of one size, in a cache line.
#[derive(Clone, Copy, Debug, Default)]
struct CachedBlocks {
    count: usize,
    addresses: [u64; ENTRIES],
}

impl CachedBlocks {
    fn blocks(&self) -> &[u64] {
        &self.addresses[..self.count]
    }

    /// Adds a block; `false`: there are too many, or it is in here.
    fn add(&mut self, address: u64) -> bool {
        if self.count == ENTRIES || self.blocks().contains(&address) {
            return false;
        }
        self.addresses[self.count] = address;
        self.count += 1;
        true
    }

    fn remove(&mut self, address: u64) {
        if let Some(at) = self.blocks().iter().position(|cached| *cached == address) {
            self.count -= 1;
            self.addresses.swap(at, self.count);
        }
    }
}

impl ThreadCaches {
    /// A thread has freed a block.
    pub(super) fn free(&mut self, thread: ThreadId, address: u64, requested: u64) {
        let Some(size) = size_index(requested) else { return };
        let cache = self.thread(thread);
        if cache.sizes.len() <= usize::from(size) {
            cache.sizes.resize(usize::from(size) + 1, CachedBlocks::default());
        }
        if cache.sizes[usize::from(size)].add(address) {
            cache.last = Some((address, size));
        }
    }

    /// A thread has allocated a block; a realloc may have kept the address of what it freed last.
    pub(super) fn allocate(&mut self, thread: ThreadId, address: u64, requested: u64) {
        let cache = self.thread(thread);
        let last = cache.last.take().filter(|(freed, _)| *freed == address).map(|(_, size)| size);
        let Some(size) = last.or(size_index(requested)) else { return };
        if let Some(blocks) = cache.sizes.get_mut(usize::from(size)) {
            blocks.remove(address);
        }
    }

    /// A thread's last free did not happen.
    pub(super) fn undo_free(&mut self, thread: ThreadId) {
        let cache = self.thread(thread);
        if let Some((address, size)) = cache.last.take()
            && let Some(blocks) = cache.sizes.get_mut(usize::from(size))
        {
            blocks.remove(address);
        }
    }

    /// The chunks that threads cache, as address of the block and bytes of the chunk.
    fn chunks(&self, is_alive: impl Fn(ThreadId) -> bool) -> Vec<(u64, u64)> {
        let alive = (0..).zip(&self.threads).filter(|(number, _)| is_alive(ThreadId(*number)));
        let sizes = alive.flat_map(|(_, cache)| (LEAST_CHUNK..).step_by(STEP as usize).zip(&cache.sizes));
        let chunks = sizes.flat_map(|(bytes, cached)| cached.blocks().iter().map(move |address| (*address, bytes)));
        chunks.collect()
    }

    /// The same at the moment of an account; `threads` are those of the capture, or none where they are not known yet.
    pub(super) fn chunks_at(&self, account: &ResidentAccount, threads: &[Thread]) -> Vec<(u64, u64)> {
        let tids: FxHashSet<u32> = account.threads.iter().map(|thread| thread.tid).collect();
        let tid = |number: u32| threads.get(number as usize).map_or(0, |thread| thread.tid.cast_unsigned());
        // A thread that has ended has given its cache back.
        self.chunks(|thread| tids.is_empty() || threads.is_empty() || tids.contains(&tid(thread.0)))
    }

    fn thread(&mut self, thread: ThreadId) -> &mut ThreadCache {
        let index = thread.0 as usize;
        if index >= self.threads.len() {
            self.threads.resize_with(index + 1, ThreadCache::default);
        }
        &mut self.threads[index]
    }
}

/// The list in which a block of this size is cached, if any.
fn size_index(requested: u64) -> Option<u8> {
    let index = (chunk_bytes(requested) - LEAST_CHUNK) / STEP;
    u8::try_from(index).ok().filter(|index| usize::from(*index) < SIZES)
}

#[cfg(test)]
mod tests {
    use super::{ENTRIES, ThreadCaches, chunk_bytes};
    use crate::event::ThreadId;

    #[test]
    fn chunks_are_glibcs() {
        let sizes = [0, 24, 25, 40, 41, 1032, 1033];
        assert_eq!(sizes.map(chunk_bytes), [32, 32, 48, 48, 64, 1040, 1056]);
    }

    #[test]
    fn a_few_blocks_of_each_size_are_cached_until_they_are_allocated_again() {
        let (mut caches, thread) = (ThreadCaches::default(), ThreadId(1));
        (1..=20).for_each(|block| caches.free(thread, block * 64, 40));
        caches.free(thread, 1 << 20, 2000);
        assert_eq!(caches.chunks(|_| true).len(), ENTRIES);
        assert!(caches.chunks(|thread| thread.0 == 0).is_empty());
        caches.allocate(thread, 64, 33);
        caches.allocate(ThreadId(0), 128, 33);
        assert_eq!(caches.chunks(|_| true).len(), ENTRIES - 1);
        // A realloc in place, and one that failed.
        caches.free(thread, 4096, 100);
        caches.allocate(thread, 4096, 500);
        caches.free(thread, 4096, 500);
        caches.undo_free(thread);
        assert_eq!(caches.chunks(|_| true).len(), ENTRIES - 1);
    }
}
