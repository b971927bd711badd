//! Tests of the live heap by events made by hand.

use std::time::Duration;

use memtrack_format::{Allocator, MapClass};
use proptest::prelude::*;

use super::grid::LiveWindow;
use super::state::LiveState;
use crate::analysis::{Options, Tally, View};
use crate::decoded_run::with_decoded_run;
use crate::event::{Event, EventKind, Snapshot, StackId, ThreadId};
use crate::frames::Frames;
use crate::replay::Replay;
use crate::source::Consumer;

const MALLOC: EventKind = EventKind::Alloc(Allocator::Malloc);

fn tally(bytes: u64, count: u64) -> Tally {
    Tally { bytes, count, ..Tally::default() }
}

fn event(order: u64, kind: EventKind, (address, size): (u64, u64), stack: u32, time_ms: u64) -> Event {
    let (stack, thread) = (StackId(stack), ThreadId(stack % 2));
    Event { kind, address, size, stack, thread, order, time_ns: time_ms * 1_000_000 }
}

/// Passes an event on as a reader does that decodes a capture.
fn replay_run(state: &mut LiveState, event: &Event) {
    with_decoded_run(std::slice::from_ref(event), |run| state.decoded_run(run, &Frames::new()));
}

/// Passes events on as a reader does: a tick before the first one of each time.
fn run(state: &mut LiveState, events: &[Event]) -> Vec<LiveWindow> {
    let mut windows = Vec::new();
    for event in events {
        state.tick(0, event.time_ns);
        replay_run(state, event);
        windows.extend(std::iter::from_fn(|| state.take_window()));
    }
    state.end(0);
    windows.extend(std::iter::from_fn(|| state.take_window()));
    windows
}

