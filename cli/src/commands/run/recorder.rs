//! `memtrack recorder`: records the process that started it, from when this asks it to until it asks it to end. The process
//! calls the library by itself, and is never interrupted.
//!
//! Standard input is a socket; each message is a line of JSON, with an answer. Invariant: when the process has ended,
//! however it did, the capture is completed, and this ends.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use memtrack_collector::control::protocol::check_mark_name;
use memtrack_collector::{RecordingEnd, TicketSpan};
use serde::Deserialize;
use serde_json::{Value, json};

use super::attached::{AttachedRecording, EndedRecording};
use super::termination::Termination;
use super::{final_summary, repack, wait_for_nothing};
use crate::args::{self, Arguments};
use crate::control::handler::{self, CapturePaths, RecordingCommands, RecordingServer};
use crate::control::snapshot::{self, CopyableCapture};
use crate::output::ReportOutput;
use crate::sys::{PeerProcess, standard_input_socket};

/// What the process asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum ProgramRequest {
    /// A recording: options of `memtrack attach`, and the number of an empty memory file. Answered by a number of slots.
    Begin { options: Vec<String>, memory: i32 },
    /// Another memory file, since that one was refused.
    Give { memory: i32 },
    /// The process does not record: no capture is made.
    Discard,
    /// The process has stopped recording: completes the capture.
    End,
    /// Names the present moment.
    Mark(String),
    /// Writes everything up to now into a file.
    Snapshot { output: PathBuf, force: bool },
    /// The ticket of the present moment.
    Position,
    /// Writes what was recorded between two tickets into a file.
    Span { begin: Option<u64>, end: u64, output: PathBuf, force: bool },
}

