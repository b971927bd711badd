//! Expressions on a made capture, and lives against the replay of the same events.

use memtrack_format::{Allocator, MapClass};

use super::{AllocationOutcome, AllocationRecord, AllocationScan, Expr, KeyMoments, MatchContext, Matcher};
use crate::allocation_record::AllocationStart;
use crate::event::{Event, EventKind, StackId, Thread, ThreadId};
use crate::frames::Frames;
use crate::source::Consumer;
use crate::{Options, Replay};

fn frames() -> Frames {
    let mut frames = Frames::new();
    let [main, load] = [("main", "/srv/app.py"), ("JSONDecoder.decode", "/usr/lib/python3.11/json/decoder.py")]
        .map(|(function, file)| frames.frame_named(function, file, 1).unwrap());
    frames.stack_of(&[main, load]).unwrap();
    frames
}

fn life() -> AllocationRecord {
    AllocationRecord {
        stack: StackId(2),
        allocator: Allocator::Malloc,
        thread: ThreadId(0),
        size: 2_000_000,
        order: 5,
        time_ns: 1_000_000_000,
        lifetime_ns: 3_000_000_000,
        fate: AllocationOutcome::Freed { thread: ThreadId(1), order: 9 },
        leaked: false,
        temporary: false,
        peak: true,
    }
}

fn takes(text: &str) -> bool {
    let (frames, expr) = (frames(), text.parse::<Expr>().unwrap_or_else(|error| panic!("{text}: {error}")));
    let threads =
        [(7, "main"), (8, "pool-1")].map(|(tid, name)| Thread { tid, name: name.into(), ..Thread::default() });
    Matcher::new(&expr, &MatchContext { frames: &frames, threads: &threads, start_ns: 0, duration_ns: 4_000_000_000 })
        .takes(&life())
}

/// The capture began a second after the earliest one of its report; the allocation was made a second later.
#[test]
fn times_count_from_the_earliest_start() {
    let frames = frames();
    let known = MatchContext { frames: &frames, threads: &[], start_ns: 1_000_000_000, duration_ns: 4_000_000_000 };
    let start = AllocationStart {
        stack: StackId(2),
        allocator: Allocator::Malloc,
        thread: ThreadId(0),
        size: 2_000_000,
        order: 5,
        time_ns: 1_000_000_000,
    };
    for (text, expected) in [
        ("time = 2s", true),
        ("time >= 50% and time < 51%", true),
        ("time > 500ms and not time < 500ms", true),
        ("time = 1s or time < 500ms", false),
        ("lifetime = 3s", true),
    ] {
        let matcher = Matcher::new(&text.parse().unwrap(), &known);
        assert_eq!(matcher.takes(&life()), expected, "{text}");
        assert!(matcher.may_take(&start, &KeyMoments::default()) || !expected, "{text}");
    }
}

#[test]
fn expressions_mean_what_they_say() {
    for text in [
        r#"function ~ "json.*" and bytes > 1MB and lifetime > 2s"#,
        "function = main",
        "function ~ '^JSON'",
        "function ~ '^json[.]' or function = json.decoder.JSONDecoder.decode",
        "function = json.decoder.JSONDecoder.decode and not function = json.decoder",
        "not function ~ 'json[.]decoder[.]$' and not function ~ '^json[.]decoder'",
        "function = app.main and not function ~ 'app'",
        "file ~ \"python3[.]11\" and module = app",
        "thread = main and thread = 7 and freed_by ~ ^pool",
        "allocator = malloc and not allocator ~ 'mm'",
        "size >= 2MB and size <= 2 MB and size = 2000000",
        "time >= 25% and time < 50%",
        "peak and freed and cross_thread",
        "leaked or temporary or peak",
        "not (leaked or live)",
        "live and leaked or peak",
        "function !~ zlib and function != other",
        "lifetime = 3s and bytes != 1",
    ] {
        let text = text.replace("^pool", "'^pool'");
        assert!(takes(&text), "{text}");
        assert!(!takes(&format!("not ({text})")), "{text}");
    }
}

#[test]
fn errors_name_the_column() {
    for (text, column, what) in [
        ("", 1, "found the end"),
        ("function", 9, "expected ~, !~, = or !=, found the end"),
        ("function ~ \"(\"", 12, "not a regular expression"),
        ("bytes > 1 apple", 9, "unknown size unit apple"),
        ("lifetime > 50%", 12, "a time span is expected"),
        ("time > 5", 8, "missing unit"),
        ("(live", 6, "and, or, or )"),
        ("live leaked", 6, "and, or, or the end"),
        ("größe > 1", 1, "unknown field größe"),
        ("live and größe", 10, "unknown field größe"),
        ("file = 'a", 8, "unterminated"),
        ("live & peak", 6, "unexpected &"),
        ("allocator = free", 13, "no allocator matches"),
        ("bytes ~ 1", 7, "<, <=, =, !=, >= or >"),
    ] {
        let error = text.parse::<Expr>().expect_err(text);
        assert_eq!(error.column, column, "{text}: {error}");
        assert!(error.what.contains(what), "{text}: {error}");
    }
    assert!("(".repeat(10_000).parse::<Expr>().unwrap_err().what.contains("parentheses"));
    assert!("not ".repeat(10_000).parse::<Expr>().is_err());
}

