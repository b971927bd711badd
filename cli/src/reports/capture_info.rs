//! Metadata of a capture, formatted for reports.
//!
//! Invariant: everything comes from the capture; unknown values are `None`.

use std::path::PathBuf;

use memtrack_format::marks::Mark;
use memtrack_format::meta::Process;
use memtrack_format::sources::FileLines;
use memtrack_reader::analysis::Tally;
use memtrack_reader::resident::ClassesAt;
use memtrack_reader::{Analysis, Frames, Thread, ThreadId, View};

use crate::message;
pub(crate) use crate::text::{quoted, quoted_path, visible};
use crate::units::{at_most, count, duration, plural, size};

use super::leaked::LeakMoment;
use super::picture_summary::PictureSummary;
use super::presentation::Presentation;
use super::recording_cost::RecordingCost;
use super::resident_moment::ResidentMoment;
use super::view::title;

/// How the end of a process names the limit behind it, if that was one of processor time.
pub(crate) const CPU_TIME_LIMIT: &str = "CPU time limit (ulimit -t)";
/// How the reason begins of a process that the OOM killer may have ended, whose exit status is unknown.
pub(crate) const PERHAPS_KILLED: &str = "ended perhaps by the OOM killer";

/// A loaded capture, the input of reports.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Its metadata.
    pub(crate) info: CaptureInfo,
    /// Its sums.
    pub(crate) analysis: Analysis,
    /// The stacks that the sums refer to.
    pub(crate) frames: Frames,
    /// The threads that the sums refer to.
    pub(crate) threads: Vec<Thread>,
    /// How it was prepared for display.
    pub(crate) shown: Presentation,
}

impl Capture {
    /// The title of a view.
    pub(crate) fn title(&self, view: View) -> &'static str {
        let each = view == View::HighWaterMark && self.has_several_peaks();
        if each { "Per-process high-water marks (not simultaneous)" } else { title(view) }
    }

    /// What the allocations of a view have in common; continues a sentence such as "12 allocations, ".
    pub(crate) fn view_qualifier(&self, view: View) -> String {
        let totals = &self.analysis.totals;
        match view {
            View::HighWaterMark if self.has_several_peaks() => "each process's live at its own peak".into(),
            View::HighWaterMark => match totals.peak.at {
                Some(moment) => format!("live at the peak, after {}", duration(moment.time_ns)),
                None => "live at the peak".into(),
            },
            View::Leaks | View::LeaksAtExit => format!("live {}", self.info.leak_moment.in_view(view).when()),
            View::Temporary => {
                let most = count(totals.temporary_threshold.into());
                format!("freed after at most {most} more of the same thread")
            }
            View::Allocated => "freed or not".into(),
            View::Pinned => self.pinned_qualifier(),
            View::Objects => self.objects_qualifier(),
        }
    }

    /// Whether its high-water mark is a sum of per-process peaks that are not simultaneous.
    pub(super) fn has_several_peaks(&self) -> bool {
        self.info.combined_peaks.as_ref().is_some_and(|combined_peaks| combined_peaks.no_joint_peak.is_some())
    }

    /// Thread id and name of a thread; the name may be empty.
    pub(crate) fn thread(&self, id: ThreadId) -> (Option<i32>, &str) {
        match self.threads.get(id.0 as usize) {
            Some(thread) => (Some(thread.tid), &thread.name),
            None => (None, ""),
        }
    }
}

/// The title of a view of two captures, compared: where the view of one has another title, that one.
pub(super) fn title_of_both(captures: [&Capture; 2], view: View) -> &'static str {
    captures.map(|capture| capture.title(view)).into_iter().find(|own| *own != title(view)).unwrap_or(title(view))
}

