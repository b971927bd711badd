//! What the events of a capture say about allocators beyond the live blocks: caches of threads, peaks of arenas, pages
//! that have had a block.
//!
//! Invariant: it follows the replay event by event; what it says is of the moment up to which events were replayed.

use memtrack_format::resident::ResidentAccount;

use super::arena_peaks::ArenaPeaks;
use super::block_pages::BlockPages;
use super::thread_cache::ThreadCaches;
use crate::event::{Event, EventKind};
use crate::replay::Replay;

/// Follows the allocators of a program while its events are replayed.
#[derive(Clone, Debug, Default)]
pub struct AllocatorTrace {
    pub(super) caches: ThreadCaches,
    pub(super) arenas: ArenaPeaks,
    pub(super) pages: BlockPages,
}

impl AllocatorTrace {
    /// Adds an account of the capture, before its events: it names the arenas and allocators.
    pub fn add_account(&mut self, account: &ResidentAccount) {
        self.arenas.add_heaps(account);
        self.pages.add_account(account);
    }

    /// Follows an event that was just replayed.
    #[inline]
    pub(super) fn note(&mut self, replay: &Replay, event: &Event) {
        self.arenas.note(replay, event);
        self.pages.note(event);
        match event.kind {
            EventKind::Alloc(_) => self.caches.allocate(event.thread, event.address, event.size),
            EventKind::Free => {
                if let Some(bytes) = replay.freed_bytes(event) {
                    self.caches.free(event.thread, event.address, bytes);
                }
            }
            EventKind::FreeUndo => self.caches.undo_free(event.thread),
            _ => {}
        }
    }

    /// The program has replaced itself.
    pub(super) fn clear(&mut self) {
        self.caches = ThreadCaches::default();
        self.arenas.clear();
        self.pages.clear();
    }
}
