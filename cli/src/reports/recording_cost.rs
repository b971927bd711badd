//! Cost of a recording as measured in that run, and how often the fast paths were taken.
//!
//! It describes the whole recording, independent of filters. Invariant: figures that a capture (of an earlier version)
//! does not contain are "not available", never zero; a sum over captures is known if each part is.

use std::io::{self, Write};

use memtrack_format::meta::Process;
use memtrack_reader::analysis::Totals;
use serde_json::{Value, json};

use crate::terminal::TextFormat;
use crate::text::entry;
use crate::units::{bytes_each, count, duration, percent, plural};

/// Width of the labels, with indentation.
const LABEL: usize = 17;
const UNKNOWN: &str = "not available";

/// Cost of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordingCost {
    events: u64,
    file_bytes: u64,
    record_bytes: Option<u64>,
    /// Number and total nanoseconds of waits for the collector.
    waits: Option<(u64, u64)>,
    python: PythonStackReads,
    native: NativeFrameCounts,
    truncated_stacks: u64,
    lost_blocks: u64,
    lost_bytes: u64,
    /// Events of threads without a slot.
    lost_events: Option<u64>,
    /// The recording, or the file, ends before the program did.
    cut: bool,
    times: RecordingTimes,
}

/// Measured times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RecordingTimes {
    /// CPU time of the program, hooks included.
    cpu: Option<u64>,
    /// CPU time of the collector.
    collector: Option<u64>,
    /// Time until the program's main code began.
    start: Option<u64>,
    /// Time in hooks to detect changes of Python stacks, sampled.
    python: Option<u64>,
    /// Time in hooks to unwind native stacks, sampled.
    native: Option<u64>,
}

/// How changes of Python stacks were detected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PythonStackReads {
    glance: u64,
    whole: u64,
    changed: u64,
    unknown: bool,
}

/// Native frames reused from the previous record, and unwound ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct NativeFrameCounts {
    kept: u64,
    unwound: u64,
    steps: Option<StackWork>,
    unknown: bool,
}

/// Further costs of native stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct StackWork {
    /// Stacks that changed since the previous record.
    changed: u64,
    /// Their frames that were merged with Python frames again.
    levels: u64,
    /// Addresses looked up for the first time.
    learned: u64,
}

impl RecordingCost {
    /// The cost of one capture. `allocations`: the number of all allocations, independent of filters.
    pub(crate) fn of(process: &Process, totals: &Totals, allocations: u64, file_bytes: u64) -> Self {
        let mappings = totals.mappings;
        let other = [mappings.reserved, mappings.file, mappings.shared].map(|class| class.count);
        let stripped = process.stripped.count.unwrap_or(0);
        let stacks = other.iter().fold(allocations, |sum, count| sum.saturating_add(*count)).saturating_add(stripped);
        Self {
            events: totals.events,
            file_bytes,
            record_bytes: process.record_bytes,
            waits: process.waits.count.zip(process.waits.total_ns),
            python: PythonStackReads::of(process, stacks),
            native: NativeFrameCounts::of(process),
            truncated_stacks: totals.truncated_stacks,
            lost_blocks: 0,
            lost_bytes: 0,
            lost_events: process.events_without_slot,
            cut: false,
            times: RecordingTimes::of(process),
        }
    }

    /// Adds unreadable blocks, and whether the capture is complete.
    pub(crate) fn with_loss(self, lost_blocks: u64, lost_bytes: u64, complete: bool) -> Self {
        Self { lost_blocks, lost_bytes, cut: !complete, ..self }
    }

    /// Whether there was any event.
    pub(crate) fn has_events(&self) -> bool {
        self.events > 0
    }

    /// The sum of two captures.
    pub(crate) fn and(self, other: &Self) -> Self {
        Self {
            events: self.events.saturating_add(other.events),
            file_bytes: self.file_bytes.saturating_add(other.file_bytes),
            record_bytes: both(self.record_bytes, other.record_bytes),
            waits: self.waits.zip(other.waits).map(|(one, other)| {
                let (times, ns) = (one.0.saturating_add(other.0), one.1.saturating_add(other.1));
                (times, ns)
            }),
            python: self.python.and(other.python),
            native: self.native.and(other.native),
            truncated_stacks: self.truncated_stacks.saturating_add(other.truncated_stacks),
            lost_blocks: self.lost_blocks.saturating_add(other.lost_blocks),
            lost_bytes: self.lost_bytes.saturating_add(other.lost_bytes),
            lost_events: both(self.lost_events, other.lost_events),
            cut: self.cut || other.cut,
            times: self.times.and(other.times),
        }
    }

