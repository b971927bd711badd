//! `memtrack run`: starts the program with the shim preloaded, collects its records, and exits with its status.
//!
//! Errors of usage are reported before the program starts. Invariant: once it runs, no failure of memtrack changes the
//! program or its exit status; problems of the recording are printed afterwards.

pub(crate) mod attach;
mod attached;
pub(crate) mod await_program;
mod children;
mod dormant;
mod final_summary;
mod handed_on;
pub(crate) mod keep_sums;
mod kept_windows;
mod limits;
mod live;
mod other_root;
mod page;
mod peer_answer;
mod private_directory;
mod process_replay;
pub(crate) mod recorder;
mod repack;
mod rests;
mod sums;
mod termination;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memtrack_collector::control::ControlSocket;
use memtrack_collector::control_groups::{memory_limit, oom_kills, refused_tasks};
use memtrack_collector::{Collector, Compression, FileSink, Follower, ProcessExit, RecordingEnd, Sink, room_for_tasks};

use self::children::Children;
use self::final_summary::UnrecordedChildren;
use self::limits::LimitWatch;
use self::live::LiveSink;
use self::private_directory::PrivateDirectory;
use self::sums::SumsSink;
use self::termination::Termination;
use crate::args;
use crate::capture_file::CaptureFile;
use crate::commands::live::beside_program;
use crate::commands::tree;
use crate::control::handler::{self, RecordingCommands, RecordingServer};
use crate::control::snapshot::CapturePaths;
use crate::control::spans::RecordedKinds;
use crate::failure::Failure;
use crate::message;
use crate::object_pictures::picture_options;
use crate::push::Pushes;
use crate::shim::{self, NoPlace};
use crate::sys::{Child, ChildrenWait, Reaped, Signals, Spawn, await_after_abort, end_with, shell_status};
use crate::target::{Environment, Target, TargetFile, misplaced_options};
use crate::terminal::TextFormat;
use crate::units;

/// After this time a note is printed that memtrack waits for the program's children.
const PATIENCE: Duration = Duration::from_secs(1);

/// Memtrack's threads and processes beside the program's, and the program's first thread.
const TASKS: u64 = 7;
/// In a control group with less memory the OOM killer might kill memtrack, and the program's exit status would be lost.
const LEAST_MEMORY: u64 = 32 << 20;

/// Runs the program; returns its exit status as a shell would.
///
/// # Errors
/// The program cannot be started.
pub(crate) fn run(options: &args::RunArgs) -> Result<u8> {
    refuse_contradictions(options)?;
    if options.live && !options.dormant && tree::can_be_interactive() {
        let color = TextFormat::new(options.colors.color, true).color;
        return beside_program::run(&arguments_without_live(options), color);
    }
    if options.dormant {
        dormant::refuse(options)?;
    }
    let target = Target::parse(&options.target)?;
    let program = target.resolve(options.python.as_deref(), std::env::vars_os().collect())?;
    if let Some(text) = misplaced_options(&target).filter(|_| !options.quiet) {
        message::warning(text);
    }
    crate::sys::keep_reserve();
    let run = match &program.untrackable {
        Some(reason) => run_untracked(options, &program, reason),
        None if options.dormant => dormant::run(options, &program),
        None => record(options, &target, &program),
    };
    let status = match run {
        Err(error) if error.is::<NoPlace>() => return Err(replaced_by(&program, &error, "")),
        Err(error) if let Some(remedy) = limit(&error) => {
            return Err(replaced_by(&program, &error, &format!("; {remedy}")));
        }
        run => run?,
    };
    crate::sys::stop_signal_probe();
    Ok(shell_status(status))
}

/// The remedy if an error was caused by a system limit under which the program itself can still run.
fn limit(error: &anyhow::Error) -> Option<&'static str> {
    let reason = |cause: &'_ (dyn std::error::Error + 'static)| {
        let of_collector =
            cause.downcast_ref::<memtrack_collector::Error>().and_then(memtrack_collector::Error::reason);
        memtrack_collector::remedy(cause.downcast_ref::<io::Error>().or(of_collector)?)
    };
    error.chain().find_map(reason)
}

