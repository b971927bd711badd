//! Events written as a capture and read again.

use memtrack_format::meta::{EndTimes, Process, StartTimes};
use memtrack_format::sources::FileLines;
use memtrack_format::{Allocator, MapClass};

use super::{Anonymizer, Rewriter, StripPlan, StripRule};
use crate::event::{Event, EventKind, Snapshot, StackId, Thread, ThreadId};
use crate::frames::{Frame, Frames};
use crate::native::{ModuleSource, NativeModule};
use crate::query::{AllocationRecord, AllocationScan, KeyMoments};
use crate::source::{CaptureReader, Consumer, DataLoss, RunPosition};
use crate::{Options, Replay};

const TIDS: u64 = 100; // more than there are streams

fn frames() -> Frames {
    let mut frames = Frames::new();
    let mut stack = StackId::EMPTY;
    for (number, function) in ["main", "Secret.load.<locals>.<listcomp>", "parse", "parse"].into_iter().enumerate() {
        let (function, file) = (
            frames.name_id(function).unwrap(),
            frames.name_id("/home/alice/lib/python3.11/site-packages/hush/core.py").unwrap(),
        );
        let (line, column) = (number as u32 + 10, number as u32);
        let frame = frames.id_of(Frame { function, file, line, column }).unwrap();
        stack = frames.stack_id(stack, frame).unwrap();
        frames.stack_id(StackId::EMPTY, frame).unwrap();
    }
    frames
}

/// Gives a consumer what a reader would.
fn feed(consumer: &mut impl Consumer, frames: &Frames) {
    let mut seed = 11_u64;
    let mut order = 0;
    for run in 1..800_u64 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let thread = ThreadId((seed >> 40) as u32 % TIDS as u32);
        if run % 10 == 0 {
            consumer.tick(run * 2 - 1, order * 100);
            consumer.snapshot(&Snapshot { time_ns: order * 100, rss_bytes: run << 12, ..Snapshot::default() });
        }
        // Two of them share one.
        consumer.run(&RunPosition { ticket: run / 2 * 4, thread, tid: 1000 + thread.0 as i32 });
        for step in 0..3 {
            let stack = StackId((seed >> (20 + step)) as u32 % (frames.stacks().len() as u32 + 1));
            let slot = seed >> (30 + step * 3) & 31;
            let (kind, address, size) = match (seed >> (8 + step)) % 7 {
                0..=2 => (EventKind::Alloc(Allocator::Malloc), 0x1000 + slot * 16, slot * 8),
                3..=4 => (EventKind::Free, 0x1000 + slot * 16, 0),
                5 => (EventKind::Map(Allocator::Mmap, MapClass::Heap), 0x10_0000 + slot * 4096, 8192),
                _ => (EventKind::Unmap, 0x10_0000 + slot * 4096, 4096),
            };
            let time_ns = order * 100 + 7;
            consumer.event(&Event { kind, address, size, stack, thread, order, time_ns }, frames);
            order += 1;
        }
    }
    consumer.ended(process().duration_ns().unwrap());
}

fn threads() -> Vec<Thread> {
    (0..TIDS as i32)
        .map(|number| Thread { tid: 1000 + number, name: format!("hidden {number}"), ..Thread::default() })
        .collect()
}

fn process() -> Process {
    Process {
        command_line: vec![b"python3".to_vec(), b"--password=xyzzy".to_vec()],
        start: StartTimes { monotonic_ns: Some(5_000_000), ..StartTimes::default() },
        end: EndTimes { monotonic_ns: Some(9_000_000_000), ..EndTimes::default() },
        timestamps: true,
        stop_reason: Some(b"no room in /home/alice".to_vec()),
        ..Process::default()
    }
}

fn rewritten(plan: Option<&StripPlan>, names: Option<Anonymizer>) -> Vec<u8> {
    let frames = frames();
    let mut rewriter = Rewriter::new(Vec::new(), &process(), &[], plan, names).unwrap();
    feed(&mut rewriter, &frames);
    rewriter.finish(&threads(), DataLoss { blocks: 1, bytes: 50 }, true).unwrap()
}

/// What a capture with these bytes says.
fn read(bytes: &[u8]) -> (CaptureReader, Replay, crate::source::ReadSummary) {
    let capture = CaptureReader::of_bytes(bytes).unwrap();
    let mut replay = Replay::new(&Options { exact_times: true, ..Options::default() });
    let summary = capture.read(&mut replay, |_| ()).unwrap();
    (capture, replay, summary)
}

