//! Which pages of glibc's heaps have no chunk in use: what malloc_trim would give back.
//!
//! Blocks alone do not tell. The loader allocates for itself, which is not recorded, and a thread caches freed blocks, whose
//! chunks stay in use. So the headers of all chunks are read, of heaps that are small enough; in larger ones what is not
//! recorded weighs little. A chunk's header says how long it is, and the next one's whether it is in use; freed chunks of
//! the smallest sizes (fast bins) look used, and malloc_trim merges them first. The program runs on meanwhile: where the
//! headers do not lead to the end of the heap, nothing is said about it.
//!
//! Invariant: pages that are not in memory are not read, and a heap takes bounded time and memory.

use memtrack_format::resident::{
    AccountMapping, GLIBC_HEAP_BYTES, GlibcHeap, HeapFreePages, PageRun, PageState, ResidentAccount, flag,
};

use super::memory::ProcessMemory;

/// Offset of the top chunk's address in the state of an arena.
pub(super) const TOP_OFFSET: u64 = 96;
/// Maximum number of resident bytes of heaps whose chunks are read, and minimum: less has little to give back, and is what
/// programs have that should end quickly.
const MOST_BYTES: u64 = 64 << 20;
const LEAST_BYTES: u64 = 2 << 20;
/// Bytes that are read at a time.
const PIECE: u64 = 64 << 10;
/// Alignment of chunks, and bytes of the smallest one that ends a heap.
const ALIGNMENT: u64 = 16;
/// Maximum number of chunks in the fast bins of an arena: each is read for itself.
const MOST_FAST: usize = 1 << 15;
/// The bits of a chunk's size that are flags, and the one that says that the chunk before it is in use.
const FLAGS: u64 = 7;
const PREVIOUS_IN_USE: u64 = 1;
/// Bytes at the start of a free chunk that malloc_trim keeps (`struct malloc_chunk`).
const FREE_HEADER: u64 = 48;
/// Offset and number of the lists of fast bins in the state of an arena, and bytes of a state.
const FAST_BINS_OFFSET: u64 = 16;
const FAST_BINS: u64 = 10;
const STATE_BYTES: u64 = 2200;
/// Chunks that end a heap that is followed by another one of its arena.
const FENCE_BYTES: u64 = 32;
/// Maximum number of bytes of the C library's data.
const MOST_DATA: u64 = 1 << 20;

/// The free pages of the main heap, and of these heaps of other arenas, by address. They have their ends.
pub(super) fn free_pages(
    memory: &ProcessMemory,
    account: &ResidentAccount,
    heaps: &[(GlibcHeap, u64)],
) -> Vec<HeapFreePages> {
    let main = main_heap(account).and_then(|(start, end)| {
        let state = main_state(memory, account, (start, end))?;
        Some(HeapRange { start, end, first: start, state })
    });
    let others = heaps.iter().map(|(heap, end)| HeapRange {
        start: heap.start,
        end: *end,
        first: first_chunk(heap),
        state: heap.arena,
    });
    let (mut room, mut runs, mut small) = (MOST_BYTES, Vec::new(), Vec::new());
    for heap in main.into_iter().chain(others) {
        let resident = resident_runs(account, &heap);
        if let Some(rest) = room.checked_sub(resident.iter().map(PageRun::bytes).sum()) {
            room = rest;
            runs.extend(resident);
            small.push(heap);
        }
    }
    if room > MOST_BYTES - LEAST_BYTES {
        return Vec::new();
    }
    runs.sort_by_key(|run: &PageRun| run.start);
    let mut walk = ChunkWalk { memory, runs: &runs, piece: Vec::new(), piece_start: 0 };
    let free = |heap: HeapRange| {
        let runs = walk.free_pages(&heap, account.page_bytes)?;
        Some(HeapFreePages { start: heap.start, end: heap.end, runs })
    };
    let mut all: Vec<HeapFreePages> = small.into_iter().filter_map(free).collect();
    all.sort_by_key(|heap| heap.start);
    all.dedup_by(|next, heap| next.start < heap.end);
    all
}

/// A heap whose chunks are to be read.
#[derive(Clone, Copy, Debug)]
struct HeapRange {
    start: u64,
    end: u64,
    /// Its first chunk.
    first: u64,
    /// The state of its arena.
    state: u64,
}

/// The addresses of the main heap. Advice about huge pages divides its mapping.
fn main_heap(account: &ResidentAccount) -> Option<(u64, u64)> {
    let mut parts = account.mappings.iter().filter(|mapping| account.path(mapping) == b"[heap]");
    let first = parts.next()?;
    Some((first.start, parts.next_back().unwrap_or(first).end))
}

