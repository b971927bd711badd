//! What an account says about the chunks of a heap of glibc's: which of its pages are free, and where its end begins.
//!
//! Invariant: of a heap whose chunks were not read, nothing is said.

use memtrack_format::resident::{HeapFreePages, ResidentAccount};

/// The free pages of a heap, if they are known, and the end of an arena.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreePages<'a> {
    heap: Option<&'a HeapFreePages>,
    /// From where on an arena other than the main one is free, if that is in this range.
    pub(super) top: Option<u64>,
}

impl<'a> FreePages<'a> {
    /// Of the heap in which a range begins; `top` is its arena's top chunk, and `merged_top` that with the free memory before it, as
    /// far as blocks tell.
    pub(super) fn of(account: &'a ResidentAccount, start: u64, top: Option<(u64, u64)>) -> Self {
        let heap = account.free.iter().find(|heap| (heap.start..heap.end).contains(&start));
        let of_run = |top: u64| heap?.runs.iter().find(|run| run.1 > top && run.0 <= top + account.page_bytes);
        let top = top.map(|(top, merged_top)| match (heap, of_run(top)) {
            (_, Some(run)) => run.0,
            (Some(_), None) => top,
            (None, None) => merged_top,
        });
        Self { heap, top }
    }

    /// Whether a page is free; `None`: it is not known.
    pub(super) fn is_free(&self, page: u64) -> Option<bool> {
        let heap = self.heap.filter(|heap| page < heap.end)?;
        let run = heap.runs.get(heap.runs.partition_point(|run| run.1 <= page));
        Some(run.is_some_and(|run| run.0 <= page))
    }

    /// Where pages behind this one may be of another kind.
    pub(super) fn bounds(&self, page: u64) -> [Option<u64>; 3] {
        let run = |heap: &'a HeapFreePages| heap.runs.get(heap.runs.partition_point(|run| run.1 <= page));
        let run = self.heap.and_then(run);
        [run.map(|run| run.0), run.map(|run| run.1), self.heap.map(|heap| heap.end)]
    }
}