#[test]
fn windows_have_what_was_allocated_and_freed_in_them_and_what_is_live_at_their_end() {
    let mut state = LiveState::new(Some(Duration::from_millis(100)));
    let windows = run(
        &mut state,
        &[
            event(0, MALLOC, (0x10, 100), 1, 5),
            event(1, MALLOC, (0x20, 50), 2, 99),
            event(2, EventKind::Free, (0x10, 0), 0, 100),
            event(3, MALLOC, (0x30, 7), 1, 150),
            event(4, EventKind::Map(Allocator::Mmap, MapClass::Heap), (0x10_0000, 8192), 3, 450),
            event(5, EventKind::Unmap, (0x10_1000, 4096), 0, 460),
        ],
    );
    let shown = |window: &LiveWindow| {
        let rows = window.groups.iter();
        rows.map(|row| (row.stack.0, row.allocated, row.freed, row.live)).collect::<Vec<_>>()
    };
    let times: Vec<_> = windows.iter().map(|one| (one.from_ns / 1_000_000, one.to_ns / 1_000_000)).collect();
    assert_eq!(times, [(0, 100), (100, 400), (400, 461)]);
    let none = tally(0, 0);
    assert_eq!(shown(&windows[0]), [(1, tally(100, 1), none, tally(100, 1)), (2, tally(50, 1), none, tally(50, 1))]);
    assert_eq!(shown(&windows[1]), [(1, tally(7, 1), tally(100, 1), tally(7, 1)), (2, none, none, tally(50, 1))]);
    assert_eq!(shown(&windows[2])[2], (3, tally(8192, 1), tally(4096, 0), tally(4096, 1)));
    assert_eq!(windows.iter().map(|one| one.events).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(windows.iter().map(|one| one.last).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(windows[2].totals.live, tally(4153, 3));
    assert_eq!((windows[2].totals.peak_bytes, windows[2].totals.peak_time_ns), (8249, 450_000_000));
}

/// A viewer that comes later sees everything at once, then the windows that others see; while its grid is held, it sees longer ones.
#[test]
fn windows_that_begin_later_join_those_of_others() {
    let mut state = LiveState::new(None);
    let step = |state: &mut LiveState, order: u64, time_ms: u64| -> Vec<_> {
        run_one(state, &event(order, MALLOC, (0x10 * (order + 1), 10), 1, time_ms))
    };
    let every = Duration::from_millis(100);
    let first = state.add_grid(every);
    assert_eq!(step(&mut state, 0, 5), []);
    assert_eq!(step(&mut state, 1, 7), [(first, 0, 7, 10)]);
    assert_eq!(step(&mut state, 2, 130), [(first, 7, 100, 20)]);
    let second = state.add_grid(every);
    assert_eq!((step(&mut state, 3, 150), state.same_grid(second)), (vec![(second, 0, 150, 30)], None));
    assert_eq!(step(&mut state, 4, 201), [(first, 100, 200, 40), (second, 150, 200, 40)]);
    assert_eq!(state.same_grid(second), Some(first));
    state.remove_grid(second);
    state.grid_mut(first).unwrap().held = true;
    assert_eq!(step(&mut state, 5, 320), []);
    state.grid_mut(first).unwrap().held = false;
    assert_eq!(step(&mut state, 6, 410), [(first, 200, 400, 60)]);
    let mut later = LiveState::new(Some(every));
    later.grid_mut(0).unwrap().end_first_at(150_000_000);
    assert_eq!((step(&mut later, 0, 120), step(&mut later, 1, 160)), (vec![], vec![(0, 0, 150, 10)]));
}

/// The windows that close before an event: the grid, the span in milliseconds, and the live bytes.
fn run_one(state: &mut LiveState, event: &Event) -> Vec<(u32, u64, u64, u64)> {
    state.tick(0, event.time_ns);
    replay_run(state, event);
    let windows = std::iter::from_fn(|| state.take_window());
    windows.map(|one| (one.grid, one.from_ns / 1_000_000, one.to_ns / 1_000_000, one.totals.live.bytes)).collect()
}

#[test]
fn an_exec_frees_everything_and_resident_memory_is_that_of_the_last_sample() {
    let mut state = LiveState::new(None);
    replay_run(&mut state, &event(0, MALLOC, (0x10, 100), 1, 1));
    state.snapshot(&Snapshot { rss_bytes: 5000, ..Snapshot::default() });
    state.snapshot(&Snapshot { rss_bytes: 3000, ..Snapshot::default() });
    state.replaced();
    let totals = state.totals();
    assert_eq!(
        (totals.live, totals.peak_bytes, totals.rss_bytes, totals.rss_peak_bytes),
        (tally(0, 0), 100, 3000, 5000)
    );
    assert!(state.groups().all(|group| group.live == tally(0, 0)));
}

proptest! {
    /// What is live by group is what a walk over all blocks finds, after frees that are undone, overlaid mappings and blocks
    /// whose free was not seen, too; and windows add up to the whole.
    #[test]
    fn live_groups_are_those_of_the_replay(steps in prop::collection::vec((0_u8..6, 1_u64..20, 1_u64..9000, 0_u32..4), 1..150)) {
        let mut state = LiveState::new(Some(Duration::from_millis(10)));
        let mut replay = Replay::new(&Options::default());
        let events: Vec<_> = (0..).zip(steps).map(|(order, (kind, place, size, stack))| match kind {
            0 | 1 => event(order, MALLOC, (place, size), stack, order),
            2 => event(order, EventKind::Free, (place, 0), stack, order),
            3 => event(order, EventKind::FreeUndo, (0, 0), stack, order),
            4 => event(order, EventKind::Map(Allocator::Mmap, MapClass::Heap), (place * 4096, size), stack, order),
            _ => event(order, EventKind::Unmap, (place * 4096, size), stack, order),
        }).collect();
        let windows = run(&mut state, &events);
        events.iter().for_each(|event| replay.event(event));
        let analysis = replay.finish();
        let mut expected: Vec<_> =
            analysis.view(View::LeaksAtExit).iter().map(|row| (row.stack, row.allocator, row.tally())).collect();
        let mut found: Vec<_> = state.groups().filter(|group| group.live != Tally::default())
            .map(|group| (group.stack, group.allocator, group.live)).collect();
        [&mut expected, &mut found].into_iter().for_each(|rows| rows.sort_by_key(|row| (row.0, row.1 as u8)));
        prop_assert_eq!(found, expected);
        let allocated: Tally = windows.iter().flat_map(|window| window.groups.iter()).map(|group| group.allocated).sum();
        prop_assert_eq!(allocated, analysis.totals.allocations);
        prop_assert_eq!(windows.iter().map(|window| window.events).sum::<u64>(), events.len() as u64);
    }
}
