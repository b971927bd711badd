//! `memtrack run --dormant`: starts the program with the library, which does nothing until `memtrack start`; each start to
//! stop is a recording with a capture of its own.
//!
//! Invariant: without a start, no allocation function of the program is redirected; and at most one recording is active.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use memtrack_collector::ProcessExit;
use memtrack_collector::control::protocol::{
    MarkAnswer, ProcessState, ProcessStatus, RecordingStatus, SnapshotAnswer, SpanCopyRequest, SpanRequest,
    StartAnswer, StopAnswer,
};
use memtrack_collector::control::{CommandHandler, ControlServer, Subscriber};
use memtrack_collector::control_groups::{memory_limit, oom_kills};

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
        was_started: AtomicBool::new(false),
    });
    let handler = Arc::clone(&commands);
    let server = socket.and_then(|socket| ControlServer::start(socket, child.pid().cast_unsigned(), handler).ok());
    signals.pass_on(&child, options.target.len());
    let Reaped { status, own_ns, resident_peak, name, limits, .. } = child.reap()?;
    end_with(shell_status(status));
    drop(server);
    if let Some(active) = commands.lock().take() {
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
        let pid = child.pid();
        message::note(format_args!(
            "memtrack: nothing was recorded: 'memtrack start {pid}' was not called while the program ran"
        ));
    }
    Ok(status)
}

/// A recording between start and stop.
struct ActiveRecording {
    recording: AttachedRecording,
    commands: RecordingCommands,
}

/// Executes commands on a program that is dormant, or recorded.
struct DormantCommands {
    pid: i32,
    options: args::RunArgs,
    program: PathBuf,
    active: Mutex<Option<ActiveRecording>>,
    was_started: AtomicBool,
}

impl DormantCommands {
    fn lock(&self) -> MutexGuard<'_, Option<ActiveRecording>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes the captures of a recording, and returns them.
    fn complete(&self, active: ActiveRecording, quiet: bool, termination: &Termination) -> Vec<PathBuf> {
        let EndedRecording { capture, summary, children, .. } = active.recording.end();
        active.commands.close_spans();
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

    fn with_active<T>(&self, call: impl FnOnce(&RecordingCommands) -> Result<T, String>) -> Result<T, String> {
        let not_recorded = || "the program is dormant: begin to record it with 'memtrack start'".to_owned();
        self.lock().as_ref().map_or_else(|| Err(not_recorded()), |active| call(&active.commands))
    }
}

impl CommandHandler for DormantCommands {
    fn status_of_now(&self, within: Duration) -> RecordingStatus {
        if let Some(active) = &*self.lock() {
            return active.commands.status_of_now(within);
        }
        self.status()
    }

    fn status(&self) -> RecordingStatus {
        if let Some(active) = &*self.lock() {
            return active.commands.status();
        }
        let words = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let dormant = ProcessStatus {
            command_line: words.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            ..ProcessStatus::new(self.pid.cast_unsigned(), 0, ProcessState::Dormant)
        };
        RecordingStatus { recorder: std::process::id(), processes: vec![dormant] }
    }

    fn count(&self, pid: Option<u32>) -> Result<(), String> {
        self.with_active(|commands| commands.count(pid))
    }

    fn mark(&self, name: &str) -> Result<MarkAnswer, String> {
        self.with_active(|commands| commands.mark(name))
    }

    fn snapshot(&self, pid: Option<u32>) -> Result<SnapshotAnswer, String> {
        self.with_active(|commands| commands.snapshot(pid))
    }

    fn begin(&self, span: SpanRequest) -> Result<(), String> {
        self.with_active(|commands| commands.begin(span))
    }

    fn copy(&self, copy: SpanCopyRequest) -> Result<(), String> {
        self.with_active(|commands| commands.copy(copy))
    }

    fn end(&self, span: &Path) -> Result<(), String> {
        self.with_active(|commands| commands.end(span))
    }

    fn live(&self, pid: Option<u32>, every: Duration, subscriber: Subscriber) -> Result<(), String> {
        self.with_active(|commands| commands.live(pid, every, subscriber))
    }

    fn start(&self, output: Option<PathBuf>, force: bool, sample: Option<String>) -> Result<StartAnswer, String> {
        let mut active = self.lock();
        if active.is_some() {
            return Err("the program is being recorded already; 'memtrack stop' ends that".into());
        }
        let force = force || (output.is_none() && self.options.force);
        let output = output.or_else(|| self.options.output.clone());
        let sample = sample.map(|sample| sample.parse()).transpose()?.or(self.options.sample);
        let options = args::RunArgs { output, force, sample, ..self.options.clone() };
        let recording = AttachedRecording::begin(&options, self.pid).map_err(|error| format!("{error:#}"))?;
        let paths = recording.children().clone();
        let paths = Arc::new(move |number| paths.capture(number));
        let commands = RecordingCommands::new(recording.handle(), paths, self.pid, super::recorded_kinds(&options));
        let capture = recording.capture();
        let capture = capture.canonicalize().unwrap_or_else(|_| capture.into());
        *active = Some(ActiveRecording { recording, commands });
        self.was_started.store(true, Relaxed);
        Ok(StartAnswer { capture })
    }

    fn stop(&self) -> Result<StopAnswer, String> {
        let Some(active) = self.lock().take() else {
            return Err("the program is dormant: nothing is being recorded".into());
        };
        Ok(StopAnswer { captures: self.complete(active, true, &Termination::unknown()) })
    }

    fn detach(&self) -> Result<StopAnswer, String> {
        self.stop()
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