/// Serves the process until it ends.
///
/// # Errors
/// Standard input is no socket.
pub(crate) fn run() -> Result<u8> {
    let socket = standard_input_socket().context("'memtrack recorder' is started by memtrack's library only")?;
    let process = PeerProcess::of(&socket)?;
    crate::sys::keep_reserve();
    let mut recorder = PeerRecorder { pid: process.pid(), attempt: 0, active: None };
    let (mut answers, mut lines) = (socket.try_clone()?, BufReader::new(socket));
    let mut line = String::new();
    // A forked child may keep the socket open.
    while process.wait_for_input(lines.get_ref(), !lines.buffer().is_empty()) {
        line.clear();
        if lines.read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        let answer = match recorder.execute(&line) {
            Ok(answer) => json!({ "ok": answer }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        // In one piece, so that the process needs one system call for it.
        if answers.write_all(format!("{answer}\n").as_bytes()).is_err() {
            break;
        }
    }
    if recorder.active.is_some() {
        let _ = recorder.end(RecordingEnd::Exited);
    }
    Ok(0)
}

/// A recording that the process itself begins and ends.
struct OwnRecording {
    recording: AttachedRecording,
    options: args::RunArgs,
    paths: CapturePaths,
    server: Option<RecordingServer>,
}

/// The recorder of the process at the other end.
struct PeerRecorder {
    pid: i32,
    attempt: usize,
    active: Option<OwnRecording>,
}

impl PeerRecorder {
    fn execute(&mut self, line: &str) -> Result<Value> {
        Ok(match serde_json::from_str(line).context("not a request")? {
            ProgramRequest::Begin { options, memory } => {
                self.begin(&options)?;
                let slots = self.give(memory);
                if slots.is_err() {
                    self.discard();
                }
                json!({ "slots": slots? })
            }
            ProgramRequest::Give { memory } => json!({ "slots": self.give(memory)? }),
            ProgramRequest::Discard => {
                self.discard();
                json!({})
            }
            ProgramRequest::End => self.end(RecordingEnd::Stopped)?,
            ProgramRequest::Mark(name) => {
                check_mark_name(&name).map_err(anyhow::Error::msg)?;
                let marked = self.active()?.recording.handle().mark(&name);
                let (time_ns, _) = marked.context("the process has not begun to record")?;
                json!({ "time_ns": time_ns })
            }
            ProgramRequest::Snapshot { output, force } => {
                let active = self.active()?;
                let captures = snapshot::take_own(&active.recording.handle(), &active.paths);
                write_copy(captures, &output, force)?;
                json!({})
            }
            ProgramRequest::Position => {
                let ticket = self.active()?.recording.handle().position();
                json!({ "ticket": ticket.context("the process has not begun to record")? })
            }
            ProgramRequest::Span { begin, end, output, force } => {
                let span = TicketSpan { begin, end: Some(end) };
                let capture = snapshot::take_span(&self.active()?.recording.handle(), span);
                write_copy(capture.map(|capture| vec![capture]), &output, force)?;
                json!({})
            }
        })
    }

    fn active(&self) -> Result<&OwnRecording> {
        self.active.as_ref().context("nothing is being recorded")
    }

    fn begin(&mut self, options: &[String]) -> Result<()> {
        if self.active.is_some() {
            bail!("the process is already being recorded");
        }
        let pid = self.pid.to_string();
        let words = ["memtrack", "attach", &pid].into_iter().chain(options.iter().map(String::as_str));
        let args::Command::Attach(options) = Arguments::try_parse_from(words)?.command else { bail!("no options") };
        let options =
            args::RunArgs { quiet: true, ..options.as_run(args::Colors { color: crate::terminal::Color::Auto }) };
        super::refuse_contradictions(&options)?;
        let mut recording = AttachedRecording::open(&options, self.pid)?;
        recording.name();
        let children = recording.children().clone();
        let paths: CapturePaths = Arc::new(move |number| children.capture(number));
        let socket = handler::bind(false).and_then(|socket| handler::publish(socket, self.pid));
        let commands = RecordingCommands::new(recording.handle(), Arc::clone(&paths), self.pid);
        let server = socket.and_then(|socket| commands.serve(socket));
        self.active = Some(OwnRecording { recording, options, paths, server });
        self.attempt = 0;
        Ok(())
    }

    /// Makes the shared memory in a file of the process.
    fn give(&mut self, memory: i32) -> Result<Option<u32>> {
        let path = format!("/proc/{}/fd/{memory}", self.pid);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("{path}: the shared memory cannot be opened"))?;
        let slots = self.active()?.recording.give(&file, self.attempt).context("shared memory cannot be created")?;
        self.attempt += 1;
        Ok(slots)
    }

    fn discard(&mut self) {
        if let Some(active) = self.active.take() {
            drop(active.server);
            active.recording.discard();
        }
    }

    fn end(&mut self, end: RecordingEnd) -> Result<Value> {
        let OwnRecording { recording, options, server, .. } =
            self.active.take().context("nothing is being recorded")?;
        let EndedRecording { capture, summary, children, .. } = recording.complete(end);
        if let Some(server) = server {
            server.end_views();
        }
        let path = capture.path().to_path_buf();
        let failed = summary.as_ref().err().map(ToString::to_string);
        let notes = summary.as_ref().map(|summary| summary.notes.clone()).unwrap_or_default();
        let repack = |captures: &[PathBuf]| {
            if let Some(compression) = repack::plan(options.compress).1 {
                repack::repack(captures, compression, &wait_for_nothing());
            }
        };
        let ended = (&options, &Termination::unknown());
        let captures = final_summary::report(ended, capture, &path, summary, (&children, None, None), &repack);
        match failed {
            Some(reason) => bail!("{}: {reason}", path.display()),
            None => Ok(json!({ "captures": captures, "notes": notes })),
        }
    }
}

/// Writes captures that were taken out of the recording into a file.
fn write_copy(captures: Result<Vec<CopyableCapture>>, output: &Path, force: bool) -> Result<()> {
    if output.exists() && !force {
        bail!("{}: file exists", output.display());
    }
    let mut captures = captures?;
    let mut out = ReportOutput::unwatched(output)?;
    snapshot::write(&mut captures, &mut out)?;
    out.finish()?;
    Ok(())
}