    /// The cost as JSON: bytes and nanoseconds; unknown or inapplicable values are null.
    pub(crate) fn json(&self) -> Value {
        json!({
            "events": self.events,
            "file_bytes": self.file_bytes,
            "record_bytes": self.record_bytes,
            "bytes_per_event": (self.events > 0).then(|| self.file_bytes as f64 / self.events as f64),
            "waits": self.waits.map(|(times, ns)| json!({"count": times, "ns": ns})),
            "python_stacks": self.python.is_known().then(|| json!({
                "glance": self.python.glance, "whole": self.python.whole, "changed": self.python.changed,
            })),
            "native_frames": self.native.is_known().then(|| json!({
                "kept": self.native.kept, "unwound": self.native.unwound,
                "stacks_changed": self.native.steps.map(|steps| steps.changed),
                "written": self.native.steps.map(|steps| steps.levels),
                "learned": self.native.steps.map(|steps| steps.learned),
            })),
            "truncated_stacks": self.truncated_stacks,
            "lost": {"blocks": self.lost_blocks, "bytes": self.lost_bytes, "events": self.lost_events},
            "cpu_ns": self.times.cpu,
            "collector_cpu_ns": self.times.collector,
            "start_ns": self.times.start,
            "python_changes_ns": self.times.python,
            "native_changes_ns": self.times.native,
        })
    }

    /// The cost as text, under its own heading.
    ///
    /// # Errors
    /// A write error.
    pub(crate) fn text(&self, format: TextFormat, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n{}", format.heading("Recording"))?;
        let mut line = |label: &str, text: String| {
            entry(&format!("  {label}"), LABEL, &text, format).iter().try_for_each(|line| writeln!(out, "{line}"))
        };
        line("Events", self.events())?;
        if let Some(stacks) = self.python.text() {
            line("Python stacks", stacks)?;
        }
        if let Some(frames) = self.native.text() {
            line("Native frames", frames)?;
        }
        line("Stacks cut", count(self.truncated_stacks))?;
        line("Lost", self.lost())?;
        line("Waiting", self.waiting())?;
        let RecordingTimes { cpu, collector, start, python, native } = self.times;
        line("Start", start.map_or(UNKNOWN.into(), |ns| format!("{} before the program's main code", duration(ns))))?;
        line("Program", cpu.map_or(UNKNOWN.into(), |ns| format!("{} CPU time, hooks included", duration(ns))))?;
        line("Collector", collector.map_or(UNKNOWN.into(), |ns| format!("{} CPU time", duration(ns))))?;
        let times = [(python, "Python stacks"), (native, "native stacks")];
        let times: Vec<_> =
            times.iter().filter_map(|(ns, what)| Some(format!("{} of {what}", duration((*ns)?)))).collect();
        if times.is_empty() {
            return Ok(());
        }
        line("In hooks", format!("detecting stack changes: {} (sampled)", times.join(", ")))
    }

    /// Number of events, and bytes per event.
    fn events(&self) -> String {
        let before = self.record_bytes.map(|bytes| format!(", {} before compression", bytes_each(bytes, self.events)));
        format!("{}, {} each", count(self.events), bytes_each(self.file_bytes, self.events))
            + &before.unwrap_or_default()
    }

    /// Number of truncated stacks; `None` if zero.
    pub(crate) fn cut_in_short(&self) -> Option<String> {
        (self.truncated_stacks > 0).then(|| plural(self.truncated_stacks, "stack", "stacks"))
    }

    fn lost(&self) -> String {
        let events = match self.lost_events {
            None => format!("events without a thread buffer: {UNKNOWN}"),
            Some(0) if self.lost_blocks == 0 && self.lost_bytes == 0 && self.cut => {
                return "only what is missing because the capture is incomplete".into();
            }
            Some(0) if self.lost_blocks == 0 && self.lost_bytes == 0 => return "nothing".into(),
            Some(events) => plural(events, "event", "events"),
        };
        if self.lost_blocks == 0 && self.lost_bytes == 0 {
            return events;
        }
        format!("{events}, {} ({} bytes)", plural(self.lost_blocks, "block", "blocks"), count(self.lost_bytes))
    }

