//! The payload of a process block: metadata of the recorded process and of its recording.
//!
//! A sequence of fields `tag length bytes` (tag and length as prefix varints); numbers are prefix varints inside their
//! bytes. A reader skips tags it does not know, and a later block overrides an earlier one field by field, so the
//! collector writes the fields that it knows when the process connects, and others when it learns them.
//!
//! Invariant: a tag, once released, keeps its meaning.

use std::fmt;
use std::time::Duration;

use crate::fields::{FieldReader, FieldWriter};

/// Metadata of the recorded process and of its recording. `None` and empty: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Arguments of the process, the program first.
    pub command_line: Vec<Vec<u8>>,
    /// Path of the executable.
    pub executable: Option<Vec<u8>>,
    /// Process id.
    pub pid: Option<u32>,
    /// Parent's process id.
    pub ppid: Option<u32>,
    /// Version of the interpreter.
    pub python_version: Option<PythonVersion>,
    /// Name of Python's allocator.
    pub python_allocator: Option<Vec<u8>>,
    /// Why Python frames are missing although an interpreter was found.
    pub python_note: Option<Vec<u8>>,
    /// The clocks at the start.
    pub start: StartTimes,
    /// The clocks at the end.
    pub end: EndTimes,
    /// By how much times may be too early, in nanoseconds; in aggregated captures, where it cannot be computed from the sums.
    pub time_uncertainty_ns: Option<u64>,
    /// Whether every event carries its time.
    pub timestamps: bool,
    /// Mean number of bytes between two samples, where only sampled allocations are recorded.
    pub sample_bytes: Option<u64>,
    /// How many samples a second were asked for at most, where the distance between them was changed to that end; `sample_bytes` is
    /// then the largest.
    pub sample_rate: Option<u32>,
    /// Between memory snapshots, to the millisecond.
    pub snapshot_interval: Option<Duration>,
    /// Exit status of the process as a shell gives it: 128+N for signal N.
    pub exit_status: Option<u8>,
    /// What ended the process, if a signal did: the signal, and the limit or killer behind it where the system tells.
    pub end_reason: Option<Vec<u8>>,
    /// Why there are no accounts of resident memory.
    pub resident_note: Option<Vec<u8>>,
    /// Why pictures of objects are missing that were asked for.
    pub objects_note: Option<Vec<u8>>,
    /// Why the process stopped recording before its end.
    pub stop_reason: Option<Vec<u8>>,
    /// Events that were not recorded because more threads ran at once than there are slots.
    pub events_without_slot: Option<u64>,
    /// Of the first process of a recording with its children: how many of these, and of theirs, did not connect.
    pub unrecorded_children: Option<u64>,
    /// How long threads waited for the collector.
    pub waits: WaitCounters,
    /// Whether the process replaced itself by exec.
    pub ended_by_exec: bool,
    /// Whether recording began while the process was running: blocks from before are unknown.
    pub began_late: bool,
    /// Whether the process ran on when its recording ended.
    pub ran_on: bool,
    /// Whether the executable defines malloc itself: its own calls of that do not pass a slot, and are not recorded.
    pub own_malloc: bool,
    /// Whether blocks of Python's allocators are recorded, in place of the memory that those take from the system.
    pub traces_python_allocators: bool,
    /// Whether stacks have native frames.
    pub native_traces: bool,
    /// How call stacks were read.
    pub stacks: StackCounters,
    /// Bytes of records before compression.
    pub record_bytes: Option<u64>,
    /// Processor time of the process up to its end, in nanoseconds, including memtrack's hooks.
    pub cpu_ns: Option<u64>,
    /// Processor time of the collector's threads for this process, in nanoseconds.
    pub collector_cpu_ns: Option<u64>,
    /// Time that memtrack's library took to start in the process, in nanoseconds.
    pub start_ns: Option<u64>,
    /// What `memtrack strip` dropped after recording.
    pub stripped: StrippedAllocations,
    /// Whether names, paths and arguments were replaced.
    pub anonymized: bool,
    /// What was damaged or missing in the capture from which this one was rewritten.
    pub lost: LostBlocks,
    /// Version of memtrack that recorded.
    pub recorder: Option<Vec<u8>>,
    /// Peak of resident memory in bytes, without memtrack's own: the kernel's high-water mark (`VmHWM`) when it was last
    /// read. Snapshots may show more.
    pub resident_peak: Option<u64>,
    /// Whether the capture was copied while the recording went on.
    pub snapshot: bool,
    /// In a capture that was copied out of a recording, the last ticket that belongs to it: there may be records with later ones.
    pub snapshot_ticket: Option<u64>,
    /// In a capture of a span of a recording, the last ticket before it: older records are not of the span, and the times at
    /// the start are those of this ticket.
    pub span_ticket: Option<u64>,
    /// Where it is in the process tree.
    pub tree: TreePosition,
    /// For a fork child: it inherited the heap that its parent had recorded with earlier tickets.
    pub fork_ticket: Option<u64>,
    /// The working directory when the process connected.
    pub working_directory: Option<Vec<u8>>,
    /// The executable is a program of Python's with its interpreter or what unpacks it in it, and the modules in an archive, as
    /// PyInstaller and Nuitka make it.
    pub frozen: bool,
    /// The script that a Python interpreter was told to run, with its whole path.
    pub script: Option<Vec<u8>>,
    /// Directories below which the program's own code lies.
    pub own_directories: Vec<Vec<u8>>,
    /// Directories that modules are imported from, as far as the collector can find them from outside the process.
    pub import_roots: Vec<Vec<u8>>,
    /// Package directories (with an `__init__.py`) of recorded code objects, without those of the standard library and of
    /// installed packages, which are known by their paths.
    pub packages: Vec<Vec<u8>>,
    /// Packages that the command line of a Python program names as what it starts, the most particular first: of
    /// `venv/bin/tool` or `-m tool` it is `tool`.
    pub started_packages: Vec<Vec<u8>>,
    /// What was installed to entries of `PYTHONPATH`, or beside own code that arguments name: directories, whose code is not own,
    /// and files; of a directory with own code, too, its packages and modules.
    pub installed_directories: Vec<Vec<u8>>,
    /// Loaded files with an allocator of their own, in which blocks are not seen: its name, a space, and the path.
    pub library_allocators: Vec<Vec<u8>>,
}