/// The first chunk of a heap of an arena: behind its description and, in the arena's first heap, the state.
fn first_chunk(heap: &GlibcHeap) -> u64 {
    let description = heap.arena & (GLIBC_HEAP_BYTES - 1);
    let is_first = heap.arena & !(GLIBC_HEAP_BYTES - 1) == heap.start;
    let behind = heap.start + description + if is_first { STATE_BYTES } else { 0 };
    behind.next_multiple_of(ALIGNMENT)
}

/// The anonymous pages of a heap.
fn resident_runs(account: &ResidentAccount, heap: &HeapRange) -> Vec<PageRun> {
    let first = account.mappings.partition_point(|mapping| mapping.end <= heap.start);
    let mappings = account.mappings[first..].iter().take_while(|mapping| mapping.start < heap.end);
    let runs = mappings.flat_map(|mapping| &mapping.runs).filter(|run| run.state == PageState::Anonymous);
    let runs = runs.filter_map(|run| {
        let (start, end) = (run.start.max(heap.start), run.end.min(heap.end));
        (start < end).then_some(PageRun { start, end, ..*run })
    });
    runs.collect()
}

/// The state of the main arena, in the C library's data: it has the address of the top chunk, which ends with the heap.
fn main_state(memory: &ProcessMemory, account: &ResidentAccount, (start, end): (u64, u64)) -> Option<u64> {
    let is_libc = |mapping: &&AccountMapping| {
        let name = account.path(mapping).rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        (name.starts_with(b"libc.so") || name.starts_with(b"libc-")) && mapping.has(flag::READ | flag::WRITE)
    };
    let data = account.mappings.iter().find(is_libc)?;
    let mut bytes = vec![0; usize::try_from(data.bytes().min(MOST_DATA)).ok()?];
    memory.read(&mut bytes, data.start).ok()?;
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let mut places = (data.start..).step_by(8).zip(words);
    let is_top = |top: u64| {
        let is_here = (start..end).contains(&top) && top.is_multiple_of(ALIGNMENT);
        is_here && memory.words::<2>(top).is_some_and(|[_, size]| top.checked_add(size & !FLAGS) == Some(end))
    };
    let (place, _) = places.find(|(_, word)| is_top(*word))?;
    place.checked_sub(TOP_OFFSET)
}

/// Reads the headers of chunks.
struct ChunkWalk<'a> {
    memory: &'a ProcessMemory,
    /// The resident pages of all heaps that are read, by address.
    runs: &'a [PageRun],
    /// What was read last, and its address.
    piece: Vec<u8>,
    piece_start: u64,
}

