//! `memtrack recorder`: records the process that started it, from when this asks it to until it asks it to end. The process
//! calls the library by itself, and is never interrupted.
//!
//! Standard input is a socket; each message is a line of JSON, with an answer. Invariant: when the process has ended,
//! however it did, the capture is completed, and this ends.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use memtrack_collector::control::ControlSocket;
use memtrack_collector::control::protocol::{SpanCopyRequest, SpanRequest, check_mark_name};
use memtrack_collector::{MEMORY_LINK, RecordingEnd, RecordingOptions, TicketSpan};
use memtrack_reader::source::CaptureReader;
use memtrack_reader::spans::TimeSpan;
use serde::Deserialize;
use serde_json::{Value, json};

use super::attached::{AttachedRecording, EndedRecording};
use super::keep_sums::{self, SumsKeeper};
use super::peer_answer::Answer;
use super::private_directory::PrivateDirectory;
use super::rests::{RecordingRests, RestRequest, of_span};
use super::termination::Termination;
use super::{final_summary, limit, repack, room, wait_for_nothing};
use crate::args::{self, running::AttachArgs};
use crate::control::handler::{self, RecordingCommands, RecordingServer};
use crate::control::snapshot::{self, CapturePaths};
use crate::control::spans::{OpenSpans, write_files};
use crate::load::{of_one_recording, refuse_samples};
use crate::output::check_writable;
use crate::span_sums;
use crate::sys::{PeerProcess, standard_input_socket};

/// What the process asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum ProgramRequest {
    /// A recording: options of `memtrack attach`, the number of an empty memory file, and whether the process waits for
    /// accounts of its resident memory, and whether it rests. Answered by a number of slots.
    Begin { options: Vec<String>, memory: i32, accounts: bool, rests: bool },
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
    /// Begins a span of the recording, which gets a file of its own.
    #[serde(rename = "span_begin")]
    SpanBegin(SpanRequest),
    /// Writes what belongs to a span so far into another file.
    #[serde(rename = "span_copy")]
    SpanCopy(SpanCopyRequest),
    /// Ends a span, and writes its file.
    #[serde(rename = "span_end")]
    SpanEnd { span: PathBuf },
    /// The capture ends here; the recording goes on for the spans that have begun.
    Cut,
    /// Sums of spans of time in each of these captures, which are complete: here it costs no process of its own.
    Sums { captures: Vec<PathBuf>, spans: Vec<(u64, u64)> },
    /// The process records nothing until it says so. Sums of the spans before, between and after these times since the last rest.
    Rest(RestRequest),
    /// The same, for which everything up to the last rest is written and read. This, too, is asked for the times of each rest only.
    Written(Vec<u64>),
    /// A span from the last rest but one on, which is written when the recording ends.
    Since(SpanRequest),
    /// Nothing; the number is answered. By it the process finds out which answers are of earlier requests, after an exception
    /// of a signal handler amid one.
    Sync(u64),
}

/// How long a process may be silent while it begins to record: it tries that for a fraction of a second.
const BEGINNING: Duration = Duration::from_secs(5);

/// The option that names the file.
const OUTPUT: &str = "--output=";

/// The options of `memtrack attach` alone: to build all commands takes half a millisecond, for which the process waits.
#[derive(Debug, Parser)]
struct OwnOptions {
    #[command(flatten)]
    attach: AttachArgs,
}