#[test]
fn groups_know_no_single_allocations() {
    for (text, of_groups) in [
        ("function = a or thread = b", true),
        ("not allocator = mmap", true),
        ("live", false),
        ("not bytes > 1", false),
    ] {
        assert_eq!(text.parse::<Expr>().unwrap().is_of_groups(), of_groups, "{text}");
    }
}

/// Events of three threads that allocate, free what others made, map, cut, undo, and fill addresses anew.
fn events() -> Vec<Event> {
    let (mut events, mut seed) = (Vec::new(), 7_u64);
    for order in 0..4000 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (pick, slot, thread) = (seed >> 60, seed >> 33 & 63, ThreadId((seed >> 50) as u32 % 3));
        let undo = matches!(events.last(), Some(Event { kind: EventKind::Free, .. })) && pick == 3;
        let range = (0x10_0000 + slot % 16 * 4096, (1 + slot % 3) * 4096);
        let (kind, address, size) = match pick {
            _ if undo => (EventKind::FreeUndo, 0, 0),
            0..=6 => (EventKind::Alloc(Allocator::Malloc), 64 + slot, slot * 100),
            7..=11 => (EventKind::Free, 64 + slot, 0),
            12 => (EventKind::Map(Allocator::Mmap, MapClass::Heap), range.0, range.1),
            13 => (EventKind::Unmap, range.0, range.1),
            14 if slot == 0 => (EventKind::Finalizing, 0, 0),
            _ => (EventKind::Map(Allocator::Mmap, MapClass::Reserved), range.0, range.1),
        };
        let thread = if undo { events.last().map_or(thread, |event: &Event| event.thread) } else { thread };
        events.push(Event { kind, address, size, stack: StackId(0), thread, order, time_ns: order * 10 });
    }
    events
}

#[test]
fn lives_add_up_to_the_replay() {
    let (events, frames) = (events(), Frames::new());
    let mut replay = Replay::new(&Options::default());
    events.iter().for_each(|event| replay.event(event));
    let totals = replay.finish().totals;
    let mut all = Vec::new();
    let mut lives = AllocationScan::new(KeyMoments::of(&totals, 1), None, |life: &AllocationRecord| all.push(*life));
    events.iter().for_each(|event| lives.event(event, &frames));
    let _ = lives.finish();
    let count = |keep: fn(&AllocationRecord) -> bool| all.iter().filter(|life| keep(life)).count() as u64;
    assert_eq!(all.len() as u64, totals.allocations.count);
    assert_eq!(all.iter().map(|life| life.size).sum::<u64>(), totals.allocations.bytes);
    assert_eq!(count(|life| life.fate == AllocationOutcome::Live), totals.leaked_at_exit.count);
    assert_eq!(count(|life| life.leaked), totals.leaked.count);
    assert_eq!(count(|life| life.peak), totals.peak.allocations);
    assert_eq!(count(|life| life.temporary), totals.temporary.count);
    assert_eq!(count(|life| matches!(life.fate, AllocationOutcome::Lost { .. })), totals.replaced);
    assert!(count(|life| matches!(life.fate, AllocationOutcome::Freed { .. })) > 100 && totals.temporary.count > 0);
}

#[test]
fn what_cannot_match_from_its_start_changes_nothing() {
    let (events, frames) = (events(), frames());
    let mut replay = Replay::new(&Options::default());
    events.iter().for_each(|event| replay.event(event));
    let totals = replay.finish().totals;
    let moments = KeyMoments::of(&totals, 1);
    let scan = |matcher: Option<&Matcher>| {
        let mut all = Vec::new();
        let mut lives = AllocationScan::new(moments, matcher, |life: &AllocationRecord| all.push(*life));
        events.iter().for_each(|event| lives.event(event, &frames));
        let _ = lives.finish();
        all
    };
    let (all, mut passed) = (scan(None), 0);
    for text in [
        "bytes > 3kB and peak",
        "peak or time < 1us",
        "not (bytes < 5kB or leaked)",
        "leaked and not allocator = mmap",
        "live or freed_by = 2 and bytes < 1kB",
        "temporary and thread = 1 or cross_thread and lifetime > 1us",
        "not (peak and not freed)",
    ] {
        let threads = [0, 1, 2].map(|tid| Thread { tid, ..Thread::default() });
        let known = MatchContext { frames: &frames, threads: &threads, start_ns: 0, duration_ns: 40_000 };
        let matcher = Matcher::new(&text.parse().unwrap(), &known);
        let expected: Vec<_> = all.iter().filter(|life| matcher.takes(life)).copied().collect();
        assert_eq!(scan(Some(&matcher)), expected, "{text}");
        passed += usize::from(!expected.is_empty() && expected.len() < all.len());
    }
    assert_eq!(passed, 7);
}

#[test]
fn an_allocator_of_pythons_is_meant_with_all_its_domains() {
    let frames = Frames::new();
    let known = MatchContext { frames: &frames, threads: &[], start_ns: 0, duration_ns: 0 };
    let matcher = Matcher::new(&"allocator = pymalloc_malloc".parse().unwrap(), &known);
    let takes = |allocator| matcher.takes_group(StackId(0), allocator, ThreadId(0));
    let domains = [Allocator::PymallocMalloc, Allocator::PymallocMallocMem, Allocator::PymallocMallocRaw];
    assert_eq!(domains.map(takes), [true; 3]);
    assert_eq!([Allocator::PymallocCallocMem, Allocator::Malloc].map(takes), [false; 2]);
}
