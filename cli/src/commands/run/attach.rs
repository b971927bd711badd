//! `memtrack attach`: records a program that was started without memtrack, until Ctrl-C, a time limit, `memtrack detach`,
//! or the program's end.
//!
//! Invariant: the program is never stopped for longer than a call takes, and whatever ends this command by a signal that can
//! be caught detaches first.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memtrack_collector::{RecordedProcess, RecordingEnd, descendants, lineage};

use super::attached::{AttachedRecording, EndedRecording};
use super::termination::Termination;
use super::{final_summary, repack, wait_for_nothing};
use crate::args;
use crate::args::running::AttachArgs;
use crate::control::handler::{self, EndRequest, RecordingCommands};
use crate::control::recordings::unrecorded;
use crate::message;
use crate::push::Pushes;
use crate::reports::capture_info::quoted_path;
use crate::sys::DetachSignals;
use crate::terminal::Color;
use crate::units::plural;

/// How often to look whether the program has ended.
const LOOK: Duration = Duration::from_millis(50);
/// The exit status of one that was interrupted before it recorded, as a shell has it for Ctrl-C.
const INTERRUPTED: u8 = 130;
/// How many children are named.
const MOST_PIDS: usize = 8;
/// What the process in the background prints when it records.
const RECORDING: &str = "memtrack: recording process ";

/// Records the process.
///
/// # Errors
/// The process cannot be recorded.
pub(crate) fn run(options: &AttachArgs) -> Result<u8> {
    let run = options.as_run(args::Colors { color: Color::Auto });
    super::refuse_contradictions(&run)?;
    if options.detached && !options.background {
        return in_background(options);
    }
    crate::sys::keep_reserve();
    let (ends, requests) = mpsc::channel();
    let signals = DetachSignals::take()?;
    let by_signal = ends.clone();
    signals.notify(move || drop(by_signal.send(EndRequest::default())))?;
    let before = descendants(options.pid);
    let recording = AttachedRecording::begin(&run, options.pid)?;
    let mut server = serve(options, (&recording, &run), ends.clone());
    let paths = recording.children().clone();
    let pushes = Pushes::start(&run, recording.handle(), Arc::new(move |number| paths.capture(number)));
    if options.background || !options.quiet {
        let capture = quoted_path(recording.capture());
        let end = if options.background { String::new() } else { ends_with(options) };
        let told = message::try_line(format_args!("{RECORDING}{} into {capture}{end}", options.pid));
        if told.is_err() && options.background {
            // Nobody has waited for this, so nobody knows that it records.
            let _ = ends.send(EndRequest::default());
        }
    }
    if !options.quiet && !options.background {
        children_note(options, &before).iter().for_each(message::note);
    }
    drop(ends);
    let request = wait(&recording, options, &requests);
    let EndedRecording { capture, summary, children, root, end } = recording.end();
    server.iter_mut().for_each(handler::RecordingServer::withdraw);
    pushes.into_iter().for_each(Pushes::end);
    server.iter().for_each(|server| {
        server.close_spans(&children.numbers());
        server.end_views();
    });
    let path = capture.path().to_path_buf();
    let how = match end {
        RecordingEnd::Exited => Some("has ended"),
        RecordingEnd::Stopped => Some("runs on, without memtrack"),
        // A warning has said what remains.
        RecordingEnd::Detached => None,
    };
    if let Some(how) = how.filter(|_| !run.quiet && !options.background) {
        message::line(format_args!("memtrack: process {} {how}", options.pid));
    }
    let program = std::fs::read_link(format!("/proc/{}/exe", options.pid));
    let program = program.unwrap_or_else(|_| PathBuf::from(format!("process {}", options.pid)));
    let complete = |captures: &[PathBuf]| {
        if let Some(root) = &root {
            root.keep_names(captures);
        }
        if let Some(compression) = repack::plan(run.compress).1 {
            repack::repack(captures, compression, &wait_for_nothing());
        }
    };
    let failed = summary.as_ref().err().map(ToString::to_string);
    let ended = (&run, &Termination::unknown());
    let captures = final_summary::report(ended, capture, &program, summary, (&children, None, None), &complete);
    let captures: Vec<PathBuf> =
        captures.into_iter().map(|capture| capture.canonicalize().unwrap_or(capture)).collect();
    let answer = failed.map_or(Ok(captures), |reason| Err(format!("{}: {reason}", path.display())));
    // Those, too, that have come since.
    for asked in request.into_iter().chain(requests.try_iter()).filter_map(|request| request.answer) {
        // Nobody waits any more, where this fails.
        let _ = asked.send(answer.clone());
    }
    // Whoever asks later is told that it is ending.
    drop(requests);
    server.into_iter().for_each(handler::RecordingServer::end);
    Ok(0)
}