impl ChunkWalk<'_> {
    /// The free pages of the heap; `None` if its chunks do not lead to its end.
    fn free_pages(&mut self, heap: &HeapRange, page: u64) -> Option<Vec<(u64, u64)>> {
        let mut fast = self.fast_chunks(heap)?.into_iter().peekable();
        let (mut pages, mut free_since, mut chunk) = (Vec::new(), None, heap.first);
        loop {
            while fast.next_if(|fast| *fast < chunk).is_some() {}
            let size = self.size_at(chunk)? & !FLAGS;
            let next = chunk.checked_add(size)?;
            let is_last = next == heap.end;
            let is_fence = size == 0 && chunk.saturating_add(FENCE_BYTES) >= heap.end;
            if !is_fence && (size < ALIGNMENT || next > heap.end) {
                return None;
            }
            // Nothing says that the last chunk, the top, is in use.
            let is_used =
                is_fence || !is_last && self.size_at(next)? & PREVIOUS_IN_USE != 0 && fast.peek() != Some(&chunk);
            if !is_used {
                free_since.get_or_insert(chunk);
            }
            if is_used || is_last {
                let end = if is_last { heap.end } else { chunk };
                let area =
                    free_since.take().map(|start| ((start + FREE_HEADER).next_multiple_of(page), end & !(page - 1)));
                pages.extend(area.filter(|(start, end)| start < end));
            }
            if is_last || is_fence {
                return Some(pages);
            }
            chunk = next;
        }
    }

    /// The chunks in the fast bins of the heap's arena, which may have several heaps, by address.
    fn fast_chunks(&self, heap: &HeapRange) -> Option<Vec<u64>> {
        let mut chunks = Vec::new();
        for bin in 0..FAST_BINS {
            let [mut chunk] = self.memory.words(heap.state + FAST_BINS_OFFSET + 8 * bin)?;
            while chunk != 0 {
                chunks.push(chunk);
                if chunks.len() > MOST_FAST {
                    return None;
                }
                let link = chunk.checked_add(16)?;
                chunk = self.next_fast(link)?;
            }
        }
        chunks.sort_unstable();
        Some(chunks)
    }

    /// The next chunk of a fast bin, 0 behind the last. From glibc 2.32 on the link is mixed with its own address.
    fn next_fast(&self, link: u64) -> Option<u64> {
        let _ = self.run_of(link)?;
        let [plain] = self.memory.words(link)?;
        let mixed = plain ^ (link >> 12);
        if plain == 0 || mixed == 0 {
            return Some(0);
        }
        let is_chunk = |address: &u64| address.is_multiple_of(ALIGNMENT) && self.run_of(*address).is_some();
        [mixed, plain].into_iter().find(is_chunk)
    }

    /// The resident pages with this address.
    fn run_of(&self, address: u64) -> Option<&PageRun> {
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= address))?;
        (run.start <= address).then_some(run)
    }

    fn size_at(&mut self, chunk: u64) -> Option<u64> {
        self.word_at(chunk.checked_add(8)?)
    }

    /// A word of a resident page of the heap.
    fn word_at(&mut self, address: u64) -> Option<u64> {
        let at = address.checked_sub(self.piece_start).and_then(|at| usize::try_from(at).ok());
        if let Some(bytes) = at.and_then(|at| self.piece.get(at..at.checked_add(8)?)) {
            return Some(u64::from_le_bytes(bytes.try_into().ok()?));
        }
        let run = self.run_of(address).filter(|_| address.is_multiple_of(8))?;
        let bytes = usize::try_from((run.end - address).min(PIECE)).ok()?;
        self.piece.resize(bytes, 0);
        self.piece_start = address;
        if self.memory.read(&mut self.piece, address).is_err() {
            self.piece.clear();
            return None;
        }
        Some(u64::from_le_bytes(self.piece.get(..8)?.try_into().ok()?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::io::Write;

    use memtrack_format::resident::{PageRun, PageState};

    use super::{ChunkWalk, HeapRange, ProcessMemory, STATE_BYTES};

    const PAGE: u64 = 4096;
    const START: u64 = 1 << 16;

    /// The free pages of a heap with these chunks, of which the first fast ones are in a fast bin; the last is the top. The
    /// file stands for the memory of the process: a state, and the heap.
    fn free(chunks: &[(u64, bool)], fast: &[usize], mixed: bool) -> Option<Vec<(u64, u64)>> {
        let end = START + chunks.iter().map(|(size, _)| size).sum::<u64>();
        let mut words = vec![0_u64; (end / 8) as usize + 4];
        let (mut at, mut was_used, mut starts) = (START, true, Vec::new());
        for (size, is_used) in chunks {
            words[at as usize / 8 + 1] = size | u64::from(was_used);
            starts.push(at);
            (at, was_used) = (at + size, *is_used);
        }
        let mut link = 16;
        for number in fast {
            let mix = if mixed && link > STATE_BYTES { link >> 12 } else { 0 };
            words[link as usize / 8] = starts[*number] ^ mix;
            link = starts[*number] + 16;
        }
        if mixed && link > STATE_BYTES && words[link as usize / 8] == 0 {
            words[link as usize / 8] = link >> 12;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let memory = ProcessMemory::in_file(file);
        let runs = [PageRun { start: START, end, state: PageState::Anonymous }];
        let mut walk = ChunkWalk { memory: &memory, runs: &runs, piece: Vec::new(), piece_start: 0 };
        walk.free_pages(&HeapRange { start: START, end, first: START, state: 0 }, PAGE)
    }

    #[test]
    fn pages_between_chunks_in_use_are_free() {
        let chunks = [(64, true), (3 * PAGE, false), (PAGE, true), (PAGE - 64, true), (2 * PAGE, false)];
        // The first page has a used chunk, and the links of the free one.
        let expected = vec![(START + PAGE, START + 3 * PAGE), (START + 6 * PAGE, START + 7 * PAGE)];
        assert_eq!(free(&chunks, &[], false), Some(expected));
    }

    #[test]
    fn chunks_in_fast_bins_are_merged_with_their_neighbours() {
        let chunks = [(PAGE, true), (32, true), (2 * PAGE, false), (32, true), (PAGE - 64, true), (PAGE, false)];
        assert_eq!(free(&chunks, &[], false), Some(vec![(START + 2 * PAGE, START + 3 * PAGE)]));
        // The fast chunk behind it is merged with the page that is free, and ends where the next page begins.
        let chunks = [(PAGE, true), (64, true), (PAGE, false), (PAGE - 64, true), (PAGE, true), (PAGE, false)];
        assert_eq!(free(&chunks, &[], true), Some(vec![]));
        for mixed in [false, true] {
            assert_eq!(free(&chunks, &[3, 1], mixed), Some(vec![(START + 2 * PAGE, START + 3 * PAGE)]));
        }
    }

    #[test]
    fn chunks_that_do_not_lead_to_the_end_say_nothing() {
        assert!(free(&[(PAGE, true), (8, true), (PAGE - 8, false)], &[], false).is_none());
        // A fast bin that leads to itself.
        assert!(free(&[(PAGE, true), (PAGE, false)], &[0, 0], true).is_none());
    }
}
