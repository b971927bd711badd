//! Made-up accounts and live blocks, and what they must be divided into.

use memtrack_format::meta::Process;
use memtrack_format::resident::{
    AccountMapping, AccountThread, GlibcHeap, HeapFreePages, PageRun, PageState, ResidentAccount, flag,
};
use memtrack_format::{Allocator, MapClass};
use proptest::prelude::*;

use super::{
    AccountOutline, AccountOutlines, AllocatorTrace, LiveMoment, MemoryClass, MomentScan, ProcessFacts,
    ResidentBreakdown, WidestScan,
};
use crate::analysis::Options;
use crate::event::{Event, EventKind, Snapshot, StackId, ThreadId};
use crate::frames::Frames;
use crate::live_extent::LiveExtent;
use crate::source::Consumer;

const PAGE: u64 = 4096;
const READ_WRITE: u64 = flag::READ | flag::WRITE;
const HEAP: u64 = 0x5000_0000;

/// A process that was recorded from its start on.
fn recorded_whole() -> ProcessFacts {
    ProcessFacts::of(&Process::default())
}

fn recorded_in_part() -> ProcessFacts {
    ProcessFacts { knows_all: false, ..recorded_whole() }
}

#[derive(Default)]
struct Made {
    account: ResidentAccount,
    moment: LiveMoment,
}

impl Made {
    fn new() -> Self {
        let mut made = Self::default();
        made.account.page_bytes = PAGE;
        made.moment.groups = (0..4).map(|stack| (StackId(stack + 1), Allocator::Malloc)).collect();
        made
    }

    /// Adds a mapping of so many pages, all of them in this state.
    fn map(&mut self, start: u64, pages: u64, flags: u64, path: &str, state: Option<PageState>) -> &mut Self {
        let end = start + pages * PAGE;
        let path = (!path.is_empty()).then(|| {
            self.account.paths.push(path.as_bytes().to_vec());
            self.account.paths.len() as u32 - 1
        });
        let runs = state.map(|state| PageRun { start, end, state }).into_iter().collect();
        self.account.mappings.push(AccountMapping { start, end, flags, path, runs });
        self
    }

    fn heap(&mut self, pages: u64) -> &mut Self {
        self.map(HEAP, pages, READ_WRITE, "[heap]", Some(PageState::Anonymous))
    }

    fn block(&mut self, start: u64, bytes: u64, group: u32) -> &mut Self {
        self.moment.extents.push(LiveExtent { start, bytes, time_ns: start, group, mapped: None });
        self.moment.extents.sort_by_key(|extent| extent.start);
        self
    }

    fn breakdown(&self) -> ResidentBreakdown {
        let found = ResidentBreakdown::of(&self.account, &self.moment, recorded_whole());
        let sum: u64 = MemoryClass::ALL.iter().map(|class| found.bytes(*class)).sum();
        assert_eq!((sum, found.rss.total()), (self.account.resident_bytes(), self.account.resident_bytes()));
        found
    }
}

/// The classes that are not empty, in pages.
fn pages(found: &ResidentBreakdown) -> Vec<(&'static str, u64)> {
    let all = MemoryClass::ALL.iter().map(|class| (class.name(), found.bytes(*class)));
    all.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name, bytes / PAGE)).collect()
}

/// Chunks of no recorded block, as the loader's, keep pages; and what is free is known without all blocks.
#[test]
fn where_chunks_were_read_they_say_what_is_free() {
    let mut made = Made::new();
    made.heap(8).block(HEAP + 16, 100, 0);
    let page = |number: u64| HEAP + number * PAGE;
    let free = HeapFreePages { start: HEAP, end: page(7), runs: vec![(page(1), page(3)), (page(4), page(7))] };
    made.account.free.push(free);
    // The last page lies behind what was read.
    assert_eq!(pages(&made.breakdown()), [("live", 0), ("slack", 1), ("retained", 6)]);
    made.block(page(5) + 16, 100, 1);
    assert_eq!(pages(&made.breakdown()), [("live", 0), ("slack", 2), ("retained", 5)]);
    let found = ResidentBreakdown::of(&made.account, &made.moment, recorded_in_part());
    assert_eq!(pages(&found), [("live", 0), ("slack", 1), ("retained", 4), ("unexplained", 2)]);
    // The same in a mapping that is divided.
    let of_one = made.breakdown();
    let first = made.account.mappings[0].clone();
    let parts = [(first.start, page(5)), (page(5), first.end)].map(|(start, end)| AccountMapping {
        start,
        end,
        runs: vec![PageRun { start, end, state: PageState::Anonymous }],
        ..first.clone()
    });
    made.account.mappings = parts.to_vec();
    assert_eq!(pages(&made.breakdown()), pages(&of_one));
}

