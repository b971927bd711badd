//! Metadata of a process for the capture: from the system when it connects, from the control page later.
//!
//! Invariant: texts from the control page are cut at the size of their fields, whatever length it claims.

use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;

use memtrack_format::meta::{EndTimes, Process, PythonVersion, RecordedClock, StackCounters, StartTimes, WaitCounters};
use memtrack_transport::Area;
use memtrack_transport::clock::{ClockPairing, StampingClock};
use memtrack_transport::layout::{ControlPage, SlotHeader, image, python_allocators, state, stop_reason};

use crate::program::directories;
use crate::program::own_malloc;
use crate::recording::options::RecordingOptions;
use crate::system::procfs;

/// The version that records.
const RECORDER: &str = concat!("memtrack ", env!("CARGO_PKG_VERSION"));

/// What is known of the program that a process runs. A forked child runs its parent's.
pub(crate) fn program(pid: i32) -> Process {
    let (command_line, executable) = (procfs::command_line(pid), procfs::executable(pid));
    let directories = directories::of(pid, &command_line, executable.as_deref());
    Process { command_line, executable, own_malloc: own_malloc::is_defined(pid), ..directories }
}

/// The same of a forked child that may have ended. Where it has changed its working directory, code may be there, too.
pub(crate) fn forked_program(pid: i32, parent: &Arc<Process>) -> Arc<Process> {
    let here = procfs::working_directory(pid).map(|here| here.into_os_string().into_vec());
    if here.is_none() || here == parent.working_directory {
        return Arc::clone(parent);
    }
    Arc::new(directories::of_forked(program(pid), parent))
}

/// The fields that are known when the process connects, with those of its program. `start`: a moment before its first event;
/// `native`: its native stacks are recorded.
pub(crate) fn at_start(
    program: &Process,
    (pid, ppid): (i32, i32),
    clock: StampingClock,
    start: ClockPairing,
    options: &RecordingOptions,
    native: bool,
) -> Process {
    Process {
        pid: u32::try_from(pid).ok(),
        ppid: u32::try_from(ppid).ok(),
        start: StartTimes {
            clock: Some(recorded(clock)),
            ticks: Some(start.ticks),
            monotonic_ns: Some(start.monotonic_ns),
            realtime_ns: Some(start.realtime_ns),
            uncertainty_ns: Some(start.uncertainty_ns),
        },
        timestamps: options.has_times(),
        sample_bytes: options.sample_bytes.map(NonZeroU64::get),
        sample_rate: options.sample_rate.map(NonZeroU32::get),
        native_traces: native,
        snapshot_interval: Some(options.snapshot_interval),
        recorder: Some(RECORDER.into()),
        ..program.clone()
    }
}

/// The stamping clock as captures name it.
const fn recorded(clock: StampingClock) -> RecordedClock {
    match clock {
        StampingClock::Monotonic => RecordedClock::Monotonic,
        StampingClock::Tsc => RecordedClock::Tsc,
    }
}

/// The fields about the interpreter, the beginning and an early end, as the target has set them by now.
pub(crate) fn by_now(control: &ControlPage) -> Process {
    let version = control.python_version.load(Acquire);
    let note_len = control.python_note_len.load(Acquire) as usize;
    let traced = control.python_allocators.load(Acquire) == python_allocators::TRACED;
    Process {
        python_version: (version != 0).then_some(PythonVersion { hex: version }),
        python_note: text(&control.python_note, note_len),
        python_allocator: text(&control.python_allocator, usize::MAX),
        traces_python_allocators: traced,
        began_late: control.began_late.load(Acquire) == 1,
        stop_reason: stopped_early(control).map(Into::into),
        ..Process::default()
    }
}

