//! What each mapping of an account is: of which allocator, a stack, a file, shared memory, or memtrack's own.
//!
//! Invariant: only what the account and the live blocks prove is named; the rest is [`MappingKind::Unknown`].

use memtrack_format::PythonDomain;
use memtrack_format::pymalloc::LARGEST_BLOCK;
use memtrack_format::resident::{AccountMapping, GLIBC_HEAP_BYTES, ResidentAccount, flag};

use super::loaded_allocators::{loaded_allocator, named};
use super::moment::LiveMoment;
use crate::live_extent::LiveExtent;

/// The names of memtrack's library, as a file and as a memory file of a process that it was attached to, of its shared memory,
/// and, as the collector calls it, of its private memory.
const MEMTRACK: [&[u8]; 4] = [b"libmemtrack", b"memfd:libmemtrack", b"memfd:memtrack", b"[anon:memtrack]"];
/// The largest guard of a thread's stack, and the size of a stack where no limit says otherwise.
const LARGEST_GUARD: u64 = 1 << 20;
const STACK_BYTES: u64 = 8 << 20;
/// Blocks of this size may have a mapping of their own.
const LARGE_BLOCK: u64 = 64 << 10;

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappingKind {
    /// glibc's main arena.
    MainHeap,
    /// A heap of another arena, a row of the account's heaps.
    ArenaHeap(usize),
    /// Arenas of Python's allocator, whose blocks are recorded.
    PythonArenas,
    /// Memory of another allocator.
    Allocator(&'static str),
    /// A thread's stack, or the process's.
    Stack,
    /// A file, and what belongs to it.
    File,
    /// Shared memory.
    Shared,
    /// memtrack's own.
    Memtrack,
    /// Private memory of which only its live blocks are known.
    Unknown,
}

/// A part of a mapping that is of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KindRange {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: MappingKind,
}

/// The ranges of a mapping, in ascending order, which cover it.
pub(super) fn ranges(account: &ResidentAccount, number: usize, moment: &LiveMoment) -> Vec<KindRange> {
    let Some(mapping) = account.mappings.get(number) else { return Vec::new() };
    let (start, end) = (mapping.start, mapping.end);
    let kind = |kind| vec![KindRange { start, end, kind }];
    let path = account.path(mapping);
    if is_memtracks(path) || is_bss(account, number, is_memtracks) {
        return kind(MappingKind::Memtrack);
    }
    if mapping.has(flag::SHARED) {
        return kind(if mapping.has(flag::IN_MEMORY) { MappingKind::Shared } else { MappingKind::File });
    }
    if mapping.has(flag::FILE) || path == b"[vdso]" {
        return kind(MappingKind::File);
    }
    if path == b"[heap]" {
        // tcmalloc takes memory there, too.
        return kind(loaded_allocator(account).map_or(MappingKind::MainHeap, MappingKind::Allocator));
    }
    if path == b"[stack]" {
        return kind(MappingKind::Stack);
    }
    // Zero-initialised data of a file may have been merged with other memory behind it.
    let behind = if is_bss(account, number, |_| true) { behind_bss(account, mapping, moment) } else { start };
    let of_file = KindRange { start, end: behind, kind: MappingKind::File };
    let rest =
        AccountMapping { start: behind, path: mapping.path, flags: mapping.flags, end, ..AccountMapping::default() };
    let mut ranges: Vec<KindRange> = Some(of_file).filter(|range| range.start < range.end).into_iter().collect();
    ranges.extend(with_heaps(account, &rest, private_kind(account, number, moment)));
    ranges
}

/// Where other memory than data of the file may begin: at the first live block or heap.
fn behind_bss(account: &ResidentAccount, mapping: &AccountMapping, moment: &LiveMoment) -> u64 {
    let block = moment.within(mapping.start, mapping.end).next().map(|extent| extent.start & !(account.page_bytes - 1));
    let heap = account.heaps.iter().map(|heap| heap.start).find(|heap| (mapping.start..mapping.end).contains(heap));
    block.into_iter().chain(heap).min().unwrap_or(mapping.end).max(mapping.start)
}

fn is_memtracks(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    MEMTRACK.iter().any(|known| name.starts_with(known))
}

/// Whether a mapping is the zero-initialised data of a file whose path satisfies `of`: it lies behind its data.
fn is_bss(account: &ResidentAccount, number: usize, of: impl Fn(&[u8]) -> bool) -> bool {
    let Some([before, mapping]) = number.checked_sub(1).and_then(|before| account.mappings.get(before..=number)) else {
        return false;
    };
    let is_data = before.has(flag::FILE | flag::WRITE) && !before.has(flag::SHARED) && before.end == mapping.start;
    is_data && mapping.path.is_none() && mapping.has(flag::WRITE) && of(account.path(before))
}