/// What is said of children that the program had `before`, as the workers of a server: they are not recorded.
fn children_note(options: &AttachArgs, before: &[i32]) -> Option<String> {
    let now = descendants(options.pid);
    // The program may be the one that started memtrack, through a shell perhaps.
    let started_by = lineage(std::process::id().cast_signed());
    let is_its_own = |pid: &i32| now.contains(pid) && !started_by.contains(pid);
    let running: Vec<i32> = before.iter().copied().filter(is_its_own).collect();
    let pids: Vec<String> = running.iter().take(MOST_PIDS).map(ToString::to_string).collect();
    let more = if running.len() > MOST_PIDS { ", …" } else { "" };
    let number =
        plural(running.len() as u64, "child process that runs already is", "child processes that run already are");
    let follow = if options.follow { "; --follow records those that it starts from now on" } else { "" };
    (!running.is_empty()).then(|| {
        let pids = pids.join(", ");
        format!(
            "memtrack: {number} not part of this recording{follow}; 'memtrack attach PID' records one: {pids}{more}"
        )
    })
}

fn ends_with(options: &AttachArgs) -> String {
    match options.duration {
        Some(time) => format!(" for {} (Ctrl-C detaches earlier)", crate::units::duration(nanoseconds(time))),
        None => " (Ctrl-C detaches)".into(),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Answers clients, `memtrack detach` among them.
fn serve(
    options: &AttachArgs,
    (recording, how): (&AttachedRecording, &args::RunArgs),
    ends: Sender<EndRequest>,
) -> Option<handler::RecordingServer> {
    let socket = handler::bind(!options.quiet).and_then(|socket| handler::publish(socket, options.pid))?;
    let paths = recording.children().clone();
    let paths = Arc::new(move |number| paths.capture(number));
    RecordingCommands::new(recording.handle(), paths, options.pid, super::recorded_kinds(how))
        .with_detach(ends)
        .serve(socket)
}

/// Waits for the end of the program, of the time, or a request; returns that.
fn wait(recording: &AttachedRecording, options: &AttachArgs, requests: &Receiver<EndRequest>) -> Option<EndRequest> {
    let begun = Instant::now();
    let mut says = !options.background && !options.quiet;
    loop {
        let left = options.duration.map(|duration| duration.saturating_sub(begun.elapsed()));
        if left.is_some_and(|left| left.is_zero()) || recording.has_ended() {
            return None;
        }
        let RecordedProcess { unrecorded_program, write_error, stop_reason, .. } = recording.first();
        // In the background 'detach' is waited for, which tells why.
        if !options.background && write_error.is_some() {
            return None;
        }
        let ended = unrecorded_program.map(|program| unrecorded(&program)).or(stop_reason.map(Into::into));
        if let Some(why) = ended.filter(|_| says) {
            says = false;
            message::note(format_args!("memtrack: process {} is recorded no more: {why}", options.pid));
        }
        match requests.recv_timeout(LOOK.min(left.unwrap_or(LOOK))) {
            Ok(request) => return Some(request),
            Err(RecvTimeoutError::Timeout) => {}
            // A handler of signals remains, so that this does not happen.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
        }
    }
}

/// Starts memtrack again, in the background, and passes on what it says until it records.
fn in_background(options: &AttachArgs) -> Result<u8> {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    let program = std::env::current_exe().context("cannot determine the path of the memtrack executable")?;
    let mut command = Command::new(program);
    // In a process group of its own, which Ctrl-C at the terminal does not reach.
    command.args(std::env::args_os().skip(1)).arg("--background").process_group(0);
    let signals = DetachSignals::take()?;
    let before = descendants(options.pid);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.context("cannot start memtrack in the background")?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&is_interrupted);
    let pid = child.id().cast_signed();
    signals.notify(move || {
        interrupted.store(true, Relaxed);
        crate::sys::terminate(pid);
    })?;
    let Some(messages) = child.stderr.take() else { return Ok(0) };
    for line in BufReader::new(messages).lines() {
        let line = line.context("cannot read the messages of memtrack in the background")?;
        if line.starts_with(RECORDING) && is_interrupted.load(Relaxed) {
            // It detaches at once.
            continue;
        }
        if line.starts_with(RECORDING) {
            if !options.quiet {
                message::line(format_args!("{line} in the background; 'memtrack detach' ends it"));
                children_note(options, &before).iter().for_each(message::note);
            }
            return Ok(0);
        }
        message::line(line);
    }
    let status = child.wait().context("cannot wait for memtrack in the background")?;
    if is_interrupted.load(Relaxed) {
        return Ok(INTERRUPTED);
    }
    Ok(crate::sys::shell_status(std::process::ExitStatus::from_raw(status.into_raw())))
}