/// Serves the process until it ends.
///
/// # Errors
/// Standard input is no socket.
pub(crate) fn run() -> Result<u8> {
    let socket = standard_input_socket().context("'memtrack recorder' is started by memtrack's library only")?;
    let process = PeerProcess::of(&socket)?;
    crate::sys::keep_reserve();
    let mut recorder = PeerRecorder::new(process.pid());
    let (answers, mut lines) = (Arc::new(socket.try_clone()?), BufReader::new(socket));
    let mut line = String::new();
    // A forked child may keep the socket open.
    while recorder.wait(&process, &lines) {
        line.clear();
        if lines.read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        let mut answer = Answer::to(&answers);
        match recorder.execute(&line, &mut answer) {
            Ok(_) if answer.is_sent => {}
            Ok(value) => answer.send(&json!({ "ok": value })),
            Err(error) => answer.send(&json!({ "error": with_remedy(&error) })),
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
    spans: OpenSpans,
    rests: RecordingRests,
    /// The file of the recording after its capture has ended and has taken the name: it has no name then, so that no file is found
    /// that nobody has named, and the directory may be removed.
    unnamed: Arc<OnceLock<File>>,
    /// It is made to be looked at, and not for a few figures.
    is_for_reports: bool,
    /// The process may still be refused, or interrupted before it records.
    is_beginning: bool,
}

/// The recorder of the process at the other end.
struct PeerRecorder {
    pid: i32,
    attempt: usize,
    /// Whether the limits of the control group were looked at, and leave room for a recording.
    has_room: bool,
    /// Serves one recording after the other: to make and remove one takes a tenth of the time, too.
    private: Option<Arc<PrivateDirectory>>,
    /// The options of the last recording, as they came without its file, and what they mean.
    known: Option<(Vec<String>, AttachArgs)>,
    active: Option<OwnRecording>,
    keeper: SumsKeeper,
}

impl PeerRecorder {
    fn new(pid: i32) -> Self {
        let keeper = SumsKeeper::default();
        Self { pid, attempt: 0, has_room: false, private: None, known: None, active: None, keeper }
    }

    /// Waits for a request; `false`: the process has ended.
    fn wait(&mut self, process: &PeerProcess, lines: &BufReader<UnixStream>) -> bool {
        let (socket, has_some) = (lines.get_ref(), !lines.buffer().is_empty());
        if let Some(active) = self.active.as_mut().filter(|active| active.is_beginning)
            && process.is_silent_for(BEGINNING, socket, has_some)
        {
            active.is_beginning = false;
            active.recording.has_begun();
        }
        process.wait_for_input(socket, has_some)
    }

    fn execute(&mut self, line: &str, answer: &mut Answer<'_>) -> Result<Value> {
        self.active.iter_mut().for_each(|active| active.rests.wait());
        Ok(match serde_json::from_str(line).context("not a request")? {
            ProgramRequest::Begin { options, memory, accounts, rests } => {
                self.begin(&options, accounts, rests)?;
                // Before the answer, so that whatever the program starts then finds its recording.
                let socket = handler::bind(false).and_then(|socket| handler::publish(socket, self.pid));
                let slots = self.give(memory, answer);
                if slots.is_err() {
                    self.discard();
                }
                let slots = slots?;
                self.serve(socket);
                json!({ "slots": slots })
            }
            ProgramRequest::Give { memory } => json!({ "slots": self.give(memory, answer)? }),
            ProgramRequest::Discard => {
                self.discard();
                json!({})
            }
            ProgramRequest::End => {
                let (answered, captures) = self.end(RecordingEnd::Stopped)?;
                answer.send(&json!({ "ok": answered }));
                // The process goes on.
                self.keeper.start(&captures);
                Value::Null
            }
            ProgramRequest::Mark(name) => {
                check_mark_name(&name).map_err(anyhow::Error::msg)?;
                let marked = self.active()?.recording.handle().mark(&name);
                let (time_ns, _) = marked.map_err(anyhow::Error::msg)?;
                json!({ "time_ns": time_ns })
            }
            ProgramRequest::Snapshot { output, force } => {
                let active = self.active()?;
                let captures = snapshot::take_own(&active.recording.handle(), &active.paths);
                check_writable(&output, force)?;
                nothing(write_files(&mut captures?, &output)?)
            }
            ProgramRequest::SpanBegin(span) => nothing(self.active()?.spans.begin(0, span)?),
            ProgramRequest::SpanCopy(copy) => nothing(self.active()?.spans.copy(&copy)?),
            ProgramRequest::SpanEnd { span } => nothing(self.active()?.spans.end(&span)?),
            ProgramRequest::Cut => nothing(self.cut()?),
            ProgramRequest::Sums { captures, spans } => sums(&captures, &spans)?,
            ProgramRequest::Rest(request) => {
                let active = self.active.as_mut().context("nothing is being recorded")?;
                active.rests.rest(&active.recording.handle(), request, answer.socket);
                answer.is_sent = true;
                Value::Null
            }
            ProgramRequest::Written(times) => {
                let active = self.active.as_mut().context("nothing is being recorded")?;
                active.rests.written(&active.recording.handle(), active.recording.capture(), &times)?
            }
            ProgramRequest::Since(span) => {
                let active = self.active()?;
                nothing(active.rests.begin_span(&active.spans, span)?)
            }
            ProgramRequest::Sync(number) => json!({ "sync": number }),
        })
    }

    fn active(&self) -> Result<&OwnRecording> {
        self.active.as_ref().context("nothing is being recorded")
    }

    fn begin(&mut self, options: &[String], accounts: bool, rests: bool) -> Result<()> {
        if self.active.is_some() {
            bail!("the process is already being recorded");
        }
        let options = self.parse(options)?.as_run(args::Colors { color: crate::terminal::Color::Auto });
        let options = args::RunArgs { quiet: true, ..options };
        super::refuse_contradictions(&options)?;
        // Once: to find the limits takes a tenth of the time for which the process waits.
        if !self.has_room {
            room()?;
            self.has_room = true;
        }
        let private = match self.private.take() {
            Some(private) => private,
            None => Arc::new(PrivateDirectory::new()?),
        };
        let private = Arc::clone(self.private.insert(private));
        let how = RecordingOptions { accounts, ..super::recording_options(&options) };
        let of_rests = RecordingRests::default();
        let follower = rests.then(|| of_rests.follower());
        let mut recording = AttachedRecording::open(&options, how, self.pid, private, follower)?;
        recording.name();
        let children = recording.children().clone();
        let unnamed = Arc::<OnceLock<File>>::default();
        let of_first = Arc::clone(&unnamed);
        let paths: CapturePaths = Arc::new(move |number| match of_first.get() {
            // Clients of the control socket read it, too.
            Some(file) if number == 0 => Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()),
            _ => children.capture(number),
        });
        let spans = OpenSpans::new(recording.handle(), Arc::clone(&paths), super::recorded_kinds(&options));
        self.active = Some(OwnRecording {
            recording,
            options,
            paths,
            server: None,
            spans,
            rests: of_rests,
            unnamed,
            is_for_reports: accounts,
            is_beginning: true,
        });
        self.attempt = 0;
        Ok(())
    }

    /// What the options mean. The process waits for it, and has the same ones for each of its files.
    fn parse(&mut self, options: &[String]) -> Result<AttachArgs> {
        let output = options.iter().find_map(|option| option.strip_prefix(OUTPUT)).map(PathBuf::from);
        let others: Vec<String> = options.iter().filter(|option| !option.starts_with(OUTPUT)).cloned().collect();
        if let Some((_, meaning)) = self.known.as_ref().filter(|(words, _)| *words == others) {
            return Ok(AttachArgs { output, ..meaning.clone() });
        }
        let pid = self.pid.to_string();
        let words = ["memtrack", &pid].into_iter().chain(others.iter().map(String::as_str));
        let meaning = OwnOptions::try_parse_from(words).map_err(|error| refusal(&error))?.attach;
        let (_, meaning) = self.known.insert((others, meaning));
        Ok(AttachArgs { output, ..meaning.clone() })
    }

    /// Answers other programs. The process does not wait for it.
    fn serve(&mut self, socket: Option<ControlSocket>) {
        let Some(active) = &mut self.active else { return };
        let (recording, kinds) = (&active.recording, super::recorded_kinds(&active.options));
        let commands = RecordingCommands::new(recording.handle(), Arc::clone(&active.paths), self.pid, kinds);
        active.server = socket.and_then(|socket| commands.begun_by_program().serve(socket));
    }

    /// Makes the shared memory in a file of the process, and answers as soon as the process may use it.
    fn give(&mut self, memory: i32, answer: &mut Answer<'_>) -> Result<Option<u32>> {
        let path = format!("/proc/{}/fd/{memory}", self.pid);
        // What else may have that number by now is not even opened: a pipe or a device may wait, or do something.
        let link = fs::read_link(&path).with_context(|| format!("{path}: the shared memory cannot be opened"))?;
        if link.as_os_str() != MEMORY_LINK {
            bail!("{path}: this is not the shared memory any more");
        }
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path);
        let file = file.with_context(|| format!("{path}: the shared memory cannot be opened"))?;
        let mut ready = |slots| answer.send(&json!({ "ok": { "slots": slots } }));
        let slots = self.active()?.recording.give(&file, self.attempt, &mut ready);
        let slots = slots.context("shared memory cannot be created")?;
        self.attempt += 1;
        Ok(slots)
    }

    fn discard(&mut self) {
        if let Some(active) = self.active.take() {
            drop(active.server);
            active.recording.discard();
        }
    }

    /// Completes the capture, under its name. The recording goes on in the file that it has, without a name.
    fn cut(&self) -> Result<()> {
        let active = self.active.as_ref().context("nothing is being recorded")?;
        let handle = active.recording.handle();
        let end = handle.position(0).map_err(anyhow::Error::msg)?;
        let end = end.context("the process has not begun to record")?;
        let output = active.recording.capture();
        // A link is kept, and leads to the file.
        let output = output.canonicalize().unwrap_or_else(|_| output.into());
        let mut capture = snapshot::take_span(&handle, 0, TicketSpan { begin: None, end: Some(end) })?;
        let file = capture.file().try_clone().context("the file of the recording cannot be kept open")?;
        // Before the rename, after which the name is that of another file. It is set once, since a Tracker is stopped once.
        let _ = active.unnamed.set(file);
        write_files(std::slice::from_mut(&mut capture), &output)
    }

    /// Completes the capture; returns what the process is told, and the captures whose sums are worth to be kept.
    fn end(&mut self, end: RecordingEnd) -> Result<(Value, Vec<PathBuf>)> {
        let OwnRecording { recording, options, server, spans, unnamed, is_for_reports, .. } =
            self.active.take().context("nothing is being recorded")?;
        let EndedRecording { capture, summary, children, .. } = recording.complete(end);
        spans.close(&children.numbers());
        if let Some(server) = server {
            server.close_spans(&children.numbers());
            server.end_views();
        }
        let path = capture.path().to_path_buf();
        let failed = summary.as_ref().err().map(ToString::to_string);
        let notes = summary.as_ref().map(|summary| summary.notes.clone()).unwrap_or_default();
        // The name may be anybody's.
        let is_cut = unnamed.get().is_some();
        let repack = |captures: &[PathBuf]| {
            if let Some(compression) = repack::plan(options.compress).1.filter(|_| !is_cut) {
                repack::repack(captures, compression, &wait_for_nothing());
            }
        };
        let is_worth_it = is_for_reports && !is_cut && summary.as_ref().is_ok_and(keep_sums::is_worth_it);
        let ended = (&options, &Termination::unknown());
        let captures = final_summary::report(ended, capture, &path, summary, (&children, None, None), &repack);
        match failed {
            Some(reason) if is_cut => bail!("the recording after {}: {reason}", path.display()),
            Some(reason) => bail!("{}: {reason}", path.display()),
            None => {
                let answer = json!({ "captures": captures, "notes": notes });
                Ok((answer, if is_worth_it { captures } else { Vec::new() }))
            }
        }
    }
}