/// The fields that are known at the end, with the time of the end. `start`: those from when the process connected;
/// `earlier`: those of its earlier images, whose counts continue.
pub(crate) fn at_end(area: &Area, start: &Process, end: ClockPairing, earlier: &Process) -> Process {
    let control = area.control();
    let native = control.native.load(Acquire) == 1;
    let has_python = control.python_version.load(Acquire) != 0;
    let sum = |known: bool, of: fn(&SlotHeader) -> &AtomicU64| {
        let slots = (0..area.claimed_slots()).filter_map(|index| area.slot(index));
        known.then(|| slots.fold(0_u64, |sum, slot| sum.wrapping_add(of(slot).load(Acquire))))
    };
    let ns = |ticks: Option<u64>| nanoseconds(ticks?, start, end);
    let begun = Some(control.start_ns.load(Acquire)).filter(|ns| *ns > 0);
    let stacks = StackCounters {
        native_kept: and(sum(native, |slot| &slot.native_kept), earlier.stacks.native_kept),
        native_unwound: and(sum(native, |slot| &slot.native_unwound), earlier.stacks.native_unwound),
        python_compared: and(sum(has_python, |slot| &slot.python_compared), earlier.stacks.python_compared),
        python_changed: and(sum(has_python, |slot| &slot.python_changed), earlier.stacks.python_changed),
        native_changed: and(sum(native, |slot| &slot.native_changed), earlier.stacks.native_changed),
        native_levels: and(sum(native, |slot| &slot.native_levels), earlier.stacks.native_levels),
        native_learned: and(sum(native, |slot| &slot.native_learned), earlier.stacks.native_learned),
        python_look_ns: and(ns(sum(has_python, |slot| &slot.python_ticks)), earlier.stacks.python_look_ns),
        native_change_ns: and(ns(sum(native, |slot| &slot.native_ticks)), earlier.stacks.native_change_ns),
    };
    Process {
        stacks,
        start_ns: and(begun, earlier.start_ns),
        end: EndTimes { ticks: Some(end.ticks), monotonic_ns: Some(end.monotonic_ns), alive_ns: None },
        stop_reason: stopped(control.stop_reason.load(Acquire)).map(Into::into),
        events_without_slot: and(Some(control.events_without_slot.load(Acquire)), earlier.events_without_slot),
        waits: WaitCounters {
            count: and(Some(control.waits.load(Acquire)), earlier.waits.count),
            total_ns: and(Some(control.wait_ns.load(Acquire)), earlier.waits.total_ns),
        },
        ended_by_exec: (control.image.load(Acquire) == image::IN_EXEC),
        ..by_now(control)
    }
}

/// Converts ticks of the stamping clock to nanoseconds, at the clock's mean rate since the start.
fn nanoseconds(ticks: u64, start: &Process, end: ClockPairing) -> Option<u64> {
    let all_ticks = end.ticks.saturating_sub(start.start.ticks?).max(1);
    let all_ns = end.monotonic_ns.saturating_sub(start.start.monotonic_ns?);
    u64::try_from(u128::from(ticks) * u128::from(all_ns) / u128::from(all_ticks)).ok()
}

/// The sum of the known numbers; saturating, since the target may have written any number.
fn and(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map(|one| one.saturating_add(other.unwrap_or(0))).or(other)
}

/// Why the target records no more, if it has stopped by itself.
pub(crate) fn stopped_early(control: &ControlPage) -> Option<&'static str> {
    (control.state.load(Acquire) == state::STOPPED).then(|| stopped(control.stop_reason.load(Acquire))).flatten()
}

fn stopped(reason: u32) -> Option<&'static str> {
    match reason {
        stop_reason::NONE | stop_reason::DETACHED => None,
        stop_reason::COLLECTOR_GONE => Some("the collector had ended"),
        stop_reason::COLLECTOR_STUCK => Some("the collector did not drain the records in time"),
        stop_reason::NO_MEMORY => Some(
            "the program had no memory, address space or mappings (vm.max_map_count) left for memtrack's tables and buffers",
        ),
        stop_reason::STRICT_SECCOMP => {
            Some("a thread entered seccomp's strict mode, after which it cannot be recorded")
        }
        _ => Some("unknown"),
    }
}

/// The first `len` bytes of a text field, up to a NUL; `None` when there are none.
fn text(field: &[AtomicU64], len: usize) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = field.iter().flat_map(|word| word.load(Acquire).to_le_bytes()).take(len).collect();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    (end > 0).then(|| bytes.get(..end).unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::{nanoseconds, text};
    use memtrack_format::meta::{Process, StartTimes};
    use memtrack_transport::clock::ClockPairing;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn texts_are_cut_at_their_field() {
        let field = [AtomicU64::new(u64::from_le_bytes(*b"pymalloc")), AtomicU64::new(0)];
        assert_eq!(text(&field, usize::MAX), Some(b"pymalloc".to_vec()));
        assert_eq!(text(&field, 2), Some(b"py".to_vec()));
        assert_eq!(text(&field, 0), None);
    }

    #[test]
    fn ticks_are_of_the_rate_that_the_clock_had() {
        let start = StartTimes { ticks: Some(1000), monotonic_ns: Some(50), ..StartTimes::default() };
        let start = Process { start, ..Process::default() };
        let end = ClockPairing { ticks: 4000, monotonic_ns: 1050, realtime_ns: 0, uncertainty_ns: 0 };
        assert_eq!(nanoseconds(600, &start, end), Some(200));
        assert_eq!(nanoseconds(u64::MAX, &start, ClockPairing { ticks: 0, ..end }), None);
        assert_eq!(nanoseconds(600, &Process::default(), end), None);
    }
}