/// The end of an arena with what is free before it.
#[test]
fn the_end_of_an_arena_begins_with_the_free_pages_before_it() {
    const ARENA: u64 = 0x7f00_0000_0000;
    let mut made = Made::new();
    made.map(ARENA, 8, READ_WRITE, "", Some(PageState::Anonymous));
    made.account.heaps.push(GlibcHeap { start: ARENA, arena: ARENA + 48, top: ARENA + 6 * PAGE });
    let of_run = |runs| HeapFreePages { start: ARENA, end: ARENA + 8 * PAGE, runs };
    made.account.free.push(of_run(vec![(ARENA + 2 * PAGE, ARENA + 3 * PAGE), (ARENA + 4 * PAGE, ARENA + 8 * PAGE)]));
    let found = made.breakdown();
    assert_eq!((found.bytes(MemoryClass::Retained), found.trimmable()), (5 * PAGE, PAGE));
}

#[test]
fn pages_between_live_blocks_are_retained_but_for_the_links_of_free_chunks() {
    let mut made = Made::new();
    // The first chunk fills the first page to its end, so the free chunk's links are on the second page.
    made.heap(8).block(HEAP + 16, PAGE - 24, 0).block(HEAP + 5 * PAGE + 16, 100, 1);
    let found = made.breakdown();
    assert_eq!(found.bytes(MemoryClass::Live), PAGE - 24 + 100);
    // Pages 2, 3, 4 and 6, 7; page 1 has the links.
    assert_eq!(found.bytes(MemoryClass::Retained), 5 * PAGE);
    assert_eq!(found.bytes(MemoryClass::Slack), 3 * PAGE - (PAGE - 24) - 100);
    assert_eq!((found.trimmable(), found.untouched), (5 * PAGE, 0));
    let pinned: Vec<_> =
        found.pinned.iter().map(|one| (one.stack.0, one.blocks, one.live_bytes, one.pinned_bytes)).collect();
    assert_eq!(pinned, [(1, 1, PAGE - 24, PAGE), (2, 1, 100, PAGE)]);
    // The helper's blocks are allocated at the time of their address.
    assert_eq!(found.pinned[1].allocated_ns, (HEAP + 5 * PAGE + 16, HEAP + 5 * PAGE + 16));
}

#[test]
fn what_a_thread_caches_is_not_retained() {
    let mut made = Made::new();
    made.heap(4).block(HEAP + 16, 8, 0);
    assert_eq!(made.breakdown().bytes(MemoryClass::Retained), 3 * PAGE);
    made.moment.cached.push((HEAP + 2 * PAGE + 16, 64));
    assert_eq!(made.breakdown().bytes(MemoryClass::Retained), 2 * PAGE);
}

#[test]
fn the_end_of_another_arena_is_kept_by_malloc_trim() {
    let start = 64 << 20;
    let mut made = Made::new();
    made.map(start, 10, READ_WRITE, "", Some(PageState::Anonymous)).map(start + 10 * PAGE, 6, 0, "", None);
    made.account.heaps = vec![GlibcHeap { start, arena: start + 48, top: start + 6 * PAGE - 32 }];
    made.block(start + 3 * PAGE + 16, 2 * PAGE, 2);
    let found = made.breakdown();
    // Page 0 begins with the state of the arena; pages 3 to 5 are of the block.
    assert_eq!(pages(&found), [("live", 2), ("slack", 2), ("retained", 6)]);
    let [arena] = found.arenas[..] else { panic!("{:?}", found.arenas) };
    assert_eq!((arena.allocator, arena.address, arena.resident, arena.held), ("glibc", start, 10 * PAGE, 4 * PAGE));
    assert_eq!(found.trimmable(), 2 * PAGE);
}

