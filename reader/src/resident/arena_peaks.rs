//! What glibc's arenas held at most, each at its own time, against what all of them held at most at one time.
//!
//! The difference is what one arena for all threads would not have taken: a page that one arena has freed serves no other.
//! Only the events of the capture tell, since an account sees one moment.
//!
//! Invariant: blocks outside of the known heaps are not counted; without more than two arenas nothing is.

use memtrack_format::resident::{GLIBC_HEAP_BYTES, ResidentAccount};
use rustc_hash::FxHashMap;

use super::thread_cache::chunk_bytes;
use crate::event::{Event, EventKind, ThreadId};
use crate::replay::Replay;

/// The arenas of accounts, and what they hold while events are replayed.
#[derive(Clone, Debug, Default)]
pub(super) struct ArenaPeaks {
    /// The arena of each heap, by the heap's number: its address divided by its size.
    heaps: FxHashMap<u64, usize>,
    /// Ranges of the main heap.
    main: Vec<(u64, u64)>,
    /// Addresses of the arenas' states; that of the main one is 0.
    states: Vec<u64>,
    held: Vec<HeldBytes>,
    all: HeldBytes,
    /// The last free of a thread, which it may take back: its arena and bytes.
    last_free: Option<(ThreadId, usize, u64)>,
}

/// Bytes that are held now, and at most so far.
#[derive(Clone, Copy, Debug, Default)]
struct HeldBytes {
    now: u64,
    most: u64,
}

impl HeldBytes {
    fn add(&mut self, bytes: u64) {
        self.now = self.now.saturating_add(bytes);
        self.most = self.most.max(self.now);
    }
}

impl ArenaPeaks {
    /// Adds the heaps of an account.
    pub(super) fn add_heaps(&mut self, account: &ResidentAccount) {
        let main = account.mappings.iter().filter(|mapping| account.path(mapping) == b"[heap]");
        self.main.extend(main.map(|mapping| (mapping.start, mapping.end)));
        self.main.sort_unstable();
        self.main.dedup_by(|next, before| {
            let overlap = next.0 <= before.1;
            if overlap {
                before.1 = before.1.max(next.1);
            }
            overlap
        });
        self.arena(0);
        for heap in &account.heaps {
            let arena = self.arena(heap.arena);
            self.heaps.entry(heap.start / GLIBC_HEAP_BYTES).or_insert(arena);
        }
    }

    fn arena(&mut self, state: u64) -> usize {
        self.states.iter().position(|known| *known == state).unwrap_or_else(|| {
            self.states.push(state);
            self.held.push(HeldBytes::default());
            self.states.len() - 1
        })
    }

    /// Whether there is anything to count.
    pub(super) fn is_of_use(&self) -> bool {
        self.states.len() > 2
    }

    /// Counts an event that was just replayed.
    #[inline]
    pub(super) fn note(&mut self, replay: &Replay, event: &Event) {
        if !self.is_of_use() {
            return;
        }
        match event.kind {
            EventKind::Alloc(_) => {
                if let Some(arena) = self.arena_of(event.address) {
                    self.add(arena, chunk_bytes(event.size));
                }
            }
            EventKind::Free => {
                self.last_free = None;
                if let (Some(arena), Some(bytes)) = (self.arena_of(event.address), replay.freed_bytes(event)) {
                    let bytes = chunk_bytes(bytes);
                    self.held[arena].now = self.held[arena].now.saturating_sub(bytes);
                    self.all.now = self.all.now.saturating_sub(bytes);
                    self.last_free = Some((event.thread, arena, bytes));
                }
            }
            EventKind::FreeUndo => {
                if let Some((_, arena, bytes)) = self.last_free.take_if(|(thread, ..)| *thread == event.thread) {
                    self.add(arena, bytes);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, arena: usize, bytes: u64) {
        self.held[arena].add(bytes);
        self.all.add(bytes);
    }

    fn arena_of(&self, address: u64) -> Option<usize> {
        let is_main = || self.main.iter().any(|(start, end)| (*start..*end).contains(&address));
        self.heaps.get(&(address / GLIBC_HEAP_BYTES)).copied().or_else(|| is_main().then_some(0))
    }

    /// Bytes by which the peaks of the arenas exceed the peak of all.
    pub(super) fn excess(&self) -> u64 {
        self.held.iter().map(|held| held.most).sum::<u64>().saturating_sub(self.all.most)
    }

    /// The program has replaced itself: nothing is held any more.
    pub(super) fn clear(&mut self) {
        self.held.fill(HeldBytes::default());
        (self.all, self.last_free) = (HeldBytes::default(), None);
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::resident::{GLIBC_HEAP_BYTES, GlibcHeap, ResidentAccount};

    use super::ArenaPeaks;

    #[test]
    fn arenas_that_were_full_in_turn_exceed_the_peak_of_all() {
        let heap = |number: u64, arena| GlibcHeap { start: number * GLIBC_HEAP_BYTES, arena, ..GlibcHeap::default() };
        let account = ResidentAccount { heaps: vec![heap(5, 1), heap(6, 2), heap(9, 2)], ..ResidentAccount::default() };
        let mut peaks = ArenaPeaks::default();
        peaks.add_heaps(&account);
        assert!(peaks.is_of_use());
        let arena = |address: u64| peaks.arena_of(address);
        assert_eq!([5, 6, 9, 7].map(|heap| arena(heap * GLIBC_HEAP_BYTES + 64)), [Some(1), Some(2), Some(2), None]);
        peaks.add(1, 100);
        peaks.held[1].now = 0;
        peaks.all.now = 0;
        peaks.add(2, 70);
        assert_eq!(peaks.excess(), 70);
        peaks.clear();
        assert_eq!(peaks.excess(), 0);
    }
}