    fn waiting(&self) -> String {
        match self.waits {
            None => UNKNOWN.into(),
            Some((0, _)) => "none".into(),
            Some((times, ns)) => format!("{} on full buffers, {}", duration(ns), plural(times, "time", "times")),
        }
    }
}

/// The sum of two numbers, known if both are.
fn both(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.saturating_add(other?))
}

impl RecordingTimes {
    fn of(process: &Process) -> Self {
        let (python, native) = (process.stacks.python_look_ns, process.stacks.native_change_ns);
        Self { cpu: process.cpu_ns, collector: process.collector_cpu_ns, start: process.start_ns, python, native }
    }

    fn and(self, other: Self) -> Self {
        Self {
            cpu: both(self.cpu, other.cpu),
            collector: both(self.collector, other.collector),
            start: both(self.start, other.start),
            python: both(self.python, other.python),
            native: both(self.native, other.native),
        }
    }
}

impl PythonStackReads {
    fn of(process: &Process, stacks: u64) -> Self {
        // No interpreter, or its frames cannot be read: no counts.
        if process.python_version.is_none() || process.python_note.is_some() {
            return Self::default();
        }
        let Some((compared, changed)) = process.stacks.python_compared.zip(process.stacks.python_changed) else {
            return Self { unknown: true, ..Self::default() };
        };
        Self {
            glance: stacks.saturating_sub(compared),
            whole: compared.saturating_sub(changed),
            changed: changed.min(compared),
            unknown: false,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            glance: self.glance.saturating_add(other.glance),
            whole: self.whole.saturating_add(other.whole),
            changed: self.changed.saturating_add(other.changed),
            unknown: self.unknown || other.unknown,
        }
    }

    fn sum(self) -> u64 {
        self.glance.saturating_add(self.whole).saturating_add(self.changed)
    }

    fn is_known(self) -> bool {
        !self.unknown && self.sum() > 0
    }

    fn text(self) -> Option<String> {
        if self.unknown {
            return Some(UNKNOWN.into());
        }
        let part = |number| percent(number, self.sum());
        self.is_known().then(|| {
            let (glance, whole, changed) = (part(self.glance), part(self.whole), part(self.changed));
            format!("{glance} resolved by the fast comparison, {whole} by full comparison, {changed} changed")
        })
    }
}

impl NativeFrameCounts {
    fn of(process: &Process) -> Self {
        match process.stacks.native_kept.zip(process.stacks.native_unwound) {
            Some((kept, unwound)) => Self { kept, unwound, steps: StackWork::of(process), unknown: false },
            None => Self { unknown: process.native_traces, ..Self::default() },
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            kept: self.kept.saturating_add(other.kept),
            unwound: self.unwound.saturating_add(other.unwound),
            steps: self.known_steps().zip(other.known_steps()).map(|(one, other)| one.and(other)),
            unknown: self.unknown || other.unknown,
        }
    }

    fn known_steps(self) -> Option<StackWork> {
        self.steps.or((!self.is_known() && !self.unknown).then_some(StackWork::default()))
    }

    fn is_known(self) -> bool {
        !self.unknown && self.kept.saturating_add(self.unwound) > 0
    }

    fn text(self) -> Option<String> {
        if self.unknown {
            return Some(UNKNOWN.into());
        }
        let all = self.kept.saturating_add(self.unwound);
        self.is_known().then(|| format!("{} reused, {} unwound", percent(self.kept, all), percent(self.unwound, all)))
    }
}

impl StackWork {
    fn of(process: &Process) -> Option<Self> {
        let (changed, levels) = process.stacks.native_changed.zip(process.stacks.native_levels)?;
        Some(Self { changed, levels, learned: process.stacks.native_learned? })
    }

