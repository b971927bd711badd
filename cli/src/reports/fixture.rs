//! A small capture made by hand, and golden files to compare reports with.
//!
//! With `UPDATE_GOLDEN=1` in the environment, tests rewrite their golden files, to be reviewed.

use std::fs;
use std::path::Path;

use memtrack_format::Allocator;
use memtrack_format::meta::{EndTimes, Process, PythonVersion, StackCounters, StartTimes, WaitCounters};
use memtrack_reader::analysis::{FailedGroup, Group, Moment, Peak, SizeHistogram, Sum, Tally, Totals};
use memtrack_reader::{Analysis, Frames, Snapshot, StackId, Thread, ThreadId};

use super::capture_info::{Capture, CaptureInfo, CombinedPeaks};
use super::presentation::Presentation;
use super::recording_cost::RecordingCost;

/// An empty capture.
pub(crate) fn empty() -> Capture {
    let info = CaptureInfo { file: "empty.bin".into(), format_version: 1, complete: true, ..CaptureInfo::default() };
    Capture {
        info,
        analysis: Analysis::default(),
        frames: Frames::new(),
        threads: Vec::new(),
        shown: Presentation::default(),
    }
}

/// Three stacks, one of them empty, two threads, and an allocation of no bytes.
pub(crate) fn capture() -> Capture {
    let mut frames = Frames::new();
    let [main, work, read] = [("<module>", 3), ("work", 12), ("Reader.read", 7)].map(|place| frame(&mut frames, place));
    let deep = frames.stack_of(&[main, work, read]).unwrap();
    let shallow = frames.stack_of(&[main, work]).unwrap();
    let groups = [
        group(deep, Allocator::Malloc, 0, (1_500_000, 3, 4, 2_000_000_000)),
        group(shallow, Allocator::Calloc, 0, (1_000, 90, 2, 1_000_000_000)),
        group(StackId::EMPTY, Allocator::Mmap, 1, (4_096, 1, 9, 3_000_000_000)),
        group(frames.stack_of(&[main]).unwrap(), Allocator::Malloc, 1, (0, 2, 7, 2_500_000_000)),
    ];
    let snapshots = vec![Snapshot { index: 0, time_ns: 1_500_000_000, rss_bytes: 9 << 20, heap_bytes: 1000, order: 3 }];
    let groups = groups.into_iter().collect();
    let failed = [(deep, 4_000_000_000, 1), (shallow, 4_000_000_000, 0)];
    let failed = failed.into_iter().map(|(stack, bytes, time)| FailedGroup {
        stack,
        allocator: Allocator::Malloc,
        thread: ThreadId(0),
        bytes,
        count: 1,
        largest_bytes: bytes,
        largest_time_ns: time,
    });
    let failed = failed.collect();
    let analysis = Analysis { groups, totals: totals(), failed, snapshots, exact_times: true, ..Analysis::default() };
    let threads =
        [(100, "main"), (107, "pool-0")].map(|(tid, name)| Thread { tid, name: name.into(), ..Thread::default() });
    Capture { info: info(), analysis, frames, threads: threads.into(), shown: Presentation::default() }
}

/// The same capture with the two groups of its second thread leaked, as its totals have it.
pub(crate) fn leaking() -> Capture {
    let mut capture = capture();
    for (group, bytes) in [(2, 4_096), (3, 0)] {
        let leaked = Sum { bytes, count: 1, ..Sum::default() };
        capture.analysis.groups.change(group, |group| (group.leaked, group.leaked_at_exit) = (leaked, leaked));
    }
    capture
}

/// The same capture as one of several processes whose peaks were not at one time.
pub(crate) fn of_several_peaks() -> Capture {
    let mut capture = capture();
    let no_joint_peak = Some("the captures have no common clock");
    capture.info.combined_peaks = Some(CombinedPeaks { no_joint_peak, ..CombinedPeaks::default() });
    capture.info.others = 1;
    capture.analysis.totals.peak.at = None;
    capture
}