/// Executes the program in place of memtrack, which lacks the resources to record it. Returns only on failure.
fn replaced_by(program: &TargetFile, error: &anyhow::Error, remedy: &str) -> anyhow::Error {
    let path = program.path.display();
    message::warning(format_args!("running {path} without recording: {error:#}{remedy}"));
    match Spawn::new(&program.path, &program.arguments, program.environment.clone()) {
        Ok(spawn) => not_started(program, &spawn.replace()).into(),
        Err(error) => not_started(program, &error).into(),
    }
}

/// memtrack's own arguments, without `--live`.
fn arguments_without_live(options: &args::RunArgs) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let target = arguments.split_off(arguments.len().saturating_sub(options.target.len()));
    arguments.retain(|argument| argument != "--live");
    arguments.extend(target);
    arguments
}

fn refuse_contradictions(options: &args::RunArgs) -> Result<(), Failure> {
    let sums = if options.aggregate { "--aggregate" } else { "--window" };
    if options.writes_sums() && options.allocation_timestamps {
        return Err(Failure::usage(&format!(
            "{sums} cannot be combined with --allocation-timestamps: an aggregated capture has no individual events \
             to timestamp",
        )));
    }
    if options.sample.is_some() && !options.objects_at.is_empty() {
        return Err(Failure::usage(
            "--sample cannot be combined with --objects-at: objects are joined with the blocks that hold them, and most are \
             no samples",
        ));
    }
    if options.writes_sums() && !options.objects_at.is_empty() {
        return Err(Failure::usage(&format!(
            "{sums} cannot be combined with --objects-at: objects are joined with the blocks that hold them, and an \
             aggregated capture has none",
        )));
    }
    Ok(())
}

/// Runs a program that cannot be recorded, with an unmodified environment.
fn run_untracked(options: &args::RunArgs, program: &TargetFile, reason: &str) -> Result<ExitStatus> {
    let signals = Signals::take()?.forwarder()?;
    let child = start(program, program.environment.clone())?;
    signals.pass_on(&child, options.target.len());
    let status = child.reap()?.status;
    // With --quiet, too, which leaves out the summary: there is no capture.
    message::warning(format_args!("{} ran without recording: {reason}", program.path.display()));
    Ok(status)
}

fn record(options: &args::RunArgs, target: &Target, program: &TargetFile) -> Result<ExitStatus> {
    page::refuse(options)?;
    room()?;
    let shim = shim::find()?;
    let private = PrivateDirectory::new()?;
    let children = Children::default();
    let (mut capture, file) = open(options, &children)?;
    let events_before = (oom_kills(), refused_tasks());
    match launch(options, program, &private, shim, file, &children) {
        Ok(LaunchedProgram { collector, child, waiting, socket }) => {
            capture.has_begun();
            children.has_begun();
            let named = capture.name(|| target.name(), child.pid());
            children.name(capture.path());
            let paths = children.clone();
            let paths: CapturePaths = Arc::new(move |number| paths.capture(number));
            let watch = LimitWatch::start(options.limits, collector.handle(), Arc::clone(&paths), Arc::clone(&child));
            let pushes = Pushes::start(options, collector.handle(), Arc::clone(&paths));
            let commands = RecordingCommands::new(collector.handle(), paths, child.pid(), recorded_kinds(options));
            let server = socket.and_then(|socket| commands.serve(socket));
            let Reaped { status, own_ns, all_ns, resident_peak, name, limits } = child.reap()?;
            let since = |before: Option<u64>, now: Option<u64>| {
                now.zip(before).map_or(0, |(now, before): (u64, u64)| now.saturating_sub(before))
            };
            let (oom_kills, refused_tasks) =
                (since(events_before.0, oom_kills()), since(events_before.1, refused_tasks()));
            let termination = Termination {
                status: Some(status),
                limits,
                cpu_ns: own_ns,
                oom_kills,
                refused_tasks,
                group_memory: memory_limit(),
            };
            end_with(shell_status(status));
            let reason = termination.signal_text();
            let status_number = shell_status(status);
            collector.child_exited(ProcessExit { status: status_number, reason, cpu_ns: own_ns, resident_peak, name });
            if options.follow {
                wait_for_children(&collector, &waiting, options.quiet);
            }
            let limits = watch.map(LimitWatch::end);
            let summary = collector.finish(RecordingEnd::Exited);
            pushes.into_iter().for_each(Pushes::end);
            server.iter().for_each(|server| server.close_spans(&children.numbers()));
            server.into_iter().for_each(RecordingServer::end);
            if let Err(error) = named {
                message::error(format_args!("{error:#}; the capture is {}", capture.path().display()));
            }
            let repack = |captures: &[PathBuf]| {
                if let Some(compression) = repack::plan(options.compress).1 {
                    repack::repack(captures, compression, &waiting);
                }
            };
            let unrecorded_children = own_ns.filter(|_| !options.follow);
            let unrecorded_children = unrecorded_children.map(|own_ns| UnrecordedChildren { own_ns, all_ns });
            let recorded = final_summary::report(
                (options, &termination),
                capture,
                &program.path,
                summary,
                (&children, unrecorded_children, limits.as_ref()),
                &repack,
            );
            if options.flamegraph {
                page::make(options, &recorded);
            }
            Ok(status)
        }
        Err(error) => {
            capture.discard();
            children.put_back();
            Err(error)
        }
    }
}