    fn and(self, other: Self) -> Self {
        Self {
            changed: self.changed.saturating_add(other.changed),
            levels: self.levels.saturating_add(other.levels),
            learned: self.learned.saturating_add(other.learned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RecordingCost, TextFormat};
    use memtrack_format::meta::{Process, PythonVersion, StackCounters, StrippedAllocations, WaitCounters};
    use memtrack_reader::analysis::Totals;
    use serde_json::Value;

    fn process() -> Process {
        Process {
            python_version: Some(PythonVersion { hex: 0x030b_07f0 }),
            stacks: StackCounters {
                python_compared: Some(30),
                python_changed: Some(10),
                python_look_ns: Some(4_000_000),
                ..StackCounters::default()
            },
            record_bytes: Some(400),
            waits: WaitCounters { count: Some(2), total_ns: Some(5_000_000) },
            events_without_slot: Some(0),
            cpu_ns: Some(1_000_000_000),
            start_ns: Some(4_000_000),
            collector_cpu_ns: Some(30_000_000),
            ..Process::default()
        }
    }

    fn cost(process: &Process) -> RecordingCost {
        RecordingCost::of(process, &Totals { events: 200, ..Totals::default() }, 100, 50)
    }

    fn text(cost: &RecordingCost) -> String {
        let mut text = Vec::new();
        cost.text(TextFormat { width: None, color: false }, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn everything_is_told() {
        let cost = cost(&process());
        let text = text(&cost);
        for part in [
            "200, 0.25 bytes each, 2.00 bytes before compression",
            "70.0 % resolved by the fast comparison, 20.0 % by full comparison, 10.0 % changed",
            "5 ms on full buffers, 2 times",
            "Lost           nothing",
            "Start          4 ms before the program's main code",
            "Program        1.00 s CPU time, hooks included",
            "Collector      30 ms CPU time",
            "In hooks       detecting stack changes: 4 ms of Python stacks (sampled)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let cut = self::text(&cost.clone().with_loss(0, 0, false));
        assert!(cut.contains("Lost           only what is missing because the capture is incomplete"), "{cut}");
        let json = cost.json();
        assert_eq!(json["python_stacks"]["glance"], 70);
        assert_eq!(json["waits"]["ns"], 5_000_000);
        assert_eq!(json["native_frames"], Value::Null);
        assert_eq!((&json["cpu_ns"], &json["collector_cpu_ns"]), (&1_000_000_000.into(), &30_000_000.into()));
        assert_eq!((&json["python_changes_ns"], &json["native_changes_ns"]), (&4_000_000.into(), &Value::Null));
    }

    #[test]
    fn what_an_old_capture_does_not_tell_is_not_available() {
        let old = Process {
            python_version: Some(PythonVersion { hex: 0x030b_07f0 }),
            native_traces: true,
            ..Process::default()
        };
        let cost = cost(&old);
        let text = text(&cost);
        for label in ["Python stacks", "Native frames", "Waiting", "Start", "Program", "Collector"] {
            assert!(text.contains(&format!("  {label:15}not available\n")), "{label}: {text}");
        }
        let json = cost.json();
        for key in ["record_bytes", "waits", "python_stacks", "native_frames", "cpu_ns", "start_ns"] {
            assert_eq!(json[key], Value::Null, "{key}");
        }
        assert_eq!(json["lost"]["events"], Value::Null);
    }

    #[test]
    fn a_sum_is_known_if_each_part_is() {
        let (new, old) = (cost(&process()), cost(&Process::default()));
        let sum = new.clone().and(&new);
        assert_eq!((sum.record_bytes, sum.waits, sum.python.whole), (Some(800), Some((4, 10_000_000)), 40));
        let mixed = new.and(&old);
        assert_eq!((mixed.events, mixed.record_bytes, mixed.waits), (400, None, None));
        // The other one has no interpreter.
        assert!(mixed.python.is_known());
        assert_eq!((sum.times.cpu, sum.times.python, mixed.times.cpu), (Some(2_000_000_000), Some(8_000_000), None));
    }

    #[test]
    fn numbers_of_a_forged_capture_are_survived() {
        let all = Some(u64::MAX);
        let forged = Process {
            stacks: StackCounters {
                python_compared: all,
                python_changed: all,
                python_look_ns: all,
                native_kept: all,
                native_unwound: all,
                native_changed: all,
                native_levels: all,
                native_learned: all,
                native_change_ns: all,
            },
            waits: WaitCounters { count: all, total_ns: all },
            events_without_slot: all,
            stripped: StrippedAllocations { count: all, ..StrippedAllocations::default() },
            native_traces: true,
            timestamps: true,
            ..process()
        };
        let cost = cost(&forged).with_loss(u64::MAX, u64::MAX, true);
        let twice = cost.clone().and(&cost);
        assert!(!text(&twice).is_empty() && twice.json()["lost"]["blocks"] == u64::MAX);
    }
}
