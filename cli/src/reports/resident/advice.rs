//! What would give memory back, each with the bytes that it is worth.
//!
//! Invariant: each figure is measured: the pages that the measure would free at this moment, or in this recording.

use memtrack_reader::resident::{MemoryClass, PoolClass};

use super::allocator_statistics::RECENT_NS;
use super::{GLIBC, ResidentMoment};
use crate::units::{count, plural, size};

/// Bytes, and the part of resident memory in percent, from which something is advised.
const LEAST: u64 = 1 << 20;
const LEAST_PERCENT: u64 = 2;

/// What glibc keeps at the end of its main heap in any case: its smallest threshold, and as much as it takes at a time.
const TRIM_THRESHOLD: u64 = 256 << 10;

/// One measure.
#[derive(Debug)]
pub(crate) struct Advice {
    pub(crate) bytes: u64,
    pub(crate) text: String,
}

impl ResidentMoment {
    /// All measures that are worth it, the largest first.
    pub(crate) fn advice(&self, is_python: bool) -> Vec<Advice> {
        let found = &self.breakdown;
        let mut all = Vec::new();
        let mut add = |bytes: u64, text: String| all.push(Advice { bytes, text });
        let how = if is_python { " (in Python ctypes.CDLL(None).malloc_trim(0))" } else { "" };
        add(
            found.trimmable(),
            format!("malloc_trim(0){how} gives back pages that glibc keeps in {}", self.arenas_text()),
        );
        add(
            found.behind_main_heap().saturating_sub(TRIM_THRESHOLD),
            "at least: MALLOC_TRIM_THRESHOLD_=131072 in the environment: so much is free at the end of glibc's main heap, which gives it \
             back by itself above a threshold that rises to twice the largest freed block; and blocks above 128 KiB stay apart from it"
                .into(),
        );
        add(
            found.huge.zeroes,
            format!(
                "at most: smaller pages: {} is in huge pages, of which so much holds zeroes only, mostly since it was never written \
                 (NumPy: NUMPY_MADVISE_HUGEPAGE=0; glibc: not glibc.malloc.hugetlb; any program: prctl PR_SET_THP_DISABLE)",
                size(found.huge.bytes)
            ),
        );
        let arenas = self.glibc_arenas();
        if arenas > 2 {
            add(
                found.arena_excess.min(self.retained_by_other_arenas()),
                format!(
                    "at most: MALLOC_ARENA_MAX=1 or 2 in the environment: {arenas} arenas for {} held most at different times, and none \
                     uses pages that another has freed ('memtrack resident --what-if MALLOC_ARENA_MAX=1' measures it)",
                    plural(self.threads as u64, "thread", "threads"),
                ),
            );
        }
        let pinned: u64 = found.pinned.iter().map(|pinned| pinned.pinned_bytes - pinned.live_bytes).sum();
        add(
            pinned,
            "allocating long-lived small blocks before or apart from short-lived ones: each keeps a page that is otherwise \
             free ('memtrack resident --pinned' shows whose)"
                .into(),
        );
        add(
            self.bytes(MemoryClass::PythonFree),
            "dropping the objects that keep arenas of Python's allocator: their free pools are used for new objects only".into(),
        );
        let (bytes, text) = self.pools();
        add(bytes, text);
        let (bytes, text) = self.purge();
        add(bytes, text);
        add(
            self.bytes(MemoryClass::Stacks),
            format!("fewer threads than {}, or smaller stacks", plural(self.threads as u64, "thread", "threads")),
        );
        let least = LEAST.max(found.rss.total() / 100 * LEAST_PERCENT);
        all.retain(|advice| advice.bytes >= least);
        all.sort_by_key(|advice| std::cmp::Reverse(advice.bytes));
        all
    }

    /// What Python's objects would free if they lay together.
    fn pools(&self) -> (u64, String) {
        let sum = |of: fn(&PoolClass) -> u64| self.breakdown.pools.iter().map(of).sum::<u64>();
        let text = format!(
            "at most: making long-lived Python objects apart from short-lived ones: {} lie in {} of Python's allocator, and would fit in {} \
             (a pool serves one size only)",
            plural(sum(|pool| pool.blocks), "object", "objects"),
            plural(sum(|pool| pool.pools), "pool", "pools"),
            count(sum(|pool| pool.needed)),
        );
        (sum(PoolClass::excess), text)
    }

    /// What an allocator other than glibc's gives back when it is asked, and how.
    fn purge(&self) -> (u64, String) {
        let most = self.breakdown.purgeable();
        match self.keeper() {
            "jemalloc" => (
                most,
                "at most: mallctl thread.tcache.flush in each thread and then arena.4096.purge give back pages that jemalloc \
                 keeps; a shorter dirty_decay_ms does so as time goes by"
                    .into(),
            ),
            "mimalloc" => (
                most,
                "at most: mi_collect(true), or a shorter MIMALLOC_PURGE_DELAY; mimalloc gives back whole segments only"
                    .into(),
            ),
            "tcmalloc" => self.tcmalloc_purge(most),
            _ => (most, "at most: what the program's allocator keeps, if it can be asked to give it back".into()),
        }
    }

    /// tcmalloc gives back the pages that it says to be free; what its caches hold does not show in pages.
    fn tcmalloc_purge(&self, most: u64) -> (u64, String) {
        let recent = self.breakdown.statistics.as_ref().filter(|statistics| statistics.age_ns <= RECENT_NS);
        match recent.and_then(|statistics| statistics.figures.free_pages) {
            Some(free) => {
                let text =
                    "at most: MallocExtension_ReleaseFreeMemory() gives back pages that tcmalloc says to be free";
                (free.min(most), text.into())
            }
            None => (
                most,
                "at most: MallocExtension_ReleaseFreeMemory() gives back pages that tcmalloc keeps, without what its \
                 caches hold"
                    .into(),
            ),
        }
    }

    fn arenas_text(&self) -> String {
        match self.glibc_arenas() {
            0 | 1 => "its main arena".into(),
            arenas => format!("{arenas} arenas"),
        }
    }

    /// Pages without a live block in arenas other than the main one.
    fn retained_by_other_arenas(&self) -> u64 {
        self.arenas_of(GLIBC).filter(|arena| arena.state != 0).map(|arena| arena.retained).sum()
    }
}