/// Metadata of a capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaptureInfo {
    /// Path of the capture.
    pub(crate) file: PathBuf,
    /// Format version.
    pub(crate) format_version: u32,
    /// Metadata of the recorded process.
    pub(crate) process: Process,
    /// Recorded source lines.
    pub(crate) sources: Vec<FileLines>,
    /// Moments that were named while the program ran.
    pub(crate) marks: Vec<Mark>,
    /// Whether it holds sums instead of events.
    pub(crate) aggregated: bool,
    /// Whether the recording is complete up to the end of the process.
    pub(crate) complete: bool,
    /// Whether it is incomplete because it is still being written.
    pub(crate) growing: bool,
    /// Bytes behind the end of the capture that are no part of it.
    pub(crate) bytes_behind: u64,
    /// Upper bound of how much too early times may be, in nanoseconds, if known.
    pub(crate) time_uncertainty_ns: Option<u64>,
    /// Blocks that could not be read.
    pub(crate) lost_blocks: u64,
    /// Their bytes.
    pub(crate) lost_bytes: u64,
    /// Frames whose description is missing, shown as `<unknown>`.
    pub(crate) unknown_frames: u64,
    /// Whether filters may have excluded some allocations.
    pub(crate) narrowed: bool,
    /// Number of further captures in the report.
    pub(crate) others: usize,
    /// The processes, if there are several captures.
    pub(crate) processes: Vec<ProcessRow>,
    /// For one of several captures without filters: the high-water mark of its own process.
    pub(crate) own_peak_bytes: Option<u64>,
    /// Peaks of several captures together.
    pub(crate) combined_peaks: Option<CombinedPeaks>,
    /// Cost of the recording.
    pub(crate) recording_cost: RecordingCost,
    /// The moment at which live memory counts as leaked.
    pub(crate) leak_moment: LeakMoment,
    /// Whether the recording has no call stacks at all.
    pub(crate) has_no_stacks: bool,
    /// Resident memory at the moment when most of it had no live block, if the request asked for it.
    pub(crate) resident: Option<ResidentMoment>,
    /// Classes of resident memory over time, if the request asked for them.
    pub(crate) resident_bands: Vec<ClassesAt>,
    /// The objects of a picture, if they are in the sums.
    pub(crate) objects: Option<PictureSummary>,
}

/// Peaks of several processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CombinedPeaks {
    /// Sum of the high-water marks of all processes, each at its own time; `None` with filters.
    pub(crate) sum_of_peaks: Option<u64>,
    /// The same for resident memory.
    pub(crate) rss_sum_of_peaks: u64,
    /// Why the joint peak is unknown, if it is. The high-water mark is then the sum of per-process peaks.
    pub(crate) no_joint_peak: Option<&'static str>,
    /// If the joint peak is unknown: a lower bound of it.
    pub(crate) at_least: u64,
}

/// The exit status of SIGKILL, as a shell gives it.
const KILLED: u8 = 128 + 9;

/// One process of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessRow {
    pub(super) file: String,
    pub(super) title: String,
    pub(super) command_line: Vec<String>,
    pub(super) pid: Option<u32>,
    pub(super) ppid: Option<u32>,
    pub(super) forked: bool,
    pub(super) inherited_frees: u64,
    pub(super) allocated: Tally,
    /// The process's own high-water mark.
    pub(super) peak_bytes: Option<u64>,
    /// Its part of the joint peak; `None` if that is unknown.
    pub(crate) at_peak: Option<Tally>,
    pub(super) leaked: Tally,
    /// What is said of its end, if it was killed.
    pub(super) killed: Option<String>,
}

impl CaptureInfo {
    /// Combines the metadata of two captures; process metadata is that of the first.
    pub(crate) fn and(mut self, mut other: Self) -> Self {
        self.sources.append(&mut other.sources);
        self.processes.append(&mut other.processes);
        // Figures are estimates if those of one are, as rough as those of the roughest.
        self.process.sample_bytes = self.process.sample_bytes.max(other.process.sample_bytes);
        Self {
            aggregated: self.aggregated || other.aggregated,
            complete: self.complete && other.complete,
            growing: self.growing || other.growing,
            bytes_behind: self.bytes_behind.saturating_add(other.bytes_behind),
            // Each process that lived has them; the one that lived longest has most.
            marks: if other.marks.len() > self.marks.len() { other.marks } else { self.marks },
            time_uncertainty_ns: self.time_uncertainty_ns.max(other.time_uncertainty_ns),
            lost_blocks: self.lost_blocks.saturating_add(other.lost_blocks),
            lost_bytes: self.lost_bytes.saturating_add(other.lost_bytes),
            unknown_frames: self.unknown_frames.saturating_add(other.unknown_frames),
            others: self.others.saturating_add(other.others).saturating_add(1),
            recording_cost: self.recording_cost.and(&other.recording_cost),
            leak_moment: self.leak_moment.and(other.leak_moment),
            has_no_stacks: self.has_no_stacks && other.has_no_stacks,
            ..self
        }
    }

