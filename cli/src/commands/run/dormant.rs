//! `memtrack run --dormant`: starts the program with the library, which does nothing until `memtrack start`; each start to
//! stop is a recording with a capture of its own.
//!
//! With `--follow` the processes that it starts are dormant, too: each can be started by its id. Invariant: without a start, no
//! allocation function of the program is redirected; and at most one recording of a process is active.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use memtrack_collector::control::protocol::{
    MarkAnswer, ProcessState, ProcessStatus, RecordingStatus, SnapshotAnswer, SpanCopyRequest, SpanRequest,
    StartAnswer, StopAnswer,
};
use memtrack_collector::control::{CommandHandler, ControlServer, Subscriber};
use memtrack_collector::control_groups::{memory_limit, oom_kills};
use memtrack_collector::{ProcessExit, descendants};

use super::attached::{AttachedRecording, EndedRecording};
use super::private_directory::PrivateDirectory;
use super::termination::Termination;
use super::{final_summary, repack, start, wait_for_nothing};
use crate::args;
use crate::control::handler::{self, RecordingCommands};
use crate::message;
use crate::shim;
use crate::sys::{Reaped, Signals, await_after_abort, end_with, shell_status};
use crate::target::TargetFile;

/// Runs the program; returns its status.
pub(super) fn run(options: &args::RunArgs, program: &TargetFile) -> Result<ExitStatus> {
    let shim = shim::find()?;
    let private = PrivateDirectory::new()?;
    let mut environment = program.environment.clone();
    private.prepare(&mut environment, &shim, None)?;
    let signals = Signals::take()?.forwarder()?;
    let kills_before = oom_kills();
    let socket = handler::bind(true);
    let child = start(program, environment)?;
    await_after_abort(&child, options.quiet);
    let socket = socket.and_then(|socket| handler::publish(socket, child.pid()));
    let commands = Arc::new(DormantCommands {
        pid: child.pid(),
        options: options.clone(),
        program: program.path.clone(),
        active: Mutex::default(),
        completed: Condvar::new(),
        was_started: AtomicBool::new(false),
    });
    let handler = Arc::clone(&commands);
    let mut server = socket.and_then(|socket| ControlServer::start(socket, child.pid().cast_unsigned(), handler).ok());
    signals.pass_on(&child, options.target.len());
    let Reaped { status, own_ns, resident_peak, name, limits, .. } = child.reap()?;
    end_with(shell_status(status));
    server.iter_mut().for_each(ControlServer::withdraw);
    let mut all = commands.end();
    let of_program = all.remove(&child.pid());
    // Those of its children end with the program.
    for active in all.into_values() {
        commands.complete(active, options.quiet, &Termination::unknown());
    }
    if let Some(active) = of_program {
        let oom_kills = oom_kills().zip(kills_before).map_or(0, |(now, before)| now.saturating_sub(before));
        let (cpu_ns, group_memory) = (own_ns, memory_limit());
        let termination =
            Termination { status: Some(status), limits, cpu_ns, oom_kills, group_memory, ..Termination::unknown() };
        active.recording.child_exited(ProcessExit {
            status: shell_status(status),
            reason: termination.signal_text(),
            cpu_ns,
            resident_peak,
            name,
        });
        commands.complete(active, options.quiet, &termination);
    } else if !commands.was_started.load(Relaxed) && !options.quiet {
        message::note(format_args!("memtrack: nothing was recorded: {}", commands.why_nothing()));
    }
    commands.wait_for_stops();
    server.into_iter().for_each(ControlServer::finish);
    Ok(status)
}

/// Why commands are refused that need a recording.
const DORMANT: &str = "the program is dormant: begin to record it with 'memtrack start'";

/// A recording between start and stop.
struct ActiveRecording {
    recording: AttachedRecording,
    commands: RecordingCommands,
}

impl ActiveRecording {
    /// Whether its process has ended, and all that it has started.
    fn has_ended(&self) -> bool {
        self.recording.handle().processes().iter().all(|process| process.ended) && self.recording.has_ended()
    }

    /// Whether it records this process now.
    fn records(&self, pid: i32) -> bool {
        let processes = self.commands.status().processes;
        processes.iter().any(|process| process.pid == pid.cast_unsigned() && is_under_way(process))
    }
}