/// The clocks when recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// The stamping clock.
    pub clock: Option<RecordedClock>,
    /// The stamping clock's reading.
    pub ticks: Option<u64>,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub monotonic_ns: Option<u64>,
    /// Wall clock, in nanoseconds since 1970.
    pub realtime_ns: Option<u64>,
    /// The three readings lie within this many nanoseconds.
    pub uncertainty_ns: Option<u64>,
}

/// The clocks when recording ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndTimes {
    /// The stamping clock's reading.
    pub ticks: Option<u64>,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub monotonic_ns: Option<u64>,
    /// CLOCK_MONOTONIC when the process was last seen alive, in nanoseconds, if it has ended: the recorder learns of that somewhat later.
    pub alive_ns: Option<u64>,
}

/// How call stacks were read, and what that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// How often the fast comparison could not tell how the Python stack had changed since the thread's previous record.
    pub python_compared: Option<u64>,
    /// How often, of these, more had changed than the newest frame's instruction.
    pub python_changed: Option<u64>,
    /// Time of the full comparisons of Python stacks, in nanoseconds, estimated from samples.
    pub python_look_ns: Option<u64>,
    /// Native frames that were unchanged since the thread's previous record.
    pub native_kept: Option<u64>,
    /// Native frames that were unwound.
    pub native_unwound: Option<u64>,
    /// How often the native stack had changed since the thread's previous record.
    pub native_changed: Option<u64>,
    /// Native frames that were merged again with Python's.
    pub native_levels: Option<u64>,
    /// Addresses for which an unwind rule had to be computed.
    pub native_learned: Option<u64>,
    /// Time to find and write the changes of native stacks, in nanoseconds, estimated from samples.
    pub native_change_ns: Option<u64>,
}

/// How long threads waited for the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounters {
    /// How often.
    pub count: Option<u64>,
    /// In total, in nanoseconds.
    pub total_ns: Option<u64>,
}

/// Allocations that were dropped after recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrippedAllocations {
    /// A description of them.
    pub rule: Option<Vec<u8>>,
    /// Their number.
    pub count: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
}

/// Damaged or missing blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostBlocks {
    /// Their number.
    pub count: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
}

/// The position of a process in a tree of recorded processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreePosition {
    /// Id of the recording, which all its captures share. Absent in captures of memtrack's first version if children were
    /// not recorded.
    pub recording: Option<u64>,
    /// The process's number in the tree, where children were recorded; the first has 0.
    pub number: Option<u64>,
    /// Its parent's number in the tree.
    pub parent: Option<u64>,
}

/// The clock that stamps events and ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedClock {
    /// CLOCK_MONOTONIC, in nanoseconds.
    Monotonic = 0,
    /// The processor's time-stamp counter.
    Tsc = 1,
}