    /// The arguments of the process, as they are but for invalid UTF-8: for programs.
    pub(crate) fn command_line(&self) -> Vec<String> {
        self.process.command_line.iter().map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
    }

    /// The command line, quoted for a shell; the file name if it is unknown.
    pub(crate) fn title(&self) -> String {
        if self.process.command_line.is_empty() {
            return self.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        }
        visible(&self.command_line().iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" "))
    }

    /// A short name of the program: file name of the script or executable, or the module that Python ran.
    pub(crate) fn program(&self) -> String {
        let arguments: Vec<String> = self.command_line().iter().map(|argument| visible(argument)).collect();
        let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let Some((command, rest)) = arguments.split_first() else { return self.title() };
        let is_interpreter = self.process.python_version.is_some() && name(command).starts_with("python");
        if !is_interpreter {
            return name(command);
        }
        let mut rest = rest.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "-m" => return rest.next().cloned().unwrap_or_else(|| name(command)),
                "-c" => return "python -c".into(),
                "-X" | "-W" | "--check-hash-based-pycs" => drop(rest.next()),
                option if option.starts_with('-') => {}
                script => return name(script),
            }
        }
        name(command)
    }

    /// Path of the executable.
    pub(crate) fn executable(&self) -> Option<String> {
        self.process.executable.as_deref().map(text)
    }

    /// The version of memtrack that recorded the capture, as `memtrack 0.2.0`.
    pub(crate) fn recorder(&self) -> Option<String> {
        self.process.recorder.as_deref().map(text)
    }

    /// Name of Python's allocator.
    pub(crate) fn python_allocator(&self) -> Option<String> {
        self.process.python_allocator.as_deref().map(text)
    }

    /// The interpreter's version, as `3.11.7` or `3.14.0rc2`.
    pub(crate) fn python_version(&self) -> Option<String> {
        self.process.python_version.map(|version| version.to_string())
    }

    /// Whether the program is one without an interpreter, as far as is known: of several processes the others may have one.
    pub(crate) fn runs_no_python(&self) -> bool {
        self.process.python_version.is_none() && self.others == 0
    }

    /// Why recording stopped before the program ended, if the library stopped it.
    pub(crate) fn stop_reason(&self) -> Option<String> {
        self.process.stop_reason.as_deref().map(text)
    }

    /// What ended the process, if a signal did, as `ended by signal 9 (SIGKILL: …)`.
    pub(crate) fn end_reason(&self) -> Option<String> {
        let reason = self.process.end_reason.as_deref().map(text);
        // A guess from before the process was waited for.
        reason.filter(|reason| self.process.exit_status.is_none() || !reason.starts_with(PERHAPS_KILLED))
    }

    /// What is said of the end of a process by SIGKILL, but for a limit of processor time.
    pub(crate) fn kill_reason(&self) -> Option<String> {
        let reason = self.end_reason();
        let by_processor_time = format!("SIGKILL: {CPU_TIME_LIMIT}");
        let is_by_time = reason.as_ref().is_some_and(|reason| reason.contains(&by_processor_time));
        let is_perhaps = reason.as_ref().is_some_and(|reason| reason.starts_with(PERHAPS_KILLED));
        let status = self.process.exit_status;
        let is_killed = (status == Some(KILLED) || status.is_none() && is_perhaps) && !is_by_time;
        is_killed.then(|| reason.unwrap_or_else(|| "ended by SIGKILL".into()))
    }

    /// The wall clock at the start, as RFC 3339 in UTC.
    pub(crate) fn start_time(&self) -> Option<String> {
        self.process.start.realtime_ns.map(rfc3339)
    }

    /// The marks, with their times in nanoseconds since the recording began.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (u64, &str)> {
        let start = self.process.start.monotonic_ns;
        let since = move |time_ns: u64| time_ns.saturating_sub(start.unwrap_or(time_ns));
        self.marks.iter().map(move |mark| (since(mark.time_ns), mark.name.as_str()))
    }

    /// Duration of the recording in nanoseconds; up to the last event if the end is unknown.
    pub(crate) fn duration_ns(&self, analysis: &Analysis) -> u64 {
        self.process.duration_ns().unwrap_or(analysis.totals.end_time_ns)
    }

    /// The precision of times, if known and not exact.
    pub(crate) fn times(&self) -> Option<String> {
        let uncertainty = self.time_uncertainty_ns.filter(|ns| *ns > 0)?;
        Some(format!("accurate to {}", at_most(uncertainty)))
    }

    /// Prints the precision of times, after reports that show times.
    pub(crate) fn note_time_precision(&self) {
        if let Some(times) = self.times() {
            message::note(format_args!("times are {times}; record with --allocation-timestamps for exact times"));
        }
    }

    /// Whether a program without Python was recorded without native call stacks.
    pub(crate) fn lacks_stacks(&self, frames: &Frames) -> bool {
        let Process { python_version, python_note, native_traces, .. } = &self.process;
        let python = python_version.is_some() || python_note.is_some();
        !python && !*native_traces && frames.frames().is_empty() && self.recording_cost.has_events()
    }

    /// Prints why there are no call stacks, after reports of call stacks.
    pub(crate) fn note_missing_stacks(&self) {
        if self.has_no_stacks {
            message::note(
                "no call stacks: the program does not run Python; record with --native for C, C++ and Rust stacks",
            );
        }
    }

    /// Says that a capture is still being written, which is no damage.
    pub(crate) fn note_growing(&self) {
        if self.growing {
            let shown = if self.aggregated { LAST_SUMS } else { "everything up to now is shown" };
            message::note(format_args!("{}: still being recorded; {shown}", self.file.display()));
        }
    }

    /// Prints warnings about missing data to standard error.
    pub(crate) fn warn(&self) {
        self.note_growing();
        for warning in self.warnings() {
            message::warning(format_args!("{}: {warning}", self.file.display()));
        }
    }

    /// Warnings about missing data, one sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.lost_blocks > 0 || self.lost_bytes > 0 {
            warnings.push(format!(
                "corrupt: {} file blocks ({} bytes) could not be decoded and are missing from this report",
                self.lost_blocks, self.lost_bytes
            ));
        }
        if !self.complete && !self.growing {
            warnings.push(
                "incomplete: the recording was interrupted or the file is truncated; everything up to that point is shown".into(),
            );
        }
        if self.bytes_behind > 0 {
            let bytes = plural(self.bytes_behind, "byte", "bytes");
            warnings
                .push(format!("{bytes} of something else behind the end of the capture, which is complete, left out"));
        }
        if self.unknown_frames > 0 {
            let sites = plural(self.unknown_frames, "call site has", "call sites have");
            warnings.push(format!("{sites} frames without a recorded name, shown as <unknown>"));
        }
        let process = &self.process;
        if let Some(rule) = &process.stripped.rule {
            warnings.push(format!(
                "stripped: {} allocations ({} in total) that {} were removed; 'allocated' and 'temporary' exclude them, peak \
                 and leaks are exact",
                count(process.stripped.count.unwrap_or(0)),
                size(process.stripped.bytes.unwrap_or(0)),
                text(rule)
            ));
        }
        warnings.extend(self.process.ended_by_exec.then(|| REPLACED.into()));
        let stopped = |reason| format!("recording stopped before the program ended: {reason}");
        warnings.extend(self.stop_reason().map(stopped));
        if let Some(note) = &process.python_note {
            warnings.push(format!("no Python frames: {}", text(note)));
        }
        if process.own_malloc {
            warnings.push(OWN_MALLOC.into());
        }
        warnings.extend(super::library_allocators::warning(process));
        if let Some(children) = process.unrecorded_children.filter(|children| *children > 0) {
            warnings.push(unrecorded(children));
        }
        if let Some(events) = process.events_without_slot.filter(|events| *events > 0) {
            warnings.push(format!(
                "{events} events not recorded: too many concurrent threads, or not enough address space for another thread's buffer"
            ));
        }
        warnings
    }
}