/// Stacks of functions in files, outermost first, with the bytes that they leaked.
pub(crate) fn of_stacks(stacks: &[(&[(&str, &str)], u64)]) -> Capture {
    let mut capture = empty();
    let frames = &mut capture.frames;
    for (order, (stack, bytes)) in (0..).zip(stacks) {
        let mut id = |(function, file): &(&str, &str)| {
            let (function, file) = (frames.name_id(function).unwrap(), frames.name_id(file).unwrap());
            frames.frame_id(function, file, 7).unwrap()
        };
        let ids: Vec<_> = stack.iter().map(&mut id).collect();
        let stack = frames.stack_of(&ids).unwrap();
        let leaked = Sum { bytes: *bytes, count: 1, first_order: order, first_time_ns: 0 };
        let group = Group::new(stack, Allocator::Malloc, ThreadId(0));
        capture.analysis.groups.push(&Group { leaked, allocated: leaked, ..group });
    }
    capture
}

/// Fails where `text` differs from the golden file.
pub(crate) fn compare(name: &str, text: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    let text = str::from_utf8(text).unwrap();
    for (number, (got, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "{}:{}", path.display(), number + 1);
    }
    assert_eq!(text.len(), expected.len(), "{}", path.display());
}

fn frame(frames: &mut Frames, (function, line): (&str, u32)) -> memtrack_reader::FrameId {
    let function = frames.name_id(function).unwrap();
    let file = frames.name_id("/home/user/project/application/app.py").unwrap();
    frames.frame_id(function, file, line).unwrap()
}

fn group(
    stack: StackId,
    allocator: Allocator,
    thread: u32,
    (bytes, count, order, time): (u64, u64, u64, u64),
) -> Group {
    let sum = Sum { bytes, count, first_order: order, first_time_ns: time };
    Group { allocated: sum, peak: sum, ..Group::new(stack, allocator, ThreadId(thread)) }
}

fn totals() -> Totals {
    let mut counts = [0; 20];
    (counts[0], counts[1], counts[9], counts[16]) = (2, 90, 1, 3);
    Totals {
        events: 160,
        allocations: Tally { bytes: 1_505_096, count: 96, ..Tally::default() },
        deallocations: 94,
        peak: Peak { bytes: 1_505_096, allocations: 96, at: Some(Moment { order: 9, time_ns: 3_000_000_000 }) },
        leaked: Tally { bytes: 4_096, count: 2, ..Tally::default() },
        leaked_at_exit: Tally { bytes: 4_096, count: 2, ..Tally::default() },
        size_histogram: SizeHistogram::from_counts(&counts),
        rss_peak_bytes: 9 << 20,
        rss_last_bytes: 8 << 20,
        end_time_ns: 3_400_000_000,
        ..Totals::default()
    }
}

fn info() -> CaptureInfo {
    let process = Process {
        command_line: [b"python3".to_vec(), b"app.py".to_vec()].into(),
        executable: Some(b"/usr/bin/python3.11".to_vec()),
        recorder: Some(b"memtrack 0.2.0".to_vec()),
        pid: Some(100),
        ppid: Some(99),
        python_version: Some(PythonVersion { hex: 0x030b_07f0 }),
        python_allocator: Some(b"pymalloc".to_vec()),
        start: StartTimes {
            monotonic_ns: Some(5_000_000_000),
            realtime_ns: Some(1_795_226_645_123_000_000),
            uncertainty_ns: Some(900),
            ..StartTimes::default()
        },
        end: EndTimes { monotonic_ns: Some(8_500_000_000), ..EndTimes::default() },
        waits: WaitCounters { count: Some(1), total_ns: Some(2_000_000) },
        events_without_slot: Some(0),
        stacks: StackCounters {
            python_compared: Some(12),
            python_changed: Some(8),
            python_look_ns: Some(9_000),
            ..StackCounters::default()
        },
        record_bytes: Some(9_000),
        cpu_ns: Some(3_000_000_000),
        start_ns: Some(3_000_000),
        collector_cpu_ns: Some(40_000_000),
        ..Process::default()
    };
    let recording_cost = RecordingCost::of(&process, &totals(), 96, 4_000);
    CaptureInfo {
        file: "capture.bin".into(),
        format_version: 1,
        process,
        complete: true,
        recording_cost,
        ..CaptureInfo::default()
    }
}