/// As after advice about huge pages for a part of it.
#[test]
fn a_heap_of_an_arena_may_be_several_mappings() {
    let start = 64 << 20;
    let mut made = Made::new();
    made.map(start, 4, READ_WRITE, "", Some(PageState::Anonymous))
        .map(start + 4 * PAGE, 8, READ_WRITE, "", Some(PageState::Anonymous))
        .map(start + 12 * PAGE, 4, READ_WRITE, "", Some(PageState::Anonymous));
    made.account.heaps = vec![GlibcHeap { start, arena: start + 48, top: start + 14 * PAGE - 32 }];
    made.block(start + 13 * PAGE + 16, 100, 0);
    let found = made.breakdown();
    // The first page has the state of the arena, the last two are its end.
    assert_eq!((found.bytes(MemoryClass::Retained), found.trimmable()), (14 * PAGE, 12 * PAGE));
    assert!(
        found.arenas.iter().all(|arena| arena.allocator == "glibc" && arena.state == start + 48),
        "{:?}",
        found.arenas
    );
}

/// A mapping without a live block is the allocator's by the blocks that were in it; its own data is not given back, nor are the
/// slabs in which a block lives.
#[test]
fn of_jemalloc_is_given_back_what_had_a_block_and_is_in_no_slab_in_use() {
    let mut made = Made::new();
    let start = 0x7f00_0000_0000;
    made.map(0x1000, 1, flag::READ | flag::FILE, "/usr/lib/libjemalloc.so.2", None);
    made.map(start, 16, READ_WRITE, "", Some(PageState::Anonymous));
    assert_eq!(pages(&made.breakdown()), [("unexplained", 16)]);
    made.moment.block_pages.add_account(&made.account.clone());
    made.moment.block_pages.add(start + 2 * PAGE, start + 12 * PAGE);
    let found = made.breakdown();
    assert_eq!((pages(&found), found.purgeable()), (vec![("retained", 16)], 10 * PAGE));
    // A slab of 48 bytes has three pages.
    made.block(start + 6 * PAGE + 10 * 48, 40, 0);
    let found = made.breakdown();
    assert_eq!((found.bytes(MemoryClass::Retained), found.purgeable()), (15 * PAGE, 7 * PAGE));
    made.account.paths[0] = b"/usr/lib/libtcmalloc_minimal.so.4".to_vec();
    assert_eq!(made.breakdown().purgeable(), 9 * PAGE, "slabs of other allocators are not known");
}

#[test]
fn every_kind_of_mapping_has_its_class() {
    let mut made = Made::new();
    let (file, code) = (flag::FILE, flag::READ | flag::EXECUTE | flag::FILE);
    made.map(0x1000_0000, 4, code, "/bin/x", Some(PageState::File))
        .map(0x1000_4000, 1, READ_WRITE | file, "/bin/x", Some(PageState::Anonymous))
        .map(0x1000_5000, 2, READ_WRITE, "", Some(PageState::Anonymous))
        .map(0x2000_0000, 3, READ_WRITE | flag::SHARED | file | flag::IN_MEMORY, "/dev/shm/a", Some(PageState::File))
        .map(
            0x2100_0000,
            2,
            READ_WRITE | flag::SHARED | file | flag::IN_MEMORY,
            "/memfd:memtrack (deleted)",
            Some(PageState::File),
        )
        .map(0x2200_0000, 1, code, "/usr/lib/libmemtrack_shim.so", Some(PageState::File))
        .map(0x2300_0000, 2, code, "/memfd:libmemtrack_shim.so (deleted)", Some(PageState::File))
        .map(0x3000_0000, 1, 0, "", None)
        .map(0x3000_1000, 3, READ_WRITE, "", Some(PageState::Anonymous))
        .map(0x3100_0000, 2, READ_WRITE, "", Some(PageState::Anonymous))
        .map(0x3200_0000, 5, READ_WRITE, "", Some(PageState::Swapped))
        .map(0x4000_0000, 1, READ_WRITE, "", Some(PageState::Anonymous))
        .map(0x7000_0000, 1, READ_WRITE, "[stack]", Some(PageState::Anonymous));
    made.account.threads = vec![AccountThread { tid: 1, stack_pointer: 0x3100_1008 }];
    made.block(0x3200_0010, 2 * PAGE, 0);
    let found = made.breakdown();
    let expected = [("stacks", 6), ("file", 7), ("shared", 3), ("memtrack", 5), ("unexplained", 1)];
    assert_eq!(pages(&found), expected);
    assert_eq!((found.rss.file, found.rss.shared), (7 * PAGE, 5 * PAGE));
    assert_eq!((found.swapped, found.untouched), (5 * PAGE, 0));
}