/// The kind of private memory without a file.
fn private_kind(account: &ResidentAccount, number: usize, moment: &LiveMoment) -> MappingKind {
    let mapping = &account.mappings[number];
    if let Some(name) = allocator_of(account.path(mapping)) {
        return MappingKind::Allocator(name);
    }
    if is_thread_stack(account, number) {
        return MappingKind::Stack;
    }
    let (mut objects, mut small) = (0_u64, 0_u64);
    for extent in moment.within(mapping.start, mapping.end) {
        let in_heap = account.heaps.iter().any(|heap| heap.start == extent.start & !(GLIBC_HEAP_BYTES - 1));
        let is_small = extent.mapped.is_none() && extent.bytes < LARGE_BLOCK && !in_heap;
        let is_python = moment
            .allocator(extent)
            .is_some_and(|allocator| allocator.python_domain().is_some_and(|domain| domain != PythonDomain::Raw));
        objects += u64::from(is_small && is_python && extent.bytes <= LARGEST_BLOCK);
        small += u64::from(is_small && !is_python);
    }
    match (objects, small) {
        (0, 0) if moment.block_pages.bytes(mapping.start, mapping.end) == 0 => MappingKind::Unknown,
        (0, 0) => MappingKind::Allocator(loaded_allocator(account).unwrap_or("other")),
        (objects, small) if objects >= small => MappingKind::PythonArenas,
        _ => MappingKind::Allocator(loaded_allocator(account).unwrap_or("other")),
    }
}

/// Whether a mapping lies behind the guard of a thread's stack, or a thread's stack pointer lies in it.
fn is_thread_stack(account: &ResidentAccount, number: usize) -> bool {
    let mapping = &account.mappings[number];
    let is_heap = |address: u64| account.heaps.iter().any(|heap| heap.start == address & !(GLIBC_HEAP_BYTES - 1));
    let guard = number.checked_sub(1).and_then(|before| account.mappings.get(before)).is_some_and(|guard| {
        let is_inaccessible = !guard.has(flag::READ) && !guard.has(flag::WRITE) && !guard.has(flag::FILE);
        is_inaccessible && guard.end == mapping.start && guard.bytes() <= LARGEST_GUARD && !is_heap(guard.start)
    });
    let is_stack = |pointer: u64| (mapping.start..mapping.end).contains(&pointer) && !is_heap(pointer);
    let has_pointer =
        mapping.bytes() <= STACK_BYTES && account.threads.iter().any(|thread| is_stack(thread.stack_pointer));
    mapping.has(flag::WRITE) && !is_heap(mapping.start) && (guard || has_pointer)
}

/// Divides a mapping at the heaps of glibc's arenas in it; a stack ends where stacks end.
fn with_heaps(account: &ResidentAccount, mapping: &AccountMapping, kind: MappingKind) -> Vec<KindRange> {
    let (mut ranges, mut at) = (Vec::new(), mapping.start);
    let mut add = |start: u64, end: u64, kind| {
        if start < end {
            ranges.push(KindRange { start, end, kind });
        }
    };
    let stack_end = if kind == MappingKind::Stack { mapping.start.saturating_add(STACK_BYTES) } else { mapping.end };
    let rest = |start: u64, end: u64, add: &mut dyn FnMut(u64, u64, MappingKind)| {
        let middle = stack_end.clamp(start, end);
        add(start, middle, kind);
        add(middle, end, MappingKind::Unknown);
    };
    for (row, heap) in account.heaps.iter().enumerate() {
        // Advice about huge pages, which NumPy gives for its arrays, divides a heap into several mappings.
        let (start, end) =
            (heap.start.max(mapping.start), heap.start.saturating_add(GLIBC_HEAP_BYTES).min(mapping.end));
        if start < at || start >= end {
            continue;
        }
        rest(at, start, &mut add);
        add(start, end, MappingKind::ArenaHeap(row));
        at = end;
    }
    rest(at, mapping.end, &mut add);
    ranges
}

/// The allocator whose name a mapping has.
fn allocator_of(path: &[u8]) -> Option<&'static str> {
    let label = path.strip_prefix(b"[anon:")?;
    named(label)
}

impl LiveMoment {
    /// The live ranges that begin in a range of addresses.
    pub(super) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = &LiveExtent> {
        let first = self.extents.partition_point(|extent| extent.start < start);
        self.extents[first..].iter().take_while(move |extent| extent.start < end)
    }

    /// The allocating function of a live range.
    pub(super) fn allocator(&self, extent: &LiveExtent) -> Option<memtrack_format::Allocator> {
        self.groups.get(extent.group as usize).map(|(_, allocator)| *allocator)
    }
}