/// What is said of an error, with the remedy if a limit of the system is the reason.
fn with_remedy(error: &anyhow::Error) -> String {
    let said = format!("{error:#}");
    match limit(error) {
        Some(remedy) if !said.contains(remedy) => format!("{said}; {remedy}"),
        _ => said,
    }
}

/// The answer that says nothing.
fn nothing((): ()) -> Value {
    json!({})
}

/// For each capture, and each span: the number of allocations, their bytes, the most of these at once, and those that were
/// left.
fn sums(captures: &[PathBuf], spans: &[(u64, u64)]) -> Result<Value> {
    let spans: Vec<_> = spans.iter().map(|&(from_ns, to_ns)| TimeSpan { from_ns, to_ns }).collect();
    let of_capture = |path: &PathBuf| {
        let file = CaptureReader::open(path)?;
        refuse_samples(&file)?;
        let sums = span_sums::of_capture(&file, &spans)?.spans.into_iter();
        Ok(sums.map(|(_, sum)| of_span(&sum)).collect())
    };
    let sums: Vec<Vec<_>> = of_one_recording(captures)?.iter().map(of_capture).collect::<Result<_>>()?;
    Ok(json!(sums))
}

/// What an option was refused for, without what a command line says beside: there is none.
fn refusal(error: &clap::Error) -> anyhow::Error {
    let said = error.to_string();
    let reason = said.lines().next().unwrap_or_default();
    anyhow::Error::msg(reason.strip_prefix("error: ").unwrap_or(reason).to_owned())
}