#[test]
fn free_pools_are_told_from_pools_with_an_object() {
    let mut made = Made::new();
    made.moment.groups[1].1 = Allocator::PymallocMalloc;
    let start = 0x1000_0000;
    made.map(start, 16, READ_WRITE, "", Some(PageState::Anonymous));
    made.block(start + 4 * PAGE + 48, 64, 1).block(start + 9 * PAGE, 64, 1).block(start + 9 * PAGE + 64, 64, 1);
    let found = made.breakdown();
    // Of the pools of four pages the second and the third have objects.
    assert_eq!(found.bytes(MemoryClass::PythonFree), 8 * PAGE);
    assert_eq!(found.bytes(MemoryClass::Live), 192);
    assert_eq!((found.arenas[0].allocator, found.arenas[0].live), ("pymalloc", 192));
}

#[test]
fn untouched_and_reserved_memory() {
    let mut made = Made::new();
    let start = 0x1000_0000;
    made.map(start, 100, READ_WRITE, "", None);
    made.account.mappings[0].runs =
        vec![PageRun { start: start + PAGE, end: start + 3 * PAGE, state: PageState::Anonymous }];
    made.block(start + 16, 100 * PAGE - 16, 0);
    assert_eq!((made.breakdown().bytes(MemoryClass::Live), made.breakdown().untouched), (2 * PAGE, 98 * PAGE - 16));
    // Address space that the program has reserved counts where it is resident.
    made.moment.extents[0] =
        LiveExtent { start, bytes: 100 * PAGE, time_ns: 0, group: u32::MAX, mapped: Some(MapClass::Reserved) };
    assert_eq!((made.breakdown().bytes(MemoryClass::Live), made.breakdown().untouched), (2 * PAGE, 0));
}

#[test]
fn what_is_resident_of_recorded_shared_memory_is_known() {
    let mut made = Made::new();
    let start = 0x1000_0000;
    made.map(start, 10, READ_WRITE | flag::SHARED | flag::IN_MEMORY, "", None);
    made.map(start + 100 * PAGE, 10, READ_WRITE | flag::SHARED | flag::FILE, "/data", None);
    for (mapping, start) in made.account.mappings.iter_mut().zip([start, start + 100 * PAGE]) {
        mapping.runs = vec![PageRun { start: start + PAGE, end: start + 8 * PAGE, state: PageState::File }];
    }
    // The first half was recorded, and the file, which is none.
    for (start, pages) in [(start, 5), (start + 100 * PAGE, 10)] {
        let mapped = Some(MapClass::Shared);
        made.moment.extents.push(LiveExtent { start, bytes: pages * PAGE, time_ns: 0, group: u32::MAX, mapped });
    }
    assert_eq!(made.breakdown().shared_mapped, 4 * PAGE);
}

#[test]
fn what_a_large_block_never_touched_is_known_by_its_stack() {
    let (mut made, pages) = (Made::new(), 64 << 8);
    let start = 0x1000_0000;
    made.map(start, pages, READ_WRITE, "", None);
    made.account.mappings[0].runs = vec![
        PageRun { start, end: start + 3 * PAGE, state: PageState::Anonymous },
        PageRun { start: start + 8 * PAGE, end: start + 10 * PAGE, state: PageState::Swapped },
    ];
    // What is small is not listed.
    made.block(start, 4 * PAGE, 1);
    made.block(start + 4 * PAGE, pages * PAGE - 4 * PAGE, 0);
    let found = made.breakdown();
    let bytes = pages * PAGE - 4 * PAGE;
    let [row] = found.untouched_blocks[..] else { panic!("{:?}", found.untouched_blocks) };
    assert_eq!((row.blocks, row.bytes, row.untouched), (1, bytes, bytes - 2 * PAGE));
    assert_eq!(found.untouched, bytes - 2 * PAGE + PAGE);
    // The moment counts although less is in memory than live.
    let mut outlines = AccountOutlines::default();
    outlines.add(&made.account, 7);
    let [outline] = outlines.finish(None)[..] else { panic!("one account") };
    assert_eq!((outline.anonymous, outline.untouched), (3 * PAGE, pages * PAGE - 5 * PAGE));
}

