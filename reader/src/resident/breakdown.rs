//! Divides the resident pages of an account into classes, arenas, and pages that the blocks of one stack keep.
//!
//! One pass over the pages of each mapping, beside the live ranges in the order of their addresses. A block of glibc's malloc
//! has a header before it and is rounded up, and a free chunk has its links at its start: these keep a page, too. Where the
//! account knows which pages of a heap are free, that counts instead.
//!
//! Invariant: each resident page is counted once, in one class or as live bytes and the rest of its page.

use memtrack_format::resident::{AccountMapping, GLIBC_HEAP_BYTES, PageRun, PageState, ResidentAccount, flag};
use memtrack_format::{Allocator, MapClass};

use super::classes::{
    AllocatorArena, AllocatorStatisticsAt, GLIBC, JEMALLOC, MemoryClass, PYMALLOC, ResidentBreakdown,
};
use super::free_pages::FreePages;
use super::mappings::{KindRange, MappingKind, ranges};
use super::moment::LiveMoment;
use super::pinned::PinnedSums;
use super::pools::PoolSums;
use super::process_facts::ProcessFacts;
use super::size_spread::SpreadSums;
use super::slabs::jemalloc_slabs;
use super::thread_cache::chunk_bytes;
use super::untouched::{self, is_heap};
use super::used::{UsedRange, disjoint};
use crate::event::StackId;
use crate::live_extent::LiveExtent;

/// Bytes before a block of glibc's that belong to its chunk.
const HEADER: u64 = 16;
/// Bytes of the next chunk that belong to a chunk that is in use.
const IN_NEXT: u64 = 8;
/// Bytes of a free chunk that malloc_trim keeps (`struct malloc_chunk`), without those of the chunk before it.
const FREE_HEADER: u64 = 48 - IN_NEXT;

impl ResidentBreakdown {
    /// Joins an account with what was live at its moment.
    #[must_use]
    pub fn of(account: &ResidentAccount, moment: &LiveMoment, process: ProcessFacts) -> Self {
        let mut join = PageJoin {
            account,
            moment,
            process,
            result: Self {
                arena_excess: moment.arena_excess,
                huge: account.huge,
                statistics: AllocatorStatisticsAt::of(account),
                ..Self::default()
            },
            pinned: PinnedSums::default(),
            sizes: SpreadSums::default(),
            pools: PoolSums::new(process.pool_bytes),
            live_swapped: 0,
        };
        for number in 0..account.mappings.len() {
            for range in ranges(account, number, moment) {
                join.range(number, range);
            }
        }
        join.finish()
    }
}

struct PageJoin<'a> {
    account: &'a ResidentAccount,
    moment: &'a LiveMoment,
    process: ProcessFacts,
    result: ResidentBreakdown,
    pinned: PinnedSums,
    sizes: SpreadSums,
    pools: PoolSums,
    /// Bytes of live blocks in pages that are swapped out.
    live_swapped: u64,
}

/// Pages that are alike: one page, or several that nothing, or one live range, is on.
#[derive(Clone, Copy, Debug)]
struct PageSpan {
    start: u64,
    end: u64,
    /// Bytes of live ranges on them.
    live: u64,
    is_used: bool,
    /// The stack of all live ranges on it; `None` where there are several, or none.
    stack: Option<StackId>,
    /// Up to where memory is in use before them.
    used_end: u64,
}

impl<'a> PageJoin<'a> {
    fn finish(mut self) -> ResidentBreakdown {
        let heap = || self.moment.extents.iter().filter(|extent| is_heap(extent));
        let total: u64 = heap().map(|extent| extent.bytes).sum();
        let live = self.result.bytes(MemoryClass::Live);
        let later = untouched::later_touched(self.account, self.moment, heap());
        self.result.untouched = total.saturating_sub(live).saturating_sub(self.live_swapped);
        self.result.never_touched = self.result.untouched.saturating_sub(later);
        self.result.untouched_blocks = untouched::by_stack(self.account, self.moment, heap());
        (self.result.pinned, self.result.pinned_groups) = self.pinned.finish();
        self.result.sizes = self.sizes.finish();
        self.result.pools = self.pools.finish();
        self.result.exception_reserve = exception_reserve(self.account, self.moment);
        self.result.shared_mapped = shared_mapped(self.account, self.moment);
        self.result.arenas.sort_by_key(|arena| arena.address);
        self.result
    }

    fn add(&mut self, class: MemoryClass, bytes: u64) {
        self.result.classes[class as usize] += bytes;
    }