/// Checks that the control group's limits leave room for both memtrack and the program.
fn room() -> Result<()> {
    if let Some(limit) = memory_limit().filter(|limit| *limit < LEAST_MEMORY) {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM))
            .with_context(|| format!("the memory limit of the control group is {}", units::size(limit)));
    }
    let Err(left) = room_for_tasks(TASKS) else { return Ok(()) };
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
        .with_context(|| format!("the process limit allows only {left} further processes and threads"))
}

fn open(options: &args::RunArgs, children: &Children) -> Result<(CaptureFile, File)> {
    match &options.output {
        Some(path) => {
            if options.follow && options.force {
                children.replace(path);
            }
            CaptureFile::named(path, options.force).inspect_err(|_| children.put_back())
        }
        None => CaptureFile::unnamed(),
    }
}

/// A wait that no signal interrupts.
fn wait_for_nothing() -> ChildrenWait {
    ChildrenWait::default()
}

/// Puts a process back in which the library is active without a recording.
///
/// # Errors
/// Why that was not possible.
pub(crate) fn restore(pid: i32) -> Result<()> {
    attached::restore(pid).map(drop)
}

/// Waits for recorded children that outlive the program: their captures are complete only when they have ended.
fn wait_for_children(collector: &Collector, waiting: &ChildrenWait, quiet: bool) {
    waiting.begin();
    let begun = Instant::now();
    let mut said = quiet;
    collector.wait_for_all(|living| {
        if !said && living > 0 && begun.elapsed() > PATIENCE {
            said = true;
            message::note(format_args!(
                "memtrack: the program has ended; waiting for {} that it started (Ctrl-C ends the recording)",
                units::plural(living.into(), "process", "processes")
            ));
        }
        !waiting.is_interrupted()
    });
    waiting.end();
}

/// A running program and its recording.
struct LaunchedProgram {
    collector: Collector,
    child: Arc<Child>,
    waiting: Arc<ChildrenWait>,
    /// Published for the program's pid.
    socket: Option<ControlSocket>,
}

/// Starts the collector, then the program.
fn launch(
    options: &args::RunArgs,
    program: &TargetFile,
    private: &PrivateDirectory,
    shim: PathBuf,
    file: File,
    children: &Children,
) -> Result<LaunchedProgram> {
    let how = memtrack_collector::RecordingOptions { cut_off: say_cut_off, ..recording_options(options) };
    let mode = CaptureMode::of(options);
    // First, because exceeding the file size limit (shared memory included) raises SIGXFSZ.
    let signals = Signals::take()?;
    let sink = sink(mode, file, None).context("cannot write the capture")?;
    let collector = if options.follow {
        Collector::start_following(private.path(), how, sink, children.opener(mode))?
    } else {
        Collector::start(private.path(), how, sink)?
    };
    let mut environment = program.environment.clone();
    private.prepare(&mut environment, &shim, Some(collector.socket_path()))?;
    let signals = signals.forwarder()?;
    let mut socket = handler::bind(!options.quiet);
    if let Some(socket) = &mut socket {
        // Without it the thread is created, or refused, when it is to answer.
        let _ = socket.create_thread();
    }
    let child = start(program, environment)?;
    // First of all: the program runs.
    await_after_abort(&child, options.quiet);
    let socket = socket.and_then(|socket| handler::publish(socket, child.pid()));
    if options.follow {
        // After the start, so that the program does not inherit the raised limit. Each recorded child needs descriptors
        // here.
        crate::sys::raise_descriptor_limit();
    }
    collector.expect_child(child.pid().cast_unsigned());
    let waiting = signals.pass_on(&child, options.target.len());
    Ok(LaunchedProgram { collector, child, waiting, socket })
}