/// Whether its recording is to be ended. One that the library has stopped by itself is.
fn is_under_way(process: &ProcessStatus) -> bool {
    process.state != ProcessState::Ended || process.stop_reason.is_some()
}

/// The recordings of a dormant program and its children.
#[derive(Default)]
struct DormantRecordings {
    /// By process.
    active: BTreeMap<i32, ActiveRecording>,
    /// Those that `stop` is completing.
    stopping: usize,
    /// How many were begun: the number of the newest.
    begun: u32,
    /// Files that recordings were written to.
    written: HashSet<PathBuf>,
    /// The program has ended: none begins any more.
    is_over: bool,
    /// Why the last start was refused, if it was: a program may not look at what its own call returns.
    refusal: Option<String>,
}

/// Executes commands on a program that is dormant, or recorded.
struct DormantCommands {
    pid: i32,
    options: args::RunArgs,
    program: PathBuf,
    active: Mutex<DormantRecordings>,
    /// A recording that was taken out by `stop` is complete.
    completed: Condvar,
    was_started: AtomicBool,
}

impl DormantCommands {
    fn lock(&self) -> MutexGuard<'_, DormantRecordings> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has ended: no recording begins any more. Takes out those that nobody completes.
    fn end(&self) -> BTreeMap<i32, ActiveRecording> {
        let mut all = self.lock();
        all.is_over = true;
        std::mem::take(&mut all.active)
    }

    /// Why there is no recording.
    fn why_nothing(&self) -> String {
        match &self.lock().refusal {
            Some(reason) => format!("a start was refused: {reason}"),
            None => format!("'memtrack start {}' was not called while the program ran", self.pid),
        }
    }

    /// Waits until the recordings are complete that `stop` has taken out.
    fn wait_for_stops(&self) {
        let done = self.completed.wait_while(self.lock(), |all| all.stopping > 0);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }

    /// Completes a recording that was taken out as one that is [stopping](DormantRecordings::stopping).
    fn complete_stopped(&self, active: ActiveRecording) -> Vec<PathBuf> {
        /// Counts it however this ends.
        struct Stopping<'a>(&'a DormantCommands);
        impl Drop for Stopping<'_> {
            fn drop(&mut self) {
                self.0.lock().stopping -= 1;
                self.0.completed.notify_all();
            }
        }
        let _stopping = Stopping(self);
        self.complete(active, true, &Termination::unknown())
    }

    /// Completes the captures of a recording, and returns them.
    fn complete(&self, active: ActiveRecording, quiet: bool, termination: &Termination) -> Vec<PathBuf> {
        let EndedRecording { capture, summary, children, .. } = active.recording.end();
        active.commands.close_spans(&children.numbers());
        let options = args::RunArgs { quiet, ..self.options.clone() };
        let repack = |captures: &[PathBuf]| {
            if let Some(compression) = repack::plan(options.compress).1 {
                repack::repack(captures, compression, &wait_for_nothing());
            }
        };
        let ended = (&options, termination);
        let captures = final_summary::report(ended, capture, &self.program, summary, (&children, None, None), &repack);
        captures.into_iter().map(|capture| capture.canonicalize().unwrap_or(capture)).collect()
    }

    /// Completes the recordings of children that have ended, and that of an earlier process with the id of the next one, whose
    /// own children may go on.
    fn complete_ended(&self, all: &mut BTreeMap<i32, ActiveRecording>, next: i32) {
        let has_ended = |pid: i32, active: &ActiveRecording| {
            pid != self.pid && (active.has_ended() || pid == next && active.recording.has_ended())
        };
        for (_, ended) in all.extract_if(.., |pid, active| has_ended(*pid, active)) {
            self.complete(ended, self.options.quiet, &Termination::unknown());
        }
    }

    /// Executes a command on the recording that has this process; without one on that of the program, else on any.
    fn with_active<T>(
        &self,
        pid: Option<u32>,
        call: impl FnOnce(&RecordingCommands) -> Result<T, String>,
    ) -> Result<T, String> {
        let all = &self.lock().active;
        let wanted = pid.map_or(self.pid, u32::cast_signed);
        let of_wanted = || all.values().find(|active| active.records(wanted));
        let any = || all.values().next().filter(|_| pid.is_none());
        let active = all.get(&wanted).or_else(of_wanted).or_else(any);
        active.map_or_else(|| Err(DORMANT.to_owned()), |active| call(&active.commands))
    }

    /// Executes a command on the recording in which it succeeds.
    fn with_any<T>(&self, call: impl Fn(&RecordingCommands) -> Result<T, String>) -> Result<T, String> {
        let mut refusal = DORMANT.to_owned();
        for active in self.lock().active.values() {
            match call(&active.commands) {
                Ok(done) => return Ok(done),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// What is recorded, and the processes that wait.
    fn status_with(&self, of: impl Fn(&RecordingCommands) -> RecordingStatus) -> RecordingStatus {
        let mut processes: Vec<_> =
            self.lock().active.values().flat_map(|active| of(&active.commands).processes).collect();
        let children = if self.options.follow { descendants(self.pid) } else { Vec::new() };
        for pid in [self.pid].into_iter().chain(children) {
            let is_told =
                |told: &ProcessStatus| told.pid == pid.cast_unsigned() && (is_under_way(told) || pid == self.pid);
            if !processes.iter().any(is_told) {
                processes.push(dormant(pid));
            }
        }
        processes.sort_by_key(|process| process.pid != self.pid.cast_unsigned());
        RecordingStatus { recorder: std::process::id(), processes }
    }

    /// Begins a recording of a process.
    fn start_recording(
        &self,
        pid: Option<u32>,
        output: Option<PathBuf>,
        force: bool,
        sample: Option<String>,
    ) -> Result<StartAnswer, String> {
        let pid = pid.map_or(self.pid, u32::cast_signed);
        let mut all = self.lock();
        if all.is_over {
            return Err("the program has ended".into());
        }
        let DormantRecordings { active, written, .. } = &mut *all;
        self.complete_ended(active, pid);
        if active.contains_key(&pid) || active.values().any(|other| other.records(pid)) {
            return Err("the program is being recorded already; 'memtrack stop' ends that".into());
        }
        if pid != self.pid && !(self.options.follow && descendants(self.pid).contains(&pid)) {
            return Err(format!("process {pid} is none that process {} has started", self.pid));
        }
        let is_named = output.is_some();
        let output = output.or_else(|| self.output(pid));
        // What the user permits to replace when the program begins is no recording of the program itself.
        let is_own =
            output.as_ref().and_then(|output| output.canonicalize().ok()).is_some_and(|path| written.contains(&path));
        let force = force || (!is_named && !is_own && self.options.force);
        let sample = sample.map(|sample| sample.parse()).transpose()?.or(self.options.sample);
        let options = args::RunArgs { output, force, sample, ..self.options.clone() };
        let recording = AttachedRecording::begin(&options, pid).map_err(|error| format!("{error:#}"))?;
        let paths = recording.children().clone();
        let paths = Arc::new(move |number| paths.capture(number));
        let kinds = super::recorded_kinds(&options);
        all.begun += 1;
        let commands = RecordingCommands::new(recording.handle(), paths, pid, kinds).numbered(all.begun);
        let capture = recording.capture();
        let capture = capture.canonicalize().unwrap_or_else(|_| capture.into());
        all.written.insert(capture.clone());
        all.active.insert(pid, ActiveRecording { recording, commands });
        self.was_started.store(true, Relaxed);
        Ok(StartAnswer { capture })
    }

    /// Where a recording is written, if the user has said that; those of children have their ids in the name.
    fn output(&self, pid: i32) -> Option<PathBuf> {
        let output = self.options.output.as_ref()?;
        if pid == self.pid {
            return Some(output.clone());
        }
        let name = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        let end = name(output.extension()).map_or_else(String::new, |end| format!(".{end}"));
        let stem = name(output.file_stem()).unwrap_or_default();
        Some(output.with_file_name(format!("{stem}.{pid}{end}")))
    }
}

/// A process that waits.
fn dormant(pid: i32) -> ProcessStatus {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    ProcessStatus {
        command_line: words.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
        ..ProcessStatus::new(pid.cast_unsigned(), 0, ProcessState::Dormant)
    }
}

/// The answer of all recordings: the moment is that of the first one that has the mark. One that refuses it, as that of a child
/// that has ended, counts only if none has it.
fn marked(answers: impl Iterator<Item = Result<MarkAnswer, String>>) -> Result<MarkAnswer, String> {
    let mut all: Option<MarkAnswer> = None;
    let mut refusal = None;
    for answer in answers {
        match answer {
            Ok(answer) => {
                let captures = answer.captures + all.as_ref().map_or(0, |all| all.captures);
                all = Some(MarkAnswer { captures, ..all.unwrap_or(answer) });
            }
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    all.ok_or_else(|| refusal.unwrap_or_else(|| DORMANT.to_owned()))
}

impl CommandHandler for DormantCommands {
    fn status_of_now(&self, within: Duration) -> RecordingStatus {
        self.status_with(|commands| commands.status_of_now(within))
    }

    fn status(&self) -> RecordingStatus {
        self.status_with(CommandHandler::status)
    }

    fn count(&self, pid: Option<u32>) -> Result<(), String> {
        self.with_active(pid, |commands| commands.count(pid))
    }

    fn mark(&self, name: &str) -> Result<MarkAnswer, String> {
        marked(self.lock().active.values().map(|active| active.commands.mark(name)))
    }

    fn snapshot(&self, pid: Option<u32>) -> Result<SnapshotAnswer, String> {
        self.with_active(pid, |commands| commands.snapshot(pid))
    }

    fn begin(&self, span: SpanRequest) -> Result<(), String> {
        self.with_active(span.pid, |commands| commands.begin(span))
    }

    fn copy(&self, copy: SpanCopyRequest) -> Result<(), String> {
        self.with_any(|commands| commands.copy(copy.clone()))
    }

    fn end(&self, span: &Path) -> Result<(), String> {
        self.with_any(|commands| commands.end(span))
    }

    fn live(&self, pid: Option<u32>, every: Duration, subscriber: Subscriber) -> Result<(), String> {
        self.with_active(pid, |commands| commands.live(pid, every, subscriber))
    }

    fn start(
        &self,
        pid: Option<u32>,
        output: Option<PathBuf>,
        force: bool,
        sample: Option<String>,
    ) -> Result<StartAnswer, String> {
        let started = self.start_recording(pid, output, force, sample);
        self.lock().refusal = started.as_ref().err().cloned();
        started
    }

    fn stop(&self, pid: Option<u32>) -> Result<StopAnswer, String> {
        let wanted = pid.map_or(self.pid, u32::cast_signed);
        let mut all = self.lock();
        let active = all.active.remove(&wanted);
        if let Some((first, _)) = all.active.iter().find(|(_, other)| active.is_none() && other.records(wanted)) {
            return Err(format!(
                "process {wanted} is recorded with process {first}, which 'memtrack stop {first}' ends"
            ));
        }
        let Some(active) = active else { return Err("the program is dormant: nothing is being recorded".into()) };
        all.stopping += 1;
        drop(all);
        Ok(StopAnswer { captures: self.complete_stopped(active) })
    }

    fn detach(&self) -> Result<StopAnswer, String> {
        self.stop(None)
    }
}

/// The options that a dormant program's recordings do not have.
pub(super) fn refuse(options: &args::RunArgs) -> Result<(), crate::failure::Failure> {
    let limits = &options.limits;
    let refused = [
        (options.flamegraph, "--flamegraph"),
        (options.live, "--live"),
        (limits.stop_above.is_some(), "--stop-above"),
        (limits.snapshot_above.is_some(), "--snapshot-above"),
        (limits.snapshot_every.is_some(), "--snapshot-every"),
        (!options.objects_at.is_empty(), "--objects-at"),
        (options.push.push.is_some(), "--push"),
        (options.push.otlp.is_some(), "--otlp"),
    ];
    match refused.iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => Err(crate::failure::Failure::usage(&format!(
            "{option} cannot be combined with --dormant, which records only between 'memtrack start' and 'memtrack stop'"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use memtrack_collector::control::protocol::MarkAnswer;

    use super::{DORMANT, marked};

    #[test]
    fn a_mark_is_refused_only_if_no_recording_has_it() {
        let set = |time_ns| Ok(MarkAnswer { time_ns, captures: 1 });
        let refused = |why: &str| Err(why.to_owned());
        let all = Ok(MarkAnswer { time_ns: 7, captures: 2 });
        assert_eq!(marked([set(7), refused("ended"), set(9)].into_iter()), all);
        assert_eq!(marked([refused("ended"), set(7), set(9)].into_iter()), all);
        assert_eq!(marked([refused("first"), refused("second")].into_iter()), refused("first"));
        assert_eq!(marked([].into_iter()), refused(DORMANT));
    }
}
