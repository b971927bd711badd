//! Each definition, and each case that other trackers are known to get wrong, with the true number, on events made by
//! hand.

use memtrack_format::{Allocator, MapClass};

use super::{Options, Replay};
use crate::analysis::{Analysis, GroupRow, Interval, Tally, UnknownBlocks, View};
use crate::event::{Event, EventKind, StackId, ThreadId};

const MIB: u64 = 1 << 20;

/// Feeds a replay; the event number is also its time, in microseconds.
struct Script {
    replay: Replay,
    stack: u32,
    thread: u32,
    order: u64,
}

impl Script {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self { replay: Replay::new(&options), stack: 1, thread: 0, order: 0 }
    }

    fn at(&mut self, stack: u32) -> &mut Self {
        self.stack = stack;
        self
    }

    fn thread(&mut self, thread: u32) -> &mut Self {
        self.thread = thread;
        self
    }

    fn event(&mut self, kind: EventKind, address: u64, size: u64) -> &mut Self {
        let (stack, thread) = (StackId(self.stack), ThreadId(self.thread));
        let time_ns = self.order * 1000;
        self.replay.event(&Event { kind, address, size, stack, thread, order: self.order, time_ns });
        self.order += 1;
        self
    }

    fn alloc(&mut self, address: u64, size: u64) -> &mut Self {
        self.event(EventKind::Alloc(Allocator::Malloc), address, size)
    }

    fn free(&mut self, address: u64) -> &mut Self {
        self.event(EventKind::Free, address, 0)
    }

    fn free_undo(&mut self) -> &mut Self {
        self.event(EventKind::FreeUndo, 0, 0)
    }

    fn map(&mut self, class: MapClass, address: u64, size: u64) -> &mut Self {
        self.event(EventKind::Map(Allocator::Mmap, class), address, size)
    }

    fn unmap(&mut self, address: u64, size: u64) -> &mut Self {
        self.event(EventKind::Unmap, address, size)
    }

    fn unmap_undo(&mut self) -> &mut Self {
        self.event(EventKind::UnmapUndo, 0, 0)
    }

    fn mremap(&mut self, from: (u64, u64), to: (u64, u64)) -> &mut Self {
        self.event(EventKind::RemapFrom, from.0, from.1);
        self.event(EventKind::Map(Allocator::Mremap, MapClass::Inherited), to.0, to.1)
    }

    fn finalizing(&mut self) -> &mut Self {
        self.event(EventKind::Finalizing, 0, 0)
    }

    fn snapshot(&mut self) -> &mut Self {
        self.replay.snapshot(self.order * 1000, 7 * self.order);
        self
    }

    fn finish(&self) -> Analysis {
        self.replay.finish()
    }
}

fn tally(bytes: u64, count: u64) -> Tally {
    Tally { bytes, count, ..Tally::default() }
}

fn peak(analysis: &Analysis) -> (u64, u64, Option<u64>) {
    let peak = analysis.totals.peak;
    (peak.bytes, peak.allocations, peak.at.map(|moment| moment.order))
}

/// (stack, bytes, count) of each row.
fn rows(analysis: &Analysis, view: View) -> Vec<(u32, u64, u64)> {
    analysis.view(view).iter().map(|row| (row.stack.0, row.bytes, row.count)).collect()
}

fn row(analysis: &Analysis, view: View, stack: u32) -> GroupRow {
    analysis.view(view).into_iter().find(|row| row.stack.0 == stack).expect("no row for the stack")
}

#[test]
fn an_empty_capture_has_no_peak() {
    let analysis = Script::new().finish();
    assert_eq!(peak(&analysis), (0, 0, None));
    assert!(analysis.groups.is_empty());
}