/// A version of CPython, shown as `3.11.7` or `3.14.0rc2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion {
    /// `PY_VERSION_HEX`.
    pub hex: u32,
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, micro, level] = self.hex.to_be_bytes();
        write!(f, "{major}.{minor}.{micro}")?;
        let serial = level & 0xf;
        match level >> 4 {
            0xa => write!(f, "a{serial}"),
            0xb => write!(f, "b{serial}"),
            0xc => write!(f, "rc{serial}"),
            _ => Ok(()),
        }
    }
}

/// A field that is written as a number; a number that its type does not have leaves it unknown.
trait NumberField {
    fn number(&self) -> Option<u64>;
    fn set(&mut self, number: Option<u64>);
}

impl NumberField for Option<u64> {
    fn number(&self) -> Option<u64> {
        *self
    }

    fn set(&mut self, number: Option<u64>) {
        *self = number;
    }
}

/// Numbers of fewer bits.
macro_rules! small_number_fields {
    ($($number:ty),*) => {$(
        impl NumberField for Option<$number> {
            fn number(&self) -> Option<u64> {
                self.map(Into::into)
            }

            fn set(&mut self, number: Option<u64>) {
                *self = number.and_then(|number| number.try_into().ok());
            }
        }
    )*};
}

small_number_fields!(u8, u32);

impl NumberField for Option<Duration> {
    fn number(&self) -> Option<u64> {
        self.map(|duration| duration.as_millis() as u64)
    }

    fn set(&mut self, number: Option<u64>) {
        *self = number.map(Duration::from_millis);
    }
}

impl NumberField for Option<PythonVersion> {
    fn number(&self) -> Option<u64> {
        self.map(|version| version.hex.into())
    }

    fn set(&mut self, number: Option<u64>) {
        *self = number.and_then(|number| Some(PythonVersion { hex: number.try_into().ok()? }));
    }
}

impl NumberField for Option<RecordedClock> {
    fn number(&self) -> Option<u64> {
        self.map(|clock| clock as u64)
    }

    fn set(&mut self, number: Option<u64>) {
        *self = match number {
            Some(0) => Some(RecordedClock::Monotonic),
            Some(1) => Some(RecordedClock::Tsc),
            _ => None,
        };
    }
}

const COMMAND_LINE: u64 = 1;

/// Maximum number of entries of a list (arguments, directories).
const MAX_ENTRIES: usize = 4096;

impl Process {
    /// For how long after the start of the recording the process is known to have lived, in nanoseconds, if it has ended: to when it was
    /// last seen alive. The end of the recording is later, when its parent may have started the next process.
    #[must_use]
    pub fn lived_ns(&self) -> Option<u64> {
        let alive = self.end.alive_ns?.min(self.end.monotonic_ns?);
        alive.checked_sub(self.start.monotonic_ns?)
    }

    /// From the start to the end of the recording, in nanoseconds, where both are known.
    #[must_use]
    pub fn duration_ns(&self) -> Option<u64> {
        self.end.monotonic_ns?.checked_sub(self.start.monotonic_ns?)
    }