fn recording_options(options: &args::RunArgs) -> memtrack_collector::RecordingOptions {
    memtrack_collector::RecordingOptions {
        timestamps: options.allocation_timestamps,
        sample_bytes: options.sample.map(|sample| sample.bytes),
        sample_rate: options.sample.and_then(|sample| sample.rate),
        python_allocators: options.trace_python_allocators,
        native: options.native_stacks(),
        frame_marks: !options.no_frame_marks,
        snapshot_interval: Duration::from_millis(options.snapshot_interval.get().into()),
        pictures: picture_options(&options.objects_at),
        end_reason: |end| Termination::of(end).signal_text(),
        ..memtrack_collector::RecordingOptions::default()
    }
}

/// Says at once why a capture ends, since the program may go on for long: once, for all its processes.
fn say_cut_off(reason: &str) {
    static SAID: Once = Once::new();
    let text = format!("the capture cannot be written any more: {reason}; the program goes on, unrecorded");
    // On a thread of its own, since nobody may read what is said.
    SAID.call_once(|| _ = thread::Builder::new().spawn(move || message::warning(text)));
}

/// What spans of the recording can have.
fn recorded_kinds(options: &args::RunArgs) -> RecordedKinds {
    RecordedKinds {
        native: options.native,
        python_allocators: options.trace_python_allocators,
        timestamps: options.allocation_timestamps,
        children: options.follow,
        sums: options.writes_sums(),
        check_sample: args::sample::check,
    }
}

/// Contents and compression of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CaptureMode {
    /// Totals per call stack instead of events.
    sums: bool,
    /// The length of their windows.
    window: Option<Duration>,
    /// Print live figures.
    live: bool,
    /// Store source lines.
    sources: bool,
    compression: Compression,
}

impl CaptureMode {
    fn of(options: &args::RunArgs) -> Self {
        Self {
            sums: options.writes_sums(),
            window: options.window,
            live: options.live,
            sources: options.embed_sources,
            compression: repack::plan(options.compress).0,
        }
    }
}

/// `follower`: what looks at the records of a capture with events, too.
fn sink(mode: CaptureMode, file: File, follower: Option<Arc<dyn Follower>>) -> io::Result<Box<dyn Sink>> {
    let sink: Box<dyn Sink> = if mode.sums {
        Box::new(SumsSink::new(file, mode.compression, mode.sources, mode.window)?)
    } else {
        let descriptor = file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file.as_raw_fd());
        let sink = FileSink::compressed(file, mode.compression)?;
        let sink = if let Some(descriptor) = descriptor { sink.with_descriptor(descriptor) } else { sink };
        let sink = if let Some(follower) = follower { sink.with_follower(follower) } else { sink };
        Box::new(if mode.sources { sink.with_sources() } else { sink })
    };
    Ok(if mode.live { Box::new(LiveSink::new(sink)) } else { sink })
}

fn start(program: &TargetFile, environment: Environment) -> Result<Arc<Child>> {
    let child = Spawn::new(&program.path, &program.arguments, environment).and_then(|spawn| spawn.start());
    match child {
        Ok(child) => Ok(Arc::new(child)),
        // A limit of memtrack's, not of the program: the caller executes the program in memtrack's place.
        Err(error) if memtrack_collector::remedy(&error).is_some() => Err(error).context("cannot start a process"),
        Err(error) => Err(not_started(program, &error).into()),
    }
}

fn not_started(program: &TargetFile, error: &io::Error) -> Failure {
    let text = format!("{}: cannot be started: {error}", program.path.display());
    if error.kind() == io::ErrorKind::NotFound { Failure::not_found(&text) } else { Failure::not_executable(&text) }
}