#[test]
fn the_peak_is_the_first_maximum_and_names_who_held_it() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 60).at(2).alloc(0x20, 40).free(0x20).at(3).alloc(0x30, 40).free(0x10).free(0x30);
    let analysis = script.finish();
    assert_eq!(peak(&analysis), (100, 2, Some(1)), "a tie goes to the first moment");
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 60, 1), (2, 40, 1)]);
    assert_eq!(analysis.totals.peak.at.unwrap().time_ns, 1000);
}

#[test]
fn a_later_higher_peak_replaces_what_was_noted_for_the_earlier_one() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 100).alloc(0x11, 5).free(0x10).free(0x11).at(1).alloc(0x12, 300).free(0x12);
    let analysis = script.finish();
    assert_eq!(peak(&analysis), (300, 1, Some(4)));
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 300, 1)]);
    assert_eq!(row(&analysis, View::HighWaterMark, 1).first_order, 4, "only what was live at the peak counts");
    assert_eq!(row(&analysis, View::Allocated, 1).first_order, 0);
}

#[test]
fn leaks_are_what_finalization_found_and_at_exit_what_was_left() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 10).at(2).alloc(0x20, 20).at(3).alloc(0x30, 30).free(0x30);
    script.finalizing().free(0x10).at(4).alloc(0x40, 40).at(5).alloc(0x50, 50).free(0x50).finalizing();
    let analysis = script.finish();
    assert_eq!(rows(&analysis, View::Leaks), [(1, 10, 1), (2, 20, 1)]);
    assert_eq!(rows(&analysis, View::LeaksAtExit), [(2, 20, 1), (4, 40, 1)]);
    assert_eq!((analysis.totals.leaked, analysis.totals.leaked_at_exit), (tally(30, 2), tally(60, 2)));
    assert_eq!(analysis.totals.finalizing.unwrap().order, 4, "the first one counts");
}

#[test]
fn without_finalization_leaks_are_those_at_the_end() {
    let mut script = Script::new();
    script.alloc(0x10, 10).alloc(0x20, 20).free(0x10).event(EventKind::Exec, 0, 0);
    let analysis = script.finish();
    assert_eq!(rows(&analysis, View::Leaks), rows(&analysis, View::LeaksAtExit));
    assert_eq!(analysis.totals.leaked, tally(20, 1));
    assert_eq!(analysis.totals.exec.unwrap().order, 3);
}

#[test]
fn temporary_allows_one_further_allocation_of_the_same_thread() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 10).free(0x10);
    script.at(2).alloc(0x20, 20).at(9).alloc(0x90, 1).free(0x20);
    script.at(3).alloc(0x30, 30).at(9).alloc(0x91, 1).alloc(0x92, 1).free(0x30);
    let analysis = script.finish();
    assert_eq!(rows(&analysis, View::Temporary), [(1, 10, 1), (2, 20, 1)]);
    assert_eq!(analysis.totals.temporary, tally(30, 2));
}

#[test]
fn temporary_counts_only_the_allocating_thread() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 10).thread(1).alloc(0x20, 1).alloc(0x21, 1).alloc(0x22, 1).thread(0).free(0x10);
    script.at(2).alloc(0x30, 30).thread(1).free(0x30);
    let analysis = script.finish();
    assert_eq!(
        rows(&analysis, View::Temporary),
        [(1, 10, 1)],
        "others' allocations do not count; others' frees do not"
    );
}

#[test]
fn a_failed_realloc_changes_nothing() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 100).free(0x10).free_undo();
    let analysis = script.finish();
    assert_eq!(peak(&analysis), (100, 1, Some(0)));
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 100, 1)]);
    assert_eq!(rows(&analysis, View::Leaks), [(1, 100, 1)]);
    assert!(rows(&analysis, View::Temporary).is_empty());
    assert_eq!((analysis.totals.deallocations, analysis.totals.undone), (0, 1));
    script.free(0x10);
    let analysis = script.finish();
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 100, 1)], "once, though it was freed twice after the peak");
    assert_eq!((analysis.totals.deallocations, analysis.totals.unmatched_frees), (1, 0));
}