/// How many children were not recorded, and why that may be.
pub(crate) fn unrecorded(children: u64) -> String {
    format!(
        "{} not recorded: statically linked, or unable to connect to memtrack (another root directory or user, no free file \
         descriptors or threads, system calls forbidden by seccomp)",
        plural(children, "process that was started was", "processes that were started were")
    )
}

/// What an executable with an allocator linked into it allocates reaches no slot.
pub(crate) const OWN_MALLOC: &str = "the executable defines malloc itself (an allocator is linked into it): calls from the \
                                     executable are not recorded, only those from libraries; link the allocator as a shared library, or \
                                     load it by LD_PRELOAD";

/// What is there of a recording that writes sums only.
const LAST_SUMS: &str =
    "the last sums that were written are shown, up to some seconds old; 'memtrack snapshot' takes current ones";

/// The program after the exec is missing in the figures; often it is the main program, started by a shell.
const REPLACED: &str = "the recording ends at an exec: it goes on in the new program only where that is not statically linked or \
                        set-user-ID, finds memtrack's library (which it does not in another root directory), and can connect to memtrack, \
                        for which it needs a free file descriptor (ulimit -n) and 30 MB of address space (ulimit -v)";

/// Bytes of the capture as text; invalid UTF-8 and control characters are escaped.
pub(crate) fn text(bytes: &[u8]) -> String {
    visible(&String::from_utf8_lossy(bytes))
}