#[test]
fn one_block_in_64_pages_is_the_first_row_before_a_large_array() {
    let mut made = Made::new();
    made.heap(64 * 20);
    (0..20).for_each(|block| {
        made.block(HEAP + block * 64 * PAGE + 16, 40, 1);
    });
    let array = 0x7000_0000;
    made.map(array, 1000, READ_WRITE, "", Some(PageState::Anonymous));
    made.block(array + 16, 1000 * PAGE - 16, 0);
    let found = made.breakdown();
    let first = found.pinned[0];
    assert_eq!((first.stack, first.blocks, first.live_bytes, first.pinned_bytes), (StackId(2), 20, 800, 20 * PAGE));
    let (earliest, latest) = first.allocated_ns;
    assert!(earliest < latest && (latest - earliest) / PAGE >= 19);
    assert_eq!(found.bytes(MemoryClass::Retained), 63 * 20 * PAGE);
}

#[test]
fn blocks_from_before_the_recording_leave_pages_unexplained() {
    let mut made = Made::new();
    made.heap(4).block(HEAP + 16, 8, 0);
    let found = ResidentBreakdown::of(&made.account, &made.moment, recorded_in_part());
    assert_eq!((found.bytes(MemoryClass::Unexplained), found.bytes(MemoryClass::Retained)), (3 * PAGE, 0));
}

proptest! {
    /// However blocks, mappings and runs lie, each page is counted once; and the pages are those that a count of each
    /// single page gives.
    #[test]
    fn classes_add_up(
        blocks in prop::collection::vec((0u64..200, 0u64..4096, 0u64..30_000, 0u32..5, 0u8..12), 0..30),
        runs in prop::collection::vec((0u64..40, 1u64..40, 0u8..3), 0..10), kind in 0u8..3,
    ) {
        let mut made = Made::new();
        let start = 64 << 20;
        let path = if kind == 0 { "[heap]" } else { "" };
        made.map(start, 400, READ_WRITE, path, None);
        if kind == 1 {
            made.account.heaps = vec![GlibcHeap { start, arena: start + 48, top: start + 300 * PAGE }];
        }
        let mut at = start;
        for (gap, pages, state) in runs {
            let (from, to) = (at + gap * PAGE, at + (gap + pages) * PAGE);
            if to <= start + 400 * PAGE {
                let state = [PageState::Anonymous, PageState::File, PageState::Swapped][usize::from(state)];
                made.account.mappings[0].runs.push(PageRun { start: from, end: to, state });
                at = to;
            }
        }
        for (page, offset, bytes, group, mapped) in blocks {
            let (address, mapped) = (start + page * PAGE + (offset & !15), (mapped == 0).then_some(MapClass::Heap));
            made.moment.extents.push(LiveExtent { start: address, bytes, time_ns: 0, group, mapped });
        }
        made.moment.extents.sort_by_key(|extent| extent.start);
        let found = made.breakdown();
        // The same, page by page.
        let mut single = made.account.clone();
        single.mappings[0].runs = single.mappings[0].runs.iter().flat_map(|run| {
            (run.start..run.end).step_by(PAGE as usize).map(|page| PageRun { start: page, end: page + PAGE, state: run.state })
        }).collect();
        prop_assert_eq!(ResidentBreakdown::of(&single, &made.moment, recorded_whole()), found);
    }
}

/// What a scan is fed in one step, which takes [`STEP_NS`].
#[derive(Clone, Debug)]
enum Step {
    Event(EventKind, u64),
    /// A free that did not happen.
    Undone(u64),
    Tick,
    Snapshot,
    Replaced,
}

const STEP_NS: u64 = 10;

fn step() -> impl Strategy<Value = Step> {
    let alloc = EventKind::Alloc(Allocator::Malloc);
    let map = EventKind::Map(Allocator::Mmap, MapClass::Heap);
    prop_oneof![
        8 => (0u64..12).prop_map(move |place| Step::Event(alloc, place)),
        8 => (0u64..12).prop_map(|place| Step::Event(EventKind::Free, place)),
        2 => (0u64..12).prop_map(move |place| Step::Event(map, place)),
        2 => (0u64..12).prop_map(|place| Step::Event(EventKind::Unmap, place)),
        1 => (0u64..12).prop_map(Step::Undone),
        3 => Just(Step::Tick),
        3 => Just(Step::Snapshot),
        1 => Just(Step::Replaced),
        1 => Just(Step::Event(EventKind::Finalizing, 0)),
    ]
}