#[test]
fn a_failed_realloc_of_an_unknown_block_is_no_unmatched_free() {
    let mut script = Script::new();
    script.free(0x10).free_undo();
    assert_eq!(script.finish().totals.unmatched_frees, 0);
    script.free_undo();
    assert_eq!(script.finish().totals.undone, 1, "there was nothing left to undo");
}

#[test]
fn frees_of_blocks_from_before_are_counted_apart() {
    let frees = |unknown_blocks| {
        let mut script = Script::with(Options { unknown_blocks, ..Options::default() });
        // A free, a realloc that succeeds, one that fails, and a munmap; and of a block that is known.
        script.free(0x10).free(0x20).alloc(0x30, 100).free(0x40).free_undo();
        script.event(EventKind::Unmap, 0x1000, 4096).free(0x30);
        // The next image has no memory from before.
        script.replay.replaced();
        let totals = script.free(0x50).finish().totals;
        assert_eq!((totals.allocations, totals.deallocations), (Tally { bytes: 100, count: 1, ..Tally::default() }, 1));
        [
            (totals.unmatched_frees, totals.unmatched_unmaps),
            (totals.inherited_frees, totals.inherited_unmaps),
            (totals.earlier_frees, totals.earlier_unmaps),
        ]
    };
    assert_eq!(frees(UnknownBlocks::Unmatched), [(3, 1), (0, 0), (0, 0)]);
    assert_eq!(frees(UnknownBlocks::Inherited), [(1, 0), (2, 1), (0, 0)]);
    assert_eq!(frees(UnknownBlocks::Earlier), [(1, 0), (0, 0), (2, 1)]);
}

#[test]
fn what_other_threads_allocate_meanwhile_adds_to_a_block_that_was_never_freed() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 100).free(0x10).thread(1).at(2).alloc(0x20, 150).thread(0).free_undo();
    let analysis = script.finish();
    assert_eq!(peak(&analysis), (250, 2, Some(2)));
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 100, 1), (2, 150, 1)]);
}

#[test]
fn mremap_keeps_the_class() {
    let mut script = Script::new();
    script.map(MapClass::File, 0x10_0000, 4 * MIB).mremap((0x10_0000, 4 * MIB), (0x4000_0000, 8 * MIB));
    let analysis = script.finish();
    assert_eq!(analysis.totals.allocations, tally(0, 0));
    assert_eq!(analysis.totals.mappings.file.live_bytes, 8 * MIB);
}

#[test]
fn a_failing_munmap_changes_nothing() {
    let mut script = Script::new();
    script.at(1).map(MapClass::Heap, 0x1000_0000, MIB).unmap(0x1000_0000, MIB - 1).unmap_undo();
    let analysis = script.finish();
    assert_eq!(rows(&analysis, View::Leaks), [(1, MIB, 1)]);
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, MIB, 1)]);
    assert_eq!((analysis.totals.deallocations, analysis.totals.undone), (0, 1));
    assert_eq!(analysis.totals.mappings.heap.live_bytes, MIB);
    script.unmap(0x1000_0000, MIB).unmap(0x9000_0000, MIB).unmap_undo();
    let analysis = script.finish();
    assert_eq!(analysis.totals.leaked, tally(0, 0));
    assert_eq!((analysis.totals.deallocations, analysis.totals.unmatched_unmaps), (1, 0));
}

#[test]
fn the_middle_of_a_mapping_may_go() {
    let mut script = Script::new();
    script.at(1).map(MapClass::Heap, 0x1000_0000, 3 * MIB).unmap(0x1000_0000 + MIB, MIB);
    let analysis = script.finish();
    assert_eq!(rows(&analysis, View::Leaks), [(1, 2 * MIB, 1)], "one mapping, in two pieces");
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 3 * MIB, 1)]);
    assert_eq!(analysis.totals.deallocations, 0);
    script.unmap(0x1000_0000, MIB);
    assert_eq!(script.finish().totals.leaked, tally(MIB, 1));
    script.unmap(0x1000_0000 + 2 * MIB, MIB);
    let analysis = script.finish();
    assert_eq!((analysis.totals.leaked, analysis.totals.deallocations), (tally(0, 0), 1));
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 3 * MIB, 1)]);
}