    /// Counts the pages of a part of a mapping.
    fn range(&mut self, number: usize, range: KindRange) {
        let account = self.account;
        let Some(mapping) = account.mappings.get(number) else { return };
        let runs = mapping.runs.iter().filter_map(|run| {
            let (start, end) = (run.start.max(range.start), run.end.min(range.end));
            (start < end).then_some(PageRun { start, end, state: run.state })
        });
        let runs: Vec<PageRun> = runs.collect();
        for run in &runs {
            match run.state {
                PageState::Anonymous => self.result.rss.anonymous += run.bytes(),
                PageState::File if mapping.has(flag::IN_MEMORY) => self.result.rss.shared += run.bytes(),
                PageState::File => self.result.rss.file += run.bytes(),
                PageState::Swapped => self.result.swapped += run.bytes(),
            }
        }
        let resident: u64 = runs.iter().filter(|run| run.state != PageState::Swapped).map(PageRun::bytes).sum();
        match range.kind {
            MappingKind::File => self.add(MemoryClass::File, resident),
            MappingKind::Shared => self.add(MemoryClass::Shared, resident),
            MappingKind::Memtrack => self.add(MemoryClass::Memtrack, resident),
            _ => self.private(range, &runs),
        }
    }

    /// Counts the pages of private memory.
    fn private(&mut self, range: KindRange, runs: &[PageRun]) {
        let mut arena = self.arena(range);
        let used = self.used_ranges(range);
        if range.kind == MappingKind::PythonArenas && self.process.has_pools {
            self.pools.add(runs, &used);
        }
        let free = FreePages::of(self.account, range.start, self.top(range));
        let slabs_in_use = self.slabs_in_use(range);
        let (mut next, mut used_end) = (0, if self.is_within_heap(range) { 0 } else { range.start });
        for run in runs {
            let mut page = run.start;
            while page < run.end {
                while let Some(before) = used.get(next).filter(|before| before.end <= page) {
                    used_end = used_end.max(before.end);
                    next += 1;
                }
                let span = self.span((page, run.end), &used[next..], used_end, free);
                if run.state == PageState::Swapped {
                    self.live_swapped += span.live;
                } else {
                    self.resident_span(range, span, &used[next..], (free, &slabs_in_use, &mut arena));
                    if let Some(stack) = span.stack.filter(|_| span.live < span.end - span.start) {
                        self.pinned.add(stack, &used[next..], (span.start, span.end));
                    }
                }
                page = span.end;
            }
        }
        if let Some(arena) = arena.filter(|arena| arena.resident > 0) {
            self.result.arenas.push(arena);
        }
    }

    /// The pages from this one on that are alike. `rest`: what is in use from there on.
    fn span(&self, (page, run_end): (u64, u64), rest: &[UsedRange], used_end: u64, free: FreePages<'_>) -> PageSpan {
        let page_bytes = self.account.page_bytes;
        let floor = |address: u64| address & !(page_bytes - 1);
        let one = page + page_bytes;
        let mut span = PageSpan { start: page, end: one, live: 0, is_used: false, stack: None, used_end };
        let Some(first) = rest.first().filter(|first| first.start < one) else {
            // Nothing is on them, up to where something is, or where memory is of another kind.
            let bounds = [
                rest.first().map(|first| floor(first.start)),
                rest.first().map(|first| first.start & !(self.process.pool_bytes - 1)),
                used_end.checked_next_multiple_of(self.process.pool_bytes),
                used_end.checked_add(FREE_HEADER).map(|end| floor(end + page_bytes - 1)),
                free.top.map(|top| floor(top + page_bytes - 1)),
            ];
            let ends = bounds.into_iter().chain(free.bounds(page)).flatten().filter(|end| *end > page);
            span.end = ends.min().unwrap_or(run_end).min(run_end).max(one);
            return span;
        };
        span.is_used = true;
        let alone = floor(first.live_end.min(rest.get(1).map_or(u64::MAX, |next| next.start)).min(run_end));
        if first.live_start <= page && alone > page {
            (span.end, span.live) = (alone, alone - page);
            return span;
        }
        let mut is_mixed = false;
        for used in rest.iter().take_while(|used| used.start < one) {
            let (start, end) = (used.live_start.max(page), used.live_end.min(one));
            if start >= end {
                continue;
            }
            span.live += end - start;
            let stack = used.group.and_then(|group| self.moment.groups.get(group as usize)).map(|(stack, _)| *stack);
            is_mixed |= stack.is_none() || span.stack.is_some_and(|other| Some(other) != stack);
            span.stack = stack;
        }
        span.stack = span.stack.filter(|_| !is_mixed);
        span
    }