fn original() -> Replay {
    let mut replay = Replay::new(&Options { exact_times: true, ..Options::default() });
    feed(&mut replay, &frames());
    replay
}

/// Sums for each stack in words, thread and allocator.
fn sums(replay: &Replay, frames: &Frames, tid: impl Fn(ThreadId) -> i32) -> Vec<String> {
    let analysis = replay.finish();
    let rows = analysis.groups.iter().map(|group| {
        let stack: Vec<_> = frames
            .root_to_leaf(group.stack)
            .into_iter()
            .map(|id| (frames.function(id), frames.file(id), frames.frame(id).line, frames.frame(id).column))
            .collect();
        let sums = [group.allocated, group.peak, group.leaked, group.temporary];
        format!("{stack:?} {} {:?} {sums:?}", tid(group.thread), group.allocator)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

#[test]
fn nothing_changes_but_what_shall() {
    let (capture, replay, summary) = read(&rewritten(None, None));
    let original = original();
    let expected = sums(&original, &frames(), |thread| 1000 + thread.0 as i32);
    assert_eq!(sums(&replay, &summary.frames, |id| summary.threads[id.0 as usize].tid), expected);
    assert_eq!(replay.finish().totals, original.finish().totals);
    let snapshots = |replay: &Replay| {
        let all = replay.finish().snapshots.into_iter();
        all.map(|snapshot| (snapshot.time_ns, snapshot.rss_bytes, snapshot.heap_bytes, snapshot.order))
            .collect::<Vec<_>>()
    };
    assert_eq!(snapshots(&replay), snapshots(&original));
    assert!(summary.threads.iter().all(|thread| thread.name == format!("hidden {}", thread.tid - 1000)));
    assert!(capture.complete());
    assert_eq!((summary.unknown_frames, summary.lost.blocks), (0, 0));
    assert_eq!((capture.process().lost.count, capture.process().lost.bytes), (Some(1), Some(50)));
    assert_eq!(capture.process().command_line, process().command_line);
}

#[test]
fn stripping_keeps_peak_and_leaks() {
    let (original, frames) = (original(), frames());
    let before = original.finish().totals;
    let mut plan = StripPlan::new(StripRule { lived_less_ns: 20_000, smaller: 200 });
    let mut lives = AllocationScan::new(KeyMoments::of(&before, 1), None, |life: &AllocationRecord| plan.add(life));
    feed(&mut lives, &frames);
    let _ = lives.finish();
    let dropped = plan.allocations;
    assert!(dropped.count > 20, "{dropped:?}");
    let (_, replay, _) = read(&rewritten(Some(&plan), None));
    let after = replay.finish().totals;
    assert_eq!((after.peak.bytes, after.peak.allocations), (before.peak.bytes, before.peak.allocations));
    assert_eq!(
        (after.leaked, after.unmatched_frees, after.replaced),
        (before.leaked, before.unmatched_frees, before.replaced)
    );
    assert_eq!(after.allocations.count + dropped.count, before.allocations.count);
    assert_eq!(after.allocations.bytes + dropped.bytes, before.allocations.bytes);
}

#[test]
fn no_name_stays() {
    let (capture, replay, summary) = read(&rewritten(None, Some(Anonymizer::default())));
    assert_eq!(replay.finish().totals, original().finish().totals);
    let said = format!("{:?} {:?} {:?}", capture.process(), summary.threads, summary.frames);
    for secret in ["alice", "Secret", "parse", "hush", "hidden", "xyzzy", "python3\""] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
    assert!(said.contains("lib/python3.11/site-packages/") && said.contains(".<locals>.<listcomp>"), "{said}");
    let functions: std::collections::BTreeSet<_> = (1..=8)
        .flat_map(|stack| summary.frames.leaf_to_root(StackId(stack)))
        .map(|id| summary.frames.function(id))
        .collect();
    assert_eq!(functions.len(), 3, "equal names have equal stand-ins");
}

#[test]
fn stand_ins_keep_what_says_nothing() {
    let mut names = Anonymizer::default();
    assert_eq!(names.file("/usr/lib/python3.12/json/decoder.py"), "/usr/lib/python3.12/n1/n2.py");
    assert_eq!(names.file("<frozen shop.cart>"), "<frozen f3.f4>");
    for of_imports in
        ["<frozen importlib._bootstrap>", "<frozen zipimport>", "/usr/lib/python3.8/importlib/__init__.py"]
    {
        assert_eq!(names.file(of_imports), of_imports);
    }
    assert_eq!(names.file("/srv/json/__init__.py"), "/n5/n1/__init__.py");
    assert_eq!(names.function("<module>"), "<module>");
    assert_eq!(names.function("Shop.__init__"), "f6.__init__");
    assert_eq!(names.thread(""), "");
}

/// Native frames whose names were not looked up, below a Python frame: of a loaded object, and of a file that was mapped.
fn native_frames() -> Frames {
    let mut frames = Frames::new();
    let python = frames.frame_named("work", "/home/alice/app.py", 7).unwrap();
    let loaded = NativeModule {
        path: b"/home/alice/hush.so.1".to_vec(),
        build_id: vec![7; 20],
        stamp: None,
        bias: 1 << 40,
        start: 1 << 40,
        end: 2 << 40,
        source: ModuleSource::Process,
    };
    let mapped = NativeModule {
        path: b"/home/alice/secret (deleted)".to_vec(),
        build_id: vec![],
        source: ModuleSource::Maps,
        ..loaded.clone()
    };
    for (module, offset) in [(&loaded, 16), (&loaded, 4096), (&mapped, 16)] {
        let native = frames.native_id(module, offset).unwrap();
        frames.stack_of(&[python, native]).unwrap();
    }
    frames
}

/// Modules and offsets of the native frames of a capture with these bytes, in order.
fn places(bytes: &[u8]) -> Vec<(NativeModule, u64)> {
    let mut capture = CaptureReader::of_bytes(bytes).unwrap();
    capture.ignore_names();
    let mut replay = Replay::new(&Options::default());
    places_of(&capture.read(&mut replay, |_| ()).unwrap().frames)
}

fn places_of(frames: &Frames) -> Vec<(NativeModule, u64)> {
    let mut places: Vec<_> = (0..frames.frames().len())
        .filter_map(|id| frames.place(crate::frames::FrameId(id as u32)))
        .map(|(module, offset)| (module.clone(), offset))
        .collect();
    places.sort_by(|a, b| (&a.0.path, a.1).cmp(&(&b.0.path, b.1)));
    places
}

#[test]
fn native_frames_stay_what_they_are() {
    let frames = native_frames();
    let written = |names: Option<Anonymizer>| {
        let mut rewriter = Rewriter::new(Vec::new(), &process(), &[], None, names).unwrap();
        feed(&mut rewriter, &frames);
        rewriter.finish(&[], DataLoss::default(), true).unwrap()
    };
    assert_eq!(places(&written(None)), places_of(&frames));
    let anonymous = places(&written(Some(Anonymizer::default())));
    assert_eq!(anonymous.len(), 3);
    for (module, _) in &anonymous {
        let path = String::from_utf8_lossy(&module.path);
        assert!(!["alice", "hush", "secret"].iter().any(|name| path.contains(name)), "{path}");
        assert!(module.build_id.len() < 20);
    }
}

#[test]
fn names_of_native_code_are_replaced() {
    let mut names = Anonymizer::default();
    let symbol = |function: &str| memtrack_format::symbols::Symbol {
        function: function.into(),
        file: "/home/alice/src/hush.cc".into(),
        line: 12,
    };
    let place = memtrack_format::symbols::OffsetSymbols {
        offset: 16,
        symbols: vec![symbol("Hush::load(int, ...)"), symbol("main")],
    };
    let known = memtrack_format::symbols::ModuleSymbols {
        path: b"/home/alice/hush.so.1".to_vec(),
        build_id: vec![7; 20],
        places: vec![place],
    };
    let said = names.symbols(std::slice::from_ref(&known));
    assert_eq!(said[0].places[0].symbols.iter().map(|symbol| &*symbol.function).collect::<Vec<_>>(), ["f1", "main"]);
    assert_eq!(&*said[0].places[0].symbols[0].file, "/n2/n3/src/n4.cc");
    let module = NativeModule { path: known.path, build_id: known.build_id, ..NativeModule::default() };
    let module = names.module(&module);
    assert_eq!((&module.path, &module.build_id), (&said[0].path, &said[0].build_id), "readers find the names by these");
    assert_eq!(names.file("/usr/lib/libpython3.11.so.1.0"), "/usr/lib/libpython3.11.so.1.0");
}

/// Origin and plumbing of a function of native code, as a report on a capture with these names sees them.
fn seen(program: &Process, (function, file, object): (&str, &str, &str)) -> (crate::origin::Origin, bool, bool) {
    let mut frames = Frames::new();
    frames.add_program(crate::program::Program::of(program).into());
    let id = frames.frame_named(function, file, 1).unwrap();
    if !object.is_empty() {
        frames.set_module(id, object).unwrap();
    }
    let is_plumbing = crate::plumbing::Plumbing::default().skips_native(function);
    (crate::origin::origins(&frames)[0], is_plumbing, crate::plumbing::is_start(function))
}

#[test]
fn a_started_package_has_the_name_of_its_folder() {
    let mut names = Anonymizer::default();
    let process = Process {
        started_packages: vec![b"hush".to_vec(), b"hush.shop".to_vec()],
        own_directories: vec![b"/srv".to_vec()],
        ..Process::default()
    };
    let mut frames = Frames::new();
    frames.add_program(crate::program::Program::of(&names.process(&process)).into());
    for path in ["/v/site-packages/hush/shop/cart.py", "/v/site-packages/other.py"] {
        let file = names.file(path);
        frames.frame_named("f", &file, 1).unwrap();
    }
    assert_eq!(crate::origin::origins(&frames), [crate::origin::Origin::Own, crate::origin::Origin::Library]);
}

#[test]
fn stand_ins_are_to_reports_what_names_are() {
    let program = Process {
        executable: Some(b"/srv/hush/server".to_vec()),
        working_directory: Some(b"/srv/hush".to_vec()),
        script: Some(b"/srv/hush/run.py".to_vec()),
        own_directories: vec![b"/srv/hush".to_vec()],
        ..Process::default()
    };
    let functions = [
        ("main", "main"),
        ("hush::Secret::load(int)", "f"),
        ("malloc", "malloc"),
        ("list_resize.part.0", "list_resize.part.0"),
        ("operator new(unsigned long)", "operator new(unsigned long)"),
        ("hush::Secret::operator new(unsigned long)", "::operator new_f"),
        ("void std::vector<hush::Secret>::_M_realloc_insert<hush::Secret>(hush::Secret&&)", "std::f"),
        ("<alloc::vec::Vec<hush::Secret> as core::clone::Clone>::clone", "alloc::f"),
        ("<T as alloc::slice::hack::ConvertVec>::to_vec", "alloc::f"),
        ("core::hush::Secret", "core::f"),
        ("sqlite3DbMallocRawNN", "sqlite3DbMalloc_f"),
        ("xmalloc_hush", "xmalloc_f"),
        ("vec<hush>::reserve(int)", "vec<>::f"),
        ("_start", "_start"),
        ("start_thread(hush*)", "start_thread(f"),
        ("call_init.part.0", "call_init.part.0"),
        ("std::rt::lang_start::<()>", "std::rt::lang_start::<()>"),
        ("std::rt::lang_start::<hush::Exit>", "std::rt::lang_start_f"),
        ("std::sys::backtrace::__rust_begin_short_backtrace<hush::main, ()>", "std::sys::backtrace::__rust_f"),
    ];
    let objects = [
        "/srv/hush/server",
        "/srv/hush/hush-plugin.so",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/libstdc++.so.6.0.30",
        "/lib64/ld-linux-x86-64.so.2",
        "/opt/libc.so-hush",
        "/opt/hush/libssl.so.3",
        "/usr/bin/python3.13t",
        "/opt/hush/libpython3.11d.so.1.0 (deleted)",
        "/opt/python3.11-hush",
        "/opt/python3_hush.so",
        "/srv/hush/lib/python3.11/site-packages/hush/_fast.cpython-311-x86_64-linux-gnu.so",
        "/opt/hush/lib/python3.13t/lib-dynload/_hush.so",
        "/opt/hush/lib/python311.zip/hush.so",
        "[vdso]",
    ];
    let sources = [
        "/srv/hush/src/hush.cc",
        "src/hush.cc",
        "/rustc/0a1b2c/library/alloc/src/vec/mod.rs",
        "/opt/hush/lib/rustlib/src/rust/library/std/src/hush.rs",
        "/usr/include/c++/12/bits/stl_vector.h",
        "/usr/include/hush/x.hpp",
        "/usr/local/include/hush.h",
        "/home/alice/.cargo/registry/src/index-1/hush-1.0/src/de.rs",
        "/home/alice/.cargo/git/checkouts/hush/src/de.rs",
        "./malloc/malloc.c",
        "<built-in>",
    ];
    let mut names = Anonymizer::default();
    let renamed = names.process(&program);
    let symbol = |names: &mut Anonymizer, function: &str| {
        let symbol = memtrack_format::symbols::Symbol { function: function.into(), file: "".into(), line: 1 };
        let place = memtrack_format::symbols::OffsetSymbols { offset: 16, symbols: vec![symbol] };
        let known = memtrack_format::symbols::ModuleSymbols { path: vec![], build_id: vec![], places: vec![place] };
        names.symbols(&[known])[0].places[0].symbols[0].function.to_string()
    };
    for (function, expected) in functions {
        let stand_in = symbol(&mut names, function);
        let rest = stand_in.strip_prefix(expected).unwrap_or("nothing of it");
        assert!(rest.trim_end_matches(')').bytes().all(|byte| byte.is_ascii_digit()), "{function}: {stand_in}");
        for object in objects {
            for source in sources.iter().chain([&object]) {
                let stands = [names.file(source), names.file(object)];
                let (before, after) =
                    (seen(&program, (function, source, object)), seen(&renamed, (&stand_in, &stands[0], &stands[1])));
                assert_eq!(before, after, "{function} {source} {object}: {stand_in} {stands:?}");
                assert!(!stands.iter().chain([&stand_in]).any(|text| text.contains("hush") || text.contains("alice")));
            }
        }
    }
    for file in [
        "/srv/hush/app.py",
        "/srv/hush/my-tools/app.py",
        "/srv/other/app.py",
        "<attrs generated init hush.Secret>",
        "<ipython-input-3-0b1c>",
        "/tmp/ipykernel_71/2846394.py",
        "/tmp/ipykernel_71/hush.py",
        "<dynamic-code>",
        "<string>",
    ] {
        let stand_in = names.file(file);
        assert_eq!(seen(&program, ("f", file, "")), seen(&renamed, ("f", &stand_in, "")), "{file}: {stand_in}");
        assert!(!stand_in.contains("hush") && !stand_in.contains("2846394"), "{stand_in}");
    }
}

/// Notes whose events come.
#[derive(Default)]
struct EventOrder(Vec<i32>, i32);

impl Consumer for EventOrder {
    fn event(&mut self, _event: &Event, _frames: &Frames) {
        self.0.push(self.1);
    }

    fn run(&mut self, place: &RunPosition) {
        self.1 = place.tid;
    }
}

#[test]
fn threads_that_shared_a_ticket_keep_their_order() {
    let frames = frames();
    let untimed = Process { timestamps: false, ..process() };
    let mut rewriter = Rewriter::new(Vec::new(), &untimed, &[], None, None).unwrap();
    let runs = [(4, 7), (4, 5), (5, 5), (6, 5), (6, 7), (6, 9), (8, 7)];
    for (order, (ticket, tid)) in (0..).zip(runs) {
        rewriter.run(&RunPosition { ticket, thread: ThreadId(tid), tid: tid as i32 });
        let (kind, stack, thread) = (EventKind::Alloc(Allocator::Malloc), StackId::EMPTY, ThreadId(tid));
        rewriter.event(&Event { kind, address: 16 + order, size: 8, stack, thread, order, time_ns: 0 }, &frames);
    }
    let bytes = rewriter.finish(&threads(), DataLoss::default(), true).unwrap();
    let mut order = EventOrder::default();
    CaptureReader::of_bytes(&bytes).unwrap().read(&mut order, |_| ()).unwrap();
    assert_eq!(order.0, runs.map(|(_, tid)| tid as i32));
}

#[test]
fn source_lines_stay_but_for_those_of_an_anonymous_capture() {
    let file = FileLines { path: b"/home/alice/app.py".to_vec(), lines: vec![(7, b"load(secret)".to_vec())] };
    let files = [file.clone(), FileLines { lines: vec![(9, b"more()".to_vec())], ..file }];
    let written = |names: Option<Anonymizer>| {
        let mut rewriter = Rewriter::new(Vec::new(), &process(), &[], None, names).unwrap();
        rewriter.sources(&files).unwrap();
        feed(&mut rewriter, &frames());
        rewriter.finish(&threads(), DataLoss::default(), true).unwrap()
    };
    let mut bytes = written(None);
    assert_eq!(read(&bytes).0.sources(), files);
    assert!(read(&written(Some(Anonymizer::default()))).0.sources().is_empty());
    let at = bytes.windows(12).position(|text| text == b"load(secret)").unwrap();
    bytes[at] ^= 1;
    let damaged = read(&bytes).0;
    assert!(damaged.sources().is_empty() && damaged.complete(), "damage costs the lines and nothing else");
    assert_eq!(damaged.lost().blocks, 1);
}