#[test]
fn one_unmap_over_all_pieces_can_be_taken_back() {
    let mut script = Script::new();
    script.map(MapClass::Heap, 0x1000_0000, 3 * MIB).unmap(0x1000_0000 + MIB, MIB).map(
        MapClass::Heap,
        0x3000_0000,
        MIB,
    );
    script.unmap(0x1000_0000, 1 << 30).thread(1).map(MapClass::Heap, 0x9000_0000, MIB).thread(0).unmap_undo();
    let analysis = script.finish();
    assert_eq!(analysis.totals.leaked, tally(4 * MIB, 3));
    assert_eq!(peak(&analysis), (4 * MIB, 3, Some(5)), "a maximum that only the undo brings to light is found there");
    script.unmap(0x1000_0000, 3 * MIB).unmap(0x3000_0000, MIB).unmap(0x9000_0000, MIB);
    let analysis = script.finish();
    assert_eq!((analysis.totals.leaked, script.replay.live()), (tally(0, 0), tally(0, 0)));
    assert_eq!(analysis.totals.deallocations, 3);
}

#[test]
fn an_unmap_ends_with_its_last_page() {
    let mut script = Script::new();
    script.map(MapClass::Heap, 0x10000, 5000).unmap(0x10000, 1);
    assert_eq!(script.finish().totals.leaked, tally(904, 1), "the bytes asked for beyond the first page");
    script.unmap(0x11000, 4096);
    assert_eq!(script.finish().totals.leaked, tally(0, 0));
}

#[test]
fn contradictions_are_counted_and_change_little() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 100).at(2).alloc(0x10, 60).free(0x77).free(0).unmap(0x9000_0000, 4096);
    let analysis = script.finish();
    assert_eq!(peak(&analysis), (100, 1, Some(0)), "the lost block does not add to its successor");
    assert_eq!(rows(&analysis, View::Leaks), [(2, 60, 1)]);
    let totals = &analysis.totals;
    assert_eq!((totals.replaced, totals.unmatched_frees, totals.unmatched_unmaps), (1, 1, 1));
    assert_eq!(totals.allocations.count, totals.deallocations + totals.replaced + totals.leaked_at_exit.count);
}

#[test]
fn snapshots_show_the_heap_and_give_the_first_that_shows_a_sample() {
    let mut script = Script::new();
    script.snapshot().at(1).alloc(0x10, 10).snapshot().snapshot().at(2).alloc(0x20, 20).at(1).free(0x10);
    script.alloc(0x30, 5).snapshot().at(3).alloc(0x40, 1);
    let analysis = script.finish();
    assert_eq!(analysis.snapshots.iter().map(|snapshot| snapshot.heap_bytes).collect::<Vec<_>>(), [0, 10, 10, 25]);
    let first = |view, stack| row(&analysis, view, stack).first_snapshot;
    assert_eq!(first(View::Allocated, 1), 1);
    assert_eq!(first(View::Leaks, 1), 3, "the survivor's, not that of the freed one");
    assert_eq!((first(View::Leaks, 2), first(View::Leaks, 3)), (3, 4));
    assert_eq!(first(View::HighWaterMark, 1), 1, "the peak was before the free");
    assert_eq!((analysis.totals.rss_peak_bytes, analysis.totals.rss_last_bytes), (28, 28));
}