    /// Counts resident pages of private memory.
    fn resident_span(
        &mut self,
        range: KindRange,
        span: PageSpan,
        rest: &[UsedRange],
        (free, slabs_in_use, arena): (FreePages<'_>, &[(u64, u64)], &mut Option<AllocatorArena>),
    ) {
        let bytes = span.end - span.start;
        let is_free = free.is_free(span.start);
        let class = match range.kind {
            _ if span.is_used => None,
            _ if is_free == Some(true) => Some(MemoryClass::Retained),
            MappingKind::Stack => Some(MemoryClass::Stacks),
            MappingKind::Unknown => Some(MemoryClass::Unexplained),
            _ if !self.process.knows_all => Some(MemoryClass::Unexplained),
            MappingKind::PythonArenas => (!self.is_pool_used(span, rest)).then_some(MemoryClass::PythonFree),
            _ => {
                let seems_free = span.start >= span.used_end.saturating_add(free_header(range.kind));
                is_free.unwrap_or(seems_free).then_some(MemoryClass::Retained)
            }
        };
        match class {
            Some(class) => self.add(class, bytes),
            None => {
                self.add(MemoryClass::Live, span.live);
                self.add(MemoryClass::Slack, bytes - span.live);
                self.sizes.add(rest, (span.start, span.end), span.live);
            }
        }
        if let Some(arena) = arena {
            arena.resident += bytes;
            arena.live += span.live;
            arena.behind = if range.kind == MappingKind::MainHeap && class == Some(MemoryClass::Retained) {
                arena.behind + bytes
            } else {
                0
            };
            if class == Some(MemoryClass::Retained) {
                arena.retained += bytes;
                arena.held += match range.kind {
                    MappingKind::Allocator(_) => bytes - self.purgeable(slabs_in_use, (span.start, span.end)),
                    _ if free.top.is_some_and(|top| span.start >= top) => bytes,
                    _ => 0,
                };
            }
        }
    }

    /// What the live blocks of a range keep of it as a whole.
    fn slabs_in_use(&self, range: KindRange) -> Vec<(u64, u64)> {
        if range.kind != MappingKind::Allocator(JEMALLOC) {
            return Vec::new();
        }
        jemalloc_slabs(self.moment.within(range.start, range.end).filter(|extent| extent.mapped.is_none()))
    }

    /// Bytes of a range without a live block that have had one, outside of these slabs.
    fn purgeable(&self, slabs: &[(u64, u64)], (start, end): (u64, u64)) -> u64 {
        let (mut bytes, mut at) = (0, start);
        let first = slabs.partition_point(|slab| slab.1 <= start);
        for slab in slabs[first..].iter().take_while(|slab| slab.0 < end) {
            bytes += self.moment.block_pages.bytes(at, slab.0.max(at));
            at = slab.1.min(end);
        }
        bytes + self.moment.block_pages.bytes(at, end)
    }

    /// Whether an object is live in the pool of these pages, on another page.
    fn is_pool_used(&self, span: PageSpan, rest: &[UsedRange]) -> bool {
        let bytes = self.process.pool_bytes;
        let pool = span.start & !(bytes - 1);
        span.used_end > pool || rest.first().is_some_and(|next| next.start < pool + bytes)
    }

    fn arena(&self, range: KindRange) -> Option<AllocatorArena> {
        let (allocator, state) = match range.kind {
            MappingKind::MainHeap => (GLIBC, 0),
            MappingKind::ArenaHeap(row) => (GLIBC, self.account.heaps.get(row)?.arena),
            MappingKind::PythonArenas => (PYMALLOC, 0),
            MappingKind::Allocator(name) => (name, 0),
            _ => return None,
        };
        Some(AllocatorArena { allocator, state, address: range.start, ..AllocatorArena::default() })
    }

    /// Whether the heap of an arena begins before the range.
    fn is_within_heap(&self, range: KindRange) -> bool {
        let MappingKind::ArenaHeap(row) = range.kind else { return false };
        self.account.heaps.get(row).is_some_and(|heap| heap.start < range.start)
    }

    /// Where the top chunk begins, if it is in this heap of an arena other than the main one, alone and with the free memory
    /// before it: malloc_trim merges them first.
    fn top(&self, range: KindRange) -> Option<(u64, u64)> {
        let MappingKind::ArenaHeap(row) = range.kind else { return None };
        let heap = self.account.heaps.get(row)?;
        let is_here = (heap.start..heap.start.saturating_add(GLIBC_HEAP_BYTES)).contains(&heap.top);
        // The heap may be several mappings.
        let first = self.moment.extents.partition_point(|extent| extent.start < heap.start);
        let behind = self.moment.extents.partition_point(|extent| extent.start < heap.top);
        let blocks = self.moment.extents.get(first..behind).unwrap_or_default();
        let block = blocks.iter().rfind(|extent| extent.mapped.is_none());
        let block = block.map(|block| chunk_end(block.start, chunk_bytes(block.bytes)));
        let cached = self.moment.cached.iter().filter(|(address, _)| (heap.start..heap.top).contains(address));
        let cached = cached.map(|(address, bytes)| chunk_end(*address, *bytes)).max();
        let last = block.max(cached).unwrap_or(heap.start);
        is_here.then_some((heap.top, last.min(heap.top)))
    }

    /// What is in use in a range of addresses, by address.
    fn used_ranges(&mut self, range: KindRange) -> Vec<UsedRange> {
        let is_glibc = matches!(range.kind, MappingKind::MainHeap | MappingKind::ArenaHeap(_));
        let moment: &'a LiveMoment = self.moment;
        let mut used: Vec<UsedRange> = Vec::with_capacity(moment.within(range.start, range.end).count() + 1);
        // A mapping that begins before this range may reach into it.
        let first = moment.extents.partition_point(|extent| extent.start < range.start);
        let before =
            moment.extents[..first].last().filter(|extent| extent.start.saturating_add(extent.bytes) > range.start);
        for extent in before.into_iter().chain(moment.within(range.start, range.end)) {
            let end = extent.start.saturating_add(extent.bytes);
            let chunk = is_glibc && extent.mapped.is_none();
            if matches!(extent.mapped, Some(MapClass::File | MapClass::Shared)) {
                continue;
            }
            used.push(UsedRange {
                can_contain: extent.mapped.is_some(),
                start: if chunk { extent.start.saturating_sub(HEADER) } else { extent.start },
                end: if chunk { chunk_end(extent.start, chunk_bytes(extent.bytes)) } else { end },
                live_start: extent.start,
                live_end: end,
                time_ns: extent.time_ns,
                group: Some(extent.group),
            });
            if moment.allocator(extent).is_some_and(Allocator::is_python_arena) {
                self.result.python_arenas += resident_bytes(self.account, extent);
            }
        }
        // Where chunks were read, those that are cached look used.
        if is_glibc && !self.account.free.iter().any(|heap| (heap.start..heap.end).contains(&range.start)) {
            let cached = moment.cached.iter().filter(|(address, _)| (range.start..range.end).contains(address));
            used.extend(cached.map(|(address, bytes)| UsedRange {
                can_contain: false,
                start: address.saturating_sub(HEADER),
                end: chunk_end(*address, *bytes),
                live_start: *address,
                live_end: *address,
                time_ns: 0,
                group: None,
            }));
        }
        disjoint(used)
    }
}

/// Bytes at the start of free memory that the allocator uses.
fn free_header(kind: MappingKind) -> u64 {
    if matches!(kind, MappingKind::MainHeap | MappingKind::ArenaHeap(_)) { FREE_HEADER } else { 0 }
}

/// The end of what a chunk uses whose block is at this address.
const fn chunk_end(address: u64, bytes: u64) -> u64 {
    address.saturating_add(bytes).saturating_sub(HEADER - IN_NEXT)
}

/// Resident bytes of shared memory in mappings that were recorded.
fn shared_mapped(account: &ResidentAccount, moment: &LiveMoment) -> u64 {
    let shared = moment.extents.iter().filter(|extent| extent.mapped == Some(MapClass::Shared));
    shared.map(|extent| resident_bytes_of(account, extent, |mapping| mapping.has(flag::IN_MEMORY))).sum()
}

/// The reserve of libstdc++ for exceptions, which is a block of one of these sizes: in versions 5 to 12, and from 13 on.
fn exception_reserve(account: &ResidentAccount, moment: &LiveMoment) -> Option<(u64, u64)> {
    const SIZES: [u64; 2] = [72_704, 73_728];
    let is_library =
        |path: &Vec<u8>| path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b"libstdc++.so"));
    let is_reserve = |extent: &&LiveExtent| extent.mapped.is_none() && SIZES.contains(&extent.bytes);
    // The library's constructor makes it, before the program has blocks.
    let first = moment.extents.iter().filter(is_reserve).min_by_key(|extent| extent.time_ns)?;
    account.paths.iter().any(is_library).then(|| (first.bytes, resident_bytes(account, first)))
}

/// Resident bytes of a live range.
fn resident_bytes(account: &ResidentAccount, extent: &LiveExtent) -> u64 {
    resident_bytes_of(account, extent, |_| true)
}

/// The same of some mappings.
fn resident_bytes_of(
    account: &ResidentAccount,
    extent: &LiveExtent,
    is_counted: impl Fn(&AccountMapping) -> bool,
) -> u64 {
    let end = extent.start.saturating_add(extent.bytes);
    let first = account.mappings.partition_point(|mapping| mapping.end <= extent.start);
    let mappings = account.mappings[first..].iter().take_while(|mapping| mapping.start < end);
    let runs = mappings.filter(|mapping| is_counted(mapping)).flat_map(|mapping| {
        let first = mapping.runs.partition_point(|run| run.end <= extent.start);
        mapping.runs[first..].iter().take_while(|run| run.start < end)
    });
    let resident = runs.filter(|run| run.state != PageState::Swapped);
    resident.map(|run| run.end.min(end).saturating_sub(run.start.max(extent.start))).sum()
}