/// Feeds the steps; returns the time of each snapshot, and of the first beginning of finalization.
fn feed(steps: &[Step], to: &mut impl Consumer) -> (Vec<u64>, Option<u64>) {
    let (frames, mut order, mut snapshots, mut finalizing) = (Frames::new(), 0, Vec::new(), None);
    for (step, time_ns) in steps.iter().zip((0..).step_by(STEP_NS as usize)) {
        let mut event = |kind, place: u64| {
            let is_mapped = matches!(kind, EventKind::Map(..) | EventKind::Unmap);
            let (address, size) = (place * 0x1000 + u64::from(is_mapped) * 0x10_0000, (8 << 20) + time_ns);
            let event = Event { kind, address, size, stack: StackId(1), thread: ThreadId(0), order, time_ns };
            to.events(std::iter::once(event), &frames);
            order += 1;
        };
        match step {
            Step::Event(kind, place) => {
                event(*kind, *place);
                if *kind == EventKind::Finalizing {
                    finalizing.get_or_insert(time_ns);
                }
            }
            Step::Undone(place) => {
                event(EventKind::Free, *place);
                event(EventKind::FreeUndo, 0);
            }
            Step::Tick => to.tick(0, time_ns),
            Step::Snapshot => {
                to.tick(0, time_ns);
                to.snapshot(&Snapshot { time_ns, order, ..Snapshot::default() });
                snapshots.push(time_ns);
            }
            Step::Replaced => to.replaced(),
        }
    }
    (snapshots, finalizing)
}

/// Takes the heap's bytes at each snapshot.
struct HeapAtSnapshots(crate::replay::Replay, Vec<u64>);

impl Consumer for HeapAtSnapshots {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.0.event(event);
    }

    fn snapshot(&mut self, _snapshot: &Snapshot) {
        self.1.push(self.0.live().bytes);
    }

    fn replaced(&mut self) {
        self.0.replaced();
    }
}

proptest! {
    /// The widest moment is known when all is replayed; a second replay up to it says what was live.
    #[test]
    fn one_replay_finds_what_two_find(
        steps in prop::collection::vec(step(), 0..120),
        accounts in prop::collection::vec((0u64..1300, 0u64..(120 << 20), 0u64..(60 << 20), any::<bool>()), 0..6),
    ) {
        let mut outlines: Vec<AccountOutline> = accounts
            .iter()
            .map(|&(time_ns, anonymous, untouched, is_finalizing)| {
                AccountOutline { time_ns, anonymous, untouched, is_finalizing }
            })
            .collect();
        outlines.sort_by_key(|outline| outline.time_ns);
        let mut heap = HeapAtSnapshots(crate::replay::Replay::new(&Options::default()), Vec::new());
        let (snapshots, finalizing) = feed(&steps, &mut heap);
        let mut expected = None::<(u64, u64)>;
        for outline in &outlines {
            if finalizing.is_some_and(|end| outline.time_ns > end) && !outline.is_finalizing {
                break;
            }
            let before = snapshots.partition_point(|time_ns| *time_ns <= outline.time_ns);
            let live = before.checked_sub(1).map_or(0, |last| heap.1[last]);
            let missing = live.saturating_sub(outline.anonymous).min(outline.untouched);
            let is_untouched = missing >= 4 << 20 && missing >= live / 100 * 10;
            let untouched = if is_untouched { outline.untouched.min(live) } else { 0 };
            let gap = outline.anonymous.saturating_sub(live - untouched);
            let is_much = gap >= 4 << 20 && gap >= outline.anonymous / 100 * 10;
            let rank = untouched + if is_much { gap } else { 0 };
            if (is_much || is_untouched) && expected.is_none_or(|(most, _)| rank >= most) {
                expected = Some((rank, outline.time_ns));
            }
        }
        let mut once = WidestScan::new(&Options::default(), outlines, AllocatorTrace::default());
        feed(&steps, &mut once);
        let (kept, _, replay) = once.finish();
        prop_assert_eq!(kept.as_ref().map(|kept| kept.time_ns), expected.map(|(_, time_ns)| time_ns));
        if let Some(kept) = kept {
            let mut twice = MomentScan::new(&Options::default(), kept.time_ns, AllocatorTrace::default());
            feed(&steps, &mut twice);
            let account = ResidentAccount::default();
            let (expected, _) = twice.finish(&account, &[]);
            let mut found = kept.moment(&account, &[], &replay);
            found.groups.truncate(expected.groups.len());
            prop_assert_eq!(found, expected);
        }
    }
}