#[test]
fn intervals_name_the_snapshots_between_which_blocks_lived() {
    let mut script = Script::with(Options { moments: u32::MAX, ..Options::default() });
    script.snapshot().at(1).alloc(0x10, 10).alloc(0x11, 11).alloc(0x12, 12).free(0x12).snapshot().free(0x10).snapshot();
    script.map(MapClass::Heap, 0x1000_0000, 8192).snapshot().unmap(0x1000_0000, 4096);
    let interval = |group, first_snapshot, end_snapshot, bytes, count| Interval {
        group,
        first_snapshot,
        end_snapshot,
        bytes,
        count,
    };
    let expected = [
        interval(0, 1, None, 11, 1),
        interval(0, 1, Some(2), 10, 1),
        interval(1, 3, None, 4096, 1),
        interval(1, 3, Some(4), 4096, 0),
    ];
    assert_eq!(script.finish().intervals.unwrap().summed(), expected);
}

#[test]
fn a_new_image_begins_with_nothing() {
    let mut script = Script::new();
    script.at(1).alloc(0x10, 100).map(MapClass::Heap, 0x1000_0000, 3 * 4096).unmap(0x1000_1000, 4096);
    script.map(MapClass::File, 0x2000_0000, MIB).snapshot().event(EventKind::Exec, 0, 0);
    script.replay.replaced();
    script.at(2).alloc(0x10, 60).alloc(0x20, 20).free(0x20);
    let analysis = script.finish();
    assert_eq!(peak(&analysis), (100 + 3 * 4096, 2, Some(1)));
    assert_eq!(rows(&analysis, View::HighWaterMark), [(1, 100, 1), (1, 3 * 4096, 1)]);
    assert_eq!(rows(&analysis, View::LeaksAtExit), [(2, 60, 1)]);
    let totals = &analysis.totals;
    assert_eq!((totals.discarded, totals.deallocations, totals.replaced), (2, 1, 0));
    assert_eq!((totals.mappings.file.live_bytes, totals.mappings.heap.live_bytes), (0, 0));
}

#[test]
fn several_events_at_once_on_a_large_heap_are_the_same_events() {
    const COUNT: u64 = 100_000;
    let event = |kind, order: u64, block: u64| {
        let (stack, thread) = (StackId(1), ThreadId(0));
        Event { kind, address: 0x1000 + block * 32, size: 10, stack, thread, order, time_ns: order }
    };
    let mut events: Vec<_> = (0..COUNT).map(|at| event(EventKind::Alloc(Allocator::Malloc), at, at)).collect();
    events.extend((0..COUNT).map(|at| event(EventKind::Free, COUNT + at, at)));
    let mut replay = Replay::new(&Options::default());
    for batch in events.chunks(50) {
        replay.events(batch.iter().copied());
    }
    let totals = replay.finish().totals;
    assert_eq!((totals.peak.bytes, totals.peak.allocations), (10 * COUNT, COUNT));
    assert_eq!((totals.events, totals.deallocations, replay.live()), (2 * COUNT, COUNT, tally(0, 0)));
}

#[test]
fn a_checkpoint_does_not_disturb_the_replay() {
    let mut script = Script::new();
    script.alloc(0x10, 10).alloc(0x20, 20);
    let checkpoint = script.finish();
    script.free(0x10).alloc(0x30, 50);
    assert_eq!((checkpoint.totals.leaked.bytes, checkpoint.totals.peak.bytes), (30, 30));
    assert_eq!((script.finish().totals.leaked.bytes, script.finish().totals.peak.bytes), (70, 70));
}

#[test]
fn forged_sizes_and_addresses_do_no_harm() {
    let mut script = Script::new();
    for address in [0, 1, u64::MAX - 1, u64::MAX] {
        script.alloc(address, u64::MAX).alloc(address, u64::MAX).map(MapClass::Heap, address, u64::MAX);
        script.map(MapClass::Inherited, address, 1).unmap(address, u64::MAX).unmap_undo().unmap_undo().free(address);
        script.event(EventKind::RemapFrom, address, 0);
    }
    assert_eq!(script.finish().totals.events, 36);
}