/// Nanoseconds since 1970 as RFC 3339 with milliseconds, in UTC.
pub(crate) fn rfc3339(ns: u64) -> String {
    let (seconds, millis) = (ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The Gregorian date of a day, counted from 1970-01-01. Years are counted from March, so that leap days come last.
fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_FROM_YEAR_0: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let day = day + DAYS_FROM_YEAR_0;
    let era = day / DAYS_IN_400_YEARS;
    let of_era = day % DAYS_IN_400_YEARS;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::{CaptureInfo, rfc3339};
    use memtrack_format::meta::Process;

    fn info(process: Process) -> CaptureInfo {
        CaptureInfo { file: "d/capture.bin".into(), process, complete: true, ..CaptureInfo::default() }
    }

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_226_645_123_000_000), "2026-11-21T02:04:05.123Z");
        assert_eq!(rfc3339(4_107_542_399_999_000_000), "2100-02-28T23:59:59.999Z");
    }

    #[test]
    fn titles() {
        assert_eq!(info(Process::default()).title(), "capture.bin");
        let called = |arguments: [&str; 4]| {
            let command_line = arguments.map(|argument| argument.as_bytes().to_vec()).to_vec();
            info(Process { command_line, ..Process::default() })
        };
        assert_eq!(called(["python3", "-c", "print('x')", ""]).title(), r"python3 -c 'print('\''x'\'')' ''");
        let lines = called(["python3", "-c", "a\nb", r"a\nb"]);
        assert_eq!(lines.title(), r"python3 -c $'a\x0ab' 'a\nb'");
        assert_eq!(lines.command_line()[2..], ["a\nb", r"a\nb"]);
    }

    #[test]
    fn warnings_say_what_is_missing() {
        assert!(info(Process::default()).warnings().is_empty());
        let cut = CaptureInfo { complete: false, lost_blocks: 2, lost_bytes: 99, ..CaptureInfo::default() };
        let warnings = cut.warnings().join("\n");
        assert!(warnings.contains("2 file blocks (99 bytes)") && warnings.contains("incomplete"), "{warnings}");
        let replaced = info(Process { ended_by_exec: true, ..Process::default() });
        assert!(replaced.warnings().join("\n").contains("ends at an exec"));
        let alone = info(Process { unrecorded_children: Some(2), ..Process::default() });
        assert!(alone.warnings().join("\n").contains("2 processes that were started were not recorded"));
    }
}