    /// The payload of a block with every known field.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        let mut copy = self.clone();
        for (tag, list) in copy.lists() {
            list.iter().take(MAX_ENTRIES).for_each(|entry| put(&mut out, tag, entry));
        }
        for (tag, field) in copy.texts() {
            field.iter().for_each(|text| put(&mut out, tag, text));
        }
        for (tag, _) in copy.flags().into_iter().filter(|(_, flag)| **flag) {
            put(&mut out, tag, &number_bytes(1));
        }
        for (tag, field) in copy.numbers() {
            field.number().iter().for_each(|&number| put(&mut out, tag, &number_bytes(number)));
        }
        out.into_bytes()
    }

    /// Overrides the fields that this payload holds. `false`: the payload is malformed from some point on.
    pub fn update(&mut self, payload: &[u8]) -> bool {
        let mut fields = FieldReader::new(payload);
        let mut news = Self::default();
        while !fields.is_at_end() {
            let (Some(tag), Some(bytes)) = (fields.number(), fields.bytes()) else { return false };
            match news.lists().into_iter().find(|(known, _)| *known == tag) {
                Some((_, list)) if list.len() < MAX_ENTRIES => list.push(bytes.to_vec()),
                Some(_) => {}
                None => self.set(tag, bytes),
            }
        }
        for ((_, list), (_, new)) in self.lists().into_iter().zip(news.lists()) {
            if !new.is_empty() {
                *list = std::mem::take(new);
            }
        }
        true
    }

    fn set(&mut self, tag: u64, bytes: &[u8]) {
        if let Some((_, field)) = self.texts().into_iter().find(|(known, _)| *known == tag) {
            *field = Some(bytes.to_vec());
        } else if let Some((_, flag)) = self.flags().into_iter().find(|(known, _)| *known == tag) {
            *flag = FieldReader::new(bytes).number() == Some(1);
        } else if let Some((_, field)) = self.numbers().into_iter().find(|(known, _)| *known == tag) {
            field.set(FieldReader::new(bytes).number());
        }
    }

    /// The fields that are lists, with their tags: a field for each entry.
    fn lists(&mut self) -> [(u64, &mut Vec<Vec<u8>>); 7] {
        [
            (COMMAND_LINE, &mut self.command_line),
            (23, &mut self.own_directories),
            (24, &mut self.import_roots),
            (25, &mut self.packages),
            (29, &mut self.started_packages),
            (30, &mut self.installed_directories),
            (31, &mut self.library_allocators),
        ]
    }

    /// The fields that are texts, with their tags.
    fn texts(&mut self) -> [(u64, &mut Option<Vec<u8>>); 11] {
        [
            (2, &mut self.executable),
            (3, &mut self.python_allocator),
            (4, &mut self.python_note),
            (5, &mut self.stop_reason),
            (6, &mut self.recorder),
            (20, &mut self.stripped.rule),
            (21, &mut self.working_directory),
            (22, &mut self.script),
            (26, &mut self.end_reason),
            (27, &mut self.resident_note),
            (28, &mut self.objects_note),
        ]
    }

    /// The fields that are flags, with their tags: a field with 1 where the flag is set.
    fn flags(&mut self) -> [(u64, &mut bool); 10] {
        [
            (40, &mut self.timestamps),
            (48, &mut self.ended_by_exec),
            (49, &mut self.traces_python_allocators),
            (50, &mut self.native_traces),
            (72, &mut self.anonymized),
            (80, &mut self.began_late),
            (81, &mut self.ran_on),
            (82, &mut self.own_malloc),
            (90, &mut self.snapshot),
            (96, &mut self.frozen),
        ]
    }

    /// The fields that are numbers, with their tags. 56, 59, 60 and 75 stand in older captures, and are not used again.
    fn numbers(&mut self) -> [(u64, &mut dyn NumberField); 44] {
        [
            (32, &mut self.pid),
            (33, &mut self.ppid),
            (34, &mut self.python_version),
            (35, &mut self.start.clock),
            (36, &mut self.start.ticks),
            (37, &mut self.start.monotonic_ns),
            (38, &mut self.start.realtime_ns),
            (39, &mut self.start.uncertainty_ns),
            (93, &mut self.sample_bytes),
            (94, &mut self.sample_rate),
            (41, &mut self.snapshot_interval),
            (42, &mut self.end.monotonic_ns),
            (43, &mut self.end.ticks),
            (95, &mut self.end.alive_ns),
            (44, &mut self.exit_status),
            (45, &mut self.events_without_slot),
            (46, &mut self.waits.count),
            (47, &mut self.waits.total_ns),
            (51, &mut self.stacks.native_kept),
            (52, &mut self.stacks.native_unwound),
            (53, &mut self.stacks.python_compared),
            (54, &mut self.stacks.python_changed),
            (55, &mut self.record_bytes),
            (57, &mut self.cpu_ns),
            (58, &mut self.start_ns),
            (61, &mut self.stacks.native_changed),
            (62, &mut self.stacks.native_levels),
            (63, &mut self.stacks.native_learned),
            (68, &mut self.stacks.python_look_ns),
            (69, &mut self.stacks.native_change_ns),
            (76, &mut self.time_uncertainty_ns),
            (70, &mut self.stripped.count),
            (71, &mut self.stripped.bytes),
            (73, &mut self.lost.count),
            (74, &mut self.lost.bytes),
            (78, &mut self.resident_peak),
            (79, &mut self.collector_cpu_ns),
            (91, &mut self.snapshot_ticket),
            (92, &mut self.span_ticket),
            (64, &mut self.tree.recording),
            (65, &mut self.tree.number),
            (66, &mut self.tree.parent),
            (67, &mut self.fork_ticket),
            (97, &mut self.unrecorded_children),
        ]
    }
}

fn number_bytes(value: u64) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.number(value);
    out.into_bytes()
}

fn put(out: &mut FieldWriter, tag: u64, bytes: &[u8]) {
    out.number(tag);
    out.bytes(bytes);
}

#[cfg(test)]
mod tests;
